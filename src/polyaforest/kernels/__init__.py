"""The hot loops. Lowest layer first: geometry, then where cuts fall (`mondrian`, `process`) apart from how likely
each side is (`polya`), then walks over whole forests (`forest`).
"""
