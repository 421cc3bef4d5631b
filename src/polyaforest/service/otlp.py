"""OpenTelemetry metrics over HTTP (OTLP): requests as samples, and the answers that exporters expect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from polyaforest.service.samples import Kind, MetricSample, why_too_many_labels
from polyaforest.util.extras import extra

__all__ = ["JSON", "PROTOBUF", "answer_text", "check_extra", "error_text", "read_metrics"]

JSON, PROTOBUF = "application/json", "application/x-protobuf"
_DEEPEST = 32  # levels of nested values in JSON
_INVALID_ARGUMENT, _UNAVAILABLE = 3, 14  # codes of gRPC
_NANO = 1e-9


def _messages() -> Any:
    with extra("OpenTelemetry", "opentelemetry", "opentelemetry.proto", "google", name="otlp"):
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2  # noqa: PLC0415 - an extra
    return metrics_service_pb2


def check_extra() -> None:
    """Raise ModuleNotFoundError if the extra is missing."""
    _messages()


def read_metrics(body: bytes, kind: str) -> Iterator[MetricSample]:
    """Yield the samples of a request in protobuf or JSON; raise ValueError if it cannot be read."""
    request = _messages().ExportMetricsServiceRequest()
    from google.protobuf import json_format  # noqa: PLC0415 - an extra
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - an extra

    try:
        if kind == JSON:
            json_format.Parse(body, request, ignore_unknown_fields=True, max_recursion_depth=_DEEPEST)
        else:
            request.ParseFromString(body)
    except (DecodeError, json_format.ParseError, UnicodeDecodeError, RecursionError) as problem:
        raise ValueError(f"the body is not an export request of metrics: {str(problem)[:200]}") from None
    for resource in request.resource_metrics:
        common = _attributes(resource.resource.attributes)
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                yield from _samples_of(metric, common)


def _samples_of(metric: Any, common: list[tuple[str, str]]) -> Iterator[MetricSample]:
    """Yield the samples of a metric."""
    what = metric.WhichOneof("data")
    if what is None:
        return
    data = getattr(metric, what)
    is_delta = getattr(data, "aggregation_temporality", 0) == 1
    for point in data.data_points:
        if point.flags & 1:  # no recorded value
            continue
        pairs = [*common, *_attributes(point.attributes)]
        reason = why_too_many_labels(pairs)
        if reason is not None:
            raise ValueError(reason)
        labels, time = dict(pairs), point.time_unix_nano * _NANO
        start = point.start_time_unix_nano * _NANO or None
        if what in ("gauge", "sum"):
            total = Kind.DELTA if is_delta else Kind.COUNTER
            kind = total if what == "sum" and data.is_monotonic else Kind.GAUGE
            value = point.as_double if point.WhichOneof("value") == "as_double" else float(point.as_int)
            yield MetricSample(metric.name, labels, time, kind, value, start=start)
            continue
        total, mean = (Kind.DELTA, Kind.MEAN_DELTA) if is_delta else (Kind.COUNTER, Kind.MEAN)
        n = float(point.count)
        yield MetricSample(f"{metric.name}.count", labels, time, total, n, start=start)
        if what == "summary" or point.HasField("sum"):
            yield MetricSample(f"{metric.name}.sum", labels, time, total, point.sum, start=start)
            yield MetricSample(metric.name, labels, time, mean, point.sum, n, start)


def _attributes(found: Iterable[Any]) -> list[tuple[str, str]]:
    """Return attributes as text; lists and maps are left out."""
    pairs = []
    for one in found:
        what = one.value.WhichOneof("value")
        if what in ("string_value", "int_value", "double_value"):
            pairs.append((one.key, str(getattr(one.value, what))))
        elif what == "bool_value":
            pairs.append((one.key, "true" if one.value.bool_value else "false"))
    return pairs


def answer_text(n_rejected: int, words: str, kind: str) -> bytes:
    """Return the answer to a request that was read; it says how many samples were rejected, and why."""
    answer = _messages().ExportMetricsServiceResponse()
    from google.protobuf import json_format  # noqa: PLC0415 - an extra

    if n_rejected:
        answer.partial_success.rejected_data_points = n_rejected
        answer.partial_success.error_message = words
    if kind == JSON:
        return str(json_format.MessageToJson(answer, indent=None)).encode()
    text: bytes = answer.SerializeToString()
    return text


def error_text(status: int, words: str) -> bytes:
    """Return an error as the message `google.rpc.Status` (code = 1, message = 2)."""
    code = _UNAVAILABLE if status in (429, 503) else _INVALID_ARGUMENT
    text = words.encode()[:10_000]
    return bytes([0x08, code, 0x12]) + _varint(len(text)) + text


def _varint(number: int) -> bytes:
    parts = []
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])
