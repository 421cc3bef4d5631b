"""Decide which rows are anomalies: thresholds, calibration, p-values, credible intervals."""
