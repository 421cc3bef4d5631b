"""The configuration of the service, a TOML file; every error names its line and key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

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
from polyaforest.settings.metrics import MetricSelector, parse_selector
from polyaforest.settings.stream import (
    FORMER_NAMES,
    Effect,
    Gates,
    Maintenance,
    Mute,
    StreamSettings,
    flat_settings,
    part_of,
)
from polyaforest.settings.values import (
    MOST_RECORDS,
    Duration,
    Flag,
    InvalidSettings,
    Setting,
    Table,
    Tables,
    non_default,
    settings_of,
)
from polyaforest.util.text import printable

__all__ = [
    "KEY", "AlertConfig", "Config", "MetricsConfig", "PrometheusConfig", "RetentionConfig", "ServerConfig",
    "SettingsTable", "StreamConfig", "TokenConfig", "parse_config", "public", "read_config", "to_toml", "web_address",
]  # fmt: skip

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # also the name of a file
_WORDS = {"extra_forbidden": "unknown key", "missing": "is missing"}
_DAY = 86400.0
KEY = "key"  # the field with the key in records of metrics
_PUSHED = ("otlp", "remote-write")  # sources whose metrics come by HTTP
_OWN = ("http", "prometheus", *_PUSHED)  # sources that are not addresses


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
Span = Annotated[float, BeforeValidator(Duration().check)]
Pause = Annotated[float, BeforeValidator(Duration(is_zero_allowed=True).check)]


class SettingsTable(BaseModel):
    """Base class of tables of the file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)


class TokenConfig(SettingsTable):
    """A token with a name and a role, in a file or in an environment variable."""

    name: str = Field(min_length=1, max_length=64)
    role: Literal["read", "write", "admin"]
    file: str | None = None
    env: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.file is None) == (self.env is None):
            raise ValueError("set exactly one of `file` and `env`")
        return self


class ServerConfig(SettingsTable):
    """Settings of the process: address, access and data folder."""

    host: str = "127.0.0.1"
    port: int = Field(default=8420, ge=0, le=65535)
    data: str = "polyaforest-data"
    read_token_file: str | None = None
    admin_token_file: str | None = None
    tokens: list[TokenConfig] = []
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
    otlp_url: str | None = None
    otlp_every: Span = 15.0
    otlp_token_file: str | None = None

    @field_validator("public_url", "otlp_url")
    @classmethod
    def _check_address(cls, url: str | None) -> str | None:
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


class MetricsConfig(SettingsTable):
    """How metrics that senders push become records: one metric per field, and the labels that make the key."""

    fields: dict[str, str] = Field(min_length=1)
    by: list[str] = []
    within: Span = 5.0
    wait: Span = 10.0

    @property
    def selectors(self) -> dict[str, MetricSelector]:
        """The metric of each field."""
        return {name: parse_selector(text) for name, text in self.fields.items()}

    @property
    def key(self) -> str | None:
        """The field with the key, None if the stream is not partitioned."""
        return KEY if self.by else None

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, text in self.fields.items():
            if name in (TIME, KEY):
                raise ValueError(f"the field name {name!r} is reserved: choose another name")
            try:
                parse_selector(text)
            except ValueError as problem:
                raise ValueError(f"fields.{name}: {problem}") from None
        if len(set(self.by)) < len(self.by):
            raise ValueError("`by` names a label twice")
        return self


class RetentionConfig(SettingsTable):
    """How much history a stream keeps; the oldest records beyond either limit are deleted."""

    records: int = Field(default=2_000_000, ge=1000, le=MOST_RECORDS)
    age: Span = 400 * 86400.0


