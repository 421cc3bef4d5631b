"""Kinds of values of settings: each checks a value, reads it from the command line and describes what is allowed."""

from __future__ import annotations

import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import date, datetime, time, timedelta
from functools import cache
from math import inf
from sys import float_info
from typing import Any, get_type_hints
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from polyaforest.util.durations import format_duration, parse_duration
from polyaforest.util.patterns import check_pattern
from polyaforest.util.text import label

__all__ = [
    "CalendarFeatures",
    "Choice",
    "Choices",
    "CountOrDuration",
    "Dates",
    "Duration",
    "Flag",
    "InvalidSettings",
    "Moment",
    "Names",
    "Number",
    "OneOrMoreNames",
    "Pattern",
    "Ranges",
    "Setting",
    "Table",
    "Tables",
    "Text",
    "TimeOfDay",
    "TimeZone",
    "Values",
    "Whole",
    "default_of",
    "key_of",
    "located",
    "non_default",
    "settings_of",
]  # fmt: skip

LONGEST_SPAN = 1e10  # seconds, about three centuries
MOST_RECORDS = 10**12


class InvalidSettings(ValueError):  # noqa: N818 - reads better where it is caught
    """Invalid values of settings: `problems` holds the path of each, and what is wrong."""

    def __init__(self, problems: Sequence[tuple[tuple[int | str, ...], str]]) -> None:
        self.problems = list(problems)
        super().__init__(
            "; ".join(": ".join([".".join(map(str, path)), words][not path :]) for path, words in problems)
        )


class Values(ABC):
    """A kind of values; `allowed` completes "must be ..."."""

    allowed: str
    metavar: str
    is_repeated = False  # whether an option of this kind may be given several times

    @abstractmethod
    def check(self, value: Any) -> Any:
        """Return a value of a file or a program in its normal form; raise ValueError if it is not allowed."""

    def parse(self, text: str) -> Any:
        """Return the value of an option."""
        return self.check(text)

    def plain(self, value: Any) -> Any:
        """Return a checked value as JSON value, which `check` accepts."""
        return value

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of allowed values."""
        return {}

    def reject(self, value: Any) -> ValueError:
        """Return an error that names the allowed values."""
        return ValueError(f"must be {self.allowed}; got {label(str(value)) if value != '' else 'no value'}")


class Flag(Values):
    """True or false."""

    allowed, metavar = "true or false", ""

    def check(self, value: Any) -> Any:
        """Accept bool only."""
        if not isinstance(value, bool):
            raise self.reject(value)
        return value

    def parse(self, text: str) -> Any:
        """Return the value of an option."""
        if text not in ("true", "false"):
            raise self.reject(text)
        return text == "true"

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of allowed values."""
        return {"type": "boolean"}


@dataclass(frozen=True)
class Text(Values):
    """A text."""

    metavar: str = "TEXT"
    allowed: str = "a text"
    is_empty_allowed: bool = False

    def check(self, value: Any) -> Any:
        """Accept str only."""
        if not isinstance(value, str) or not (value or self.is_empty_allowed):
            raise self.reject(value)
        return value

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of allowed values."""
        return {"type": "string"}


@dataclass(frozen=True)
class Pattern(Text):
    """A regular expression in the syntax of RE2, matched in linear time."""

    metavar: str = "REGEX"
    allowed: str = "a regular expression"

    def check(self, value: Any) -> Any:
        """Accept valid expressions only."""
        return check_pattern(super().check(value))


class Choice(Values):
    """One of several texts."""

    def __init__(self, *options: str) -> None:
        self.options, self.metavar = options, f"[{'|'.join(options)}]"
        quoted = [repr(option) for option in options]
        self.allowed = f"{', '.join(quoted[:-1])} or {quoted[-1]}" if len(quoted) > 1 else quoted[0]

    def check(self, value: Any) -> Any:
        """Accept the options only."""
        if value not in self.options:
            raise self.reject(value)
        return value

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of allowed values."""
        return {"enum": list(self.options)}


