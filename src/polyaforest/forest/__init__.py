"""Forests as arrays: grown, scored, followed along a stream, checked."""
