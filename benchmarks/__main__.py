"""`python -m benchmarks`."""

from benchmarks.registry import main

main()
