"""Model files: a header and named arrays in one file, verified as a whole when read.

A file is a `.npz` without pickles, so `numpy.load` opens it too:

    header.json.npy   uint8: the JSON object {"format": "polyaforest", "version": 4, "header": what the caller gave,
                      "arrays": {name: {"dtype": "<f8", "shape": [2, 3], "sha256": of the array's bytes}, ...}}
    <name>.npy        each array, little-endian and in C order, in the order the header lists them
    archive comment   "polyaforest sha256 " and the SHA-256 of every byte of the file before the comment

The comment seals the file: a bit flipped anywhere, even in dates that no reader of archives looks at, breaks it, and
so does a byte too many or too few. The seal, the place of the header and its keys "format" and "version" are for all
versions, so that an old release can say which version it met. Entries are stored as they are: deflated, a forest would
be 2 to 4 times smaller and take 5 to 10 times as long to write, and what is not inflated cannot fill the memory.
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
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from io import BytesIO
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.lib import format as npy

from polyaforest.core.arrays import Array

Header: TypeAlias = dict[str, Any]
Arrays: TypeAlias = dict[str, Array]
Place: TypeAlias = str | os.PathLike[str] | IO[bytes]  # where a model is: at a path, or in an open file

FORMAT_VERSION = 4
_VERSIONS = (1, 2, 3, 4)  # that can be read: they differ in what the header and the arrays say, not in the archive
_SINCE = {
    "categories": 4,
    "novelty": 4,
}  # fields of a header that older versions do not have; without them a file is of ...
_PLAIN_VERSION = 3  # ... this version, so that older releases read it too

_FORMAT = "polyaforest"
_HEADER = "header.json"
_LARGEST_HEADER = 16 * 2**20  # bytes: room for a million column names, and never a danger to memory
_ARRAY_NAME = re.compile(r"\w{1,64}(/\w{1,64}){0,3}", re.ASCII)  # no dot, hence neither the header's name nor a path up
DTYPES = frozenset(["|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8"])
_LARGEST_NPY_HEADER = 1024  # bytes: room for any shape, and too little to exhaust the parser that reads it
_ZIP_START = b"PK\x03\x04"
_SQLITE_START = b"SQLi"
_SEAL = b"polyaforest sha256 "
_SEAL_SIZE = len(_SEAL) + 2 * hashlib.sha256().digest_size


# An archive's entries: before the data, with the sizes in a field of their own, and in the directory at its end.
_LOCAL, _SIZES, _LISTED = struct.Struct("<4s3HLLLL2H"), struct.Struct("<HHQQ"), struct.Struct("<4s2B3HLLLL3H2HLL")
_DATE = 33 << 16  # 1 January 1980, so that the same model makes the same bytes
_MODE = 0o644 << 16  # as on Unix, whatever the platform
_IN_EXTRA = 2**32 - 1  # stands for a number in the extra field
_LARGEST_DIRECT = 2**31 - 1  # larger numbers go to the extra field


class ModelFileError(ValueError):
    """A model file is damaged, made by something else, or of a version this release cannot read."""


def version_for(header: Header) -> int:
    """Return the version of a file with this header: the oldest that has all that is in it."""
    return max(_PLAIN_VERSION, *(version for name, version in _SINCE.items() if name in header), 0)


def write_model(path: Place, header: Header, arrays: Mapping[str, Array]) -> None:
    """Write `header` and `arrays` to `path`, all of it or nothing: until the end, and on any error, an old file stays.

    The same header and arrays make the same bytes. A symbolic link is followed; an existing file passes its permissions
    on. A process that is killed here leaves a file `.<name>.<random>.tmp` beside the old one. Nothing reads such files
    and nothing removes them, since another process may be writing one: delete them once no writer runs.

    Parameters
    ----------
    path : str, path-like or binary file
        An open file is given the model in one piece.
    header : dict of what JSON holds as it is
        String keys, lists, strings, finite numbers, booleans and None; at most 16 MiB as JSON.
    arrays : dict of arrays of booleans, integers or floats of at most 64 bits
        Names are made of ASCII letters, digits and underscores, with slashes between up to four such parts. No other
        thread may change an array meanwhile: the file would not match its own digests.

    Raises
    ------
    TypeError, ValueError
        If the header or an array is not of that kind; nothing has been touched then.
    ModelFileError
        If `path` is there, but not a file: a directory or a device.
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
        memory = BytesIO()  # a seal is made by reading, which an open file may not allow
        _write_archive(memory, text, stored)
        path.write(memory.getbuffer())


