"""The configuration of the service, a TOML file; every error names its line and key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from ipaddress import ip_network
from math import inf
from pathlib import Path
from sys import float_info
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from polyaforest.io.errors import BadInput
from polyaforest.io.sources import canonical_name, scheme_of
from polyaforest.io.sources.prometheus import TIME, PrometheusServer
from polyaforest.service.toml_text import Places, to_toml
from polyaforest.util.durations import format_duration, parse_duration
from polyaforest.util.text import printable

__all__ = [
    "AlertConfig", "Config", "GateConfig", "MaintenanceConfig", "MuteConfig", "PrometheusConfig", "RetentionConfig",
    "ServerConfig", "SettingsTable", "StreamConfig", "Window", "parse_config", "public", "read_config", "to_toml",
    "web_address",
]  # fmt: skip

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # also the name of a file
_WORDS = {"extra_forbidden": "unknown key", "missing": "is missing"}
_RENAMED = {"seasons": "calendar", "calendars": "maintenance"}
_LONGEST_SPAN = 1e10  # seconds, about three centuries
_MOST_RECORDS = 10**12
_DAY = 86400.0
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def _span(value: Any) -> Any:
    """Return a duration such as "30m" in seconds."""
    if isinstance(value, str):
        value = parse_duration(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ValueError('must be a duration such as "90s", "30m", "6h" or "7d", or a number of seconds')
    if value > _LONGEST_SPAN:
        raise ValueError(f"the duration is longer than {_LONGEST_SPAN:g} seconds")
    return float(value)


def _window(value: Any) -> Any:
    """Return a number of records, or a duration as timedelta."""
    if isinstance(value, str):
        return timedelta(seconds=_span(value))
    if isinstance(value, bool) or not isinstance(value, int) or not 2 <= value <= _MOST_RECORDS:
        raise ValueError('must be a number of records, at least 2, or a duration such as "6h"')
    return value


def web_address(url: str) -> str:
    """Return an http:// or https:// address unchanged; raise ValueError if it is invalid."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # malformed brackets or port
        is_valid = False
    if not is_valid or any(char.isspace() or not char.isprintable() for char in url):
        raise ValueError("must be http://host:port or https://host:port")
    return url


Place = tuple[int | str, ...]  # the path of a setting in the file
Span = Annotated[float, BeforeValidator(_span)]
Window = Annotated[int | timedelta, BeforeValidator(_window)]


