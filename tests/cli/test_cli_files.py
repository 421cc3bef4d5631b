"""Commands interpret files as people write them, report how, take options that override it, and save it in models."""

import re

import numpy as np
import polars as pl
import pytest

pytestmark = pytest.mark.end_to_end


@pytest.fixture
def payments(tmp_path):
    """A European export in which one payment stands out, beside its plain twin."""
    random = np.random.default_rng(1)
    amounts, waits = random.normal(800, 120, 200).round(2), random.normal(90, 8, 200).round()
    amounts[150] = 98_765.43
    written = [f"{amount:,.2f}".translate(str.maketrans(",.", ".,")) for amount in amounts]
    days = [f"{13 + i // 24:02}.05.2024 {i % 24:02}:00" for i in range(200)]
    lines = [f"{day};{text} €;{wait:.0f}ms" for day, text, wait in zip(days, written, waits, strict=True)]
    (tmp_path / "payments.csv").write_text("\n".join(["# bank", "Datum;Betrag;Dauer", *lines]) + "\n", "utf-8")
    stamps = [f"2024-05-{13 + i // 24:02}T{i % 24:02}:00:00Z" for i in range(200)]
    plain = pl.DataFrame({"Dauer": waits / 1000, "Datum": stamps, "Betrag": amounts})
    plain.write_csv(tmp_path / "plain.csv")
    return tmp_path


def test_a_table_in_words_is_judged_as_its_plain_twin(cli, payments):
    code, out, err = cli("detect", payments / "payments.csv", "--rows", "--columns", "Betrag,Dauer")
    assert code == 0
    assert "row 151, 2024-05-19 06:00" in out
    assert re.search(r"Interpreted: lines with # as comments; Betrag: .* as [\d.]+ €; ", err)
    assert re.search(r"; Dauer: .* as [\d.]+ s; ", err)
    assert err.strip().endswith("Override with --comment, --decimal, --plain, --dates.")
    code, plain, err = cli("detect", payments / "plain.csv", "--rows", "--columns", "Betrag,Dauer")
    assert (code, plain) == (0, out)
    assert "Interpreted" not in err


def test_a_model_reads_files_of_either_kind(cli, payments):
    model = payments / "model.mpf"
    assert cli("fit", payments / "payments.csv", "-m", model)[0] == 0
    outputs = [cli("score", "-m", model, payments / name, "-q")[1] for name in ("payments.csv", "plain.csv")]
    assert outputs[0] == outputs[1]
    code, out, _ = cli("explain", "-m", model, payments / "payments.csv", "--row", "151")
    assert code == 0
    assert "Betrag" in out


def test_options_override_interpretations(cli, payments):
    code, _, err = cli("detect", payments / "payments.csv", "--plain")
    assert code == 3
    assert "has no column to use" in err
    code, _, err = cli("detect", payments / "payments.csv", "--decimal", "point", "--rows")
    assert "Betrag" in err.partition("Skipped")[2] or code == 3
    code, _, err = cli("detect", payments / "payments.csv", "--comment", "none")
    assert "lines with # are comments" not in err
    for wrong in (["--delimiter", "ab"], ["--delimiter", '"'], ["--dates", "never"], ["--decimal", ";"]):
        assert cli("detect", payments / "payments.csv", *wrong)[0] == 2


def test_an_output_may_not_be_among_the_inputs(cli, payments):
    (payments / "in").mkdir()
    (payments / "payments.csv").rename(payments / "in" / "a.csv")
    before = (payments / "in" / "a.csv").read_bytes()
    for argument in (payments / "in", payments / "in" / "*.csv"):
        code, _, err = cli("detect", argument, "--out", payments / "in" / "a.csv")
        assert code == 3
        assert "is also the input" in err
    assert (payments / "in" / "a.csv").read_bytes() == before
    code, out, err = cli("detect", payments / "in", "--rows")
    assert code == 0
    assert "Read 200 rows of a.csv" in err
    assert "row 151" in out
