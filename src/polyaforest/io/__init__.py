"""Read tables and live records, and write results; import from the submodules."""
