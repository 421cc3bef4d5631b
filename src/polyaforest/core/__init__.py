"""What everything else stands on: arrays, random numbers, compilation, locks, checks of input."""
