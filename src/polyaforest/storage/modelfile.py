"""Model files: a header and named arrays in one file, verified as a whole when read.

A file is a `.npz` without pickles, so `numpy.load` opens it too:

    header.json.npy   uint8: the JSON object {"format": "polyaforest", "version": 4, "header": the caller's header,
                      "arrays": {name: {"dtype": "<f8", "shape": [2, 3], "sha256": of the array's bytes}, ...}}
    <name>.npy        each array, little-endian and in C order, in the order the header lists them
    archive comment   "polyaforest sha256 " and the SHA-256 of every byte of the file before the comment

The comment seals the file: it detects any flipped bit, even in dates that readers of archives ignore, and any missing
or extra byte. The seal, the place of the header and its keys "format" and "version" are the same in all versions, so
that an old release can name a newer version. Entries are not compressed: compressed, a forest would be 2 to 4 times
smaller and take 5 to 10 times as long to write, and a small file could fill the memory.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
import stat
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from io import BytesIO
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.lib import format as npy

from polyaforest.kernels.arrays import Array

Header: TypeAlias = dict[str, Any]
Arrays: TypeAlias = dict[str, Array]
Place: TypeAlias = str | os.PathLike[str] | IO[bytes]  # a path or an open file

FORMAT_VERSION = 4
_VERSIONS = (1, 2, 3, 4)  # readable versions; they differ in the header and the arrays, not in the archive
_SINCE = {"categories": 4, "novelty": 4}  # fields of a header, and the version that introduced them
_PLAIN_VERSION = 3  # version of files without these fields, so that older releases can read them

_FORMAT = "polyaforest"
_HEADER = "header.json"
_LARGEST_HEADER = 16 * 2**20  # bytes: enough for a million column names, and harmless to memory
_ARRAY_NAME = re.compile(r"\w{1,64}(/\w{1,64}){0,3}", re.ASCII)  # no dot, hence neither the header's name nor a path up
DTYPES = frozenset(["|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8"])
_LARGEST_NPY_HEADER = 1024  # bytes: enough for any shape, and too few to exhaust the parser
_ZIP_START = b"PK\x03\x04"
_SQLITE_START = b"SQLi"
_SEAL = b"polyaforest sha256 "
_SEAL_SIZE = len(_SEAL) + 2 * hashlib.sha256().digest_size


# Records of an archive's entries: before the data, the extra field with the sizes, and in the directory at its end.
_LOCAL, _SIZES, _LISTED = struct.Struct("<4s3HLLLL2H"), struct.Struct("<HHQQ"), struct.Struct("<4s2B3HLLLL3H2HLL")
_DATE = 33 << 16  # 1 January 1980, so that equal models give equal bytes
_MODE = 0o644 << 16  # as on Unix, whatever the platform
_IN_EXTRA = 2**32 - 1  # marks a number in the extra field
_LARGEST_DIRECT = 2**31 - 1  # larger numbers go to the extra field


class ModelFileError(ValueError):
    """A model file is damaged, not written by polyaforest, or of a version this release cannot read."""


def version_for(header: Header) -> int:
    """Return the oldest version that supports all fields of a header."""
    return max(_PLAIN_VERSION, *(version for name, version in _SINCE.items() if name in header), 0)


def write_model(path: Place, header: Header, arrays: Mapping[str, Array]) -> None:
    """Write `header` and `arrays` to `path` atomically: an existing file stays until the new one is complete.

    Equal headers and arrays give equal bytes. Symbolic links are followed; the new file gets the permissions of the old
    one. A killed process leaves a file `.<name>.<random>.tmp` beside the old one. Such files are never read or removed,
    since another process may be writing one: delete them when no writer is running.

    Parameters
    ----------
    path : str, path-like or binary file
        An open file receives the model in one write.
    header : dict, JSON-serialisable
        String keys, lists, strings, finite numbers, booleans and None; at most 16 MiB as JSON.
    arrays : dict of arrays of booleans, integers or floats of at most 64 bits
        Names consist of up to four parts of ASCII letters, digits and underscores, separated by slashes. No other
        thread may change an array meanwhile: the file would not match its digests.

    Raises
    ------
    TypeError, ValueError
        If the header or an array is invalid; nothing has been written.
    ModelFileError
        If `path` is a directory or a device.
    OSError
        If the file cannot be written.
    """
    stored = {name: _storable(name, array) for name, array in arrays.items()}
    if not isinstance(header, dict):
        raise TypeError(f"the header must be a dict; got {header!r}")
    described = {name: _describe(array) for name, array in stored.items()}
    text = header_json({"format": _FORMAT, "version": version_for(header), "header": header, "arrays": described})
    if isinstance(path, str | os.PathLike):
        with replacing(os.path.realpath(os.fsdecode(path))) as file:
            _write_archive(file, text, stored)
    else:
        memory = BytesIO()  # sealing reads the file, which an open file may not allow
        _write_archive(memory, text, stored)
        path.write(memory.getbuffer())


def read_model(path: Place) -> tuple[Header, Arrays]:
    """Read a header and arrays that `write_model` wrote to `path`, or to a seekable binary file.

    Returns
    -------
    header : dict
    arrays : dict of arrays
        C-contiguous, writable and in the machine's byte order.

    Raises
    ------
    ModelFileError
        If `write_model` of this or an older release did not write exactly these bytes.
    OSError
        If the file does not exist (FileNotFoundError) or cannot be read.
    """
    name = name_of(path)
    try:
        if not isinstance(path, str | os.PathLike):
            return _read_file(path)
        _check_regular_mode(os.stat(path).st_mode)  # before opening: a pipe would wait for a writer
        with open(path, "rb") as file:
            return _read_file(file)
    except Exception as problem:  # zipfile and NumPy raise undocumented errors for malformed archives
        seeks_nowhere = isinstance(problem, OSError) and problem.errno == errno.EINVAL  # caused by a wrong offset
        if isinstance(problem, OSError | MemoryError) and not seeks_nowhere:
            raise
        reason = str(problem) or type(problem).__name__
        raise ModelFileError(f"{name} cannot be read as a model: {reason}") from problem


def name_of(path: Place) -> str:
    """Return the name of the file for messages."""
    if isinstance(path, str | os.PathLike):
        return repr(os.fsdecode(path))
    return repr(getattr(path, "name", None) or "the file given")


# ---- writing ---------------------------------------------------------------------------------------------------------


def _write_archive(file: IO[bytes], header: bytes, stored: Arrays) -> None:
    """Write a sealed archive to a readable file.

    Writes the same bytes as `zipfile` with ``force_zip64``, which would dominate the time for a small model.
    """
    entries, offset = [], 0
    for name, array in {_HEADER: np.frombuffer(header, np.uint8), **stored}.items():
        label = f"{name}.npy".encode()
        crc, size = _write_entry(file, label, array)
        entries.append((label, crc, size, offset))
        offset += _LOCAL.size + len(label) + _SIZES.size + size
    directory = b"".join(_in_directory(*entry) for entry in entries)
    file.write(directory + _end_of_archive(len(entries), len(directory), offset))
    file.write(b"\0" * _SEAL_SIZE)  # the seal covers the end record, which counts the comment's bytes
    file.write(_seal(file))


def _write_entry(file: IO[bytes], label: bytes, array: Array) -> tuple[int, int]:
    """Write an array as an entry of an archive; return its checksum and size."""
    start = _npy_start(array.dtype.str, array.shape)
    crc, size = zlib.crc32(array.data, zlib.crc32(start)), len(start) + array.nbytes
    local = _LOCAL.pack(b"PK\3\4", 45, 0, 0, _DATE, crc, _IN_EXTRA, _IN_EXTRA, len(label), _SIZES.size)
    file.write(local + label + _SIZES.pack(1, 16, size, size) + start)
    file.write(array.data)
    return crc, size


def _in_directory(label: bytes, crc: int, size: int, offset: int) -> bytes:
    """Return an entry of the archive's directory; numbers beyond 2 GB need an extra field."""
    large = [size] * 2 * (size > _LARGEST_DIRECT) + [offset] * (offset > _LARGEST_DIRECT)
    extra = struct.pack(f"<HH{len(large)}Q", 1, 8 * len(large), *large) if large else b""
    size, offset = (_IN_EXTRA if number > _LARGEST_DIRECT else number for number in (size, offset))
    lengths = len(label), len(extra)
    return (
        _LISTED.pack(b"PK\1\2", 45, 3, 45, 0, 0, _DATE, crc, size, size, *lengths, 0, 0, 0, _MODE, offset)
        + label
        + extra
    )


