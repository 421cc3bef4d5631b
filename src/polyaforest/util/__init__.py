"""Helpers without knowledge of forests: locks, threads, text, durations, rules for untrusted values."""