class Choices(Values):
    """Some of several texts."""

    is_repeated = True

    def __init__(self, *options: str) -> None:
        self._one, self.options = Choice(*options), options
        self.allowed, self.metavar = f"a list of {self._one.allowed}", self._one.metavar

    def check(self, value: Any) -> Any:
        """Accept each option once."""
        if not isinstance(value, (list, tuple)) or any(one not in self._one.options for one in value):
            raise self.reject(value)
        return _distinct(value)

    def parse(self, text: str) -> Any:
        """Return the value of one of the options."""
        return (self._one.check(text),)

    def plain(self, value: Any) -> Any:
        """Return a list."""
        return list(value)


class OneOrMoreNames(Values):
    """The name of a field, or of several."""

    allowed, metavar = "the name of a field, or a list of several", "COLUMN"

    def check(self, value: Any) -> Any:
        """Accept a text, or several texts, each once."""
        names = (value,) if isinstance(value, str) else value
        is_list = isinstance(names, (list, tuple)) and len(names) > 0
        if not is_list or not all(isinstance(name, str) and name for name in names):
            raise self.reject(value)
        return names[0] if len(names) == 1 else _distinct(names)

    def plain(self, value: Any) -> Any:
        """Return a text, or a list."""
        return value if isinstance(value, str) else list(value)

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of allowed values."""
        return {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}


class CalendarFeatures(Choices):
    """Calendar features: some of several texts, or the public holidays of a country."""

    _HOLIDAYS = re.compile(r"public holidays [A-Z]{2}(-[A-Z0-9]{1,3})?")

    def __init__(self) -> None:
        super().__init__("time of day", "day of week", "day of month", "public holidays DE")
        self.allowed = f"{self.allowed} (or another country)"

    def check(self, value: Any) -> Any:
        """Accept each feature once."""
        if not isinstance(value, (list, tuple)) or not all(map(self._is_feature, value)):
            raise self.reject(value)
        return _distinct(value)

    def parse(self, text: str) -> Any:
        """Return the value of one of the options."""
        return self.check((text,))

    def _is_feature(self, value: Any) -> bool:
        return value in self.options or (isinstance(value, str) and self._HOLIDAYS.fullmatch(value) is not None)


class Names(Values):
    """Names of fields."""

    is_repeated = True
    allowed, metavar = "a list of at least one name", "A,B,..."

    def check(self, value: Any) -> Any:
        """Accept texts, each once."""
        is_list = isinstance(value, (list, tuple)) and len(value) > 0
        if not is_list or not all(isinstance(name, str) and name for name in value):
            raise self.reject(value)
        return _distinct(value)

    def parse(self, text: str) -> Any:
        """Split names at commas."""
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        if not names:
            raise ValueError("give at least one name")
        return names

    def plain(self, value: Any) -> Any:
        """Return a list."""
        return list(value)


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Return names as tuple; raise ValueError if one is listed twice."""
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    if twice:
        raise ValueError(f"{twice[0]!r} is listed twice")
    return tuple(names)


