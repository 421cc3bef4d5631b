"""Read results of SQL queries: from SQLite files with the standard library, from other databases with SQLAlchemy.

Queries change nothing: transactions are read-only where the database supports it, and never committed. Addresses may
contain passwords, so messages must not show them.
"""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, islice
from typing import Any, Protocol
from urllib.parse import quote, quote_plus, unquote

import numpy as np
import polars as pl

from ._batches import MORE_BLOCKS, RowBatch, TableSample, row_text, sample_of, shortened
from ._headers import names_of
from .blocks import OpenedInput, copied
from .errors import BadInput, in_words
from .paths import shown_path
from .reading import Interpretation, Reading

__all__ = ["SQLITE", "DatabaseReader", "open_database", "open_sqlite"]

SQLITE = b"SQLite format 3\0"
_NUMBERS = frozenset({int, float, bool, Decimal, timedelta, type(None)})
_MOMENTS = frozenset({datetime, date, type(None)})
_BATCH_CELLS, _MOST_ROWS, _FEWEST_ROWS = 1 << 20, 1 << 16, 1 << 8
_DRIVERS = {"postgresql": ("psycopg", "psycopg2"), "mysql": ("MySQLdb", "pymysql")}  # modules, the best first
_SECRET = ("pass", "secret", "token", "key")  # in names of parameters


class _Rows(Protocol):
    """The result of a query."""

    def fetchmany(self, size: int, /) -> Sequence[Sequence[Any]]:
        """Return the next rows."""


