"""What the name of a column says about its content: a time, a time of day, or an identifier.

Imports nothing heavy, so that `watch` starts fast.
"""

from __future__ import annotations

import re

__all__ = [
    "is_hour_name",
    "is_id_name",
    "is_month_name",
    "is_time_name",
    "is_usual_time_name",
    "is_year_name",
    "tokens",
]

_TOKENS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_]+")
_USUAL_TIMES = frozenset({
    "@timestamp", "_time", "created_at", "date", "date_time", "datetime", "event_time", "eventtime",
    "t", "time", "time_stamp", "timestamp", "ts",
})  # fmt: skip
_TIMES = frozenset({"created", "date", "datetime", "epoch", "time", "timestamp", "ts", "unixtime", "updated"})
# what may stand beside one of `_TIMES`: units, zones, precision, and the event that the time belongs to
_BESIDE_TIMES = frozenset({
    "at", "end", "event", "gmt", "hour", "local", "log", "measured", "micros", "millis", "milliseconds", "ms",
    "nanos", "ns", "observation", "read", "reading", "received", "recorded", "review", "s", "sample", "sec",
    "seconds", "secs", "since", "start", "stamp", "unix", "us", "utc",
})  # fmt: skip
_MONTHS = frozenset({"mes", "mois", "monat", "month", "period", "ym", "yearmonth", "yyyymm"})
_YEARS = frozenset({"année", "año", "jahr", "year", "yr"})
_HOURS = frozenset({"clock", "hour", "time", "uhrzeit", "zeit", "heure", "hora", "ora"})
_IDS = frozenset({
    "code", "ean", "fips", "geoid", "gtin", "guid", "iban", "id", "ids", "isbn", "objectid", "phone", "pid", "plz",
    "postcode", "sku", "ssn", "status", "uid", "userid", "uuid", "zip", "zipcode",
})  # fmt: skip
_WHOLE_IDS = frozenset({"idx", "index", "key", "row"})  # if the name is nothing else
_NUMBERS = frozenset({"no", "nr", "number", "num"})
_NUMBERED = frozenset({
    "account", "card", "case", "cc", "customer", "invoice", "license", "order", "part", "phone", "policy", "receipt",
    "serial", "ticket",
})  # fmt: skip


def tokens(name: str) -> list[str]:
    """Return the words of a name in lower case, which underscores, spaces or capitals separate.

    Examples
    --------
    >>> tokens("timestamp_ms"), tokens("CustomerID"), tokens("PassengerId")
    (['timestamp', 'ms'], ['customer', 'id'], ['passenger', 'id'])
    """
    return [token.lower() for token in _TOKENS.findall(name)]


def _field(name: str) -> str:
    """Return the last part of a dotted name: the field of a nested object."""
    return name.rpartition(".")[2] or name


def is_usual_time_name(name: str) -> bool:
    """Return whether a column of this name is one of times, even if its numbers count from 0."""
    return name.strip().lower() in _USUAL_TIMES


def is_time_name(name: str) -> bool:
    """Return whether a column of this name holds times, if its values can be times.

    Examples
    --------
    >>> [is_time_name(name) for name in ("time_hour", "epochMs", "created_utc", "log.time", "time_in_bed", "runtime")]
    [True, True, True, True, False, False]
    """
    words = set(tokens(_field(name)))
    return is_usual_time_name(_field(name)) or bool(words & _TIMES and words <= _TIMES | _BESIDE_TIMES)


def is_month_name(name: str) -> bool:
    """Return whether numbers in a column of this name may be months or days, such as 200012."""
    return bool((_MONTHS | _TIMES) & set(tokens(name)))


def is_year_name(name: str) -> bool:
    """Return whether a column of this name holds years, and nothing else."""
    words = tokens(name)
    return len(words) == 1 and words[0] in _YEARS


def is_hour_name(name: str) -> bool:
    """Return whether a column of this name may hold times of day."""
    return bool(_HOURS & set(tokens(name)))


def is_id_name(name: str) -> bool:
    """Return whether numbers in a column of this name identify something rather than measure it.

    Examples
    --------
    >>> [is_id_name(name) for name in ("fips", "customer_id", "PassengerId", "invoice_no", "zip code")]
    [True, True, True, True, True]
    >>> [is_id_name(name) for name in ("paid", "number_of_rooms", "price_index", "decode_ms")]
    [False, False, False, False]
    """
    words = tokens(_field(name))
    if not words:
        return False
    if len(words) == 1 and words[0] in _WHOLE_IDS:
        return True
    if words[-1] in _IDS or words[0] == "id" or words[-2:] == ["zip", "code"]:
        return True
    return len(words) > 1 and words[-1] in _NUMBERS and words[-2] in _NUMBERED