class Whole(Values):
    """A whole number between two bounds."""

    metavar = "N"

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        bound = f" and less than {most + 1}" if most == 2**32 - 1 else f" and less than or equal to {most}"
        self.allowed = f"a whole number greater than or equal to {least}{bound if most < MOST_RECORDS else ''}"

    def check(self, value: Any) -> Any:
        """Accept int only."""
        if isinstance(value, bool) or not isinstance(value, int) or not self._least <= value <= self._most:
            raise self.reject(value)
        return value

    def parse(self, text: str) -> Any:
        """Parse a number."""
        try:
            number = int(text)
        except ValueError:
            raise self.reject(text) from None
        return self.check(number)

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of allowed values."""
        return {"type": "integer", "minimum": self._least, "maximum": self._most}


class Number(Values):
    """A finite number above a bound, and below another if given."""

    def __init__(self, above: float, below: float = inf, metavar: str = "NUMBER") -> None:
        self._above, self._below, self.metavar = above, below, metavar
        self.allowed = f"a number greater than {above:g}{'' if below == inf else f' and less than {below:g}'}"

    def check(self, value: Any) -> Any:
        """Accept int and float."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not self._above < value < self._below:
            raise self.reject(value)
        if value > float_info.max:
            raise self.reject(value)
        return float(value)

    def parse(self, text: str) -> Any:
        """Parse a number."""
        return self.check(_number(text, self))

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of allowed values."""
        below = {} if self._below == inf else {"exclusiveMaximum": self._below}
        return {"type": "number", "exclusiveMinimum": self._above, **below}


def _number(text: str, kind: Values) -> float:
    try:
        return float(text)
    except ValueError:
        raise kind.reject(text) from None


class Duration(Values):
    """A duration in seconds."""

    metavar = "TIME"
    allowed = 'a duration such as "90s", "30m", "6h" or "7d", or a number of seconds'

    def __init__(self, *, is_zero_allowed: bool = False) -> None:
        self._is_zero_allowed = is_zero_allowed

    def check(self, value: Any) -> Any:
        """Accept a duration as text, or a number of seconds."""
        if isinstance(value, str):
            value = parse_duration(value)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not (value > 0 or (self._is_zero_allowed and value == 0)):
            raise self.reject(value)
        if value > LONGEST_SPAN:
            raise ValueError(f"the duration is longer than {LONGEST_SPAN:g} seconds")
        return float(value)

    def parse(self, text: str) -> Any:
        """Parse a duration, or a number of seconds."""
        try:
            return self.check(float(text))
        except ValueError:
            return self.check(text)


class CountOrDuration(Values):
    """A number of records, or a duration."""

    metavar = "N|TIME"

    def __init__(self, least: int) -> None:
        self._least, self._duration = least, Duration()
        self.allowed = f'a number of records, at least {least}, or a duration such as "6h"'

    def check(self, value: Any) -> Any:
        """Accept int, timedelta and text; return int or timedelta."""
        if isinstance(value, timedelta):
            value = format_duration(value)
        if isinstance(value, str):
            return timedelta(seconds=self._duration.check(value))
        if isinstance(value, bool) or not isinstance(value, int) or not self._least <= value <= MOST_RECORDS:
            raise self.reject(value)
        return value

    def parse(self, text: str) -> Any:
        """Parse a number or a duration."""
        try:
            return self.check(int(text) if text.lstrip("-").isdecimal() else text)
        except ValueError as problem:
            words = str(problem)
            raise ValueError(words if self.allowed in words else f"{words}. It must be {self.allowed}") from None

    def plain(self, value: Any) -> Any:
        """Return a number, or a duration as text."""
        return format_duration(value) if isinstance(value, timedelta) else value

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of allowed values."""
        return {"anyOf": [{"type": "integer", "minimum": self._least, "maximum": MOST_RECORDS}, {"type": "string"}]}


# ---- notation of TOML ------------------------------------------------------------------------------------------------


class _OfToml(Values):
    """A kind whose options have the notation of TOML."""

    def parse(self, text: str) -> Any:
        """Parse a value of TOML."""
        try:
            found = tomllib.loads(f"value = {text}")
        except (tomllib.TOMLDecodeError, RecursionError):
            raise self.reject(text) from None
        if list(found) != ["value"]:
            raise self.reject(text)
        return self.check(found["value"])


