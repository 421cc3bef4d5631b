"""The cache of compiled kernels: one directory per combination of sources, versions and settings.

Numba checks only the file that defines a kernel and would keep using old machine code after a helper, constant or field
in another file has changed. So the name of the directory is a digest of all of them.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import llvmlite
import llvmlite.binding
import numba
import numpy as np
import platformdirs

from polyaforest.kernels import STATES_AT_IMPORT, source_state, source_states

CACHE_VARIABLE, CPU_VARIABLE = "POLYAFOREST_CACHE_DIR", "POLYAFOREST_CPU"
_OPTIONS = ("BOUNDSCHECK", "DEBUGINFO_DEFAULT", "ENABLE_AVX", "LOOP_VECTORIZE", "OPT", "SLP_VECTORIZE")  # of Numba
COMPARES_CONTENT = (0, 68)  # Numba before this version compiles again after a source file is rewritten unchanged
_KEPT = 8  # most recently used directories to keep
# The target of "portable" on each architecture, and the features that a processor needs to run it.
_BASELINES = {
    "x86_64": ("x86-64-v3", "avx avx2 bmi bmi2 cx16 f16c fma lzcnt movbe popcnt sahf sse3 sse4.1 sse4.2 ssse3 xsave"),
    "aarch64": ("generic", "neon"),
}
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}  # the names on Windows and macOS


def cache_root() -> Path:
    """Return the directory for files that can be recreated: POLYAFOREST_CACHE_DIR, or the user's cache directory."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named).expanduser().absolute() if named else platformdirs.user_cache_path("polyaforest")


def select_cpu() -> str:
    """Make Numba compile for the processor that POLYAFOREST_CPU selects; return the name of that processor.

    Call it before any function is decorated. Numba has one target per process, so "portable" applies to all compiled
    functions of this process.

    Raises
    ------
    ValueError
        If the variable is neither "native" nor "portable".
    """
    chosen = os.environ.get(CPU_VARIABLE) or "native"
    if chosen not in {"native", "portable"}:
        raise ValueError(f"{CPU_VARIABLE} is {chosen!r}; set it to 'native' or 'portable'")
    baseline = _baseline() if chosen == "portable" else None
    if baseline is not None:
        numba.config.CPU_NAME, numba.config.CPU_FEATURES = baseline, ""
    return str(numba.config.CPU_NAME or llvmlite.binding.get_host_cpu_name())


def _baseline() -> str | None:
    """Return the name of the portable processor; None, with a warning, if this machine cannot run its code."""
    machine = platform.machine().lower()
    name, needed = _BASELINES.get(_MACHINES.get(machine, machine), ("generic", ""))
    features = llvmlite.binding.get_host_cpu_features()
    missing = [feature for feature in needed.split() if not features.get(feature)]
    if missing:
        _warn(
            f"this processor cannot run portable kernels ({name}): it lacks {', '.join(missing)}. Kernels are compiled "
            "for this processor instead."
        )
    return None if missing else name


@contextmanager
def caching(source: str) -> Iterator[bool]:
    """Let Numba cache kernels of a file that are decorated in this context; yield whether caching is possible.

    Numba reads its cache directory when a kernel is decorated. Functions of other packages keep theirs.
    """
    directory = kernel_directory()
    if directory is None or source_state(source) != STATES_AT_IMPORT.get(source):
        yield False
        return
    theirs, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(directory)
    try:
        yield True
    finally:
        numba.config.CACHE_DIR = theirs


