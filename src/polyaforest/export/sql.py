"""A model as SQL: tables of its trees, and a view that scores the rows of another table by walks down the trees.

Each node that a row comes by adds its value and costs its distance (`export.sums`). Rows beyond the domain of a
process fade with their distance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from polyaforest.export.document import Document
from polyaforest.export.sums import duration, node_values
from polyaforest.kernels.arrays import Array
from polyaforest.kernels.boxes import APART
from polyaforest.tables.categories import UNKNOWN, code_of

_ROWS_AT_ONCE = 500  # of an INSERT


class Dialect(NamedTuple):
    """What differs between databases."""

    number: str  # the type of float64
    greatest: str  # the function
    least: str  # a literal of minus infinity
    no_nan: bool  # whether the type has no NaN


DIALECTS = {
    "postgresql": Dialect("DOUBLE PRECISION", "GREATEST", "'-Infinity'", no_nan=False),
    "sqlite": Dialect("REAL", "MAX", "-9e999", no_nan=True),
    "duckdb": Dialect("DOUBLE", "GREATEST", "'-Infinity'", no_nan=False),
}


class Node(NamedTuple):
    """A row of the table of nodes."""

    tree: int
    node: int
    left: int | None
    right: int | None
    feature: int | None
    cut: float | None
    value: float  # to add for each row that comes by
    is_root: int


def as_sql(
    model: Document, dialect: str = "postgresql", table: str = "rows", key: str = "id", prefix: str = "polyaforest"
) -> str:
    """Return a script that creates the tables of a model and the view ``<prefix>_scores``.

    Raises
    ------
    ValueError
        If SQL cannot express the score of the model.
    """
    if dialect not in DIALECTS:
        raise ValueError(f"dialect must be one of {', '.join(map(repr, DIALECTS))}; got {dialect!r}")
    for what, text in (("table", table), ("key", key), ("prefix", prefix), *_texts(model)):
        if not isinstance(text, str) or not text or "\0" in text:
            raise ValueError(f"{what} {text!r} cannot be written in SQL: it must be text without NUL characters")
    _check_expressible(model)
    return _Script(model, DIALECTS[dialect], table, key, prefix).text()


def _texts(model: Document) -> list[tuple[str, str]]:
    return [("column", column["name"]) for column in model["columns"]]


def _check_expressible(model: Document) -> None:
    """Raise ValueError for scores that the view does not compute."""
    kind, has_boxes = model["score"]["type"], model["trees"][0]["lower"] is not None
    allowed = ("margins", "typicality") if has_boxes else ("typicality", "log_mass", "mass")
    if kind not in allowed:
        raise ValueError(
            f"SQL cannot express score_type={kind!r} of a {model['detector']}: "
            f"choose {' or '.join(map(repr, allowed))}, or export JSON"
        )
    if any(value is None for _, value in model["replaced"]):
        raise ValueError("some columns had their first value recently: learn more rows before the export")


class _Script:
    """The text of a script."""

    def __init__(self, model: Document, dialect: Dialect, table: str, key: str, prefix: str) -> None:
        self.model, self.dialect, self.table, self.key, self.prefix = model, dialect, table, key, prefix
        self.n, self.n_numbers = len(model["columns"]), model["n_numbers"]
        self.codes = {text: code_of(text) for text in (UNKNOWN, *model["texts"]) if "\0" not in text}
        self.uses_cells = model["score"]["lifetimes"] is not None
        self.cubes: dict[tuple[int, int], int] = {}

    def text(self) -> str:
        """Return the script."""
        nodes, boxes = self._nodes_and_boxes()
        parts = [
            f"-- A {self.model['detector']} of {self.model['written_by']}. The view {self._id('scores')} has scores."
        ]
        number = self.dialect.number
        parts += self._table(
            "nodes",
            "tree INTEGER, node INTEGER PRIMARY KEY, left_node INTEGER, right_node INTEGER, feature INTEGER, "
            f"cut {number}, value {number}, is_root INTEGER",
            nodes,
        )
        sides = "".join(f", low{k} {number}, high{k} {number}, cost{k} {number}" for k in range(self.n))
        parts += self._table("boxes", f"node INTEGER PRIMARY KEY{sides}", boxes)
        if self.codes_used:
            cubes = [
                (cube, code, ((low & ~int(code)) | (int(code) & ~high)).bit_count() / APART)
                for (low, high), cube in self.cubes.items()
                for code in self.codes.values()
            ]
            parts += self._table("codes", "text_ TEXT PRIMARY KEY, code BIGINT", self.codes.items())
            parts += self._table(
                "cubes", f"cube {number}, code BIGINT, distance {number}, PRIMARY KEY (cube, code)", cubes
            )
        parts += self._pair_table()
        return "\n".join([*parts, self._view()]) + "\n"

    @property
    def codes_used(self) -> bool:
        """Whether there are categories."""
        return bool(self.n > self.n_numbers)

    # ---- tables -----------------------------------------------------------------------------------------------------

    def _nodes_and_boxes(self) -> tuple[list[Node], list[tuple[Any, ...]]]:
        nodes: list[Node] = []
        boxes: list[tuple[Any, ...]] = []
        for t, tree in enumerate(self.model["trees"]):
            first = len(nodes)
            values, lived = node_values(tree, self.model["score"]["lifetimes"])
            for j, (left, right) in enumerate(zip(tree["left"].tolist(), tree["right"].tolist(), strict=True)):
                left_node, right_node, feature, cut = None, None, None, None
                if left >= 0:
                    left_node, right_node = first + left, first + right
                    feature, cut = int(tree["feature"][j]), float(tree["cut"][j])
                own = t, first + j, left_node, right_node, feature, cut, float(values[j]), int(j == 0)
                nodes.append(Node(*own))
                if tree["lower"] is not None and lived[j] > 0:
                    lower, upper = self._corner(tree["lower"][j]), self._corner(tree["upper"][j])
                    boxes.append((first + j, *self._sides(lower, upper, lived[j] * tree["weights"])))
            if tree["lower"] is None:  # the domain, at the root
                total = duration(tree, self.model["score"]["lifetimes"]) if self.uses_cells else 1.0 / tree["size"]
                lower, upper = tree["world"]
                boxes.append((first, *self._sides(lower, upper, total * tree["weights"])))
        return nodes, boxes

    def _corner(self, places: Array) -> list[float]:
        """Return the coordinates of a corner of a box."""
        return [values[place] for values, place in zip(self.model["corners"], places, strict=True)]

    def _sides(self, lower: Sequence[float], upper: Sequence[float], costs: Array) -> Iterator[float]:
        """Yield low, high and cost of each feature of a box; a category has the number of its cube as both."""
        for k, (low, high, cost) in enumerate(zip(lower, upper, costs.tolist(), strict=True)):
            if k < self.n_numbers:
                yield from (float(low), float(high), cost)
            else:
                cube = self.cubes.setdefault((int(low), int(high)), len(self.cubes))
                yield from (float(cube), float(cube), cost)

    def _pair_table(self) -> list[str]:
        pairs = self.model["pairs"]
        if pairs is None:
            return []
        cells = []
        for a, b, x, y, bits in pairs["cells"]:
            sides = [self._interval(pairs["bins"][b_], place) for b_, place in ((a, x), (b, y))]
            cells.append((*sides[0], *sides[1], bits))
        number = self.dialect.number
        sides_of = ", ".join(
            f"{side}_feature INTEGER, {side}_low {number}, {side}_high {number}" for side in ("a", "b")
        )
        return self._table("pairs", f"{sides_of}, bits {number}", cells)

    def _interval(self, bins: Document, place: int) -> tuple[int, float, float]:
        """Return a feature and the interval of a bin: values above its lower and up to its upper end."""
        k, values = bins["feature"], bins["values"].tolist()
        if k >= self.n_numbers:
            return k, values[place] - 0.5, values[place]
        return k, values[place - 1] if place else -1e308, values[place] if place < len(values) else 1e308

    def _table(self, name: str, columns: str, rows: Iterable[Sequence[Any]]) -> list[str]:
        """Return the statements that create and fill a table."""
        lines = ["(" + ", ".join(map(self._literal, row)) + ")" for row in rows]
        starts = range(0, len(lines), _ROWS_AT_ONCE)
        inserts = [
            f"INSERT INTO {self._id(name)} VALUES\n" + ",\n".join(lines[i : i + _ROWS_AT_ONCE]) + ";" for i in starts
        ]
        return [f"CREATE TABLE {self._id(name)} ({columns});", *inserts]

    def _literal(self, value: Any) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, str):
            return "'" + value.replace("'", "''") + "'"
        if isinstance(value, float):
            if value == -np.inf:
                return self.dialect.least
            return str(int(value)) if value == value // 1 and abs(value) < 2**53 else repr(float(value))
        return str(int(value))

    # ---- the view ---------------------------------------------------------------------------------------------------

    def _id(self, part: str) -> str:
        return _quoted(f"{self.prefix}_{part}")

    def _view(self) -> str:
        columns = ", ".join(f"x{k}" for k in range(self.n))
        carried = ", ".join(f"w.x{k}" for k in range(self.n))
        present = " AND ".join(f"x{k} IS NOT NULL" for k in range(self.n))
        is_left = " ".join(f"WHEN {k} THEN {self._goes_left(k)}" for k in range(self.n))
        threshold = self.model["threshold"]
        has_threshold = threshold is not None and np.isfinite(threshold)
        verdict = f"s.score < {threshold!r}" if has_threshold else "CAST(NULL AS BOOLEAN)"
        return f"""CREATE VIEW {self._id("scores")} AS
