"""Models as bytes: a header and named arrays in one block with a checksum.

    start      20 bytes: b"PMPF", the format version and whether the body is compressed (uint16), the sizes of the
               header (uint32) and of the arrays (uint64) before compression, little-endian
    body       the JSON object {"header": the caller's header, "arrays": [[name, dtype, shape, stored], ...]}, then
               the bytes of the arrays, little-endian and in C order, one after another; integers are `stored` in the
               smallest type that holds them
    checksum   32 bytes: BLAKE2b of all bytes before it

Rows of a model store and the states of keyed streams have this format. They have their own transactions, so the archive
of a model file, with a directory and two checksums, would only cost time. Compact states are incompressible; other
states are compressed at the lowest level. Blocks of version 1 store integers in their original type; only models with
categories, and series of context windows, need version 3.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from hashlib import blake2b
from typing import Any

import numpy as np

from polyaforest.kernels.arrays import Array
from polyaforest.storage.modelfile import (
    _LARGEST_HEADER,
    DTYPES,
    Arrays,
    Header,
    ModelFileError,
    header_json,
    little_endian,
)
from polyaforest.util import schema

__all__ = ["VERSION", "is_packed", "pack", "unpack", "version_for"]

VERSION = 3

_MAGIC = b"PMPF"
_START = struct.Struct("<4sHHLQ")
_CHECKSUM = 32  # bytes
_MAX_DIMENSIONS = 8
_PLAIN = (schema.path, schema.path, schema.many(schema.whole()))  # name, dtype, shape
_CONTENTS = {  # by version
    version: schema.record({"header": schema.mapping, "arrays": schema.many(schema.listed(*described))})
    for version, described in {1: _PLAIN, 2: (*_PLAIN, schema.path), 3: (*_PLAIN, schema.path)}.items()
}
_NARROW = {  # smaller types for integers, the smallest first, with their ranges
    kind: [(np.dtype(name).newbyteorder("<"), np.iinfo(name).min, np.iinfo(name).max) for name in names]
    for kind, names in {"i": ("i1", "i2", "i4"), "u": ("u1", "u2", "u4")}.items()
}
_MAX_RATIO = 50  # of sizes before and after compression; a block that would shrink more is stored uncompressed


def version_for(header: Header) -> int:
    """Return the oldest version that supports all fields of a header."""
    return 3 if "categories" in header or "novelty" in header else 2


def is_packed(block: bytes) -> bool:
    """Return whether bytes begin with the magic number of a block."""
    return block.startswith(_MAGIC)


def pack(header: Header, arrays: Arrays, *, is_compact: bool = False) -> bytes:
    """Pack a header and arrays, of the types that `write_model` takes, into one block; equal inputs give equal bytes.

    A compact state is not compressed.
    """
    given = {name: little_endian(name, array) for name, array in arrays.items()}
    stored = {name: _narrowed(array) for name, array in given.items()}
    described = [[name, array.dtype.str, list(array.shape), stored[name].dtype.str] for name, array in given.items()]
    text = header_json({"header": header, "arrays": described})
    n_arrays = sum(array.nbytes for array in stored.values())
    whole = b"".join([text, *(array.data for array in stored.values() if array.size)])
    body = whole if is_compact else zlib.compress(whole, 1)
    is_compressed = len(body) < len(whole) <= _MAX_RATIO * len(body)
    body = body if is_compressed else whole
    block = b"".join([_START.pack(_MAGIC, version_for(header), is_compressed, len(text), n_arrays), body])
    return block + _checksum(block)


def unpack(block: bytes) -> tuple[Header, Arrays]:
    """Return the header and the arrays of a block, as `read_model` does.

    Raises
    ------
    ModelFileError
        If `pack` of this or an earlier release did not write exactly these bytes.
    """
    try:
        return _unpacked(memoryview(block))
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, zlib.error) as problem:
        raise ModelFileError(f"invalid model bytes: {problem}") from problem


def _unpacked(block: memoryview) -> tuple[Header, Arrays]:
    if not is_packed(bytes(block[: len(_MAGIC)])):
        raise ValueError("they do not start with the magic number of a model")
    if len(block) < _START.size + _CHECKSUM:
        raise ValueError("truncated")
    _, version, is_compressed, n_header, n_arrays = _START.unpack_from(block)
    if version not in _CONTENTS:
        raise ValueError(f"format version {version}, but this release reads up to {VERSION}: upgrade polyaforest")
    if _checksum(block[:-_CHECKSUM]) != block[-_CHECKSUM:]:
        raise ValueError("checksum mismatch")
    if n_header > _LARGEST_HEADER:
        raise ValueError(f"the header has {n_header:,} bytes; at most {_LARGEST_HEADER:,} are allowed")
    body = block[_START.size : -_CHECKSUM]
    if is_compressed:
        body = _decompressed(body, n_header + n_arrays)
    if len(body) != n_header + n_arrays:
        raise ValueError("inconsistent sizes")
    contents = json.loads(bytes(body[:n_header]), parse_constant=_reject_constant)
    _CONTENTS[version](contents, "")
    return contents["header"], _read_arrays(contents["arrays"], body[n_header:])


def _narrowed(array: Array) -> Array:
    """Cast integers to the smallest type that holds them; return other arrays unchanged."""
    kinds = _NARROW.get(array.dtype.kind, ())
    if not kinds or not array.size:
        return array
    low, high = int(array.min()), int(array.max())
    for kind, least, most in kinds:
        if kind.itemsize < array.itemsize and least <= low and high <= most:
            return array.astype(kind)
    return array


def _checksum(part: bytes | memoryview) -> bytes:
    return blake2b(part, digest_size=_CHECKSUM).digest()


def _decompressed(body: memoryview, size: int) -> memoryview:
    if size > _MAX_RATIO * len(body):  # before memory is allocated
        raise ValueError("declared size too large")
    inflate = zlib.decompressobj()
    whole = inflate.decompress(body, size + 1)  # one more, so that the end of the stream is reached
    if not inflate.eof or inflate.unused_data:
        raise ValueError("inconsistent sizes")
    return memoryview(whole)


def _read_arrays(described: list[Any], values: memoryview) -> Arrays:
    """Return the arrays in `values`, which must contain no other bytes."""
    arrays: Arrays = {}
    start = 0
    for name, dtype, shape, *narrow in described:
        stored = narrow[0] if narrow else dtype
        if name in arrays or not {dtype, stored} <= DTYPES or len(shape) > _MAX_DIMENSIONS:
            raise ValueError(f"array {name!r} is duplicate, or has an unsupported dtype or shape")
        kind, whole = np.dtype(stored), np.dtype(dtype)
        if kind != whole and (kind.kind != whole.kind or kind.kind not in _NARROW or kind.itemsize > whole.itemsize):
            raise ValueError(f"array {name!r} is stored as {stored}, which cannot be cast to {dtype}")
        stop = start + math.prod(shape) * kind.itemsize
        if stop > len(values):  # before memory is allocated
            raise ValueError(f"array {name!r} extends beyond the block")
        array = np.frombuffer(values[start:stop], kind).reshape(shape)
        arrays[name] = array.astype(whole.newbyteorder("="))  # a writable copy
        start = stop
    if start != len(values):
        raise ValueError("extra bytes after the arrays")
    return arrays


def _reject_constant(name: str) -> None:
    raise ValueError(f"the header contains {name}")
