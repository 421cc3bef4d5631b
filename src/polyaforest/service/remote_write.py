"""Prometheus remote write, version 1: samples from a block of snappy with a protobuf message.

The message has few parts, so its descriptor is built here instead of being generated.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import isnan
from typing import Any

from polyaforest.service.samples import Kind, MetricSample, why_too_many_labels
from polyaforest.util.extras import extra

__all__ = ["message_class", "read_write_request"]

_COUNTERS = ("_total", "_count", "_sum", "_bucket")  # by the conventions of Prometheus
_PARTS: dict[str, list[tuple[str, int, str, str]]] = {  # name, number, label, type of each field
    "Label": [("name", 1, "optional", "string"), ("value", 2, "optional", "string")],
    "Sample": [("value", 1, "optional", "double"), ("timestamp", 2, "optional", "int64")],
    "TimeSeries": [("labels", 1, "repeated", "Label"), ("samples", 2, "repeated", "Sample")],
    "WriteRequest": [("timeseries", 1, "repeated", "TimeSeries")],
}


@cache
def message_class() -> Any:
    """Return the class of the message."""
    with extra("remote write", "cramjam", "google", "google.protobuf", name="remote-write"):
        import cramjam  # noqa: F401, PLC0415 - an extra, needed later
        from google.protobuf import (  # noqa: PLC0415 - an extra
            descriptor_pb2,
            descriptor_pool,
            message_factory,
        )
    file = descriptor_pb2.FileDescriptorProto(
        name="polyaforest/remote_write.proto", package="polyaforest.remote_write", syntax="proto3"
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    for message, parts in _PARTS.items():
        described = file.message_type.add(name=message)
        for name, number, label, kind in parts:
            one = described.field.add(name=name, number=number, label=getattr(kinds, f"LABEL_{label.upper()}"))
            if kind in _PARTS:
                one.type, one.type_name = kinds.TYPE_MESSAGE, f".{file.package}.{kind}"
            else:
                one.type = getattr(kinds, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.WriteRequest"))


def read_write_request(body: bytes) -> Iterator[MetricSample]:
    """Yield the samples of a decompressed request; raise ValueError if it cannot be read.

    Samples that mark a series as gone, and NaN, are left out.
    """
    message = message_class()()
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - an extra

    try:
        message.ParseFromString(body)
    except DecodeError as problem:
        raise ValueError(f"the body is not a write request: {problem}") from None
    for series in message.timeseries:
        pairs = [(one.name, one.value) for one in series.labels]
        reason = why_too_many_labels(pairs)
        if reason is not None:
            raise ValueError(reason)
        labels = dict(pairs)
        name = labels.pop("__name__", "")
        if not name:
            raise ValueError("a series has no name: the label __name__ is missing")
        kind = Kind.COUNTER if name.endswith(_COUNTERS) else Kind.GAUGE
        for sample in series.samples:
            if not isnan(sample.value):
                yield MetricSample(name, labels, sample.timestamp / 1000, kind, sample.value)
