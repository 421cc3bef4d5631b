"""The service under load: batches, single records, live readers and long histories.

A second process sends the load over loopback, a third reads the live feed. The server runs on one core, the others on
another if there is one. Rates are measured by the clock and by the processor time of the server, which other load on
the machine does not affect.
Writes results/service.csv and fills docs/benchmarks/service.md.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import orjson

from benchmarks.registry import Benchmark, of_rows, only
from benchmarks.shared.feed_readers import reading
from benchmarks.shared.pages import PAGES, fill, fill_parts, table
from benchmarks.shared.results import Results
from polyaforest.service.remote_write import message_class

Rows = Sequence[Mapping[str, str]]

PAGE = "service"
KEYS = ("part", "case")
PARTS = ("batches", "single", "feed", "memory", "metrics")
FIELDS, BATCH = 10, 1000
CONNECTIONS = 64  # of those who post single records
LONGEST_START = 120.0  # seconds for all readers to connect
HEAD = (
    b"POST /api/v1/streams/load/records HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/x-ndjson\r\nContent-Length: %d\r\n\r\n"
)
ADDRESS = re.compile(r"at (http://[^ ]+)")
CONFIG = """
[server]
requests_per_second = 100000
feeds_per_address = 1000

[streams.load]
time = "time"
by = "key"
{more}
"""


METRICS = """
[server]
requests_per_second = 100000
feeds_per_address = 1000