def _end_of_archive(n_entries: int, n_bytes: int, offset: int) -> bytes:
    """Return the bytes between the directory and the comment."""
    end = b""
    if offset > _LARGEST_DIRECT:
        end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, n_entries, n_entries, n_bytes, offset)
        end += struct.pack("<4sLQL", b"PK\6\7", 0, offset + n_bytes, 1)
    shown = min(offset, _IN_EXTRA)
    return end + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, n_entries, n_entries, n_bytes, shown, _SEAL_SIZE)


@lru_cache(1024)
def _npy_start(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the `.npy` header of an array."""
    start = BytesIO()
    npy.write_array_header_1_0(start, {"descr": dtype, "fortran_order": False, "shape": shape})
    return start.getvalue()


def _storable(name: str, array: Array) -> Array:
    """Check the name of `array`, and return it C-contiguous and little-endian."""
    if not _ARRAY_NAME.fullmatch(name):
        raise ValueError(
            f"array name {name!r} must consist of up to 4 parts of up to 64 ASCII letters, digits and underscores, "
            "separated by slashes"
        )
    return little_endian(name, array)


def little_endian(name: str, array: Array) -> Array:
    """Return an array C-contiguous and little-endian; raise ValueError unless it holds booleans, integers or floats."""
    kind = array.dtype.newbyteorder("<")
    if kind.str not in DTYPES:
        raise ValueError(f"array {name!r} is of dtype {array.dtype}: only booleans, integers and floats can be stored")
    return np.asarray(array, kind, order="C")


def _describe(array: Array) -> dict[str, Any]:
    """Return the header's description of an array."""
    return {"dtype": array.dtype.str, "shape": list(array.shape), "sha256": hashlib.sha256(array.data).hexdigest()}


def header_json(contents: Header) -> bytes:
    """Return contents as JSON; raise ValueError if JSON would change the caller's header, or it is too large."""
    text = _to_json(contents)
    if json.loads(text)["header"] != contents["header"]:
        raise ValueError(
            "JSON would change the header: use only dicts with string keys, lists, strings, "
            "finite numbers, booleans and None"
        )
    if len(text) > _LARGEST_HEADER:
        raise ValueError(f"the header has {len(text):,} bytes, more than {_LARGEST_HEADER:,}: store arrays as arrays")
    return text


def _to_json(value: Any) -> bytes:
    """Return the canonical JSON of `value`, so that readers can verify it."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


def _seal(file: IO[bytes]) -> bytes:
    """Return the comment for the end of `file`, computed from the bytes before it."""
    left = file.seek(0, os.SEEK_END) - _SEAL_SIZE
    file.seek(0)
    sha256 = hashlib.sha256()
    while left > 0 and (chunk := file.read(min(left, 2**20))):
        sha256.update(chunk)
        left -= len(chunk)
    return _SEAL + sha256.hexdigest().encode("ascii")


@contextmanager
def replacing(target: str) -> Iterator[IO[bytes]]:
    """Yield a new file that replaces `target` on success; after an error, remove it and leave `target` unchanged."""
    mode = _mode_of(target)
    folder, name = os.path.split(target)
    # Not by tempfile, which ignores the umask; a long name is cut to leave room for the suffix.
    new = os.path.join(folder, f".{name[:50]}.{secrets.token_hex(8)}.tmp")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(new, flags, 0o666 if mode is None else mode)
    except OSError as problem:
        problem.filename = target  # the caller's name
        raise
    try:
        with os.fdopen(descriptor, "w+b") as file:
            if mode is not None:
                os.chmod(new, mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(new)
        raise
    sync_folder(folder)


def _mode_of(target: str) -> int | None:
    """Return the permissions of `target`, None if it does not exist; raise if it cannot be replaced."""
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return None
    try:
        _check_regular_mode(mode)
    except ValueError as problem:
        raise ModelFileError(f"{target!r} cannot be written: {problem}") from None
    if not os.access(target, os.W_OK):  # the folder's permissions would allow replacing a read-only file
        raise PermissionError(errno.EACCES, "the existing file is read-only", target)
    return stat.S_IMODE(mode) & 0o777


def check_regular_file(path: str | os.PathLike[str]) -> None:
    """Raise ModelFileError if `path` exists but is not a file: opening a pipe would wait for its other end."""
    with suppress(FileNotFoundError):
        try:
            _check_regular_mode(os.stat(path).st_mode)
        except ValueError as problem:
            raise ModelFileError(f"{name_of(path)} cannot be used here: {problem}") from None


def check_location(path: str) -> None:
    """Raise OSError early if no file can be created at `path`."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "the directory to write to does not exist", folder)
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, "it is a directory, not a file", path)


