"""What travels between the driver and the workers of one cluster: compressed pickles.

They are as trustworthy as the cluster: engines send code and data the same way. Models that are stored or come from
elsewhere have a format of their own, `save`.
"""

from __future__ import annotations

import pickle
import zlib
from typing import Any


def packed(thing: Any) -> bytes:
    """Return a thing as bytes."""
    return zlib.compress(pickle.dumps(thing, protocol=pickle.HIGHEST_PROTOCOL), level=1)


def unpacked(block: bytes) -> Any:
    """Return the thing in bytes from `packed`."""
    return pickle.loads(zlib.decompress(block))
