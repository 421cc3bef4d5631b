"""Explanations of scores, in bits and as text."""

from polyaforest.explain.explanation import Attribution, ContextWindow, Explanation, Explanations, read_features

__all__ = ["Attribution", "ContextWindow", "Explanation", "Explanations", "read_features"]