class Ranges(_OfToml):
    """A range of numbers for each of some fields."""

    allowed, metavar = "a table of fields and ranges, such as {cpu = [0, 100]}", "TABLE"

    def check(self, value: Any) -> Any:
        """Accept two numbers per field, the first smaller."""
        if not isinstance(value, Mapping):
            raise self.reject(value)
        for name, pair in value.items():
            if not isinstance(name, str) or any("\ud800" <= char <= "\udfff" for char in name):
                raise ValueError(f"the field name {name!r} is not valid Unicode")  # JSON can escape surrogates
            is_pair = isinstance(pair, (list, tuple)) and len(pair) == 2
            if not is_pair or not all(map(_is_number, pair)):
                raise ValueError(f"the range of {name!r} must be two numbers, such as [0, 100]")
            if not pair[0] < pair[1]:  # also false for NaN
                raise ValueError(f"the range of {name!r} is empty: {pair[0]:g} is not below {pair[1]:g}")
        return {name: (float(pair[0]), float(pair[1])) for name, pair in value.items()}

    def plain(self, value: Any) -> Any:
        """Return lists."""
        return {name: list(pair) for name, pair in value.items()}

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of allowed values."""
        pair = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
        return {"type": "object", "additionalProperties": pair}


def _is_number(value: Any) -> bool:
    """Return whether a value is a number in the range of float, and not NaN."""
    is_numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_numeric and (abs(value) <= float_info.max or abs(value) == inf)


class Moment(_OfToml):
    """A date, or a date and time."""

    allowed, metavar = "a date such as 2027-01-01 or 2027-01-01T08:00:00Z", "DATE"

    def check(self, value: Any) -> Any:
        """Accept date, datetime and ISO 8601."""
        if isinstance(value, str):
            value = _of_iso(value, datetime if "T" in value else date, self)
        if not isinstance(value, date):
            raise self.reject(value)
        return value

    def plain(self, value: Any) -> Any:
        """Return ISO 8601."""
        return value.isoformat()


class Dates(_OfToml):
    """Some dates."""

    allowed, metavar = "a list of dates such as [2026-12-24, 2026-12-25]", "DATES"

    def check(self, value: Any) -> Any:
        """Accept dates without times."""
        if not isinstance(value, (list, tuple)):
            raise self.reject(value)
        found = tuple(_of_iso(one, date, self) if isinstance(one, str) else one for one in value)
        if any(not isinstance(one, date) or isinstance(one, datetime) for one in found):
            raise self.reject(value)
        return found

    def plain(self, value: Any) -> Any:
        """Return ISO 8601."""
        return [one.isoformat() for one in value]


class TimeOfDay(_OfToml):
    """A time of day."""

    allowed, metavar = "a time such as 02:30:00", "TIME"

    def check(self, value: Any) -> Any:
        """Accept time and ISO 8601."""
        if isinstance(value, str):
            value = _of_iso(value, time, self)
        if not isinstance(value, time):
            raise self.reject(value)
        return value

    def plain(self, value: Any) -> Any:
        """Return ISO 8601."""
        return value.isoformat()


def _of_iso(text: str, kind: type[date] | type[time], values: Values) -> Any:
    try:
        return kind.fromisoformat(text)
    except ValueError:
        raise values.reject(text) from None


class TimeZone(Text):
    """The name of a time zone."""

    def check(self, value: Any) -> Any:
        """Accept names that this machine knows."""
        name = super().check(value)
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: "Europe" is a directory
            raise ValueError(f"unknown timezone {name!r}") from None
        return name


# ---- tables ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """Facts about a setting, in the annotation of a field of a table.

    Parameters
    ----------
    values : Values
        What it may be; None is allowed too if it is the default.
    help : str
        What it does.
    default : str
        Its default in words, if its value does not say it.
    effect : str
        What a change does to existing models: a value of `Effect`.
    """

    values: Values
    help: str = ""
    default: str = ""
    effect: str = ""

    def check(self, value: Any) -> Any:
        """Return a value in its normal form; raise ValueError if it is not allowed."""
        return None if value is None else self.values.check(value)

    def plain(self, value: Any) -> Any:
        """Return a checked value as JSON value."""
        return None if value is None else self.values.plain(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Validate a field of a pydantic model by `check`."""
        from pydantic_core import core_schema  # noqa: PLC0415 - only the service has pydantic

        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        """Return the JSON schema of a field of a pydantic model."""
        return {"anyOf": [self.values.schema(), {"type": "null"}]}


@cache
def settings_of(table: Any) -> dict[str, Setting]:
    """Return the settings of a dataclass or pydantic model, by the name of the field."""
    hints = get_type_hints(table, include_extras=True)
    found = {
        name: [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Setting)]
        for name, hint in hints.items()
    }
    return {name: settings[0] for name, settings in found.items() if settings}


