"""Explanations of the surprise of rows, in bits and in words."""

from polyaforest.explain.explanation import Blame, Explanation, Explanations, read_features

__all__ = ["Blame", "Explanation", "Explanations", "read_features"]
