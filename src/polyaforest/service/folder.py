"""The data folder of the service, which one process at a time may use."""

from __future__ import annotations

import fcntl
import os

from polyaforest.io.errors import BadInput

__all__ = ["Folder"]

_NAME = "lock"


class Folder:
    """A data folder, created if it does not exist, and locked until `close`.

    The operating system holds the lock, and releases it when the process ends, however it ends. The file of the lock
    has the number of the process, for the message to a second one.

    Parameters
    ----------
    path : str
    """

    def __init__(self, path: str) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)
        self.path = path
        self._lock = os.open(os.path.join(path, _NAME), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._holder()
            os.close(self._lock)
            raise BadInput(
                f"the data folder {path} is in use by another polyaforest serve{holder}: stop that one first, or name "
                "another folder with --data"
            ) from None
        os.truncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def _holder(self) -> str:
        """Return the number of the process that has the lock, in words; nothing if it is unknown."""
        text = os.pread(self._lock, 32, 0)
        return f" (process {int(text)})" if text.isdigit() else ""

    def close(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
