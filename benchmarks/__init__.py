"""Measurements of accuracy and speed: `python -m benchmarks list` names them, `run` and `render` take their names.

Each module declares one benchmark (see `registry`). Results are CSV files in results/; they fill docs/benchmarks/.
"""