def key_of(name: str) -> str:
    """Return the key of a field in a file: `from` for the field `from_`."""
    return name.rstrip("_")


def non_default(table: Any) -> dict[str, Any]:
    """Return the settings of a table that differ from their defaults, tables in it as mappings."""
    kind: Any = type(table)
    values = {name: getattr(table, name) for name in settings_of(kind)}
    return {key_of(name): _as_mappings(value) for name, value in values.items() if value != default_of(kind, name)}


def default_of(table: Any, name: str) -> Any:
    """Return the default of a setting of a dataclass or pydantic model; MISSING if it has none."""
    if hasattr(table, "model_fields"):
        return table.model_fields[name].default
    field = {one.name: one for one in fields(table)}[name]
    return field.default if field.default_factory is MISSING else field.default_factory()


def _as_mappings(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_mappings(part) for part in value]
    return non_default(value) if is_dataclass(value) else value


class Table(_OfToml):
    """A table of settings, as dataclass; its method `conflicts` yields what is wrong with valid values."""

    metavar = "TABLE"

    def __init__(self, of: type) -> None:
        self.of = of
        self.allowed = f"a table with the keys {', '.join(map(key_of, settings_of(of)))}"

    def check(self, value: Any) -> Any:
        """Accept a mapping; raise `InvalidSettings` with all problems."""
        if isinstance(value, self.of):
            return value
        if not isinstance(value, Mapping):
            raise self.reject(value)
        settings = {key_of(name): (name, setting) for name, setting in settings_of(self.of).items()}
        given: dict[str, Any] = {}
        problems: list[tuple[tuple[int | str, ...], str]] = []
        for key, part in value.items():
            if key not in settings:
                problems.append(((label(str(key)),), "unknown key"))  # JSON can escape surrogates
                continue
            name, setting = settings[key]
            try:
                given[name] = setting.check(part)
            except ValueError as problem:
                problems += located(problem, key)
        problems += [((key_of(name),), "is missing") for name in self._missing() if key_of(name) not in value]
        if problems:
            raise InvalidSettings(problems)
        made = self.of(**given)
        conflicts = list(made.conflicts())
        if conflicts:
            raise InvalidSettings([((), words) for words in conflicts])
        return made

    def _missing(self) -> Iterator[str]:
        """Yield the fields without a default."""
        for one in fields(self.of):
            if one.default is MISSING and one.default_factory is MISSING:
                yield one.name

    def plain(self, value: Any) -> Any:
        """Return a mapping of all settings."""
        return {key_of(name): setting.plain(getattr(value, name)) for name, setting in settings_of(self.of).items()}

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of allowed values."""
        parts = {key_of(name): setting for name, setting in settings_of(self.of).items()}
        either = {key: {"anyOf": [part.values.schema(), {"type": "null"}]} for key, part in parts.items()}
        return {"type": "object", "properties": either, "additionalProperties": False}


class Tables(_OfToml):
    """Several tables; an option adds one."""

    is_repeated = True
    metavar = "TABLE"

    def __init__(self, of: type) -> None:
        self._one = Table(of)
        self.allowed = f"a list of tables; {self._one.allowed}"

    def check(self, value: Any) -> Any:
        """Accept a list of mappings."""
        if not isinstance(value, (list, tuple)):
            raise self.reject(value)
        found, problems = [], []
        for place, table in enumerate(value):
            try:
                found.append(self._one.check(table))
            except ValueError as problem:
                problems += located(problem, place)
        if problems:
            raise InvalidSettings(problems)
        return tuple(found)

    def parse(self, text: str) -> Any:
        """Parse one table."""
        return (self._one.parse(text),)

    def plain(self, value: Any) -> Any:
        """Return a list of mappings."""
        return [self._one.plain(table) for table in value]


def located(problem: ValueError, *place: int | str) -> list[tuple[tuple[int | str, ...], str]]:
    """Return the problems of an error, with the place of the table in front of each path."""
    if isinstance(problem, InvalidSettings):
        return [((*place, *path), words) for path, words in problem.problems]
    return [(place, str(problem))]
