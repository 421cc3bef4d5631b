"""Wait for conditions instead of fixed times."""

import time

STEP = 0.01  # seconds


def until(is_so, seconds=60.0):
    """Wait until a condition holds; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"not so after {seconds:g} s"
        time.sleep(STEP)
