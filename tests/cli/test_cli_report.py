"""Events and reports, without reading a file."""

from itertools import pairwise
from types import SimpleNamespace

import click
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyaforest import StreamingMPF
from polyaforest.cli import _reports as report
from polyaforest.cli._findings import Findings
from polyaforest.io.tables import Rejected, TableChunk, TableColumns
from polyaforest.judge.table import Detected, DetectorSettings
from polyaforest.series import find_events
from polyaforest.tables.validation import NamedRows
from polyaforest.util.text import listed

NOON = 1_714_564_800.0  # 2024-05-01 12:00 UTC


@pytest.fixture(scope="module")
def explained():
    """Return the explanation of a row whose second value is far too high."""
    rng = np.random.default_rng(0)
    rows = rng.normal([50.0, 20.0, 5.0], [5.0, 2.0, 1.0], size=(400, 3))
    names = ["cpu", "latency", "errors"]
    forest = StreamingMPF(n_estimators=20, random_state=0).fit(NamedRows(rows, names))
    return forest.explain(NamedRows(np.array([[50.0, 90.0, 5.0]]), names))[0]


def summary(**changes):
    facts = {"n_rows": 5000, "n_flagged": 7, "n_findings": 2, "in_events": True, "expected": 0.001}
    return report.RunSummary(**{**facts, **changes})


def chunk_of(rows, *, times=None, keys=None, first=1):
    rows = np.asarray(rows, np.float64)
    return TableChunk(rows, np.arange(first, first + len(rows)), times, keys, None)


# ---- text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "7 of 5,000 rows stand out, in 2 events. Up to about 5 are expected by chance."),
        ({"in_events": False}, "7 of 5,000 rows stand out. Up to about 5 are expected by chance."),
        ({"n_flagged": 1, "n_findings": 1, "expected": None}, "1 of 5,000 rows stands out, in 1 event."),
        ({"n_rows": 90}, "7 of 90 rows stand out, in 2 events. Hardly any are expected by chance."),
        ({"n_flagged": 0}, "Nothing stands out: 0 of 5,000 rows. Up to about 5 are expected by chance."),
        ({"expected": None}, "7 of 5,000 rows stand out, in 2 events."),
        ({"by": "host", "n_partitions": 3},
         "7 of 5,000 rows stand out, in 2 events, scored separately by host (3 values). "
         "Up to about 5 are expected by chance."),
    ],
)  # fmt: skip
def test_headline_states_how_many_are_expected_by_chance(changes, words):
    assert click.unstyle(report.headline(summary(**changes))) == words


def test_report_lists_rows_reasons_and_hidden_findings(explained):
    event = report.Finding(
        17, -9.0, 0.0004, NOON, "web-1", "req 7", 15, 19, NOON - 3600, NOON + 3600, 4, explained, ("errors",)
    )
    alone = report.Finding(3, -8.0, None, 60.5, id="req 3")
    first, second, third, last = click.unstyle(report.report(summary(n_findings=3), [event, alone])).split("\n\n")
    bits = f"{explained.surprise:.1f}"
    assert first.endswith(
        f"A typical row has {explained.typical:.1f} bits of surprise; each additional bit halves the likelihood."
    )
    head, attribution, missing = second.splitlines()
    assert head == (
        f"1. rows 15–19, web-1, 2024-05-01 11:00 to 13:00 "
        f"(4 flagged, worst 17, req 7 at 12:00): {bits} bits, p = 0.0004"
    )
    assert attribution.split()[:4] == ["latency", "90", "too", "high"]
    assert "usual about 20 (17–23" in attribution
    assert "would be normal: 1" in attribution
    assert missing.strip() == "missing: errors"
    assert third == "2. row 3, req 3, 60.5"
    assert last == "1 more event: --top N prints more, --out FILE writes all."


def test_reason_fits_on_one_line(explained):
    bits = explained.attributions[0].bits
    assert report.reason(explained, ["errors"]).startswith("latency 90 too high (usual about 20 (17–23")
    assert report.reason(explained, ["errors"]).endswith(f"): {bits:+.1f} bits; missing: errors")
    ordinary = SimpleNamespace(attributions=[], readings=[], context=None, summary="")
    assert report.reason(ordinary) == "no single value: the combination is rare"
    assert report.reasons(ordinary) == ["no single value: the combination is rare"]


