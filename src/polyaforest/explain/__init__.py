"""Explanations of the surprise of rows, in bits and in words."""

from polyaforest.explain.explanation import Attribution, ContextWindow, Explanation, Explanations, read_features

__all__ = ["Attribution", "ContextWindow", "Explanation", "Explanations", "read_features"]
