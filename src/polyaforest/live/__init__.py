"""Streams that never end: models that are kept by key, judged, explained and saved while records come."""