class SettingsTable(BaseModel):
    """Base class of tables of the file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)


class ServerConfig(SettingsTable):
    """Settings of the process: address, access and data folder."""

    host: str = "127.0.0.1"
    port: int = Field(default=8420, ge=0, le=65535)
    data: str = "polyaforest-data"
    read_token_file: str | None = None
    admin_token_file: str | None = None
    allowed_hosts: list[str] = []
    cors: list[str] = []
    max_body_mb: float = Field(default=16.0, gt=0, le=1024)
    requests_per_second: float = Field(default=1000.0, gt=0, allow_inf_nan=False)
    header_timeout: Span = 15.0
    body_timeout: Span = 30.0
    session_age: Span = 30 * 86400.0
    feeds_per_address: int = Field(default=100, ge=1)
    trusted_proxies: list[str] = []
    key_labels: bool = False
    public_url: str | None = None

    @field_validator("public_url")
    @classmethod
    def _check_public_url(cls, url: str | None) -> str | None:
        return url if url is None else web_address(url)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        return self.host in LOOPBACK

    @field_validator("trusted_proxies")
    @classmethod
    def _check_proxies(cls, proxies: list[str]) -> list[str]:
        for proxy in proxies:
            try:
                ip_network(proxy)
            except ValueError:
                raise ValueError(f'{proxy!r} is not an address or network such as "10.0.0.0/8"') from None
        return proxies


class GateConfig(SettingsTable):
    """Conditions that a flagged record must meet to count."""

    direction: Literal["both", "high", "low"] = "both"
    smallest_absolute: float | None = Field(default=None, gt=0)
    smallest_relative: float | None = Field(default=None, gt=0)
    valid: dict[str, tuple[float | None, float | None]] = {}

    @field_validator("valid", mode="before")
    @classmethod
    def _check_ranges(cls, ranges: Any) -> Any:
        if not isinstance(ranges, dict):
            raise ValueError("must be a table of fields and ranges, such as {cpu = [0, 100]}")
        for name, pair in ranges.items():
            if any("\ud800" <= char <= "\udfff" for char in name):  # JSON can escape them, no record has them
                raise ValueError(f"the field name {name!r} is not valid Unicode")
            is_pair = isinstance(pair, (list, tuple)) and len(pair) == 2
            if not is_pair or not all(map(_is_number, pair)):
                raise ValueError(f"the range of {name!r} must be two numbers, such as [0, 100]")
            if not pair[0] < pair[1]:  # also false for NaN
                raise ValueError(f"the range of {name!r} is empty: {pair[0]:g} is not below {pair[1]:g}")
        return {name: tuple(map(float, pair)) for name, pair in ranges.items()}


class MuteConfig(SettingsTable):
    """A rule that mutes flagged records: of a key, of records mostly attributed to a field, or both."""

    key: str | None = None
    field: str | None = None
    until: datetime | date | None = None
    reason: str = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.key is None and self.field is None:
            raise ValueError("set `key`, `field` or both: the rule has neither")
        return self

    @property
    def ends(self) -> float:
        """End of the rule, in seconds since 1970."""
        return float("inf") if self.until is None else _moment(self.until)


class MaintenanceConfig(SettingsTable):
    """A maintenance window: its records are flagged but not learned, or learned but not flagged."""

    name: str
    mode: Literal["judge-only", "learn-only"]
    start: datetime | date | None = None
    end: datetime | date | None = None
    days: list[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]] = []
    dates: list[date] = []
    from_: time | None = Field(default=None, alias="from")
    to: time | None = None
    timezone: str = "UTC"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.from_ is None) != (self.to is None):
            raise ValueError("set both `from` and `to`, or neither")
        if not (self.start or self.end or self.days or self.dates or self.from_):
            raise ValueError("no time given: set `start` and `end`, `days`, `dates`, or `from` and `to`")
        return self

    @field_validator("timezone")
    @classmethod
    def _check_timezone(cls, timezone: str) -> str:
        try:
            ZoneInfo(timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: "Europe" is a directory
            raise ValueError(f"unknown timezone {timezone!r}") from None
        return timezone

    @property
    def weekdays(self) -> set[int]:
        """Days of the week as numbers; Monday is 0."""
        return {_DAYS.index(day) for day in self.days}

    @property
    def span(self) -> tuple[float, float]:
        """Start and end, in seconds since 1970."""
        start = float("-inf") if self.start is None else _moment(self.start)
        return start, float("inf") if self.end is None else _moment(self.end)


class PrometheusConfig(SettingsTable):
    """Queries to a Prometheus server, one expression per field."""

    url: str
    queries: dict[str, str] = Field(min_length=1)
    by: str | None = None
    step: Span = 15.0
    past: Span = 6 * 3600.0
    timeout: Span = 10.0
    token_file: str | None = None

    def open(self) -> PrometheusServer:
        """Open the source."""
        token = None if self.token_file is None else Path(self.token_file).read_text("utf-8").strip()
        if token is not None and not (token.isascii() and token.isprintable() and token):
            raise BadInput(f"the token in {self.token_file} must have only printable ASCII characters")
        return PrometheusServer(
            self.url, self.queries, by=self.by, step=self.step, past=self.past, timeout=self.timeout, token=token
        )

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        return web_address(url).rstrip("/")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.by in self.queries:
            raise ValueError(f"{self.by!r} is both a label and the name of a query: choose another name for the query")
        if TIME in self.queries or self.by == TIME:
            raise ValueError(f"{TIME!r} is reserved for the time of a record: choose another name")
        return self


class RetentionConfig(SettingsTable):
    """How much history a stream keeps; the oldest records beyond either limit are deleted."""

    records: int = Field(default=2_000_000, ge=1000, le=_MOST_RECORDS)
    age: Span = 400 * 86400.0


class StreamConfig(SettingsTable):
    """Settings of a stream: its source, its records and its detector."""

    source: str = "http"
    prometheus: PrometheusConfig | None = None
    format: Literal["auto", "jsonl", "csv"] = "auto"
    columns: list[str] | None = Field(default=None, min_length=1)
    time: str | None = None
    by: str | None = None
    id: str | None = None
    series: bool | None = None
    shingle: int | None = Field(default=None, ge=1, le=2**20)
    difference: bool = False
    calendar: list[Literal["time of day", "day of week"]] = []
    window: Window = 1024
    trees: int = Field(default=100, ge=1, le=10_000)
    false_alarm_rate: float | None = Field(default=None, gt=0, lt=1)
    seed: int = Field(default=0, ge=0, lt=2**32)
    merge: int | None = Field(default=None, ge=1, le=_MOST_RECORDS)
    band: bool = True
    silence: Span | None = None
    close_after: Span | None = None
    max_ahead: Span = 3600.0
    memory_mb: int = Field(default=1024, ge=1, le=10**9)
    save_records: int = Field(default=10_000, ge=1, le=_MOST_RECORDS)
    save_every: Span = 30.0
    retention: RetentionConfig = RetentionConfig()
    gates: GateConfig = GateConfig()
    mute: list[MuteConfig] = []
    maintenance: list[MaintenanceConfig] = []

    @field_validator("source")
    @classmethod
    def _check_source(cls, source: str) -> str:
        if source not in ("http", "prometheus"):
            scheme_of(source)  # raises if the address is malformed
        return source

    @field_validator("columns", "calendar")
    @classmethod
    def _check_repeated(cls, names: list[str] | None) -> list[str] | None:
        twice = [name for place, name in enumerate(names or ()) if name in (names or ())[:place]]
        if twice:
            raise ValueError(f"{twice[0]!r} is listed twice")
        return names

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.source == "prometheus") != (self.prometheus is not None):
            raise ValueError('set both source = "prometheus" and the table `prometheus`, or neither')
        if self.series is False and (self.shingle or self.difference or self.calendar):
            raise ValueError("`shingle`, `difference` and `calendar` are for time series: omit `series = false`")
        if self.series and (self.shingle or self.difference):
            raise ValueError("`series = true` already covers shingles and differences: omit `shingle` and `difference`")
        needs_time = self.calendar or isinstance(self.window, timedelta)
        if needs_time and self.time is None and self.source != "prometheus":
            raise ValueError("`calendar` and a window of time need `time`, the field with the timestamps")
        return self

    @property
    def closes_after(self) -> float:
        """Seconds without records of its key after which an open event is closed."""
        return self.close_after or self.silence or _DAY

    @property
    def finds_series(self) -> bool:
        """Whether models detect if the records of a key are a time series, as in `watch`."""
        return self.series is None and not (self.shingle or self.difference or self.calendar)

    @property
    def settings(self) -> dict[str, Any]:
        """All settings as JSON values without secrets, those of tables named "table.name"."""
        settings: dict[str, Any] = {}
        for name, value in self.model_dump(by_alias=True).items():
            inner = {f"{name}.{setting}": part for setting, part in (value or {}).items()} if name in TABLES else None
            settings |= {name: value} if inner is None else inner
        settings["source"] = _without_password(self.source)
        if self.prometheus is not None:
            settings["prometheus.url"] = canonical_name(self.prometheus.url)
        return {name: _plain(value) for name, value in settings.items()}

    def with_settings(self, stored: Mapping[str, Any]) -> Self:
        """Return a copy with some settings replaced by values as `settings` returns them."""
        given = {name: _window(value) if name == "window" else value for name, value in stored.items()}
        return self.model_copy(update=given)


TABLES = ("prometheus", "retention", "gates")  # of a stream


def _plain(value: Any) -> Any:
    """Convert a setting to JSON values."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, timedelta):
        return format_duration(value)
    return value.isoformat() if isinstance(value, (date, time)) else value