def test_input_lines_describe_used_and_skipped_columns():
    columns = TableColumns(["cpu", "mem"], {"host": "text", "os": "text", "id": "row counter"}, "when", None, "name")
    rejected = [Rejected(17, "4 cells instead of 7", "..."), Rejected(30, "it is cut off", "...")]
    table = SimpleNamespace(
        columns=columns,
        n_rows=5000,
        n_blank=0,
        n_rejected=2,
        rejected=rejected,
        interpretations=[],
        sources=["metrics.csv"],
    )
    assert report.input_lines(table) == [
        "Read 5,000 rows of metrics.csv, using cpu, mem (2 of 7 columns).",
        "Times from when. Row ids from name. Skipped: host, os (text); id (row counter).",
        "Skipped 2 invalid rows: row 17: 4 cells instead of 7; row 30: it is cut off.",
    ]
    plain = SimpleNamespace(
        columns=TableColumns(["cpu"]),
        n_rows=1,
        n_blank=0,
        n_rejected=0,
        rejected=[],
        interpretations=[],
        sources=["standard input"],
    )
    assert report.input_lines(plain) == ["Read 1 row of standard input, using cpu (1 of 1 column)."]
    table.n_rejected = 9
    assert report.input_lines(table)[-1].endswith("it is cut off; ....")
    assert listed(map(str, range(20))) == "0, 1, 2, 3, 4, 5, 6, 7 and 12 others"


# ---- findings --------------------------------------------------------------------------------------------------------

FLAGS = st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), st.integers(-4, 0)), min_size=1, max_size=60)


def detected(chunk, scores, p_values, is_anomaly, explanations, bits=None):
    """Return results of rows with unknown thresholds."""
    unknown = np.full(len(scores), np.nan)
    return Detected(chunk, scores, p_values, is_anomaly, explanations, unknown, unknown if bits is None else bits)


def found_in(rows, cuts, rule, top=100, times=None):
    """Return the findings in rows that arrive in chunks."""
    found = Findings(TableColumns(["x"], time="t" if times is not None else None, key="k"), rule, top=top)
    edges = sorted({0, len(rows), *(cut % len(rows) for cut in cuts)})
    for start, stop in pairwise(edges):
        flags, keys, scores = zip(*rows[start:stop], strict=True)
        some = None if times is None else times[start:stop]
        chunk = chunk_of(np.zeros((stop - start, 1)), keys=list(keys), first=start + 1, times=some)
        values = np.array(scores, np.float64)
        found.add(detected(chunk, values, np.full(len(flags), 0.5), np.array(flags), {}))
    found.close()
    return found


@given(FLAGS, st.lists(st.integers(0, 60), max_size=4))
def test_events_by_partition_do_not_depend_on_chunks(rows, cuts):
    found = found_in(rows, cuts, DetectorSettings("stream"))
    expected = []
    for key in "ab":
        numbers = [i + 1 for i, row in enumerate(rows) if row[1] == key]
        flags, scores = ([row[k] for row in rows if row[1] == key] for k in (0, 2))
        for event in find_events(flags, scores, times=numbers, merge=5):
            expected.append((event.peak, event.score, key, event.start, event.end, event.n_flagged))
    findings = found.findings()
    said = [(f.number, f.score, f.partition, f.first, f.last, f.n_flagged) for f in findings]
    assert sorted(said) == sorted(expected)
    assert [f.score for f in findings] == sorted(f.score for f in findings)
    assert found.summary().n_flagged == sum(row[0] for row in rows)
    worst = found_in(rows, cuts, DetectorSettings("stream"), top=2)
    assert [f.score for f in worst.findings()] == [f.score for f in findings[:2]]
    assert worst.summary().n_findings == len(findings)


def test_rows_without_times_are_separate_findings():
    rows = [(True, "a", -9), (True, "a", -8), (False, "a", 0), (True, "a", -7)]
    assert [f.number for f in found_in(rows, [], DetectorSettings()).findings()] == [1, 2, 4]
    backwards = found_in(rows, [], DetectorSettings(), times=np.array([4e9, 3e9, 2e9, 1e9])).findings()
    assert [(f.number, f.first, f.last, f.start, f.end) for f in backwards] == [(1, 1, 4, 1e9, 4e9)]


def test_output_renames_input_columns_with_names_of_results(explained):
    columns = TableColumns(["cpu", "score", "errors"], time="when", id="row")
    chunk = TableChunk(np.array([[1.0, np.nan, 3.0]] * 2), np.array([4, 5]), np.array([NOON, NOON]), None, ["a", "b"])
    judged = detected(chunk, np.array([-9.0, np.nan]), np.array([0.1, np.nan]), np.array([True, False]), {0: explained})
    written = Findings(columns, DetectorSettings()).to_columns(judged)
    assert list(written) == ["row", "when", "row_", "cpu", "score_", "errors", "score", "p_value", "is_anomaly",
                             "severity", "attributions", "reason"]  # fmt: skip
    first = [next(iter(column)) for column in written.values()]
    assert first[:4] == [4, "2024-05-01T12:00:00Z", "a", 1.0]
    np.testing.assert_array_equal(first[4:8], [np.nan, 3.0, -9.0, 0.1])
    assert written["attributions"] == [["latency"], []]
    assert written["reason"][0].endswith("missing: score")
    assert judged.flagged().chunk.numbers.tolist() == [4]
    assert judged.flagged().explanations == {0: explained}
