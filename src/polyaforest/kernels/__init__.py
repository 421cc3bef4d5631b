"""Compiled kernels, in layers: geometry, then the cuts (`mondrian_tree`, `mondrian_process`) and, independent of them,
the probability of each side (`polya`), then walks over whole forests (`traversal`).
"""