def _without_password(source: str) -> str:
    return source if source in ("http", "prometheus") else canonical_name(source)


class AlertConfig(SettingsTable):
    """A destination of alerts: its address is given here, in a file or in an environment variable."""

    name: str
    url: str | None = None
    url_file: str | None = None
    url_env: str | None = None
    streams: list[str] = []
    min_bits: float = Field(default=0.0, ge=0)
    worse_by: float = Field(default=4.0, gt=0)
    closing: bool = True

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(part is not None for part in (self.url, self.url_file, self.url_env)) != 1:
            raise ValueError("set exactly one of `url`, `url_file` and `url_env`")
        return self


class Config(SettingsTable):
    """The whole file."""

    server: ServerConfig = ServerConfig()
    streams: dict[str, StreamConfig] = Field(min_length=1)
    alerts: list[AlertConfig] = []

    def at(self, *, host: str | None = None, port: int | None = None, data: str | None = None) -> Self:
        """Return a copy with another host, port or data folder, where given."""
        given = {"host": host, "port": port, "data": data}
        server = self.server.model_copy(update={name: part for name, part in given.items() if part is not None})
        return self.model_copy(update={"server": server})

    _file: str = PrivateAttr(default="the configuration")
    _places: Places = PrivateAttr(default_factory=lambda: Places(""))

    def words_at(self, place: Place, words: str) -> str:
        """Return an error message with the file, line and key of a setting."""
        return _words_at(self._file, self._places, place, words)

    def problems(self) -> Iterator[tuple[Place, str]]:
        """Yield conflicts between valid parts of the file, each with its place."""
        seen: set[str] = set()
        for name in self.streams:
            if not _NAME.fullmatch(name):
                yield ("streams", name), f"the name {name!r} must have 1 to 64 letters, digits, '_' or '-'"
            if name.casefold() in seen:
                yield ("streams", name), "another stream name differs only in upper and lower case: rename one"
            seen.add(name.casefold())
        names = [alert.name for alert in self.alerts]
        for number, alert in enumerate(self.alerts):
            if alert.name in names[:number]:
                yield ("alerts", number, "name"), f"another alert is named {alert.name!r}: choose another name"
            for stream in alert.streams:
                if stream not in self.streams:
                    yield ("alerts", number, "streams"), f"there is no stream {stream!r}"


