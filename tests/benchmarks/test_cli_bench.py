"""The benchmark of the command line: its data, its clock, its tables, and the page that holds them."""

import json
import shutil
import sys

import pytest

from benchmarks import cli
from benchmarks.registry import main
from benchmarks.shared.pages import PAGES
from benchmarks.shared.results import RESULTS, read

ECHO = [sys.executable, "-c", "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"]


def test_the_page_shows_the_results(tmp_path):
    pages = shutil.copytree(PAGES, tmp_path / "pages")
    rows = read(RESULTS / "cli.csv")
    assert {row["part"] for row in rows} == set(cli.PARTS)
    cli.render(rows, pages)
    assert (pages / "command-line.md").read_text("utf-8") == (PAGES / "command-line.md").read_text("utf-8")


def test_a_longer_stream_begins_like_a_shorter_one(tmp_path):
    short = cli.write_records(tmp_path / "short.jsonl", 7, n_keys=3).read_text().splitlines()
    long = cli.write_records(tmp_path / "long.jsonl", cli.BLOCK + 5, n_keys=3).read_text().splitlines()
    assert (len(short), len(long)) == (7, cli.BLOCK + 5)
    assert long[:7] == short
    assert [json.loads(line)["host"] for line in short[:4]] == ["host-0", "host-1", "host-2", "host-0"]
    assert len(json.loads(short[0])) == 1 + cli.FEATURES


def test_a_process_reads_a_pipe_and_its_own_time_is_measured(tmp_path):
    path = cli.write_records(tmp_path / "records.jsonl", 5)
    count = "import sys; assert len(sys.stdin.readlines()) == 5; sum(range(3_000_000))"
    work = cli.run([sys.executable, "-c", count], path)
    assert 0 < work.cpu_seconds < 1.5 * work.seconds + 0.1
    assert work.peak_mb > 5
    assert cli.first_line(ECHO, b"{}\n").seconds > 0


def test_a_failing_process_raises_with_its_message():
    with pytest.raises(RuntimeError, match="ended with 3: no such luck"):
        cli.run([sys.executable, "-c", "import sys; sys.stderr.write('no such luck'); sys.exit(3)"])
    with pytest.raises(RuntimeError, match="said nothing"):
        cli.first_line([sys.executable, "-c", "input()"], b"{}\n")


def test_the_rate_excludes_start_up():
    rows = [
        {"part": "watch", "method": "m", "records": str(records), "round": str(turn), "cpu_seconds": str(seconds)}
        for turn, (few, many) in enumerate([(2, 4), (2, 3), (5, 9)])
        for records, seconds in [(100, few), (1100, many)]
    ]
    assert cli.rate(rows, part="watch", method="m") == 1000 / 2


@pytest.mark.parametrize(("ratio", "words"), [(231.4, "231"), (9.96, "10"), (3.14, "3.1"), (0.346, "0.35")])
def test_ratios_have_two_figures(ratio, words):
    assert cli.times(ratio) == words


def test_a_plain_loop_scores_every_record(tmp_path):
    pytest.importorskip("krcf")
    path = cli.write_records(tmp_path / "records.jsonl", 20)
    cli.run([*cli.PIPE, "krcf"], path)
    assert cli.first_line([*cli.PIPE, "krcf"], path.read_bytes()[: path.read_bytes().index(b"\n") + 1]).seconds > 0


@pytest.mark.slow
def test_end_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "QUICK", cli.Size(1, (150, 200), read=20_000, starts=1))
    monkeypatch.setattr(cli, "CASES", {"fields": (cli.DEFAULT,)})
    shutil.copy(PAGES / "command-line.md", tmp_path)
    main(["run", "cli", "--quick", "--part", "watch", "read", "help"], tmp_path, tmp_path)
    rows = read(tmp_path / "cli.csv")
    assert [row["records"] for row in rows if row["part"] == "watch"] == ["150", "200"]
    assert [row["method"] for row in rows if row["part"] == "read"] == list(cli.READERS)
    assert all(float(row["cpu_seconds"]) >= 0 for row in rows)
    assert "| `polars.read_csv` |" in (tmp_path / "command-line.md").read_text("utf-8")
