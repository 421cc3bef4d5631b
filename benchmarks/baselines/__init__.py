"""Detectors of the paper's comparison that no maintained package offers as the paper ran them."""
