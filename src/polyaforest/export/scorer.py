"""Score rows with a model exported as JSON. Needs only Python's standard library: copy this file wherever it is needed.

`python scorer.py model.json < rows.jsonl` reads a row per line, as an object by column or as an array, and prints its
score, its p-value and whether it is an anomaly.
"""

import json
import sys
from bisect import bisect_left, bisect_right
from hashlib import blake2b
from math import exp, inf, isnan, log, log1p, nan

LEAST_LOG, LARGEST, SMALLEST, SLACK, APART = -1e300, 1e100, 1e-100, 1e-9, 26.0


def number(value, missing):  # null means a value that JSON cannot express
    return missing if value is None else value


class Scorer:
    """The scores of a model: higher is more normal."""

    def __init__(self, model):
        """Take the parsed JSON of a model."""
        if (model["format"], model["version"]) != ("polyaforest", 1):
            raise ValueError("this is not a polyaforest model of version 1")
        self.model, self.score, self.lifetimes = model, model["score"], model["score"]["lifetimes"] or []
        self.n_numbers, self.is_log = model["n_numbers"], model["score"]["type"] != "mass"
        self.trees = [self._decoded(tree) for tree in model["trees"]]

    def _decoded(self, tree):
        corners, own = self.model["corners"], dict(tree, log_outside=number(tree["log_outside"], -inf))
        for name, missing in (("time", inf), ("log_mass", -inf), ("log_complement", -inf)):
            own[name] = [number(value, missing) for value in tree[name]]
        for name in ("lower", "upper") if tree["lower"] else ():
            own[name] = [[corners[k][place] for k, place in enumerate(places)] for places in tree[name]]
        return own

    def detect(self, row):
        """Return the score of a row, its p-value (None if uncalibrated), and whether it is an anomaly."""
        score, known, threshold = self.score_row(row), self.model["calibration"], self.model["threshold"]
        own = score if self.is_log else log(score) if score > 0 else -inf
        rank = bisect_right(known, own + SLACK * (1 + abs(own)) if own > -inf else own)
        p_value = (1 + rank) / (len(known) + 1) if known else None
        return score, p_value, threshold is not None and not score >= threshold

    def score_row(self, row):
        """Return the score of a row: a mapping from columns to values, or values in the order of the columns."""
        values = self._encoded(row)
        for k, value in self.model["replaced"]:
            values[k] = number(value, nan)
        is_whole = self.model["missing"] == "marginalise" or not any(map(isnan, values))
        rows = [values] if is_whole else self._completions(values)
        return sum(map(self._score, rows)) / len(rows)

    def _encoded(self, row):
        """Return a row as numbers: first those of the table, then the codes of its categories."""
        columns, values = self.model["columns"], []
        given = [row.get(column["name"]) for column in columns] if hasattr(row, "get") else list(row)
        if len(given) != len(columns):
            raise ValueError(f"the row has {len(given)} values, but the model has {len(columns)} columns")
        for place, k in enumerate(self.model["order"]):
            value = number(given[k], nan)
            is_code = place >= self.n_numbers and value == value
            value = code_of(value) if is_code else float(value)
            if abs(value) > LARGEST:
                raise ValueError(f"column {columns[k]['name']!r} is {value}, which is too large")
            values.append(0.0 if abs(value) < SMALLEST else value)
        return values

    def _completions(self, row):
        """Return a row completed with the values of the nearest donors."""
        donors = self.model["donors"]
        if donors is None:
            raise ValueError("the model cannot score rows with missing values")
        rows, spread, chosen = donors["rows"], donors["spread"], donors["default"]
        shared = [k for k, value in enumerate(row) if not isnan(value)]

        def distance(donor):
            apart = [abs(row[k] / spread[k] - donor[k] / spread[k]) for k in shared]
            return sum(d if k < self.n_numbers else (d > 0) / spread[k] for k, d in zip(shared, apart)) / len(shared)

        if shared:
            chosen = sorted(range(len(rows)), key=lambda i: distance(rows[i]))[: len(chosen)]
        return [[other if isnan(own) else own for own, other in zip(row, rows[i])] for i in chosen]

    def _score(self, row):
        """Return the score of a row of numbers, less the cost of what is beyond margins and of rare pairs."""
        kind, n = self.score["type"], len(self.trees)
        if kind in ("margins", "typicality"):
            score = sum(sum(self._cells(tree, row)) for tree in self.trees) / (n * len(self.lifetimes))
        elif kind == "multiscale":
            cells = [self._cells(tree, row) for tree in self.trees]
            score = sum(log_sum(logs) - log(n) for logs in zip(*cells)) / len(self.lifetimes)
        else:
            leaves, rank = [self._leaf(tree, row) for tree in self.trees], self.score["rank"]
            if kind == "epsilon":
                return exp(sorted(leaves)[rank - 1]) if rank else 0.0
            score = sum(leaves if kind == "log_mass" else map(exp, leaves)) / n
        return score - log(2) * (self._margin_bits(row) + self._pair_bits(row))

    def _margin_bits(self, row):
        margins = self.model["margins"] or {"bits": 0.0, "low": [], "high": []}
        n_low = sum(value < number(low, -inf) for value, low in zip(row, margins["low"]))
        return margins["bits"] * (n_low + sum(value > number(high, inf) for value, high in zip(row, margins["high"])))

    def _pair_bits(self, row):
        pairs, bins = self.model["pairs"] or {"bins": [], "cells": []}, []
        for k, values in ((column["feature"], column["values"]) for column in pairs["bins"]):
            place = -1 if isnan(row[k]) else bisect_left(values, row[k])
            bins.append(place if k < self.n_numbers or row[k] in values else -1)
        return max((bits for a, b, x, y, bits in pairs["cells"] if bins[a] == x and bins[b] == y), default=0.0)

    def _distance(self, weights, lower, upper, row):
        """Return the weighted distance of a row from a box; missing values count as inside."""
        total = 0.0
        for k, value in enumerate(row):
            if k < self.n_numbers:
                total += weights[k] * max(lower[k] - value, value - upper[k], 0.0) if value == value else 0.0
            elif value == value:
                new = (int(lower[k]) & ~int(value)) | (int(value) & ~int(upper[k]))
                total += weights[k] * new.bit_count() / APART
        return total

    def _children(self, tree, j, row):
        """Return the children of a node that a row may go to: both if the value is missing."""
        k, cut = tree["feature"][j], tree["cut"][j]
        if isnan(row[k]):
            return tree["left"][j], tree["right"][j]
        is_left = row[k] <= cut if k < self.n_numbers else not int(row[k]) >> int(cut) & 1
        return (tree["left"][j] if is_left else tree["right"][j],)

    def _cells(self, tree, row):
        """Return the log of the mass of the row's cell at each lifetime."""
        weights, lifetimes, n = tree["weights"], self.lifetimes, len(self.lifetimes)
        base = None if tree["lower"] else self._distance(weights, *tree["world"], row)
        logs, waiting = [-inf] * n, [(0, 0.0, 0.0, 0)]  # node, when it was born, log-weight, first lifetime
        while waiting:
            j, began, weight, s = waiting.pop()
            ends, is_leaf = tree["time"][j], tree["left"][j] < 0
            rate = base if base is not None else self._distance(weights, tree["lower"][j], tree["upper"][j], row)
            while s < n and (lifetimes[s] < ends or is_leaf):
                hazard = (min(lifetimes[s], ends) - began) * rate if rate > 0 else 0.0
                logs[s] = log_sum((logs[s], tree["log_mass"][j] + weight - hazard))
                s += 1
            if s < n:
                weight -= (ends - began) * rate if rate > 0 else 0.0
                waiting += [(child, ends, weight, s) for child in self._children(tree, j, row)]
        return [max(value, LEAST_LOG) for value in logs]

    def _leaf(self, tree, row):
        """Return the log of the mass of the row's leaf, or of all leaves that an incomplete row may be in."""
        lower, upper, world = tree["lower"], tree["upper"], tree["world"]
        distance = self._distance(tree["weights"], *world, row)
        outside = tree["log_outside"] - log1p(min(distance / tree["size"], -LEAST_LOG))
        if self._distance([1.0] * len(row), *world, row) > 0:
            return outside
        logs, waiting = [outside] if any(map(isnan, row)) else [], [(0, *world)]  # node, its region
        while waiting:
            j, low, high = waiting.pop()
            if lower:  # a box: beyond it, and along missing values beside it, is the complementary leaf
                live = [k for k in range(self.n_numbers) if lower[j][k] < upper[j][k]]
                is_beyond = any(row[k] < lower[j][k] or row[k] > upper[j][k] for k in live)
                gaps = [(lower[j][k] - low[k]) + (high[k] - upper[j][k]) for k in live if isnan(row[k])]
                logs += [tree["log_complement"][j]] if is_beyond or any(gap > 0 for gap in gaps) else []
                if is_beyond:
                    continue
            if tree["left"][j] < 0:
                logs.append(tree["log_mass"][j])
                continue
            k, cut = tree["feature"][j], tree["cut"][j]
            for child in self._children(tree, j, row):  # the side of a category's cut is not used
                low, high = (list(lower[j]), list(upper[j])) if lower else world
                if lower:
                    (high if child == tree["left"][j] else low)[k] = cut
                waiting.append((child, low, high))
        return log_sum(logs)


def log_sum(logs):
    """Return the log of the sum of exponentials."""
    top = max(logs)
    return top + log(sum(exp(value - top) for value in logs)) if top > -inf else top


def code_of(value):
    """Return the code of a category: 52 bits of a hash of its text."""
    text = value.isoformat() if hasattr(value, "isoformat") else str(value)
    if isinstance(value, float) and value == value // 1:  # equal numbers have the same text
        text = str(int(value))
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return float(int.from_bytes(digest, "big") >> 12)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        scorer = Scorer(json.load(file))
    for line in sys.stdin:
        print(json.dumps(scorer.detect(json.loads(line))))
