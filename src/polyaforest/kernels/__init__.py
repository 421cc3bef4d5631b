"""Compiled loops. Lowest layer first: geometry, then cuts (`mondrian_tree`, `mondrian_process`) apart from the
probability of each side (`polya`), then walks over whole forests (`traversal`).
"""