def read_model(path: Place) -> tuple[Header, Arrays]:
    """Read the header and the arrays that `write_model` wrote to `path`, or to a binary file that can seek.

    Returns
    -------
    header : dict
    arrays : dict of arrays
        C-contiguous, writable and in the machine's byte order.

    Raises
    ------
    ModelFileError
        If the file is not, bit for bit, what `write_model` of this or an older release wrote.
    OSError
        If there is no such file (FileNotFoundError) or it may not be read.
    """
    name = name_of(path)
    try:
        if not isinstance(path, str | os.PathLike):
            return _read_file(path)
        _check_regular_mode(os.stat(path).st_mode)  # before opening: a pipe would wait for a writer
        with open(path, "rb") as file:
            return _read_file(file)
    except Exception as problem:  # zipfile and NumPy do not say all that a malformed archive makes them raise
        seeks_nowhere = isinstance(problem, OSError) and problem.errno == errno.EINVAL  # where a false offset leads
        if isinstance(problem, OSError | MemoryError) and not seeks_nowhere:
            raise
        reason = str(problem) or type(problem).__name__
        raise ModelFileError(f"{name} cannot be read as a model: {reason}") from problem


def name_of(path: Place) -> str:
    """Return the name of the file for messages."""
    if isinstance(path, str | os.PathLike):
        return repr(os.fsdecode(path))
    return repr(getattr(path, "name", None) or "the file given")


# ---- what is written -------------------------------------------------------------------------------------------------


def _write_archive(file: IO[bytes], header: bytes, stored: Arrays) -> None:
    """Write a sealed archive to a file that can be read back.

    Byte for byte what `zipfile` would write with ``force_zip64``, which takes longer than all else for a small model.
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
    """Write an array as an entry of an archive; its checksum and size."""
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
    """Return the bytes before the values of an array."""
    start = BytesIO()
    npy.write_array_header_1_0(start, {"descr": dtype, "fortran_order": False, "shape": shape})
    return start.getvalue()


def _storable(name: str, array: Array) -> Array:
    """Return `array` as stored in the file: C-contiguous, little-endian."""
    if not _ARRAY_NAME.fullmatch(name):
        raise ValueError(
            f"array name {name!r} must be made of ASCII letters, digits and underscores, up to 64 in each of up to 4 "
            "parts with slashes between"
        )
    return little_endian(name, array)


def little_endian(name: str, array: Array) -> Array:
    """Return an array as it is stored, C-contiguous; raise unless it holds booleans, integers or floats."""
    kind = array.dtype.newbyteorder("<")
    if kind.str not in DTYPES:
        raise ValueError(f"array {name!r} is of dtype {array.dtype}: only booleans, integers and floats can be stored")
    return np.asarray(array, kind, order="C")


def _describe(array: Array) -> dict[str, Any]:
    """Return the header's description of an array."""
    return {"dtype": array.dtype.str, "shape": list(array.shape), "sha256": hashlib.sha256(array.data).hexdigest()}


def header_json(contents: Header) -> bytes:
    """Return contents with a caller's header as JSON; raise if JSON would change the header, or it is too large."""
    text = _to_json(contents)
    if json.loads(text)["header"] != contents["header"]:
        raise ValueError(
            "the header does not survive JSON: use dicts with string keys, lists, strings, "
            "finite numbers, booleans and None only"
        )
    if len(text) > _LARGEST_HEADER:
        raise ValueError(f"the header takes {len(text):,} bytes, more than {_LARGEST_HEADER:,}: store arrays as arrays")
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
    """Yield a new file that replaces `target` on success; on any error it is removed, and `target` stays."""
    mode = _mode_of(target)
    folder, name = os.path.split(target)
    # Not by tempfile, whose files are their owner's alone whatever the umask; a long name leaves room for the rest.
    new = os.path.join(folder, f".{name[:50]}.{secrets.token_hex(8)}.tmp")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(new, flags, 0o666 if mode is None else mode)
    except OSError as problem:
        problem.filename = target  # the name the caller knows
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
    """Return the permissions of `target`, None if it does not exist; raise if it must not be replaced."""
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return None
    try:
        _check_regular_mode(mode)
    except ValueError as problem:
        raise ModelFileError(f"nothing can be written to {target!r}: {problem}") from None
    if not os.access(target, os.W_OK):  # the folder's permissions alone would let a read-only file be replaced
        raise PermissionError(errno.EACCES, "the file there is read-only", target)
    return stat.S_IMODE(mode) & 0o777


