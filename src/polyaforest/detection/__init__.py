"""Detect, explain and report anomalies in tables and streams."""
