"""Locks of forests: any number of readers at once, or one writer that is not interrupted.

Copying, pickling and saving are reading.
"""

from __future__ import annotations

# `signal` wraps the same in enumerations, at a cost that counts when every row of a stream comes in a call of its own
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


class uninterrupted:  # noqa: N801 -- used like a function; generators as context managers cost several times as much
    """Hold Ctrl-C back until the block is done, then let it take effect; ``as`` a function that says if it was pressed.

    Python hands signals to the main thread alone, so nothing needs doing in others.
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


_LOCKS: WeakSet[ReadersWriterLock] = WeakSet()  # all that a forked child has to set free


class _Held:
    """A lock held during a block: how it begins, and how it ends, given whether the block was done."""

    __slots__ = ("_begin", "_end")

    def __init__(self, begin: Callable[[], None], end: Callable[[bool], None]) -> None:
        self._begin, self._end = begin, end

    def __enter__(self) -> None:
        self._begin()

    def __exit__(self, kind: type[BaseException] | None, *problem: object) -> None:
        self._end(kind is None)


class ReadersWriterLock:
    """A fair lock for many readers or one writer.

    A thread that waits to write goes before those that come to read later; when it is done, those that were waiting to
    read by then go before the next to write. A thread that reads may ask to read again; any other way of asking twice
    would never end, and is refused. In a forked child the lock is free, even if held in the parent; if it was held
    for writing, only a change that replaces everything is allowed.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._turn = Lock()
        self._readers: list[int] = []  # threads that read
        self._n_to_read = 0  # threads that wait to read
        self._n_passing = 0  # those of them whose turn it is
        self._n_to_write = 0  # threads that wait to write, or write
        self._writer: int | None = None  # the thread that writes
        self._n_written = 0
        self._is_torn = False  # whether this process was forked in the middle of a change
        _LOCKS.add(self)

    def reading(self) -> _Held:
        """Hold off writers."""
        return _Held(self._begin_to_read, self._end_reading)

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

    def writing(self, *, replace_all: bool = False) -> _Held:
        """Take the lock for writing; with `replace_all`, also if a failed change left the state inconsistent."""
        if replace_all:
            return _Held(self._begin_to_replace, self._end_replacing)
        return _Held(self._begin_to_write, self._end_writing)

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
        """Hold off others who take turns, during a change in several steps between which others may read."""
        with self._turn:
            yield

    def _check_not_torn(self) -> None:
        if self._is_torn:
            raise RuntimeError(
                "this process was forked while the detector was being changed, so that its copy here is half changed: "
                "pass the detector to the process as an argument (pickled), fork while nothing is learned, load a "
                "saved model, or fit again"
            )

    @staticmethod
    def _check_not_reentrant(is_inside: bool) -> None:
        if is_inside:
            raise RuntimeError(
                "this very thread already uses the detector and would deadlock: signal handlers must not use the "
                "detector that they may interrupt"
            )

    def _restart(self) -> None:
        """Go on in a forked child, where of all threads only this one lives."""
        me = get_ident()
        self._is_torn |= self._writer is not None
        self._changed, self._turn = Condition(), Lock()
        self._readers = [reader for reader in self._readers if reader == me]
        self._n_to_read = self._n_passing = 0
        self._n_to_write = int(self._writer == me)
        self._writer = me if self._writer == me else None


def _restart_locks() -> None:
    for lock in _LOCKS:
        lock._restart()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restart_locks)


class _OwnLock:
    """The lock of an object, made when first asked for and never replaced."""

    @overload
    def __get__(self, thing: None, owner: type) -> Self: ...
    @overload
    def __get__(self, thing: object, owner: type) -> ReadersWriterLock: ...
    def __get__(self, thing: object, owner: type) -> Self | ReadersWriterLock:
        if thing is None:
            return self
        lock: ReadersWriterLock = vars(thing).setdefault("_lock", ReadersWriterLock())  # one step: all get the same
        return lock


class Guarded:
    """An object that threads share, and that can be copied and pickled while one of them changes it.

    A copy is independent, also one made by `copy.copy`: two objects with a lock each must not share what they guard.
    """

    _not_copied: ClassVar[frozenset[str]] = frozenset({"_lock"})
    _lock = _OwnLock()

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        """Hold off changes while the whole is read. Ctrl-C has to wait too, or it might leave the door locked."""
        with uninterrupted(), self._lock.reading():
            yield

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold off everyone else, and Ctrl-C, during a change."""
        with uninterrupted(), self._lock.writing():
            yield

    @contextmanager
    def _drafted(self) -> Iterator[Self]:
        """Yield a draft that takes the place of this object in one step, or not at all if anything goes wrong.

        It shares all parts with the object: they are to be replaced, not to be written to.
        """
        draft = type(self).__new__(type(self))
        vars(draft).update(self._parts())
        yield draft
        with uninterrupted(), self._lock.writing(replace_all=True):
            self.__dict__ = {**vars(draft), "_lock": self._lock}

    def _parts(self) -> dict[str, Any]:
        parts = dict(vars(self))  # in one step
        return {name: part for name, part in parts.items() if name not in self._not_copied}

    def __getstate__(self) -> dict[str, Any]:
        with self._frozen():
            return deepcopy(self._parts())  # it is pickled later, when nothing holds off changes any more

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        memo[id(self)] = twin = type(self).__new__(type(self))
        with self._frozen():
            vars(twin).update(deepcopy(self._parts(), memo))
        return twin

    def __copy__(self) -> Self:
        return deepcopy(self)
