"""The SQL of a model scores as the library does, in SQLite, DuckDB and PostgreSQL."""

import sqlite3
from contextlib import closing

import numpy as np
import pandas as pd
import psycopg
import pytest
from effort import mostly_slow
from servers import postgres_server

from polyaforest import BatchMPF, EpsilonPhi, StreamingMPF, Tree
from polyaforest.tables.categories import UNKNOWN

KINDS = [
    (StreamingMPF, "margins"),
    (StreamingMPF, "typicality"),
    (BatchMPF, "typicality"),
    (BatchMPF, "log_mass"),
    (BatchMPF, "mass"),
]
HOSTILE = 'a "b"; DROP TABLE x --'


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


@pytest.fixture(scope="module")
def server():
    with postgres_server() as running:
        yield running


class Database:
    """A database of a dialect, with the rows to score."""

    def __init__(self, dialect, connection, run_script):
        self.dialect, self.connection, self.run_script = dialect, connection, run_script

    def scores(self, script, table, types):
        """Create a table and the objects of a script; return ids, scores and verdicts."""
        names = ", ".join(f"{quoted(name)} {types[name]}" for name in table.columns)
        cursor = self.connection.cursor()
        cursor.execute(f'CREATE TABLE "rows" (id INTEGER, {names})')
        mark = "%s" if self.dialect == "postgresql" else "?"
        rows = [[i, *(None if pd.isna(v) else v for v in row)] for i, row in enumerate(table.to_numpy(object).tolist())]
        marks = ", ".join([mark] * (table.shape[1] + 1))
        cursor.executemany(f'INSERT INTO "rows" VALUES ({marks})', rows)
        self.run_script(script)
        found = cursor.execute('SELECT id, score, is_anomaly FROM "polyaforest_scores" ORDER BY id').fetchall()
        return zip(*found, strict=True)


@pytest.fixture(params=["sqlite", "duckdb", "postgresql"])
def database(request):
    if request.param == "sqlite":
        with closing(sqlite3.connect(":memory:")) as connection:
            yield Database("sqlite", connection, connection.executescript)
    elif request.param == "duckdb":
        import duckdb

        with closing(duckdb.connect()) as connection:
            yield Database("duckdb", connection, connection.execute)
    else:
        address = request.getfixturevalue("server").address()
        with psycopg.connect(address) as connection:  # dropped by the rollback
            yield Database("postgresql", connection, connection.execute)
            connection.rollback()


def rows_to_fit():
    rng = np.random.default_rng(0)
    country = rng.choice(["DE", "US", "it's"], 1500)
    currency = pd.Series(country).map({"DE": "EUR", "US": "USD", "it's": "JPY"})
    x, y = rng.normal(size=(2, 1500))
    return pd.DataFrame(
        {HOSTILE: x, "country": pd.Categorical(country), "y": np.round(y), "currency": pd.Categorical(currency)}
    )


def rows_to_score(fitted):
    rng = np.random.default_rng(1)
    table = fitted.sample(60, random_state=1).reset_index(drop=True)
    table.loc[10:20, HOSTILE] = rng.normal(size=11) * 1e5
    table["country"] = table["country"].cat.add_categories([UNKNOWN])
    table.loc[5:15, "country"] = UNKNOWN
    table.loc[30:40, "currency"] = "EUR"
    return table


@pytest.mark.parametrize("is_mixed", mostly_slow([True, False]))
@pytest.mark.parametrize(("kind", "score"), mostly_slow(KINDS, 0, 3))
def test_databases_score_as_the_library(database, kind, score, is_mixed):
    fitted = rows_to_fit() if is_mixed else rows_to_fit()[[HOSTILE, "y"]]
    tree = Tree(max_depth=5) if kind is BatchMPF else None
    detector = kind(n_estimators=3, tree=tree, score_type=score, random_state=0).fit(fitted)
    table = rows_to_score(rows_to_fit())[fitted.columns.tolist()]
    script = detector.export("sql", dialect=database.dialect)
    number = {"sqlite": "REAL", "duckdb": "DOUBLE", "postgresql": "DOUBLE PRECISION"}[database.dialect]
    types = {name: number if own.kind == "f" else "TEXT" for name, own in table.dtypes.items()}
    gaps = table.copy()
    gaps.loc[50, "y"] = np.nan
    ids, scores, verdicts = database.scores(script, gaps, types)
    expected = detector.detect(table)
    assert list(ids) == list(range(60))
    assert scores[50] is None
    assert verdicts[50] is None
    kept = [i for i in range(60) if i != 50]
    np.testing.assert_allclose(np.array(scores)[kept].astype(float), expected.scores[kept], rtol=1e-9, atol=1e-9)
    assert [bool(verdicts[i]) for i in kept] == expected.is_anomaly[kept].tolist()


def test_unseen_categories_score_as_unknown(database):
    fitted = rows_to_fit()[["country", "y"]]
    detector = StreamingMPF(n_estimators=3, random_state=0).fit(fitted)
    table = fitted[:2].astype({"country": object})
    table["country"] = ["Atlantis", UNKNOWN]
    table["y"] = 0.0
    script = detector.export("sql", dialect=database.dialect)
    _, scores, _ = database.scores(script, table, {"country": "TEXT", "y": "REAL"})
    assert scores[0] == scores[1]


def test_names_are_quoted():
    detector = BatchMPF(n_estimators=1, tree=Tree(max_depth=2), random_state=0).fit(rows_to_fit()[[HOSTILE]])
    script = detector.export("sql", dialect="sqlite", table='my"rows', key="the key", prefix="m1")
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f'CREATE TABLE "my""rows" ("the key" TEXT, {quoted(HOSTILE)} REAL)')
        connection.execute('INSERT INTO "my""rows" VALUES (?, 0.5)', ("k",))
        connection.executescript(script)
        assert connection.execute('SELECT "the key" FROM m1_scores').fetchall() == [("k",)]


@pytest.mark.parametrize(
    ("detector", "options", "words"),
    [
        (StreamingMPF(n_estimators=1, score_type="mass"), {}, "cannot express score_type='mass' of a StreamingMPF"),
        (BatchMPF(n_estimators=1, score_type=EpsilonPhi(0.1)), {}, "cannot express score_type='epsilon'"),
        (BatchMPF(n_estimators=1), {"dialect": "mysql"}, "dialect must be one of 'postgresql', 'sqlite', 'duckdb'"),
        (BatchMPF(n_estimators=1), {"table": "a\0"}, "table 'a\\\\x00' cannot be written in SQL"),
    ],
)
def test_exports_explain_what_sql_cannot_express(detector, options, words):
    with pytest.raises(ValueError, match=words):
        detector.fit(rows_to_fit()[["y"]]).export("sql", **options)
