"""Explanations of scores, in bits and as text."""

from polyaforest.explain.explanation import Explanation, Explanations
from polyaforest.explain.parts import Attribution, ContextWindow, read_features

__all__ = ["Attribution", "ContextWindow", "Explanation", "Explanations", "read_features"]
