"""Who may touch a forest when: any number of readers at once, or one that changes it and is not interrupted."""

from __future__ import annotations

# `signal` wraps the same in enumerations, at a cost that counts when every row of a stream comes in a call of its own
import _signal  # type: ignore[import-not-found]
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from signal import SIGINT
from threading import Condition, get_ident, main_thread
from types import FrameType


@contextmanager
def uninterrupted() -> Iterator[Callable[[], bool]]:
    """Hold Ctrl-C back until the block is done, then let it take its course; yields whether it has come.

    Python hands signals to the main thread alone, so nothing needs doing in others.
    """
    handler = _signal.getsignal(SIGINT) if get_ident() == main_thread().ident else None
    if not callable(handler):
        yield lambda: False
        return
    caught: list[tuple[int, FrameType | None]] = []
    try:
        _signal.signal(SIGINT, lambda number, frame: caught.append((number, frame)))
        yield lambda: bool(caught)
    finally:
        _signal.signal(SIGINT, handler)
        if caught:
            handler(*caught[-1])


class ReadersWriterLock:
    """Lets many threads read or one write, and nobody starve.

    A thread that waits to write goes before those that come to read later; when it is done, those that were waiting to
    read by then go before the next to write. It is not reentrant: code that holds it must not ask for it again.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._n_reading = 0
        self._n_to_read = 0  # threads that wait to read
        self._n_passing = 0  # those of them whose turn it is
        self._n_to_write = 0  # threads that wait to write, or write
        self._is_writing = False
        self._n_written = 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold off writers."""
        with self._changed:
            came = self._n_written
            self._n_to_read += 1
            try:
                self._changed.wait_for(
                    lambda: not self._is_writing and (self._n_to_write == 0 or self._n_written > came)
                )
            finally:
                self._n_to_read -= 1
                self._n_passing -= self._n_written > came
                self._changed.notify_all()
            self._n_reading += 1
        try:
            yield
        finally:
            with self._changed:
                self._n_reading -= 1
                self._changed.notify_all()

    def _wait_to_write(self) -> None:
        try:
            self._changed.wait_for(lambda: self._n_reading == 0 and self._n_passing == 0 and not self._is_writing)
        except BaseException:
            self._n_to_write -= 1
            self._changed.notify_all()
            raise

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold off everyone else."""
        with self._changed:
            self._n_to_write += 1
            if self._n_reading or self._n_passing or self._is_writing:
                self._wait_to_write()
            self._is_writing = True
        try:
            yield
        finally:
            with self._changed:
                self._is_writing = False
                self._n_to_write -= 1
                self._n_written += 1
                self._n_passing = self._n_to_read
                self._changed.notify_all()
