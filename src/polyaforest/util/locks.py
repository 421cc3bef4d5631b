"""Locks of forests: any number of readers at once, or one writer that is not interrupted.

Copying, pickling and saving count as reading.
"""

from __future__ import annotations

# `signal` wraps these functions in enumerations, which is too slow for calls with a single row
import _signal  # type: ignore[import-not-found]
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from signal import SIGINT
from threading import Condition, Lock, get_ident, main_thread
from types import FrameType
from typing import Any, ClassVar, Self, overload
from weakref import WeakSet


class uninterrupted:  # noqa: N801 -- used like a function; a generator would be several times slower
    """Defer SIGINT (Ctrl-C) until the block ends; ``as`` binds a function that returns whether it was pressed.

    Python delivers signals to the main thread only, so other threads need no protection.
    """

    __slots__ = ("_caught", "_handler")

    def __enter__(self) -> Callable[[], bool]:
        self._caught: list[tuple[int, FrameType | None]] = []
        handler = _signal.getsignal(SIGINT) if get_ident() == main_thread().ident else None
        self._handler = handler if callable(handler) else None
        if self._handler is not None:
            _signal.signal(SIGINT, self._catch)
        return self._is_pressed

    def __exit__(self, *problem: object) -> None:
        if self._handler is not None:
            _signal.signal(SIGINT, self._handler)
            if self._caught:
                self._handler(*self._caught[-1])

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self._caught.append((number, frame))

    def _is_pressed(self) -> bool:
        return bool(self._caught)


_LOCKS: WeakSet[ReadersWriterLock] = WeakSet()  # to be released in forked children


class _LockHold:
    """Hold a lock during a block: call `begin` first, then `end` with whether the block succeeded."""

    __slots__ = ("_begin", "_end")

    def __init__(self, begin: Callable[[], None], end: Callable[[bool], None]) -> None:
        self._begin, self._end = begin, end

    def __enter__(self) -> None:
        self._begin()

    def __exit__(self, kind: type[BaseException] | None, *problem: object) -> None:
        self._end(kind is None)


class ReadersWriterLock:
    """A fair lock for many readers or one writer.

    A waiting writer goes before readers that arrive later; once it is done, the readers that wait by then go before the
    next writer. A reader may acquire the lock for reading again; any other reentrant use would deadlock and raises. In
    a forked child the lock is free, even if the parent held it; if it was held for writing, the child may only replace
    the whole state.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._turn = Lock()
        self._readers: list[int] = []  # threads that read
        self._n_to_read = 0  # threads that wait to read
        self._n_passing = 0  # waiting readers that go before the next writer
        self._n_to_write = 0  # threads that wait to write, or write
        self._writer: int | None = None  # the thread that writes
        self._n_written = 0
        self._is_torn = False  # whether this process was forked during a change
        _LOCKS.add(self)

    def reading(self) -> _LockHold:
        """Take the lock for reading."""
        return _LockHold(self._begin_to_read, self._end_reading)

    def _begin_to_read(self) -> None:
        me = get_ident()
        with self._changed:
            self._check_not_torn()
            if me not in self._readers:
                self._wait_to_read(me)
            self._readers.append(me)

    def _end_reading(self, is_done: bool) -> None:
        with self._changed:
            self._readers.remove(get_ident())
            self._changed.notify_all()

    def _wait_to_read(self, me: int) -> None:
        self._check_not_reentrant(me == self._writer)
        came = self._n_written
        self._n_to_read += 1
        try:
            self._changed.wait_for(lambda: self._writer is None and (self._n_to_write == 0 or self._n_written > came))
        finally:
            self._n_to_read -= 1
            self._n_passing -= self._n_written > came
            self._changed.notify_all()

    def writing(self, *, replace_all: bool = False) -> _LockHold:
        """Take the lock for writing; with `replace_all`, also if a fork left the state inconsistent."""
        if replace_all:
            return _LockHold(self._begin_to_replace, self._end_replacing)
        return _LockHold(self._begin_to_write, self._end_writing)

    def _begin_to_write(self) -> None:
        self._check_not_torn()
        self._begin_to_replace()

    def _begin_to_replace(self) -> None:
        me = get_ident()
        with self._changed:
            self._check_not_reentrant(me == self._writer or me in self._readers)
            self._n_to_write += 1
            if self._readers or self._n_passing or self._writer is not None:
                self._wait_to_write()
            self._writer = me

    def _end_writing(self, is_done: bool) -> None:
        with self._changed:
            self._writer = None
            self._n_to_write -= 1
            self._n_written += 1
            self._n_passing = self._n_to_read
            self._changed.notify_all()

    def _end_replacing(self, is_done: bool) -> None:
        self._is_torn &= not is_done
        self._end_writing(is_done)

    def _wait_to_write(self) -> None:
        try:
            self._changed.wait_for(lambda: not self._readers and self._n_passing == 0 and self._writer is None)
        except BaseException:
            self._n_to_write -= 1
            self._changed.notify_all()
            raise

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Exclude other multi-step changes; threads may read between the steps."""
        with self._turn:
            yield

    def _check_not_torn(self) -> None:
        if self._is_torn:
            raise RuntimeError(
                "this process was forked while another thread changed the detector, so its copy here is inconsistent: "
                "pass the detector to the process as an argument (pickled), do not fork while it learns, load a saved "
                "model, or fit again"
            )

    @staticmethod
    def _check_not_reentrant(is_inside: bool) -> None:
        if is_inside:
            raise RuntimeError(
                "this thread already uses the detector and would deadlock: signal handlers must not use a detector "
                "that they may interrupt"
            )

    def _reset_in_child(self) -> None:
        """Release the locks of other threads in a forked child, where only this thread exists."""
        me = get_ident()
        self._is_torn |= self._writer is not None
        self._changed, self._turn = Condition(), Lock()
        self._readers = [reader for reader in self._readers if reader == me]
        self._n_to_read = self._n_passing = 0
        self._n_to_write = int(self._writer == me)
        self._writer = me if self._writer == me else None