class DatabaseReader:
    """Read the result of a query in batches."""

    fixed = True
    has_header = True
    is_file = False  # connections belong to their thread
    delimiter = None

    def __init__(self, name: str, names: list[str], rows: _Rows, close: Callable[[], None], guard: Any) -> None:
        self.name = name
        self.names = names_of(names, True, name)
        self.interpretations: list[Interpretation] = []
        self.close = weakref.finalize(self, close)  # also when it is garbage collected
        self._rows = rows
        self._guard = guard
        self._held: list[list[Sequence[Any]]] = []
        self._n_rows = max(min(_BATCH_CELLS // max(len(names), 1), _MOST_ROWS), _FEWEST_ROWS)

    def sample(self) -> TableSample:
        """Return the first rows, which `batches` yields again."""
        parts = self._kept()
        sample = sample_of(self._parsed(parts, dict.fromkeys(self.names)), len(self.names))
        if sample.is_all or not sample.has_empty_columns:
            return sample
        more = self._parsed(islice(parts, MORE_BLOCKS), dict.fromkeys(self.names))
        return sample.extended(batch.frame for batch in more)

    def batches(self, wanted: Mapping[str, Any]) -> Iterator[RowBatch]:
        """Yield all rows in batches; numbers and times have their types."""
        held, self._held = self._held, []
        return self._parsed(chain(held, self._fetched()), wanted)

    def _kept(self) -> Iterator[list[Sequence[Any]]]:
        for rows in self._fetched():
            self._held.append(rows)
            yield rows

    def _fetched(self) -> Iterator[list[Sequence[Any]]]:
        while True:
            with self._guard():
                rows = list(self._rows.fetchmany(self._n_rows))
            if not rows:
                return
            yield rows

    def _parsed(self, parts: Iterator[list[Sequence[Any]]], wanted: Mapping[str, Any]) -> Iterator[RowBatch]:
        places = {name: self.names.index(name) for name in wanted}
        number = 1
        for rows in parts:
            columns = {name: _column([row[at] for row in rows], wanted[name]) for name, at in places.items()}
            frame = pl.DataFrame(columns)
            yield RowBatch(frame, np.arange(number, number + len(rows)), [], partial(row_text, frame))
            number += len(rows)


def _column(values: list[Any], kind: Any) -> pl.Series:
    """Return a column of datetimes or numbers if all values are of that kind, else of text."""
    kinds = set(map(type, values))
    if kinds <= _MOMENTS and len(kinds - {type(None)}):
        return pl.Series([_moment(value) for value in values], dtype=pl.Datetime("us"))
    if kind != pl.String and kinds <= _NUMBERS:
        return pl.Series([_number(value) for value in values], dtype=pl.Float64)
    return pl.Series([None if value is None else _text(value) for value in values], dtype=pl.String)


def _number(value: Any) -> float | None:
    """Convert to float; durations to seconds."""
    if value is None:
        return None
    try:
        return value.total_seconds() if isinstance(value, timedelta) else float(value)
    except OverflowError:
        return float("inf")  # reported as not finite


def _moment(value: date | None) -> datetime | None:
    """Convert to a datetime in UTC without time zone."""
    if value is None or isinstance(value, datetime):
        return value if value is None or value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
    return datetime(value.year, value.month, value.day)


def _text(value: Any) -> str:
    """Return a value as text."""
    return value.isoformat() if isinstance(value, date) else str(value)


# ---- SQLite ----------------------------------------------------------------------------------------------------------


def open_sqlite(opened: OpenedInput, reading: Reading) -> DatabaseReader:
    """Return the reader of a SQLite file; copy a pipe to a temporary file first."""
    copy = None if opened.path else copied(opened, ".sqlite")
    name = opened.name
    path = copy.name if copy else str(opened.path)

    @contextmanager
    def guard() -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise BadInput(f"{name}: the query failed ({shortened(str(error))}). Check --query.") from None

    def close() -> None:
        connection.close()
        opened.close()
        if copy:
            copy.close()

    connection = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)
    try:
        connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        interpretations: list[Interpretation] = []
        with guard():
            connection.execute("PRAGMA query_only = ON")
            query = reading.query or _only_table(connection, name, interpretations)
            cursor = connection.execute(query)
        reader = DatabaseReader(name, _names(cursor.description, name), cursor, close, guard)
        reader.interpretations += interpretations
    except BaseException:
        close()
        raise
    return reader


def _only_table(connection: sqlite3.Connection, name: str, interpretations: list[Interpretation]) -> str:
    """Return a query for the only table; raise BadInput if there is more than one, or none."""
    found = connection.execute(
        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
    )
    tables = [table for (table,) in found]
    if len(tables) != 1:
        has = f"the tables {in_words(tables)}" if tables else "no tables"
        raise BadInput(f"{name} has {has}. Pass a query, such as --query 'SELECT * FROM {(tables or ['t'])[0]}'.")
    interpretations.append(Interpretation(f"table '{tables[0]}' (the only one)", ("--query",)))
    return 'SELECT * FROM "{}"'.format(tables[0].replace('"', '""'))


def _names(description: Any, where: str) -> list[str]:
    """Return the column names of a result; raise BadInput if the query returns no rows."""
    if not description:
        raise BadInput(f"{where}: the query returns no rows. Pass a SELECT statement.")
    return [str(column[0]) for column in description]


# ---- other databases -------------------------------------------------------------------------------------------------


def open_database(address: str, reading: Reading) -> DatabaseReader:
    """Return the reader of a query to the database at a SQLAlchemy URL."""
    shown = shown_path(address)
    if reading.query is None:
        raise BadInput(f"Pass a query for the {shown}, such as --query 'SELECT * FROM measurements'.")
    try:
        sqlalchemy = import_module("sqlalchemy")
    except ImportError:
        raise BadInput(f"To read a {shown}, install SQLAlchemy: pip install 'polyaforest[sql]'.") from None
    url = _parsed(sqlalchemy, address, shown)
    name = f"{shown} {url.database or ''} on {url.host or 'this machine'}"

    @contextmanager
    def guard() -> Iterator[None]:
        try:
            yield
        except sqlalchemy.exc.DBAPIError as error:
            raise BadInput(
                f"{name}: {_without_secrets(str(error.orig), url)}. Check the address and --query."
            ) from None
        except sqlalchemy.exc.SQLAlchemyError as error:
            raise BadInput(f"{name}: {_without_secrets(str(error), url)}.") from None
        except ImportError as error:
            raise BadInput(f"{name} needs a driver: {error}. For PostgreSQL: pip install 'polyaforest[sql]'.") from None

    with guard():
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.pool.NullPool)
        connection = engine.connect()

    closing = ExitStack()
    closing.callback(connection.close)  # rolls back
    try:
        with guard():
            options = {"postgresql_readonly": True} if engine.dialect.name == "postgresql" else {}
            connection = connection.execution_options(stream_results=True, no_parameters=True, **options)
            rows = connection.exec_driver_sql(reading.query)
            closing.callback(rows.close)
            if not rows.returns_rows:
                raise BadInput(f"{name}: the query returns no rows. Pass a SELECT statement.")
            names = [str(column) for column in rows.keys()]  # noqa: SIM118 - it is not a mapping
        return DatabaseReader(name, names, rows, closing.close, guard)
    except BaseException:
        closing.close()
        raise


def _parsed(sqlalchemy: Any, address: str, shown: str) -> Any:
    """Parse an address with SQLAlchemy, and choose an installed driver."""
    address = address.replace("postgres://", "postgresql://", 1) if address.startswith("postgres://") else address
    try:
        url = sqlalchemy.make_url(address)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        url = None
    if url is None or "@" in (url.host or ""):
        raise BadInput(
            f"The address of the {shown} is invalid. Write it like postgresql://user:password@host:5432/name; "
            "in the password, write @ as %40 and / as %2F."
        )
    for module in _DRIVERS.get(url.drivername, ()):
        if find_spec(module):
            return url.set(drivername=f"{url.drivername}+{module.lower()}")
    return url


def _without_secrets(message: str, url: Any) -> str:
    """Return the first line of a message, with the secrets of an address masked."""
    given = [(name, value) for name, values in url.query.items() for value in np.atleast_1d(values).tolist()]
    secrets = [value for name, value in given if any(part in name.lower() for part in _SECRET)]
    secrets += [url.password] if url.password else []
    for secret in secrets:
        for form in (secret, quote(secret), quote(secret, safe=""), quote_plus(secret), unquote(secret)):
            message = message.replace(form, "***") if form else message
    return shortened(message.strip().partition("\n")[0].rstrip("."))
