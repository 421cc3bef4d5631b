"""What differs between operating systems: locks of files, reads at an offset, signals, waiting for input.

Windows has no counterpart of some calls. Each function here says what it does there instead.
"""

from __future__ import annotations

import os
import signal
import stat
import sys

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl
    import select

HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)  # None on Windows
_BINARY = getattr(os, "O_BINARY", 0)  # Windows would otherwise translate line ends
AS_IT_COMES = os.O_RDONLY | _BINARY | getattr(os, "O_NONBLOCK", 0)  # open a pipe without waiting for its writer
NO_LINK = _BINARY | getattr(os, "O_NOFOLLOW", 0)  # refuse symbolic links, where the system can


def lock_alone(file: int) -> None:
    """Lock an open file until it is closed; raise BlockingIOError if another process holds the lock.

    The operating system releases the lock when a process ends. Windows locks a byte far beyond the end of the file, so
    that others can read what the file says.
    """
    if sys.platform == "win32":
        place = os.lseek(file, 0, os.SEEK_CUR)
        try:
            os.lseek(file, 2**30, os.SEEK_SET)
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError as problem:
            raise BlockingIOError(*problem.args) from None
        finally:
            os.lseek(file, place, os.SEEK_SET)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def read_at(file: int, n: int, offset: int) -> bytes:
    """Return up to `n` bytes of an open file from an offset on, without moving its position.

    On Windows the position moves for a moment, so no other thread may read the same descriptor.
    """
    if sys.platform == "win32":
        place = os.lseek(file, 0, os.SEEK_CUR)
        try:
            os.lseek(file, offset, os.SEEK_SET)
            return os.read(file, n)
        finally:
            os.lseek(file, place, os.SEEK_SET)
    else:
        return os.pread(file, n, offset)


def wait_for_input(file: int, seconds: float) -> bool:
    """Return whether bytes, or the end, can be read from a pipe or a terminal within some seconds.

    Windows cannot wait for pipes: the next read waits there.
    """
    if sys.platform == "win32":
        return True
    else:  # noqa: RET505 - so that types are checked for each system
        poll = select.poll()
        poll.register(file, select.POLLIN)
        return bool(poll.poll(seconds * 1000.0))


def physical_memory() -> int | None:
    """Return the size of the memory in bytes; None if the system does not say."""
    if sys.platform == "win32" or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def copy_owner(file: int, facts: os.stat_result) -> None:
    """Give an open file the permissions and, for the superuser, the owner of another; on Windows it inherits both."""
    if sys.platform != "win32":
        if os.geteuid() == 0:
            os.fchown(file, facts.st_uid, facts.st_gid)
        os.fchmod(file, stat.S_IMODE(facts.st_mode))