def without_waiting(path: str, flags: int) -> int:
    """Open a path (an opener for `open`), failing for a pipe without a reader instead of waiting for one."""
    at_once = getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags | at_once, 0o666)
    except OSError as problem:
        if problem.errno == errno.ENXIO:
            problem.strerror = "the pipe has no reader: start its reader first"
        raise
    if sys.platform != "win32":
        os.set_blocking(descriptor, True)  # wait for a slow reader
    return descriptor


def _check_regular_mode(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise ValueError(f"it is {'a directory' if stat.S_ISDIR(mode) else 'a pipe or a device'}, not a file")


def sync_folder(folder: str) -> None:
    """Flush a rename in `folder` to disk, so that it survives a power cut, where the platform supports it."""
    if os.name == "nt":
        return
    with suppress(OSError):  # the new file is in place: an error would suggest that it is not
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# ---- reading ---------------------------------------------------------------------------------------------------------


def _read_file(file: IO[bytes]) -> tuple[Header, Arrays]:
    _check_seal(file)
    with zipfile.ZipFile(file) as archive:
        return _read_archive(archive, file.seek(0, os.SEEK_END))


def _check_seal(file: IO[bytes]) -> None:
    """Raise ValueError unless the seal of `file` is valid; reject other kinds of files by their first bytes."""
    start = file.read(len(_ZIP_START))
    if not start:
        raise ValueError("it is empty")
    if start == _SQLITE_START:
        raise ValueError("it may be a model store of `polyaforest watch`: read it with polyaforest.judge")
    if start != _ZIP_START:
        raise ValueError("it is not a polyaforest model")
    file.seek(max(0, file.seek(0, os.SEEK_END) - _SEAL_SIZE))
    if file.read(len(_SEAL)) != _SEAL:
        raise ValueError("it does not end with a seal: it is truncated, has bytes appended, or is not a model")
    expected = _seal(file)
    if file.read() != expected:
        raise ValueError("it is damaged: its bytes do not match its SHA-256")


def _read_archive(archive: zipfile.ZipFile, size: int) -> tuple[Header, Arrays]:
    """Return the header and arrays of a sealed archive of `size` bytes, of any version."""
    entries = archive.infolist()
    if any(entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size for entry in entries):
        raise ValueError("an entry is compressed")
    if sum(entry.file_size for entry in entries) > size:
        raise ValueError("its entries declare more bytes than the file has")
    if not entries or entries[0].filename != f"{_HEADER}.npy":
        raise ValueError("it has no model header")
    text = _read_array(archive, _HEADER).tobytes()
    if len(text) > _LARGEST_HEADER:
        raise ValueError(f"its header has {len(text):,} bytes; at most {_LARGEST_HEADER:,} are allowed")
    header = json.loads(text)
    if _to_json(header) != text:
        raise ValueError("its header is not canonical JSON")
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise ValueError("it is not a polyaforest model")
    version = header.get("version")
    if type(version) is not int:
        raise ValueError(f"its format version must be an integer; got {version!r}")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"it has format version {version}, but this release reads up to {FORMAT_VERSION}: upgrade polyaforest"
        )
    if version not in _VERSIONS:
        raise ValueError(f"it has format version {version}, but this release reads {list(_VERSIONS)}")
    return _read_entries(archive, header)


