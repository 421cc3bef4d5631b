"""What several benchmarks use: results, pages, metrics, and the detectors they compare."""
