"""The rule that maps metrics of OpenTelemetry or Prometheus to the fields of a stream."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["MetricSelector", "parse_selector"]

_SELECTOR = re.compile(
    r"(?:(?P<function>value|rate)\((?P<inner>.*)\)|(?P<plain>[^()]*))", re.ASCII | re.DOTALL
)  # fmt: skip
_NAMED = re.compile(r"\s*(?P<name>[A-Za-z_][\w.:/-]*)\s*(?:\{(?P<labels>.*)\})?\s*", re.ASCII | re.DOTALL)
_LABEL = re.compile(r'\s*(?P<name>[A-Za-z_][\w.:/-]*)\s*(?P<how>!=|=)\s*"(?P<value>[^"]*)"\s*(?:,|$)', re.ASCII)
_LONGEST = 1000


class MetricSelector(NamedTuple):
    """The metric of a field: its name, the labels that it must or must not have, and how to read it."""

    name: str
    equal: tuple[tuple[str, str], ...] = ()
    unequal: tuple[tuple[str, str], ...] = ()
    function: str | None = None  # "value" or "rate"; None chooses by the kind of the metric

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether a series of this name with these labels belongs to the field."""
        return all(labels.get(name) == value for name, value in self.equal) and all(
            labels.get(name) != value for name, value in self.unequal
        )


def parse_selector(text: str) -> MetricSelector:
    """Parse the notation of a configuration; raise ValueError if it is invalid.

    Examples
    --------
    >>> parse_selector('system.cpu.utilization{state="user"}')
    MetricSelector(name='system.cpu.utilization', equal=(('state', 'user'),), unequal=(), function=None)
    >>> parse_selector("value(node_load1)").function
    'value'
    """
    problem = f'{text[:80]!r} is not a metric: write a name, name{{label="value"}}, rate(...) or value(...)'
    outer = _SELECTOR.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    named = None if outer is None else _NAMED.fullmatch(outer["inner"] or outer["plain"] or "")
    if outer is None or named is None:
        raise ValueError(problem)
    labels: dict[str, list[tuple[str, str]]] = {"=": [], "!=": []}
    text, place = (named["labels"] or "").strip(), 0
    while place < len(text):
        found = _LABEL.match(text, place)
        if found is None:
            raise ValueError(problem)
        labels[found["how"]].append((found["name"], found["value"]))
        place = found.end()
    return MetricSelector(named["name"], tuple(labels["="]), tuple(labels["!="]), outer["function"])
