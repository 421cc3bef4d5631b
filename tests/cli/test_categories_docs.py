"""A table as people have it goes in, and the rare combination comes out, in words: as the page of categories shows."""

import re
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.end_to_end

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "categories.md").read_text("utf-8")
CONSOLE = re.compile(r"^```console\n\$ polyaforest (?P<args>.*?)\n(?P<shown>.*?)^```$", re.M | re.S)


@pytest.fixture
def payments(tmp_path, monkeypatch):
    """The folder with the file that the page writes."""
    monkeypatch.chdir(tmp_path)
    code = re.search(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    exec(code[1], {})
    return tmp_path / "payments.csv"


def test_detect_finds_rare_combination_without_options(cli, payments):
    code, out, err = cli("detect", payments)
    assert code == 0
    assert "using merchant, country, currency, amount, postcode (5 of 7 columns)" in err
    assert "Skipped: order_id (text, all different); note (free text)." in err
    assert "Interpreted: merchant, country, currency, postcode as categories; amount: 1." in err
    worst = out.split("\n\n")[2]
    assert worst.startswith("2. row 778: ")  # of 2,000, after one with an amount that is far too high
    assert re.search(
        r"country +GB +rare +\+\d+\.\d bits +seen in 1 of \d+ rows with (currency = CHF|merchant = Gro)", worst
    )
    assert re.search(r"currency +CHF +rare ", worst)
    assert re.search(r"merchant +Grocer +rare ", worst)
    assert not re.search(r"\d{12}", out)  # no codes


def test_detect_finds_german_payments_in_dollars(cli, tmp_path):
    """Of some 2,000 German payments two are in dollars, all others in euros; other countries use several currencies."""
    rng = np.random.default_rng(0)
    country = rng.choice(["DE", "US", "FR", "GB", "JP", "CH"], 6000, p=[0.34, 0.3, 0.12, 0.12, 0.06, 0.06])
    homes = {"DE": "EUR", "FR": "EUR", "US": "USD", "GB": "GBP", "JP": "JPY", "CH": "CHF"}
    currency = np.array([homes[one] for one in country])
    is_mixed = np.isin(country, ["FR", "GB", "JP", "CH"])
    currency[is_mixed & (rng.random(6000) < 0.06)] = "USD"
    currency[is_mixed & (rng.random(6000) < 0.03)] = "EUR"
    odd = np.flatnonzero(country == "DE")[[100, 1200]]
    currency[odd] = "USD"
    lines = [f"{amount:.2f},{a},{b}" for amount, a, b in zip(rng.lognormal(4, 1, 6000), country, currency, strict=True)]
    table = tmp_path / "export.csv"
    table.write_text("\n".join(["amount,country,currency", *lines]) + "\n")
    code, out, _ = cli("detect", table, "--top", "40")
    assert code == 0
    blocks = {block.split(":")[0].split()[-1]: block for block in out.split("\n\n")}
    for i in odd.tolist():
        assert f"currency = USD with country = DE: 2 of {(country == 'DE').sum():,} rows" in blocks[f"{i + 1:,}"]
    flagged = int(re.search(r"(\d+) of 6,000 rows stand out", out)[1])
    assert flagged < 40


def test_page_shows_printed_output(cli, payments):
    (block,) = CONSOLE.finditer(PAGE)
    code, out, err = cli(*block["args"].split())
    assert (code, err + out) == (0, block["shown"])


def test_numbers_only_misses_rare_combination(cli, payments):
    code, out, err = cli("detect", payments, "--numbers-only")
    assert code == 0
    assert "row 778" not in out
    assert "merchant, country, currency" in err.partition("Skipped: ")[2]


def test_categories_option_selects_columns(cli, payments):
    code, _, err = cli("detect", payments, "--categories", "country,note", "-q")
    assert (code, err) == (0, "")
    code, _, err = cli("detect", payments, "--columns", "amount,country")
    assert "using amount, country (2 of 7 columns)" in err
    assert cli("detect", payments, "--categories", "contry")[0] == 3
    assert cli("detect", payments, "--categories", "country", "--numbers-only")[0] == 2
    assert cli("detect", payments, "--categories", "country", "--series")[0] == 2


@pytest.mark.parametrize("kind", [[], ["--batch"], ["--stream"]], ids=str)
def test_models_keep_categories(cli, payments, tmp_path, kind):
    model = tmp_path / "model.mpf"
    assert cli("fit", payments, "-m", model, *kind)[0] == 0
    code, out, _ = cli("explain", "-m", model, payments, "--row", "778")
    assert code == 0
    assert "Grocer" in out
    odd = tmp_path / "odd.csv"  # columns in another order, and an unseen country
    odd.write_text(
        "amount,country,merchant,currency,postcode\n1260.5,XK,Grocer,EUR,10115\n1260.5,DE,Grocer,EUR,10115\n"
    )
    code, out, _ = cli("score", "-m", model, odd, "-q")
    assert code == 0
    scores = [float(line.split(",")[1]) for line in out.splitlines()[1:]]
    assert scores[0] < scores[1]
    code, out, _ = cli("explain", "-m", model, odd, "--row", "1", "--json")
    assert '"XK"' in out
    assert "categor" in cli("info", model)[1]


def test_watch_scores_text_fields(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"amount": 10 + i % 7, "country": ["DE", "FR"][i % 2], "city": ["Bonn", "Lyon"][i % 2]} for i in range(400)]
    odd = {"amount": 12, "country": "XK", "city": "Lima"}
    lines = [str(row).replace("'", '"') for row in [*rows, odd]]
    (tmp_path / "a.jsonl").write_text("\n".join(lines[:200]) + "\n")
    (tmp_path / "b.jsonl").write_text("\n".join(lines) + "\n")
    args = ["--categories", "country,city", "--model", "m.models", "-q", "--skip-seen", "--rows"]
    assert cli("watch", "a.jsonl", *args)[0] == 0
    code, out, _ = cli("watch", "b.jsonl", *args)
    assert code == 0
    last = out.splitlines()[-1]
    assert '"is_anomaly":true' in last
    assert '"value":"XK"' in last
    assert '"seen":"never seen in' in last
