"""Numbers and dates written in a convention are read back; those that contradict it are named, and never misread."""

from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from polyaforest.io.tables import BadInput, Reading, gather, open_table

pytestmark = pytest.mark.property

UNITS = {"": 1.0, " €": 1.0, "%": 1.0, "ms": 1e-3, " GB": 1e9, "min": 60.0}
POINT, COMMA = (".", ","), (",", ".")
amounts = st.decimals(-(10**9), 10**9, places=2, allow_nan=False, allow_infinity=False)


def spelled(number, decimal, thousands, unit=""):
    """A number with two decimals in a convention."""
    text = f"{number:,.2f}".replace(",", "T").replace(".", "D")
    return text.replace("T", thousands).replace("D", decimal) + unit


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("notations")


def read(folder, cells, **reading):
    """The values of a column, NaN where a row is left out, and the table."""
    path = folder / "table.csv"
    path.write_text("\n".join(["x\ty", *(f"{cell}\t{i * i % 7}" for i, cell in enumerate(cells))]) + "\n")
    table = open_table([str(path)], columns=["x"], reading=Reading(**reading))
    chunk = gather(table.chunks())
    values = np.full(len(cells), np.nan)
    values[chunk.numbers - 1] = chunk.rows[:, 0]
    return values, table


CONVENTIONS = [POINT, COMMA, (",", " "), (".", "'"), (",", ""), (".", "")]


@given(st.lists(amounts, min_size=1, max_size=30), st.sampled_from(CONVENTIONS), st.sampled_from(sorted(UNITS)))
@settings(max_examples=examples(150))
def test_numbers_are_read_back(folder, numbers, convention, unit):
    values, table = read(folder, [spelled(number, *convention, unit) for number in numbers])
    assert table.n_rejected == 0
    assert_allclose(values, [float(number) * UNITS[unit] for number in numbers], rtol=1e-14)


@given(st.lists(st.tuples(amounts, st.booleans()), min_size=1, max_size=40), st.sampled_from([POINT, COMMA]))
@settings(max_examples=examples(150))
def test_mixed_conventions_are_rejected_or_named_but_never_misread(folder, cells, convention):
    other = COMMA if convention == POINT else POINT
    written = [spelled(number, *(other if odd else convention)) for number, odd in cells]
    try:
        values, table = read(folder, written)
    except BadInput:
        assert len({odd for _, odd in cells}) == 2
        return
    is_read = ~np.isnan(values)
    assert_allclose(values[is_read], np.array([float(number) for number, _ in cells])[is_read])
    assert table.n_rejected == (~is_read).sum()
    assert len({odd for (_, odd), kept in zip(cells, is_read, strict=True) if kept}) <= 1


@given(
    st.lists(st.text(max_size=12).filter(lambda text: text.isprintable() and '"' not in text), min_size=1, max_size=20)
)
@settings(max_examples=examples(200))
def test_any_text_is_read_or_rejected(folder, cells):
    path = folder / "table.parquet"
    pl.DataFrame(
        {"x": cells, "y": [float(i * i % 7) for i in range(len(cells))]}, schema={"x": pl.String, "y": pl.Float64}
    ).write_parquet(path)
    for decimal in (None, "comma", "point"):
        try:
            chunk = gather(open_table([str(path)], columns=["x", "y"], reading=Reading(decimal=decimal)).chunks())
        except BadInput:
            continue
        assert not np.isinf(chunk.rows).any()


@given(
    st.lists(st.datetimes(datetime(1970, 1, 1), datetime(2068, 12, 31)), min_size=1, max_size=30),
    st.sampled_from(["%d.%m.%Y", "%d/%m/%Y %H:%M:%S", "%m/%d/%Y", "%m/%d/%y %I:%M %p", "%d-%b-%Y %H:%M", "%B %d, %Y"]),
)
@settings(max_examples=examples(150))
def test_dates_are_read_back(folder, moments, form):
    order = "month-first" if form.startswith("%m") else "day-first"
    path = folder / "dates.csv"
    texts = [moment.strftime(form) for moment in moments]
    path.write_text(
        "\n".join(["when;x", *(f"{text};{i * i % 7 + i}" for i, text in enumerate(texts)), f"{texts[0]};99"])
    )
    expected = [datetime.strptime(text, form).replace(tzinfo=UTC).timestamp() for text in texts]
    table = open_table([str(path)], columns=["x"], time="when", reading=Reading(dates=order))
    assert gather(table.chunks()).times[:-1].tolist() == expected
    table = open_table([str(path)], columns=["x"], time="when")
    has_proof = any((moment.day > 12) for moment in moments) or "%b" in form.lower()
    if has_proof:  # then no option is needed
        assert gather(table.chunks()).times[:-1].tolist() == expected
    table.close()
