"""Explanations of the surprise of rows, in bits and in words."""

from polyaforest.explain.explanation import Blame, Course, Explanation, Explanations, read_features

__all__ = ["Blame", "Course", "Explanation", "Explanations", "read_features"]