@cache
def kernel_directory() -> Path | None:
    """Return the directory for the machine code of these kernels; create it if absent.

    If the cache is read-only, return a copy in a temporary directory. If nothing can be cached, warn and return None.
    """
    key = _key()
    if key is None:
        _warn(
            "compiled kernels are not cached, because the source files of polyaforest are unreadable or have changed "
            "since this process started. Restart the process."
        )
        return None
    wanted = cache_root() / "kernels" / key
    if _is_usable(wanted):
        return wanted
    fallback = _temporary_root() / "kernels" / key
    is_filled = _copy(wanted, fallback)
    if not _is_usable(fallback):
        _warn(
            f"compiled kernels are not cached, so each process compiles them again: {wanted} is not writable. "
            f"Set {CACHE_VARIABLE} to a writable directory."
        )
        return None
    if not is_filled:
        _warn(
            f"{wanted} is not writable, so compiled kernels are kept in {fallback}, which may be emptied when the "
            f"machine restarts. Set {CACHE_VARIABLE} to a writable directory."
        )
    return fallback


def _key() -> str | None:
    """Return a digest of everything that affects the machine code; None if the sources changed since the import."""
    if not STATES_AT_IMPORT or source_states() != STATES_AT_IMPORT:
        return None
    cpu, features = select_cpu(), numba.config.CPU_FEATURES
    if features is None:  # an empty string means: only the features implied by the name
        features = llvmlite.binding.get_host_cpu_features().flatten()
    versions = [numba.__version__, llvmlite.__version__, np.__version__, sys.version, sys.platform, platform.machine()]
    settings = [getattr(numba.config, name, None) for name in _OPTIONS]
    digest = hashlib.sha256(repr([cpu, features, versions, settings]).encode())
    for source in map(Path, STATES_AT_IMPORT):
        digest.update(source.name.encode() + hashlib.sha256(source.read_bytes()).digest())
    if numba.version_info.short < COMPARES_CONTENT:
        digest.update(repr([time for time, *_ in STATES_AT_IMPORT.values()]).encode())
    return digest.hexdigest()[:32]


def _is_usable(directory: Path) -> bool:
    """Return whether a directory is writable; create it if absent."""
    try:
        is_new = not directory.exists()
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
        os.utime(directory)  # for `_prune`: it is in use
    except OSError:
        return False
    _remove_empty_files(directory)
    if is_new:
        _prune(directory.parent)
    return True


def _remove_empty_files(directory: Path) -> None:
    """Remove files that a crash of the machine left empty: Numba would fail on them."""
    for file in directory.rglob("*.nb[ic]"):
        with suppress(FileNotFoundError):  # another process was faster
            if file.stat().st_size == 0:
                file.unlink()


def _prune(directories: Path) -> None:
    """Remove the least recently used directories: those of earlier versions."""
    by_use = sorted(directories.iterdir(), key=_last_use, reverse=True)
    for directory in by_use[_KEPT:]:
        shutil.rmtree(directory, ignore_errors=True)


def _last_use(directory: Path) -> float:
    try:
        return directory.stat().st_mtime
    except FileNotFoundError:  # another process has removed it
        return 0.0


def _copy(source: Path, target: Path) -> bool:
    """Copy a read-only cache unless the target exists; return whether the target is filled."""
    try:
        if not any(source.rglob("*.nbi")):
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as made:
            copied = _copy_files(source, Path(made) / target.name)
            copied.rename(target)  # atomic: this process may be killed, and another may copy at the same time
    except OSError:
        return target.is_dir()
    return True


def _copy_files(source: Path, target: Path) -> Path:
    """Copy the files of a directory without their permissions."""
    for file in source.rglob("*.nb[ic]"):
        copied = target / file.relative_to(source)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copied)
    return target


def _temporary_root() -> Path:
    """Return a temporary directory that only this user can write to, since its content is executed."""
    if not hasattr(os, "getuid"):  # Windows: temporary files are in the directory of the user
        return Path(tempfile.gettempdir()) / "polyaforest"
    root = Path(tempfile.gettempdir()) / f"polyaforest-{os.getuid()}"
    with suppress(OSError):
        root.mkdir(mode=0o700, exist_ok=True)
        found = root.lstat()
        if root.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o022:  # prepared by somebody else
            root = Path(tempfile.mkdtemp(prefix="polyaforest-"))
            atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)
