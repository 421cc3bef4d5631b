"""Compressed pickles, sent between the driver and the workers of one cluster.

Unpickling is as safe as the cluster itself, which sends code the same way. Stored models use the safe format of `save`.
"""

from __future__ import annotations

import pickle
import zlib
from typing import Any


def packed(thing: Any) -> bytes:
    """Return an object as bytes."""
    return zlib.compress(pickle.dumps(thing, protocol=pickle.HIGHEST_PROTOCOL), level=1)


def unpacked(block: bytes) -> Any:
    """Return the object from bytes made by `packed`."""
    return pickle.loads(zlib.decompress(block))
