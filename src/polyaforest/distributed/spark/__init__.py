"""Forests on Apache Spark."""