def check_regular_file(path: str | os.PathLike[str]) -> None:
    """Raise if `path` is there, but not a file: opening a pipe would wait for its other end."""
    with suppress(FileNotFoundError):
        try:
            _check_regular_mode(os.stat(path).st_mode)
        except ValueError as problem:
            raise ModelFileError(f"{name_of(path)} cannot be used here: {problem}") from None


def check_location(path: str) -> None:
    """Raise if no file can be created at `path`: at once, rather than when there is something to write."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "there is no such directory to write to", folder)
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, "it is a directory, not a file to write to", path)


def without_waiting(path: str, flags: int) -> int:
    """Open a path (for `open`), refusing a pipe without a reader instead of waiting for one."""
    at_once = getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags | at_once, 0o666)
    except OSError as problem:
        if problem.errno == errno.ENXIO:
            problem.strerror = "the pipe has no reader: start its reader first"
        raise
    if at_once:
        os.set_blocking(descriptor, True)  # a reader that is slow is waited for
    return descriptor


def _check_regular_mode(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise ValueError(f"it is {'a directory' if stat.S_ISDIR(mode) else 'a pipe or a device'}, not a file")


def sync_folder(folder: str) -> None:
    """Make a rename in `folder` outlast a power cut, where the platform can."""
    if os.name == "nt":
        return
    with suppress(OSError):  # the new file is in its place already: an error would say the opposite
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# ---- what is read ----------------------------------------------------------------------------------------------------


def _read_file(file: IO[bytes]) -> tuple[Header, Arrays]:
    _check_seal(file)
    with zipfile.ZipFile(file) as archive:
        return _read_archive(archive, file.seek(0, os.SEEK_END))


def _check_seal(file: IO[bytes]) -> None:
    """Raise unless `file` is what `write_model` wrote, byte for byte; foreign files are refused unread."""
    start = file.read(len(_ZIP_START))
    if not start:
        raise ValueError("it is empty")
    if start == _SQLITE_START:
        raise ValueError("it may be a model store of `polyaforest watch`: read it with polyaforest.live")
    if start != _ZIP_START:
        raise ValueError("it is not a polyaforest model")
    file.seek(max(0, file.seek(0, os.SEEK_END) - _SEAL_SIZE))
    if file.read(len(_SEAL)) != _SEAL:
        raise ValueError("it does not end as a model does: it is truncated, has bytes appended, or is not a model")
    expected = _seal(file)
    if file.read() != expected:
        raise ValueError("it is damaged: its bytes do not match their SHA-256")


def _read_archive(archive: zipfile.ZipFile, size: int) -> tuple[Header, Arrays]:
    """Return the header and arrays of a sealed archive of `size` bytes, of any version."""
    entries = archive.infolist()
    if any(entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size for entry in entries):
        raise ValueError("an entry is compressed")
    if sum(entry.file_size for entry in entries) > size:
        raise ValueError("its entries claim more bytes than the file has")
    if not entries or entries[0].filename != f"{_HEADER}.npy":
        raise ValueError("it has no model header")
    text = _read_array(archive, _HEADER).tobytes()
    if len(text) > _LARGEST_HEADER:
        raise ValueError(f"its header takes {len(text):,} bytes, more than the limit for models")
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
            f"it is of format version {version}, and this release reads up to version {FORMAT_VERSION}: upgrade "
            "polyaforest"
        )
    if version not in _VERSIONS:
        raise ValueError(f"it is of format version {version}, and this release reads {list(_VERSIONS)}")
    return _read_entries(archive, header)


def _read_entries(archive: zipfile.ZipFile, header: Header) -> tuple[Header, Arrays]:
    if list(header) != ["format", "version", "header", "arrays"]:
        raise ValueError(f"its header has the keys {list(header)}")
    given, described = header["header"], header["arrays"]
    if not isinstance(given, dict) or not isinstance(described, dict):
        raise ValueError("its header does not describe a header and arrays")
    if archive.namelist() != [f"{name}.npy" for name in (_HEADER, *described)]:
        raise ValueError("its entries are not those its header lists")
    arrays = {}
    for name, description in described.items():
        array = _read_array(archive, name)
        if _describe(array) != description:
            raise ValueError(f"array {name!r} is not what the header says it is")
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
        if math.prod(shape) * dtype.itemsize != entry.file_size - stream.tell():  # before there is room made for it
            raise ValueError(f"array {name!r} has the wrong number of bytes for its shape {shape}")
        array: Array = np.frombuffer(stream.read(), dtype).reshape(shape).copy()  # to be written to
        return array
