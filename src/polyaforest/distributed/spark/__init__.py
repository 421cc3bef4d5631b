"""Detectors on Apache Spark."""