class StreamConfig(SettingsTable, StreamSettings):
    """Settings of a stream: those of `StreamSettings`, its source, and what the service stores and reports."""

    source: str = "http"
    prometheus: PrometheusConfig | None = None
    metrics: MetricsConfig | None = None
    band: Annotated[bool, Setting(Flag(), "Store the expected range of each record.", effect=Effect.APPLIED)] = True
    silence: Annotated[
        float | None,
        Setting(Duration(), "How long a stream, key or field may send nothing.", "for ever", Effect.APPLIED),
    ] = None
    close_after: Annotated[
        float | None,
        Setting(
            Duration(),
            "Close an open event after this time without records of its key.",
            "`silence`, else 1d",
            Effect.APPLIED,
        ),
    ] = None
    max_wait: Annotated[
        float,
        Setting(
            Duration(),
            "Report that the stream falls behind if posted records wait longer to be scored.",
            "5m",
            Effect.APPLIED,
        ),
    ] = 300.0
    max_ahead: Annotated[
        float,
        Setting(Duration(), "Reject records dated further ahead of the system clock.", "1h", Effect.APPLIED),
    ] = 3600.0
    retention: RetentionConfig = RetentionConfig()
    gates: Annotated[Gates, Setting(Table(Gates))] = Gates()
    mute: Annotated[tuple[Mute, ...], Setting(Tables(Mute), effect=Effect.APPLIED)] = ()
    maintenance: Annotated[tuple[Maintenance, ...], Setting(Tables(Maintenance), effect=Effect.APPLIED)] = ()

    @field_validator("source")
    @classmethod
    def _check_source(cls, source: str) -> str:
        if source not in _OWN:
            scheme_of(source)  # raises if the address is malformed
        return source

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.source == "prometheus") != (self.prometheus is not None):
            raise ValueError('set both source = "prometheus" and the table `prometheus`, or neither')
        if (self.source in _PUSHED) != (self.metrics is not None):
            raise ValueError('set both source = "otlp" or "remote-write" and the table `metrics`, or neither')
        if self.weight is not None and self.source in ("prometheus", *_PUSHED):
            raise ValueError("`weight` is for streams of records: those of metrics have none")
        for words in self.conflicts():
            raise ValueError(words)
        return self

    @property
    def has_times(self) -> bool:
        """Whether the settings say where the times of records are."""
        return self.time is not None or self.source in ("prometheus", *_PUSHED)

    @property
    def has_inbox(self) -> bool:
        """Whether records come by HTTP."""
        return self.source == "http" or self.source in _PUSHED

    @property
    def source_name(self) -> str:
        """The source without passwords."""
        return _without_password(self.source)

    @property
    def closes_after(self) -> float:
        """Seconds without records of its key after which an open event is closed."""
        return self.close_after or self.silence or _DAY

    @property
    def settings(self) -> dict[str, Any]:
        """All settings as JSON values without secrets, those of tables named "table.name"."""
        settings: dict[str, Any] = {"source": _without_password(self.source)}
        for table in ("prometheus", "metrics", "retention"):
            part = getattr(self, table)
            settings |= {} if part is None else {f"{table}.{name}": one for name, one in part.model_dump().items()}
        if self.prometheus is not None:
            settings["prometheus.url"] = canonical_name(self.prometheus.url)
        return settings | {name: one.plain(part_of(self, name)) for name, one in flat_settings(type(self)).items()}

    def with_settings(self, stored: Mapping[str, Any]) -> Self:
        """Return a copy with some settings replaced by values as `settings` returns them."""
        known = settings_of(type(self))
        return self.model_copy(update={name: known[name].check(value) for name, value in stored.items()})


TABLES = ("prometheus", "metrics", "retention", "gates")  # of a stream


def _without_password(source: str) -> str:
    return source if source in _OWN else canonical_name(source)


class AlertConfig(SettingsTable):
    """A destination of alerts: its address is given here, in a file or in an environment variable."""

    name: str
    url: str | None = None
    url_file: str | None = None
    url_env: str | None = None
    streams: list[str] = []
    min_bits: float = Field(default=0.0, ge=0)
    min_severity: int = Field(default=1, ge=1, le=5)
    worse_by: float = Field(default=4.0, gt=0)
    closing: bool = True
    group: bool = True
    group_wait: Pause = 5.0
    group_interval: Pause = 300.0
    most_per_hour: int = Field(default=60, ge=1)
    secret_file: str | None = None
    secret_env: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(part is not None for part in (self.url, self.url_file, self.url_env)) != 1:
            raise ValueError("set exactly one of `url`, `url_file` and `url_env`")
        if self.secret_file is not None and self.secret_env is not None:
            raise ValueError("set `secret_file` or `secret_env`, not both")
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
        tokens = [token.name for token in self.server.tokens]
        for number, name in enumerate(tokens):
            if name in tokens[:number]:
                yield ("server", "tokens", number, "name"), f"another token is named {name!r}: choose another name"
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
        for error in problem.errors(include_url=False, include_input=False):
            inner = error.get("ctx", {}).get("error")
            words = _WORDS.get(error["type"], error["msg"].removeprefix("Value error, "))
            parts = inner.problems if isinstance(inner, InvalidSettings) else [((), words)]
            errors += [
                (place, _with_new_name(place, words))
                for path, words in parts
                for place in [tuple(_path_in(tables, (*error["loc"], *path)))]
            ]
    if errors:
        raise BadInput("; ".join(_words_at(path, places, place, words) for place, words in errors))
    return config


def _with_new_name(place: Place, words: str) -> str:
    """Add the new name of a renamed key."""
    name = FORMER_NAMES.get(str(place[-1])) if place and words == "unknown key" else None
    return words if name is None else f"{words}, use `{name}` instead"


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
    if config.server.otlp_url is not None:
        shown["server"]["otlp_url"] = canonical_name(config.server.otlp_url)
    shown["streams"] = {name: _public_stream(stream) for name, stream in config.streams.items()}
    for alert in shown.get("alerts", []):
        alert.pop("url", None)  # usually a secret
    return shown


def _public_stream(stream: StreamConfig) -> dict[str, Any]:
    shown = stream.model_dump(exclude_defaults=True, include={"prometheus", "metrics", "retention", "source"})
    shown |= non_default(stream)
    if "source" in shown:
        shown["source"] = _without_password(shown["source"])
    if "prometheus" in shown:
        shown["prometheus"]["url"] = canonical_name(shown["prometheus"]["url"])
    return shown
