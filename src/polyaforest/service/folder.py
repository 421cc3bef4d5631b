"""The data folder of the service, used by one process at a time."""

from __future__ import annotations

import os
import shutil

from polyaforest.io.errors import BadInput
from polyaforest.util.system import NO_LINK, lock_alone, read_at

__all__ = ["Folder"]

_NAME = "lock"
_TEMPORARY = ("backup-", "restore-")  # folders with copies of the files


class Folder:
    """A data folder, created if missing, and locked until `close`.

    The operating system releases the lock when the process ends. The lock file contains the process id, for the error
    message of a second process.

    Parameters
    ----------
    path : str
    """

    def __init__(self, path: str) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)
        self.path = path
        self._lock = os.open(os.path.join(path, _NAME), os.O_RDWR | os.O_CREAT | NO_LINK, 0o600)
        try:
            lock_alone(self._lock)
        except BlockingIOError:
            holder = self._holder()
            os.close(self._lock)
            raise BadInput(
                f"the data folder {path} is in use by another polyaforest serve{holder}: stop that process, or choose "
                "another folder with --data"
            ) from None
        for name in os.listdir(path):
            if name.startswith(_TEMPORARY):  # of a process that was killed
                shutil.rmtree(os.path.join(path, name), ignore_errors=True)
        os.truncate(self._lock, 0)
        os.write(self._lock, str(os.getpid()).encode())

    def _holder(self) -> str:
        """Return the id of the process that holds the lock, as text; "" if unknown."""
        text = read_at(self._lock, 32, 0)
        return f" (process {int(text)})" if text.isdigit() else ""

    def close(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