[streams.load]
source = "remote-write"
[streams.load.metrics]
fields = {fields}
by = ["key"]
"""


class Size(NamedTuple):
    """How much to measure."""

    records: tuple[int, ...] = (100_000, 40_000, 20_000)  # of each number of keys
    keys: tuple[int, ...] = (1, 100, 10_000)
    singles: int = 4_000
    rate: float = 200.0  # single records a second
    readers: int = 200
    feed_seconds: float = 10.0
    long: int = 1_000_000
    scrapes: int = 200  # of a hundred keys, by remote write


QUICK = Size((4_000, 2_000), (1, 20), 200, 200.0, 20, 2.0, 20_000, 5)


# ---- the server ------------------------------------------------------------------------------------------------------


class Server:
    """A service in a separate process."""

    def __init__(self, folder: Path, more: str = "", config: str = CONFIG) -> None:
        (folder / "polyaforest.toml").write_text(config.replace("{more}", more))
        command = [sys.executable, "-m", "polyaforest", "serve", "--port", "0"]
        self._log = (folder / "log").open("w+")
        cores = sorted(os.sched_getaffinity(0))
        self.process = subprocess.Popen(command, cwd=folder, stderr=self._log, stdin=subprocess.DEVNULL)
        os.sched_setaffinity(self.process.pid, {cores[-1]})
        while not (found := ADDRESS.search((folder / "log").read_text())):
            if self.process.poll() is not None:
                raise RuntimeError((folder / "log").read_text())
            time.sleep(0.05)
        self.url = found[1]
        self.client = httpx.Client(base_url=self.url, timeout=600)
        while self.client.get("/ready").status_code != 200:
            time.sleep(0.05)

    def post(self, body: bytes) -> dict[str, Any]:
        """Post records; return the answer."""
        answer = self.client.post(
            "/api/v1/streams/load/records?verdicts=flagged",
            content=body,
            headers={"content-type": "application/x-ndjson"},
        )
        answer.raise_for_status()
        facts: dict[str, Any] = answer.json()
        return facts

    @property
    def cpu_seconds(self) -> float:
        """Processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def megabytes(self) -> float:
        """Resident memory now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1000  # type: ignore[index]

    def close(self) -> None:
        """Stop the process."""
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        self._log.close()


@contextmanager
def serving(more: str = "", config: str = CONFIG) -> Iterator[Server]:
    """Yield a server that runs."""
    with tempfile.TemporaryDirectory() as place:
        server = Server(Path(place), more, config)
        try:
            yield server
        finally:
            server.close()


def bodies(n_records: int, n_keys: int, batch: int = BATCH) -> Iterator[bytes]:
    """Yield batches of records, keys in turn."""
    rng, number = np.random.default_rng(0), 0
    while number < n_records:
        rows = rng.normal(size=(min(batch, n_records - number), FIELDS)).round(5).tolist()
        lines = []
        for row in rows:
            fields = {f"f{i}": value for i, value in enumerate(row)}
            lines.append(orjson.dumps({"time": 1_700_000_000 + number, "key": f"key-{number % n_keys}", **fields}))
            number += 1
        yield b"\n".join(lines) + b"\n"


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure_batches(results: Results, size: Size) -> None:
    """Measure sustained rates in batches."""
    for n_keys, n_records in zip(size.keys, size.records, strict=True):
        with serving() as server:
            texts = list(bodies(n_records, n_keys))
            warm = max(1, len(texts) // 10)
            for text in texts[:warm]:
                server.post(text)
            cpu, start, delays = server.cpu_seconds, time.perf_counter(), []
            for text in texts[warm:]:
                began = time.perf_counter()
                server.post(text)
                delays.append(time.perf_counter() - began)
            seconds, n = time.perf_counter() - start, (len(texts) - warm) * BATCH
            add(results, "batches", f"{n_keys}", {
                "records": n, "seconds": seconds, "cpu_seconds": server.cpu_seconds - cpu,
                "p50_ms": percentile(delays, 50), "p99_ms": percentile(delays, 99), "megabytes": server.megabytes,
            })  # fmt: skip


def measure_single(results: Results, size: Size) -> None:
    """Measure delays of single records at a fixed rate, also while a slow reader holds the feed open."""
    for case in ("alone", "with readers"):
        with serving() as server:
            for text in bodies(2000, 1):
                server.post(text)
            with listening(server, size.readers if case == "with readers" else 0):
                cpu = server.cpu_seconds
                delays = asyncio.run(_post_at_rate(server.url, size.singles, size.rate))
                cpu = server.cpu_seconds - cpu
            add(results, "single", case, {
                "records": len(delays), "cpu_seconds": cpu, "p50_ms": percentile(delays, 50),
                "p99_ms": percentile(delays, 99), "megabytes": server.megabytes,
            })  # fmt: skip


async def _post_at_rate(url: str, n: int, rate: float) -> list[float]:
    """Post single records at fixed times, whether or not earlier ones were answered; return the delays."""
    host, _, port = url.removeprefix("http://").partition(":")
    free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await asyncio.open_connection(host, int(port)))
    delays: list[float] = []

    async def post(text: bytes, due: float) -> None:
        reader, writer = await free.get()
        writer.write(HEAD % len(text) + text)
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if b" 200 " not in head.partition(b"\r\n")[0] or length is None:
            raise RuntimeError(head.decode())
        await reader.readexactly(int(length[1]))
        delays.append(time.perf_counter() - due)
        free.put_nowait((reader, writer))

    start, tasks = time.perf_counter() + 0.2, []
    for i, text in enumerate(bodies(n, 1, 1)):
        due = start + i / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(post(text, due)))
    await asyncio.gather(*tasks)
    while not free.empty():
        free.get_nowait()[1].close()
    return delays


def measure_feed(results: Results, size: Size) -> None:
    """Count what live readers get while records come, one of whom does not read."""
    with serving() as server:
        for text in bodies(2000, 1):
            server.post(text)
        with listening(server, size.readers) as counts:
            cpu, start = server.cpu_seconds, time.perf_counter()
            for text in bodies(10**9, 100, 100):
                server.post(text)
                if time.perf_counter() - start > size.feed_seconds:
                    break
                time.sleep(0.05)
            seconds = time.perf_counter() - start
            time.sleep(1.0)
        add(results, "feed", f"{size.readers}", {
            "records": sum(counts), "seconds": seconds, "cpu_seconds": server.cpu_seconds - cpu,
            "least": min(counts), "most": max(counts), "megabytes": server.megabytes,
        })  # fmt: skip


@contextmanager
def listening(server: Server, n: int) -> Iterator[list[int]]:
    """Let readers read the live feed; yield a list, to which the end adds the number of messages of each."""
    counts: list[int] = []
    if not n:
        yield counts
        return
    with reading(server.url, n, counts):
        end = time.monotonic() + LONGEST_START
        while server.client.get("/metrics").text.find(f"polyaforest_feed_readers {n + 1:.1f}") < 0:
            if time.monotonic() > end:
                raise RuntimeError("some readers of the feed were rejected")
            time.sleep(0.1)
        yield counts


def measure_memory(results: Results, size: Size) -> None:
    """Measure memory over many records, then the time to read all of them at the resolution of a screen."""
    with serving('[streams.load.retention]\nrecords = 100000000\nage = "40000d"') as server:
        every = size.long // 10
        n = 0
        for text in bodies(size.long, 1):
            server.post(text)
            n += BATCH
            if n % every == 0:
                add(results, "memory", f"{n}", {"records": n, "megabytes": server.megabytes})
        delays = []
        for _ in range(5):
            began = time.perf_counter()
            parameters = {"key": "key-0", "start": 1_700_000_000, "end": 1_700_000_000 + n, "points": 1000}
            answer = server.client.get("/api/v1/streams/load/series", params=parameters)
            delays.append(time.perf_counter() - began)
            assert answer.json()["n_records"] == n
        add(results, "memory", "range", {"records": n, "p50_ms": percentile(delays, 50)})


def measure_metrics(results: Results, size: Size) -> None:
    """Measure the rate of samples by remote write: a hundred keys with ten series each, two requests per scrape."""
    fields = ", ".join(f'f{i} = "f{i}"' for i in range(FIELDS))
    headers = {"content-encoding": "snappy", "content-type": "application/x-protobuf"}
    with serving(config=METRICS.replace("{fields}", f"{{{fields}}}")) as server:
        cpu, start, delays, n = 0.0, 0.0, list[float](), 0
        for number, body in enumerate(write_requests(size.scrapes)):
            if number == size.scrapes // 5:  # the others are the warm-up
                cpu, start, n = server.cpu_seconds, time.perf_counter(), 0
            began = time.perf_counter()
            server.client.post("/api/v1/write", content=body, headers=headers).raise_for_status()
            delays.append(time.perf_counter() - began)
            n += 50 * FIELDS
        while server.client.get("/api/v1/streams/load").json()["n_records"] < 100 * (size.scrapes - 1):
            time.sleep(0.05)  # all but the last records, which wait, are scored
        seconds = time.perf_counter() - start
        add(results, "metrics", "remote write", {
            "records": n, "seconds": seconds, "cpu_seconds": server.cpu_seconds - cpu,
            "p50_ms": percentile(delays, 50), "p99_ms": percentile(delays, 99), "megabytes": server.megabytes,
        })  # fmt: skip


def write_requests(n_scrapes: int) -> Iterator[bytes]:
    """Yield write requests: two per scrape, with half of the keys each."""
    import cramjam  # noqa: PLC0415 - not needed by other parts

    rng, message = np.random.default_rng(0), message_class()
    for scrape in range(n_scrapes):
        for half in range(2):
            request = message()
            for key in range(50 * half, 50 * half + 50):
                for i, value in enumerate(rng.normal(size=FIELDS).tolist()):
                    series = request.timeseries.add()
                    series.labels.add(name="__name__", value=f"f{i}")
                    series.labels.add(name="key", value=f"key-{key}")
                    series.samples.add(value=value, timestamp=1000 * (1_700_000_000 + 15 * scrape))
            yield bytes(cramjam.snappy.compress_raw(request.SerializeToString()))


def percentile(delays: Sequence[float], share: float) -> float:
    """Return a percentile of delays, in milliseconds."""
    return float(np.percentile(delays, share)) * 1000


COLUMNS = ("records", "seconds", "cpu_seconds", "p50_ms", "p99_ms", "least", "most", "megabytes", "load")


def add(results: Results, part: str, case: str, numbers: Mapping[str, float]) -> None:
    """Add a row with the load of the machine; what was not measured stays empty."""
    numbers = {**numbers, "load": os.getloadavg()[0]}
    cells = {name: round(numbers[name], 4) if name in numbers else "" for name in COLUMNS}
    results.add({"part": part, "case": case, **cells})
    print(part, case, {name: cell for name, cell in cells.items() if cell != ""}, flush=True)


MEASURES = {
    "batches": measure_batches,
    "single": measure_single,
    "feed": measure_feed,
    "memory": measure_memory,
    "metrics": measure_metrics,
}


# ---- the page --------------------------------------------------------------------------------------------------------


def of(rows: Rows, part: str) -> list[Mapping[str, str]]:
    """Return the rows of a part."""
    return [row for row in rows if row["part"] == part]


def batches_table(rows: Rows) -> str:
    """Return rates by the number of keys."""
    lines = []
    for row in of(rows, "batches"):
        n = float(row["records"])
        rates = [n / float(row["seconds"]), n / float(row["cpu_seconds"])]
        lines.append(
            [
                f"{int(row['case']):,}",
                *(f"{rate:,.0f}" for rate in rates),
                f"{float(row['p99_ms']):,.0f}",
                f"{float(row['megabytes']):,.0f}",
            ]
        )
    heads = ["keys", "records a second", "per second of processor time", "p99 of a batch, ms", "memory, MB"]
    return table(heads, lines)


def single_table(rows: Rows) -> str:
    """Return delays of single records."""
    lines = []
    for row in of(rows, "single"):
        each = 1000 * float(row["cpu_seconds"]) / float(row["records"])
        lines.append([row["case"], *(f"{number:.1f}" for number in (float(row["p50_ms"]), float(row["p99_ms"]), each))])
    return table(["single records at 200/s", "median, ms", "p99, ms", "processor time of each, ms"], lines)


def feed_table(rows: Rows) -> str:
    """Return what live readers got."""
    lines = [
        [
            row["case"],
            f"{float(row['least']):,.0f}",
            f"{float(row['most']):,.0f}",
            f"{float(row['cpu_seconds']) / float(row['seconds']):.0%}",
        ]
        for row in of(rows, "feed")
    ]
    return table(["readers", "fewest messages", "most messages", "share of a core"], lines)


def metrics_table(rows: Rows) -> str:
    """Return the rate of samples by remote write."""
    lines = []
    for row in of(rows, "metrics"):
        n, delay = float(row["records"]), float(row["p99_ms"])
        rates = [n / float(row["seconds"]), n / float(row["cpu_seconds"])]
        lines.append([*(f"{rate:,.0f}" for rate in rates), f"{delay:,.0f}", f"{float(row['load']):.1f}"])
    heads = ["samples a second", "per second of processor time", "p99 of a request, ms", "load of the machine"]
    return table(heads, lines)


def memory_table(rows: Rows) -> str:
    """Return memory over many records."""
    found = of(rows, "memory")
    lines = [[f"{int(row['case']):,}", f"{float(row['megabytes']):,.0f}"] for row in found if row["case"] != "range"]
    return table(["records", "memory, MB"], lines)


def range_words(rows: Rows) -> str:
    """Return how long a long range takes."""
    (row,) = [row for row in of(rows, "memory") if row["case"] == "range"]
    return f"A range of {int(row['records']):,} records in 1,000 points is there in {float(row['p50_ms']):.0f} ms."


BLOCKS = {
    "batches": batches_table,
    "single": single_table,
    "feed": feed_table,
    "memory": memory_table,
    "metrics": metrics_table,
}


def render(rows: Rows, directory: Path = PAGES) -> None:
    """Fill the tables of the page from the rows of the file."""
    fill_parts(PAGE, BLOCKS, rows, directory)
    if of(rows, "memory"):
        fill(PAGE, "range", range_words(rows), directory)


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure some parts again."""
    results = Results("service", KEYS, directory)
    for part in options.part:
        results.forget(part=part)
        MEASURES[part](results, QUICK if options.quick else Size())


BENCHMARK = Benchmark(
    measure_all,
    of_rows(render, "service"),
    quick="few records",
    options={"--part": only(PARTS)},
    peers=("fastapi", "uvicorn"),
)
