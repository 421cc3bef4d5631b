"""Wait for conditions instead of for a time that is hoped to be enough."""

import time

STEP = 0.01  # seconds


def until(is_so, seconds=60.0):
    """Return once something is so; fail if it is not within `seconds`."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"not so after {seconds:g} s"
        time.sleep(STEP)