def _reset_locks() -> None:
    for lock in _LOCKS:
        lock._reset_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_locks)


class _OwnLock:
    """The lock of an object, created on first use and never replaced."""

    @overload
    def __get__(self, thing: None, owner: type) -> Self: ...
    @overload
    def __get__(self, thing: object, owner: type) -> ReadersWriterLock: ...
    def __get__(self, thing: object, owner: type) -> Self | ReadersWriterLock:
        if thing is None:
            return self
        lock: ReadersWriterLock = vars(thing).setdefault("_lock", ReadersWriterLock())  # atomic
        return lock


class Guarded:
    """An object that threads share; it can be copied and pickled while another thread changes it.

    Every copy is deep, even by `copy.copy`: two objects with separate locks must not share state.
    """

    _not_copied: ClassVar[frozenset[str]] = frozenset({"_lock"})
    _lock = _OwnLock()

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        """Prevent changes while the whole is read. Defer SIGINT so that the lock is always released."""
        with uninterrupted(), self._lock.reading():
            yield

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Exclude other threads, and defer SIGINT, during a change."""
        with uninterrupted(), self._lock.writing():
            yield

    @contextmanager
    def _drafted(self) -> Iterator[Self]:
        """Yield a draft whose state replaces that of this object if the block succeeds.

        The draft shares all parts with this object: replace them, do not write to them.
        """
        draft = type(self).__new__(type(self))
        vars(draft).update(self._parts())
        yield draft
        with uninterrupted(), self._lock.writing(replace_all=True):
            self.__dict__ = {**vars(draft), "_lock": self._lock}

    def _parts(self) -> dict[str, Any]:
        parts = dict(vars(self))  # atomic
        return {name: part for name, part in parts.items() if name not in self._not_copied}

    def __getstate__(self) -> dict[str, Any]:
        with self._frozen():
            return deepcopy(self._parts())  # pickled later, when other threads may change the original

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        memo[id(self)] = twin = type(self).__new__(type(self))
        with self._frozen():
            vars(twin).update(deepcopy(self._parts(), memo))
        return twin

    def __copy__(self) -> Self:
        return deepcopy(self)