WITH RECURSIVE input AS (
{self._input()}
), walk (id, tree, node, {columns}) AS (
    SELECT i.id, n.tree, n.node, {", ".join(f"i.x{k}" for k in range(self.n))}
    FROM input i CROSS JOIN {self._id("nodes")} n WHERE n.is_root = 1 AND {present}
    UNION ALL
    SELECT w.id, w.tree, CASE WHEN CASE n.feature {is_left} END THEN n.left_node ELSE n.right_node END, {carried}
    FROM walk w JOIN {self._id("nodes")} n ON n.node = w.node WHERE n.left_node IS NOT NULL
), nodes_of AS (
    SELECT w.id, w.tree, n.value, {self._cost()} AS cost
    FROM walk w JOIN {self._id("nodes")} n ON n.node = w.node LEFT JOIN {self._id("boxes")} b ON b.node = w.node
{self._cube_joins()}), trees_of AS (
    SELECT id, tree, SUM(value) AS value, SUM(COALESCE(cost, 0)) AS cost FROM nodes_of GROUP BY id, tree
), scores AS (
    SELECT t.id, {self._mean()} AS score FROM trees_of t JOIN input i ON i.id = t.id GROUP BY t.id
), final AS (
    SELECT i.id, s.score{self._penalty()} AS score FROM input i LEFT JOIN scores s ON s.id = i.id
)
SELECT s.id AS {_quoted(self.key)}, s.score, {verdict} AS is_anomaly FROM final s;"""

    def _input(self) -> str:
        """Return the query for the rows as numbers and codes."""
        number, replaced = self.dialect.number, dict(self.model["replaced"])
        fields, joins = [f"t.{_quoted(self.key)} AS id"], [f"{_quoted(self.table)} t"]
        for k, place in enumerate(np.asarray(self.model["order"]).tolist()):
            own = f"t.{_quoted(self.model['columns'][place]['name'])}"
            if k in replaced:
                value = self._literal(replaced[k])
            elif k < self.n_numbers:
                value = f"CAST({own} AS {number})"
                value = value if self.dialect.no_nan else f"NULLIF({value}, CAST('NaN' AS {number}))"
            else:
                value = f"CASE WHEN {own} IS NOT NULL THEN COALESCE(c{k}.code, {int(self.codes[UNKNOWN])}) END"
                joins.append(f"LEFT JOIN {self._id('codes')} c{k} ON c{k}.text_ = CAST({own} AS TEXT)")
            fields.append(f"{value} AS x{k}")
        return f"    SELECT {', '.join(fields)}\n    FROM {' '.join(joins)}"

    def _goes_left(self, k: int) -> str:
        if k < self.n_numbers:
            return f"w.x{k} <= n.cut"
        return f"((w.x{k} >> CAST(n.cut AS INTEGER)) & 1) = 0"

    def _cost(self) -> str:
        """Return the sum over the features of the cost of a row's distance from a box."""
        greatest = self.dialect.greatest
        numbers = [f"b.cost{k} * {greatest}(b.low{k} - w.x{k}, w.x{k} - b.high{k}, 0)" for k in range(self.n_numbers)]
        return " + ".join(numbers + [f"b.cost{k} * q{k}.distance" for k in range(self.n_numbers, self.n)])

    def _cube_joins(self) -> str:
        joins = [
            f"    LEFT JOIN {self._id('cubes')} q{k} ON q{k}.cube = b.low{k} AND q{k}.code = w.x{k}\n"
            for k in range(self.n_numbers, self.n)
        ]
        return "".join(joins)

    def _mean(self) -> str:
        """Return the expression for the mean over the trees."""
        n = len(self.model["trees"])
        if self.uses_cells:
            return f"SUM(t.value - t.cost) / {n * len(self.model['score']['lifetimes'])}.0"
        outside = " ".join(f"WHEN {t} THEN {self._outside(tree)}" for t, tree in enumerate(self.model["trees"]))
        value = f"CASE WHEN {self._is_outside()} THEN CASE t.tree {outside} END - LN(1 + t.cost) ELSE t.value END"
        return f"SUM({f'EXP({value})' if self.model['score']['type'] == 'mass' else value}) / {n}.0"

    def _outside(self, tree: Document) -> str:
        return f"CAST({self._literal(float(tree['log_outside']))} AS {self.dialect.number})"

    def _is_outside(self) -> str:
        """Return the condition that a row lies beyond the domain."""
        lower, upper = (side.tolist() for side in self.model["trees"][0]["world"])
        beyond = [f"i.x{k} < {lower[k]!r} OR i.x{k} > {upper[k]!r}" for k in range(self.n_numbers)]
        for k in range(self.n_numbers, self.n):
            cube = self.cubes[int(lower[k]), int(upper[k])]
            found = f"SELECT 1 FROM {self._id('cubes')} q WHERE q.cube = {cube} AND q.code = i.x{k} AND q.distance > 0"
            beyond.append(f"EXISTS ({found})")
        return "(" + " OR ".join(beyond) + ")"

    def _penalty(self) -> str:
        """Return what is subtracted from the mean: the cost of values beyond margins, and of rare pairs."""
        terms, margins = [], self.model["margins"]
        if margins is not None:
            for k in range(self.n_numbers):
                low, high = margins["low"][k], margins["high"][k]
                sides = [f"i.x{k} < {low!r}"] if np.isfinite(low) else []
                sides += [f"i.x{k} > {high!r}"] if np.isfinite(high) else []
                terms += [f"CASE WHEN {' OR '.join(sides)} THEN {margins['bits']!r} ELSE 0 END"] if sides else []
        if self.model["pairs"] is not None:
            own = " ".join(f"WHEN {k} THEN i.x{k}" for k in range(self.n))
            values = {side: f"CASE p.{side}_feature {own} END" for side in ("a", "b")}
            within = " AND ".join(f"{x} > p.{side}_low AND {x} <= p.{side}_high" for side, x in values.items())
            terms.append(f"COALESCE((SELECT MAX(p.bits) FROM {self._id('pairs')} p WHERE {within}), 0)")
        return f" - {np.log(2)!r} * ({' + '.join(terms)})".replace("np.float64", "") if terms else ""


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
