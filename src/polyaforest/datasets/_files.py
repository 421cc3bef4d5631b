"""Find, download, verify and cache data sets."""

from __future__ import annotations

import hashlib
import importlib
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ._parsers import Arrays, import_extra
from ._registry import Original

__all__ = ["DownloadError", "StoredAt", "StrPath", "data_directory", "digest", "fetch", "read_stored"]

StrPath: TypeAlias = str | os.PathLike[str]

_DATA_VARIABLE = "POLYAFOREST_DATA"
_MIRROR_VARIABLE = "POLYAFOREST_MIRROR"
_ORIGINALS = "https://raw.githubusercontent.com"


class DownloadError(OSError):
    """A data set could not be downloaded, or its checksum does not match."""


class StoredAt(NamedTuple):
    """A possible location of a data set in a directory."""

    file: str
    prefix: str = ""  # of the array names in the file


def data_directory(data_dir: StrPath | None = None) -> Path | None:
    """Return the directory to search first, or None if there is none.

    This is the first of: `data_dir`; the directory in POLYAFOREST_DATA; `shared/data` beside a checkout of the project,
    if run from one; the user's cache directory, once something has been downloaded.

    Raises
    ------
    NotADirectoryError
        If POLYAFOREST_DATA is not a directory.
    """
    if data_dir is not None:
        return Path(data_dir).expanduser()
    if named := os.environ.get(_DATA_VARIABLE):
        if not Path(named).is_dir():
            raise NotADirectoryError(f"{_DATA_VARIABLE} must be a directory; got {named!r}")
        return Path(named)
    return next((place for place in (_beside_checkout(), _cache()) if place is not None and place.is_dir()), None)


def _beside_checkout() -> Path | None:
    """Return the data directory of a checkout, as in continuous integration; None for an installed package."""
    sources = Path(__file__).resolve().parents[2]
    return sources.parents[1] / "shared" / "data" if sources.name == "src" else None


def _cache() -> Path | None:
    """Return the user's cache directory; None without pooch, which knows the platform's convention."""
    try:
        return Path(importlib.import_module("pooch").os_cache("polyaforest"))
    except ImportError:
        return None


def read_stored(places: Iterable[StoredAt], keys: tuple[str, ...], data_dir: StrPath | None) -> Arrays | None:
    """Return the arrays of the first place that exists in the data directory or the cache, or None."""
    first = data_directory(data_dir)
    directories = (first,) if data_dir is not None else (first, _cache())
    for directory in filter(None, directories):
        for place in places:
            path = directory / place.file
            if path.is_file() and (arrays := _read_npz(path, [place.prefix + key for key in keys])):
                return arrays
    return None


def _read_npz(path: Path, keys: list[str]) -> Arrays:
    """Return arrays of a file; () if it lacks the first, as `nab_all.npz` may lack a series."""
    try:
        with np.load(path) as file:
            return tuple(file[key] for key in keys) if keys[0] in file else ()
    except (ValueError, LookupError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged or not a data set ({error}): delete it to download it again") from error


def fetch(
    name: str, original: Original, place: StoredAt, keys: tuple[str, ...], data_dir: StrPath | None, download: bool
) -> Arrays:
    """Download, verify and store a data set."""
    if not download:
        raise FileNotFoundError(
            f"{name!r} is not on disk: no {place.file} in {data_directory(data_dir) or 'any data directory'}. Set "
            f"{_DATA_VARIABLE} to a directory that contains it, or pass download=True"
        )
    import_extra("tqdm")  # pooch's error for a missing tqdm does not say how to install it
    directory = Path(import_extra("pooch").os_cache("polyaforest")) if data_dir is None else Path(data_dir).expanduser()
    target = directory / place.file
    target.parent.mkdir(parents=True, exist_ok=True)
    # Use a temporary directory, so that failed or interrupted downloads leave nothing behind.
    with tempfile.TemporaryDirectory(prefix=".download-", dir=directory) as scratch:
        files = [_download(name, path, Path(scratch) / str(index)) for index, path in enumerate(original.paths)]
        arrays = _verified(name, original, files)
        named: dict[str, Any] = dict(zip(keys, arrays, strict=True))
        np.savez_compressed(Path(scratch) / "new.npz", **named)
        os.replace(Path(scratch) / "new.npz", target)
    return arrays


def _download(name: str, path: str, file: Path) -> Path:
    """Download a published file to `file`, with a progress bar."""
    url = f"{os.environ.get(_MIRROR_VARIABLE) or _ORIGINALS}/{path}"
    try:
        import_extra("pooch").HTTPDownloader(progressbar=True)(url, str(file), None)
    except OSError as error:  # requests' errors are OSErrors
        raise DownloadError(
            f"{name!r} could not be downloaded from {url}: {error}. Try again, set {_MIRROR_VARIABLE} to the URL of a "
            f"mirror, or set {_DATA_VARIABLE} to a directory that contains the data"
        ) from error
    return file


def _verified(name: str, original: Original, files: Iterable[Path]) -> Arrays:
    """Parse downloaded files; raise DownloadError if that fails or the checksum does not match."""
    sources = " and ".join(original.paths)
    try:
        arrays = original.parse(*files)
    except ImportError:
        raise
    except Exception as error:  # parsers raise undocumented errors for damaged files
        raise DownloadError(
            f"the download of {name!r} ({sources}) cannot be read: {error!r}; nothing stored"
        ) from error
    if (found := digest(arrays)) != original.sha256:
        raise DownloadError(
            f"the download of {name!r} ({sources}) has the wrong checksum: expected SHA-256 {original.sha256}, got "
            f"{found}; nothing stored"
        )
    return arrays


def digest(arrays: Arrays) -> str:
    """Return the SHA-256 of the dtypes, shapes and bytes of arrays, little-endian and in C order."""
    sha256 = hashlib.sha256()
    for array in arrays:
        plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        sha256.update(f"{plain.dtype.str}{plain.shape}".encode())
        sha256.update(plain.data)
    return sha256.hexdigest()
