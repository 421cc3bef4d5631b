"""When a row is an anomaly: thresholds, calibration, p-values, credible intervals."""
