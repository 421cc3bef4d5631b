"""The settings of a stream: names, defaults, help and rules, in one place for `watch` and `serve`.

An option of `watch` is the name of a setting with dashes: `--save-every` is `save_every` in the configuration of
`serve`, `--gates-direction` is `direction` in its table `gates`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Annotated, Any

from polyaforest.settings.values import (
    MOST_RECORDS,
    CalendarFeatures,
    Choice,
    Choices,
    CountOrDuration,
    Dates,
    Duration,
    Flag,
    Moment,
    Names,
    Number,
    OneOrMoreNames,
    Pattern,
    Ranges,
    Setting,
    Table,
    Text,
    TimeOfDay,
    TimeZone,
    Whole,
    settings_of,
)

__all__ = [
    "FORMER_NAMES", "WINDOW", "Effect", "Gates", "Maintenance", "Mute", "StreamSettings", "flat_settings", "option_of",
]  # fmt: skip

WINDOW = 1024  # records that a model holds by default
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
# names of earlier versions, in files and in stores
FORMER_NAMES = {
    "calendars": "maintenance",
    "is_series": "series",
    "key": "by",
    "queries": "prometheus.queries",
    "seasons": "calendar",
}


class Effect(StrEnum):
    """What a change of a setting does."""

    APPLIED = "applied"  # takes effect at once; models are kept
    RELEARNED = "relearned"  # models are learned again from stored records
    NEW_STREAM = "new stream"  # existing models and records would not fit
    AT_START = "at the next start"  # of the service


_COLUMN = Text("COLUMN", "the name of a field")


@dataclass(frozen=True)
class Gates:
    """Conditions that a flagged record must meet to count."""

    direction: Annotated[
        str,
        Setting(
            Choice("both", "high", "low"),
            "Flag deviations in this direction only.",
            effect=Effect.APPLIED,
        ),
    ] = "both"
    smallest_absolute: Annotated[
        float | None,
        Setting(Number(0), "Do not flag deviations from the expected range that are smaller.", effect=Effect.APPLIED),
    ] = None
    smallest_relative: Annotated[
        float | None,
        Setting(
            Number(0), "As smallest_absolute, as a share of the expected value: 0.1 is 10 %.", effect=Effect.APPLIED
        ),
    ] = None
    valid: Annotated[
        Mapping[str, tuple[float, float]],
        Setting(
            Ranges(),
            "Valid ranges of fields, such as {cpu = [0, 100]}: values outside are always flagged, never learned.",
            "none",
            Effect.APPLIED,
        ),
    ] = field(default_factory=dict)

    def conflicts(self) -> Iterator[str]:
        """Yield what is wrong with valid values."""
        yield from ()


@dataclass(frozen=True)
class Mute:
    """A rule that mutes flagged records: of a key or group of keys, of records mostly due to a field, or both."""

    key: Annotated[str | None, Setting(Text(is_empty_allowed=True), "The key.")] = None
    pattern: Annotated[str | None, Setting(Pattern(), "A regular expression that the whole key matches.")] = None
    field: Annotated[str | None, Setting(Text(is_empty_allowed=True), "The field.")] = None
    until: Annotated[datetime | date | None, Setting(Moment(), "End of the rule.")] = None
    reason: Annotated[str, Setting(Text(is_empty_allowed=True), "Shown with muted records.")] = ""

    def conflicts(self) -> Iterator[str]:
        """Yield what is wrong with valid values."""
        if self.key is None and self.pattern is None and self.field is None:
            yield "set `key`, `pattern` or `field`: the rule has none"
        if self.key is not None and self.pattern is not None:
            yield "set `key` or `pattern`, not both"

    @property
    def ends(self) -> float:
        """End of the rule, in seconds since 1970."""
        return float("inf") if self.until is None else _moment(self.until)


@dataclass(frozen=True)
class Maintenance:
    """A maintenance window: its records are flagged but not learned, or learned but not flagged."""

    name: Annotated[str, Setting(Text(is_empty_allowed=True), "Its name.")]
    mode: Annotated[str, Setting(Choice("judge-only", "learn-only"), "Flag without learning, or learn without flags.")]
    start: Annotated[datetime | date | None, Setting(Moment(), "Its start.")] = None
    end: Annotated[datetime | date | None, Setting(Moment(), "Its end.")] = None
    days: Annotated[tuple[str, ...], Setting(Choices(*_DAYS), "Days of the week.")] = ()
    dates: Annotated[tuple[date, ...], Setting(Dates(), "Dates.")] = ()
    from_: Annotated[time | None, Setting(TimeOfDay(), "Start, each day.")] = None
    to: Annotated[time | None, Setting(TimeOfDay(), "End, each day.")] = None
    timezone: Annotated[str, Setting(TimeZone(), "Time zone of days and times.")] = "UTC"

    def conflicts(self) -> Iterator[str]:
        """Yield what is wrong with valid values."""
        if (self.from_ is None) != (self.to is None):
            yield "set both `from` and `to`, or neither"
        if not (self.start or self.end or self.days or self.dates or self.from_):
            yield "no time given: set `start` and `end`, `days`, `dates`, or `from` and `to`"

    @property
    def weekdays(self) -> set[int]:
        """Days of the week as numbers; Monday is 0."""
        return {_DAYS.index(day) for day in self.days}

    @property
    def span(self) -> tuple[float, float]:
        """Start and end, in seconds since 1970."""
        start = float("-inf") if self.start is None else _moment(self.start)
        return start, float("inf") if self.end is None else _moment(self.end)


def _moment(moment: datetime | date) -> float:
    """Convert to seconds since 1970; UTC unless the moment has an offset."""
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


@dataclass
class StreamSettings:
    """How the records of a stream are read, scored, flagged and saved."""

    format: Annotated[str, Setting(Choice("auto", "jsonl", "csv"), "Format of the lines.", effect=Effect.APPLIED)] = (
        "auto"
    )
    columns: Annotated[
        tuple[str, ...] | None,
        Setting(Names(), "Fields to use.", "numeric fields of the first record", Effect.NEW_STREAM),
    ] = None
    categories: Annotated[
        tuple[str, ...] | None,
        Setting(Names(), "Fields to use as categories, after or among the columns.", "none", Effect.NEW_STREAM),
    ] = None
    time: Annotated[
        str | None, Setting(_COLUMN, "Field with the timestamps.", "detected if unambiguous", Effect.NEW_STREAM)
    ] = None
    by: Annotated[
        str | tuple[str, ...] | None,
        Setting(
            OneOrMoreNames(),
            "Field that partitions the records, such as a host: each value has its own model. With several fields, "
            "each combination has one, and its key is their values joined by '/'.",
            "one model",
            Effect.NEW_STREAM,
        ),
    ] = None
    id: Annotated[
        str | None,
        Setting(_COLUMN, "Field that identifies records, so that they can be deleted.", "none", Effect.APPLIED),
    ] = None
    weight: Annotated[
        str | None,
        Setting(
            _COLUMN,
            "Field with the weight of a record, a whole number: 2 counts the record twice, 0 scores it without "
            "learning it.",
            "none",
            Effect.NEW_STREAM,
        ),
    ] = None
    window: Annotated[
        int | timedelta,
        Setting(
            CountOrDuration(2),
            "Records that each model holds: a number, or a duration such as 30m, 6h or 7d.",
            effect=Effect.RELEARNED,
        ),
    ] = WINDOW
    series: Annotated[
        bool | None,
        Setting(
            Flag(),
            "Whether records are a time series, where each is scored together with the records leading up to it, or "
            "independent.",
            "detected from the first 512 records of each key, if they have times",
            Effect.RELEARNED,
        ),
    ] = None
    shingle: Annotated[
        int | None,
        Setting(Whole(1, 2**20), "For time series: score N consecutive records together.", "none", Effect.RELEARNED),
    ] = None
    difference: Annotated[
        bool, Setting(Flag(), "Score the changes between records instead of the values.", effect=Effect.RELEARNED)
    ] = False
    calendar: Annotated[
        tuple[str, ...],
        Setting(
            CalendarFeatures(),
            "Learn what is normal by time of day, day of week, day of month, and on the public holidays of a country.",
            "none",
            Effect.RELEARNED,
        ),
    ] = ()
    timezone: Annotated[
        str, Setting(TimeZone(), "Time zone of the calendar, such as Europe/Berlin.", effect=Effect.RELEARNED)
    ] = "UTC"
    false_alarm_rate: Annotated[
        float | None,
        Setting(
            Number(0, 1, "RATE"),
            "Flag records with a p-value of at most RATE, which is about the share of normal records flagged.",
            "by the tail of the recent scores",
            Effect.APPLIED,
        ),
    ] = None
    drift: Annotated[
        str | None,
        Setting(
            Choice("report", "relearn", "keep"),
            "Report when the distribution of a key's records changes. Then leave its model alone (report), relearn it "
            "from the change on (relearn), or make it forget the records since the change (keep).",
            "none",
            Effect.APPLIED,
        ),
    ] = None
    drift_alarms_every: Annotated[
        int | timedelta,
        Setting(
            CountOrDuration(1),
            "Expected time between false alarms of drift: a number of records, or a duration such as 12h or 30d.",
            effect=Effect.APPLIED,
        ),
    ] = 100_000
    drift_reference: Annotated[
        int,
        Setting(
            Whole(128, MOST_RECORDS),
            "First records of each key, with which drift compares later ones.",
            effect=Effect.APPLIED,
        ),
    ] = 1024
    trees: Annotated[int, Setting(Whole(1, 10_000), "Trees per model. Fewer are faster.", effect=Effect.RELEARNED)] = (
        100
    )
    seed: Annotated[int, Setting(Whole(0, 2**32 - 1), "Random seed.", effect=Effect.RELEARNED)] = 0
    merge: Annotated[
        int | None,
        Setting(
            Whole(1, MOST_RECORDS),
            "Flagged records of a key at most N records apart form one event.",
            "10; a shingle, or 64 for a time series",
            Effect.APPLIED,
        ),
    ] = None
    save_records: Annotated[
        int, Setting(Whole(1, MOST_RECORDS), "Save after this number of records ...", effect=Effect.APPLIED)
    ] = 10_000
    save_every: Annotated[
        float,
        Setting(
            Duration(is_zero_allowed=True), "... or after this time if there are new records.", "30s", Effect.APPLIED
        ),
    ] = 30.0
    memory_mb: Annotated[
        int,
        Setting(
            Whole(1, MOST_RECORDS),
            "Memory for models, in megabytes. The least recently used are moved to disk.",
            effect=Effect.APPLIED,
        ),
    ] = 1024

    @property
    def finds_series(self) -> bool:
        """Whether models detect if the records of a key are a time series."""
        is_open = self.series is None and self.weight is None
        return is_open and not (self.shingle or self.difference or self.calendar)

    @property
    def has_times(self) -> bool:
        """Whether the settings say where the times of records are."""
        return self.time is not None

    @property
    def monitor(self) -> dict[str, Any] | None:
        """Parameters of the drift monitors; None without drift."""
        if self.drift is None:
            return None
        every = self.drift_alarms_every
        return {
            "on_drift": self.drift,
            "false_alarms_every": every if isinstance(every, int) else f"{every.total_seconds():.15g}s",
            "reference": self.drift_reference,
            "random_state": self.seed,
        }

    def conflicts(self, written: Callable[..., str] | None = None) -> Iterator[str]:
        """Yield which valid settings contradict each other.

        `written` takes the name of a setting, and its value where that matters; it returns the notation of the user.
        """
        written = written or key_words
        of_series = (self.shingle, self.difference, self.calendar)
        names = f"{written('shingle')}, {written('difference')} and {written('calendar')}"
        if self.series is False and any(of_series):
            yield f"{names} are for time series: omit {written('series', False)}"
        if self.series and (self.shingle or self.difference):
            yield (
                f"{written('series', True)} already covers consecutive records and their changes: "
                f"omit {written('shingle')} and {written('difference')}"
            )
        if self.categories and (self.series or any(of_series)):
            yield f"{written('categories')} is for independent records: a time series has numbers only"
        if self.weight is not None:
            yield from self._against_weight(written)
        if not self.has_times:
            yield from (
                f"{what} needs {written('time')}, the field with the timestamps" for what in self._timed(written)
            )

    def _against_weight(self, written: Callable[..., str]) -> Iterator[str]:
        """Yield the settings that contradict a weight."""
        if self.series or self.shingle or self.difference or self.calendar:
            yield f"{written('weight')} is for independent records: each reading of a time series counts once"
        if self.drift is not None:
            yield f"{written('drift')} compares records that count once each: omit {written('weight')}"
        by = () if self.by is None else (self.by,) if isinstance(self.by, str) else self.by
        if self.weight in (*(self.columns or ()), *(self.categories or ()), self.time, *by, self.id):
            yield f"{written('weight')} names {self.weight!r}, which is already used for something else"

    def _timed(self, written: Callable[..., str]) -> Iterator[str]:
        """Yield the settings that need times."""
        if self.calendar:
            yield written("calendar")
        if isinstance(self.window, timedelta):
            yield f"a {written('window')} of time"
        if self.drift is not None and isinstance(self.drift_alarms_every, timedelta):
            yield f"a {written('drift_alarms_every')} of time"

    def plain(self) -> dict[str, Any]:
        """Return all settings as JSON values; those of tables are named "table.name"."""
        return {name: setting.plain(part_of(self, name)) for name, setting in flat_settings(StreamSettings).items()}


def part_of(table: Any, name: str) -> Any:
    """Return a setting by its name, "table.name" in a table."""
    for part in name.split("."):
        table = getattr(table, part)
    return table


def flat_settings(table: type) -> dict[str, Setting]:
    """Return the settings of a table by name, those of tables in it as "table.name"."""
    found: dict[str, Setting] = {}
    for name, setting in settings_of(table).items():
        inner = setting.values.of if isinstance(setting.values, Table) else None
        found |= (
            {name: setting} if inner is None else {f"{name}.{key}": one for key, one in flat_settings(inner).items()}
        )
    return found


def key_words(name: str, value: bool | None = None) -> str:
    """Return a setting as in a configuration file."""
    return f"`{name}`" if value is None else f"`{name} = {str(value).lower()}`"


def option_of(name: str, value: bool | None = None) -> str:
    """Return a setting as option of the command line."""
    return "--rows" if (name, value) == ("series", False) else f"--{name.replace('.', '-').replace('_', '-')}"