def read_config(path: str) -> Config:
    """Read a configuration file; raise `BadInput` with the line and key of each error."""
    try:
        text = Path(path).read_bytes().decode()
    except UnicodeDecodeError as problem:
        raise BadInput(f"{path}: byte {problem.start + 1} is not UTF-8") from None
    return parse_config(text, path)


def parse_config(text: str, path: str = "polyaforest.toml") -> Config:
    """Parse a configuration; raise `BadInput` with the line and key of each error."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise BadInput(f"{path}: {problem}") from None
    except RecursionError:
        raise BadInput(f"{path}: nested too deeply") from None
    places = Places(text)
    try:
        config = Config.model_validate(tables)
        config._file, config._places = path, places
        errors = list(config.problems())
    except ValidationError as problem:
        errors = []
        for error in problem.errors(include_url=False, include_context=False, include_input=False):
            words = _WORDS.get(error["type"], error["msg"].removeprefix("Value error, "))
            if error["type"] == "extra_forbidden" and (name := _RENAMED.get(str(error["loc"][-1]))):
                words += f", use `{name}` instead"
            errors.append((tuple(_path_in(tables, error["loc"])), words))
    if errors:
        raise BadInput("; ".join(_words_at(path, places, place, words) for place, words in errors))
    return config


def _words_at(file: str, places: Places, place: Place, words: str) -> str:
    where = printable(".".join(map(str, place))) or "the file"
    return f"{file}, line {places.line_of(list(place))}: {where}: {words[:1].lower()}{words[1:]}"


def _path_in(tables: Any, place: tuple[int | str, ...]) -> list[int | str]:
    """Return the path of an error in the file, without the type names that pydantic adds."""
    parts: list[int | str] = []
    for step in place:
        if isinstance(tables, dict) and step not in tables and isinstance(step, str):
            return [*parts, step] if step.isidentifier() else parts  # a missing key
        if not isinstance(tables, (dict, list)) or (isinstance(tables, list) and not isinstance(step, int)):
            return parts
        tables = tables[step] if isinstance(tables, dict) else tables[int(step)]
        parts.append(step)
    return parts


# ---- without secrets -------------------------------------------------------------------------------------------------


def public(config: Config) -> dict[str, Any]:
    """Return the settings that differ from the defaults, without secrets."""
    shown = config.model_dump(by_alias=True, exclude_defaults=True)
    for stream in shown.get("streams", {}).values():
        if stream.get("source", "http") not in ("http", "prometheus"):
            stream["source"] = canonical_name(stream["source"])
        if "prometheus" in stream:
            stream["prometheus"]["url"] = canonical_name(stream["prometheus"]["url"])
    for alert in shown.get("alerts", []):
        alert.pop("url", None)  # usually a secret
    return shown


def _is_number(value: Any) -> bool:
    """Return whether a value is a number in the range of float, and not NaN."""
    is_numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_numeric and (abs(value) <= float_info.max or abs(value) == inf)


def _moment(moment: datetime | date) -> float:
    """Convert to seconds since 1970; UTC unless the moment has an offset."""
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
