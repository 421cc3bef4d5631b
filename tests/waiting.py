"""Wait for conditions instead of fixed times."""

import threading
import time

STEP = 0.01  # seconds


def until(is_so, seconds=60.0):
    """Wait until a condition holds; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"not so after {seconds:g} s"
        time.sleep(STEP)


def is_free(lock, seconds=10.0):
    """Return whether a writer, and then a reader, can take the lock within `seconds`."""
    done = threading.Event()

    def visit():
        with lock.writing():
            pass
        with lock.reading():
            done.set()

    threading.Thread(target=visit, daemon=True).start()
    return done.wait(seconds)
