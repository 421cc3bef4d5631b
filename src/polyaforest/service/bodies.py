"""Bodies of requests that may be compressed; the limit holds before, while and after decompression."""

from __future__ import annotations

import zlib

from fastapi import HTTPException, Request

from polyaforest.util.extras import extra

__all__ = ["body_of", "unsnapped"]

_GZIP = 31  # window bits of zlib for gzip
_LONGEST_LENGTH = 5  # bytes of a 32-bit number in the format of snappy


async def body_of(request: Request) -> bytes:
    """Return the body of a request, decompressed if its Content-Encoding is gzip."""
    body = await request.body()
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding != "gzip":
        raise HTTPException(415, f"the Content-Encoding {encoding[:40]!r} is not supported: use gzip or none")
    return _gunzipped(body, most_bytes(request))


def most_bytes(request: Request) -> int:
    """Return the largest size of a body."""
    return int(request.app.state.service.config.server.max_body_mb * 2**20)


def _gunzipped(body: bytes, most: int) -> bytes:
    """Decompress the members of a gzip file; stop at the limit."""
    parts, n, rest = [], 0, body
    while rest:
        machine = zlib.decompressobj(_GZIP)
        try:
            part = machine.decompress(rest, most - n + 1)
        except zlib.error as problem:
            raise HTTPException(400, f"the body is not gzip: {problem}") from None
        n += len(part)
        if n > most:
            raise _too_large(most)
        if not machine.eof:
            raise HTTPException(400, "the body is not gzip: it ends too early")
        parts.append(part)
        rest = machine.unused_data
    return b"".join(parts)


def unsnapped(body: bytes, most: int) -> bytes:
    """Decompress a block of snappy, whose first bytes say how long it will be."""
    with extra("remote write", "cramjam", name="remote-write"):
        import cramjam  # noqa: PLC0415 - an extra
    length = 0
    for place, byte in enumerate(body[:_LONGEST_LENGTH]):
        length |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    else:
        raise HTTPException(400, "the body is not a block of snappy")
    if length > most:
        raise _too_large(most)
    try:
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as problem:
        raise HTTPException(400, f"the body is not a block of snappy: {problem}") from None


def _too_large(most: int) -> HTTPException:
    return HTTPException(413, f"the decompressed body is larger than {most / 2**20:g} MB: send smaller batches")