def _read_entries(archive: zipfile.ZipFile, header: Header) -> tuple[Header, Arrays]:
    if list(header) != ["format", "version", "header", "arrays"]:
        raise ValueError(f"its header has the keys {list(header)}")
    given, described = header["header"], header["arrays"]
    if not isinstance(given, dict) or not isinstance(described, dict):
        raise ValueError("its header does not describe a header and arrays")
    if archive.namelist() != [f"{name}.npy" for name in (_HEADER, *described)]:
        raise ValueError("its entries differ from the list in its header")
    arrays = {}
    for name, description in described.items():
        array = _read_array(archive, name)
        if _describe(array) != description:
            raise ValueError(f"array {name!r} does not match its description in the header")
        arrays[name] = array.astype(array.dtype.newbyteorder("="), copy=False)
    return given, arrays


def _read_array(archive: zipfile.ZipFile, name: str) -> Array:
    """Return the array of an entry, as stored in the file."""
    entry = archive.getinfo(f"{name}.npy")
    with archive.open(entry) as stream:
        if npy.read_magic(stream) != (1, 0):
            raise ValueError(f"array {name!r} must use version 1.0 of NumPy's format")
        shape, is_fortran, dtype = npy.read_array_header_1_0(stream, max_header_size=_LARGEST_NPY_HEADER)
        if is_fortran or dtype.str not in DTYPES:
            raise ValueError(f"array {name!r} has unsupported dtype {dtype} or order {'CF'[is_fortran]}")
        if math.prod(shape) * dtype.itemsize != entry.file_size - stream.tell():  # before memory is allocated
            raise ValueError(f"array {name!r} has the wrong number of bytes for its shape {shape}")
        array: Array = np.frombuffer(stream.read(), dtype).reshape(shape).copy()  # writable
        return array
