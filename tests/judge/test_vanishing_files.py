"""Files that are deleted, replaced or rotated while watch runs, or is killed: nothing is lost or doubled in silence."""

import json
import os
import pty
import random
import shutil
import signal
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from effort import mostly_slow
from processes import Watches
from test_watch import ROWS, line, n_committed, n_lines, notes_of, written
from waiting import until

from polyaforest.judge import read_model, read_notes

pytestmark = pytest.mark.fault

SMALL = ["--trees", "3", "--window", "30"]
LINES = [line(i, row).encode() + b"\n" for i, row in enumerate(ROWS.tolist())]
FILES = ["--model", "m", "--out", "out", "--quarantine", "bad"]
FOLLOW = ["log", "--follow", *FILES, "--columns", "cpu,disk", *SMALL]


def append(path, *lines):
    with open(path, "ab", buffering=0) as file:
        file.write(b"".join(lines))


def positions(path):
    return [int(item["position"]) for item in written(path)]


def stop(factory, child, number=signal.SIGTERM):
    os.kill(child, number)
    return factory.wait()


def words(folder):
    return (folder / "stderr").read_text()


# ---- what is written -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["out", "bad"])
def test_deleted_output_is_recreated_and_truncated_after_kill(tmp_path, factory, name):
    good, bad = LINES[:100], [b"junk %d\n" % i for i in range(100)]
    append(tmp_path / "log", *good[:50], *bad[:50])
    child = factory.start(tmp_path, *FOLLOW, "--save-every", "0")
    until(lambda: n_committed(tmp_path) == 100)
    (tmp_path / name).unlink()
    until(lambda: f"{name}' was deleted" in words(tmp_path))
    stop(factory, child, signal.SIGKILL)
    child = factory.start(tmp_path, *FOLLOW)  # from here on nothing is saved for long
    append(tmp_path / "log", *good[50:], *bad[50:])
    until(lambda: n_lines(tmp_path, "bad") == (50 if name == "bad" else 100))
    until(lambda: n_lines(tmp_path) == (50 if name == "out" else 100))
    stop(factory, child, signal.SIGKILL)
    child = factory.start(tmp_path, *FOLLOW, "--save-every", "0")
    until(lambda: n_committed(tmp_path) == 200)
    assert stop(factory, child) == 0
    expected = {"out": [*range(1, 51), *range(101, 151)], "bad": [*range(51, 101), *range(151, 201)]}
    expected[name] = expected[name][50:]
    assert {part: positions(tmp_path / part) for part in expected} == expected


def test_another_file_in_place_of_the_output_is_not_cut(tmp_path, factory):
    append(tmp_path / "log", *LINES[:100])
    child = factory.start(tmp_path, *FOLLOW, "--save-every", "0")
    until(lambda: n_committed(tmp_path) == 100)
    stop(factory, child, signal.SIGKILL)
    length = (tmp_path / "out").stat().st_size
    other = b'{"position":"0"}\n' * length
    with open(tmp_path / "out", "r+b") as file:  # the same inode, as a new file might be given
        file.write(other)
    child = factory.start(tmp_path, *FOLLOW)
    append(tmp_path / "log", LINES[100])
    until(lambda: (tmp_path / "out").stat().st_size > len(other))
    assert stop(factory, child) == 0
    assert positions(tmp_path / "out") == [0] * length + [101]
    assert "out' is not the file of the last save" in words(tmp_path)


def test_reports_output_missing_after_kill(tmp_path, factory):
    append(tmp_path / "log", *LINES[:100])
    child = factory.start(tmp_path, *FOLLOW, "--save-every", "0")
    until(lambda: n_committed(tmp_path) == 100)
    stop(factory, child, signal.SIGKILL)
    (tmp_path / "out").unlink()
    child = factory.start(tmp_path, *FOLLOW)
    append(tmp_path / "log", LINES[100])
    until(lambda: n_lines(tmp_path) == 1)
    assert stop(factory, child) == 0
    assert positions(tmp_path / "out") == [101]
    assert "out' is gone" in words(tmp_path)


def test_a_renamed_output_is_cut_where_it_is_now(tmp_path, factory):
    append(tmp_path / "log", *LINES[:50])
    child = factory.start(tmp_path, *FOLLOW, "--save-every", "0")
    until(lambda: n_committed(tmp_path) == 50)
    stop(factory, child, signal.SIGKILL)
    child = factory.start(tmp_path, *FOLLOW)
    append(tmp_path / "log", *LINES[50:100])
    until(lambda: n_lines(tmp_path) == 100)
    stop(factory, child, signal.SIGKILL)  # with fifty lines after the last save
    (tmp_path / "out").rename(tmp_path / "out.1")
    child = factory.start(tmp_path, *FOLLOW)
    until(lambda: n_lines(tmp_path) == 50)
    assert stop(factory, child) == 0
    assert positions(tmp_path / "out.1") + positions(tmp_path / "out") == list(range(1, 101))


# ---- the model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [["m"], ["m", "m-wal", "m-shm", "m-lock"], ["m-wal"]])
def test_a_model_that_is_deleted_while_running_is_written_again(tmp_path, factory, gone):
    append(tmp_path / "log", *LINES[:100])
    child = factory.start(tmp_path, *FOLLOW, "--by", "host", "--save-every", "0")
    until(lambda: n_committed(tmp_path) == 100)
    for name in gone:
        (tmp_path / name).unlink()
    append(tmp_path / "log", *LINES[100:200])
    until(lambda: "it was rewritten completely" in words(tmp_path))
    until(lambda: n_committed(tmp_path) == 200)
    stop(factory, child, signal.SIGKILL)
    append(tmp_path / "log", *LINES[200:300])
    child = factory.start(tmp_path, *FOLLOW, "--by", "host")
    until(lambda: n_lines(tmp_path) == 300)
    assert stop(factory, child) == 0
    assert positions(tmp_path / "out") == list(range(1, 301))
    assert read_model(tmp_path / "m", "web-0").n_seen_ == 300
    assert sorted(path.name for path in tmp_path.glob("m*")) == ["m", "m-lock"]


def test_a_model_that_is_replaced_while_running_is_left_alone_and_ours_is_rescued(tmp_path, factory):
    append(tmp_path / "log", *LINES[:100])
    child = factory.start(tmp_path, *FOLLOW, "--save-every", "0")
    until(lambda: n_committed(tmp_path) == 100)
    with closing(sqlite3.connect(tmp_path / "other")) as other:
        other.execute("CREATE TABLE cats (name TEXT)")
    before = (tmp_path / "other").read_bytes()
    os.replace(tmp_path / "other", tmp_path / "m")
    os.kill(child, signal.SIGTERM)
    assert factory.wait() == 3
    assert "'m' was replaced by another file while in use" in words(tmp_path)
    assert (tmp_path / "m").read_bytes() == before
    assert read_notes(tmp_path / "m.rescued-1")[0]["counts"]["records"] == 100


def test_a_new_model_says_that_the_output_has_lines(tmp_path, factory):
    append(tmp_path / "log", *LINES[:10])
    for _ in range(2):
        child = factory.start(tmp_path, *FOLLOW, "--save-every", "0")
        until(lambda: n_committed(tmp_path) == 10)
        stop(factory, child, signal.SIGKILL)
        for path in tmp_path.glob("m*"):
            path.unlink()
    assert words(tmp_path).count("out' is not empty") == 1


# ---- asked to leave --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGHUP], [signal.SIGHUP, signal.SIGTERM]])
def test_termination_signal_saves_everything(tmp_path, factory, numbers):
    append(tmp_path / "log", *LINES[:100])
    child = factory.start(tmp_path, *FOLLOW)
    until(lambda: n_lines(tmp_path) == 100)
    for number in numbers:
        os.kill(child, number)
    assert factory.wait() == 0
    assert notes_of(tmp_path / "m")["is_end"]
    assert n_committed(tmp_path) == 100


def test_a_terminal_that_is_closed_gets_everything_saved(tmp_path, programs):
    append(tmp_path / "log", *LINES[:100])
    reader, terminal = pty.openpty()
    child = programs.start("watch", *FOLLOW, cwd=tmp_path, files=[os.ttyname(terminal)] * 3)
    seen = b""
    while b"100 records" not in seen:  # its status line
        seen += os.read(reader, 4096)
    for end in (terminal, reader):
        os.close(end)
    assert programs.wait(child) == 0
    assert notes_of(tmp_path / "m")["is_end"]
    assert n_committed(tmp_path) == 100


# ---- rotated at the start --------------------------------------------------------------------------------------------


def write_and_rotate(log, n=30):
    """Ten lines in each of many files, one after another."""
    for start in range(0, 10 * n, 10):
        append(log, *LINES[start : start + 10])
        if start < 10 * n - 10:
            log.rename(f"{log}-20240501-{start:06d}")


def test_a_file_that_appears_and_rotates_before_the_first_look_is_read_from_its_first_line(tmp_path, factory):
    child = factory.start(tmp_path, *FOLLOW)
    until(lambda: notes_of(tmp_path / "m"))  # it waits for the file
    write_and_rotate(tmp_path / "log")
    until(lambda: n_lines(tmp_path) == 300)
    assert stop(factory, child) == 0
    assert [item["time"] for item in written(tmp_path / "out")] == sorted(times(LINES[:300]))


def test_reports_files_rotated_before_start(tmp_path, factory):
    write_and_rotate(tmp_path / "log")
    child = factory.start(tmp_path, *FOLLOW)
    until(lambda: n_lines(tmp_path) == 10)
    assert stop(factory, child) == 0
    assert [item["time"] for item in written(tmp_path / "out")] == times(LINES[290:300])
    assert "but not rotated files such as 'log-20240501-000280'" in words(tmp_path)


def times(lines):
    return [datetime.fromtimestamp(json.loads(text)["ts"], UTC).isoformat().replace("+00:00", "Z") for text in lines]


# ---- rotation, and what an undisturbed run writes --------------------------------------------------------------------


class Rotation:
    """Rotates a log, in one of the usual ways."""

    def __init__(self, log, rng):
        self._log, self._kind, self.n = log, rng.choice(["number", "date", "copy"]), 0

    def __call__(self):
        if not self._log.exists():
            return
        self.n += 1
        if self._kind == "date":
            self._log.rename(f"{self._log}-20240501-{self.n:06d}")
            return
        for number in range(self.n, 0, -1):
            if os.path.exists(f"{self._log}.{number}"):
                os.rename(f"{self._log}.{number}", f"{self._log}.{number + 1}")
        if self._kind == "copy":
            shutil.copyfile(self._log, f"{self._log}.1")
            os.truncate(self._log, 0)
        else:
            self._log.rename(f"{self._log}.1")


class Outputs:
    """Rotates what is written, and puts it together again."""

    def __init__(self, folder):
        self._folder, self._n = folder, 0

    def rotate(self):
        self._n += 1
        for name in ("out", "bad"):
            if (self._folder / name).exists():
                (self._folder / name).rename(self._folder / f"{name}.{self._n:04d}")

    def read(self):
        return [
            b"".join(
                path.read_bytes()
                for path in [*sorted(self._folder.glob(f"{name}.*")), self._folder / name]
                if path.exists()
            )
            for name in ("out", "bad")
        ]


def mixed_lines():
    return [b"junk %d\n" % i if i % 40 == 7 else LINES[i] for i in range(300)]


@pytest.fixture(scope="module")
def calm(tmp_path_factory, programs):
    """What an undisturbed run writes."""
    folder = tmp_path_factory.mktemp("calm")
    append(folder / "log", *mixed_lines())
    factory = Watches(programs)
    factory.start(folder, "log", *FOLLOW[2:])
    assert factory.wait() == 0
    return Outputs(folder).read()


# ---- killed at the start ---------------------------------------------------------------------------------------------

AT_ONCE = 8  # processes, so that they also disturb each other


@pytest.fixture
def together(programs):
    """Start processes that watch, in several folders at once; they are all waited for in the end."""
    children = []

    def start(folders):
        children[:] = [programs.start("watch", *FOLLOW, "--save-every", "0", cwd=folder) for folder in folders]
        return list(children)

    def end(number=signal.SIGKILL, moments=()):
        began, codes = time.monotonic(), []
        for child, moment in zip(children, sorted(moments) or [0.0] * len(children), strict=True):
            time.sleep(max(0.0, began + moment - time.monotonic()))
            os.kill(child, number)
        while children:
            codes.append(programs.wait(children.pop()))
        return codes

    yield start, end
    end()


@pytest.mark.parametrize("seconds", [0.2, 3.0])  # the files are created in the first fraction of a second
@pytest.mark.parametrize("seed", mostly_slow(range(25)))
def test_killed_in_its_first_seconds_the_next_one_writes_what_an_undisturbed_run_does(
    tmp_path, together, calm, seconds, seed
):
    start, end = together
    rng, text = random.Random(seed), mixed_lines()
    folders = [tmp_path / str(number) for number in range(AT_ONCE)]
    for folder in folders:
        folder.mkdir()
        append(folder / "log", *text[:150])
        (folder / "stderr").touch()
    start(folders)
    assert end(moments=[rng.uniform(0.0, seconds) for _ in folders]) == [-signal.SIGKILL] * AT_ONCE
    for folder in folders:
        append(folder / "log", *text[150:])
    start(folders)
    for folder in folders:
        until(lambda folder=folder: n_committed(folder) == 300 or "Error" in words(folder))
    assert end(signal.SIGTERM) == [0] * AT_ONCE, [words(folder) for folder in folders]
    for folder in folders:
        assert Outputs(folder).read() == calm, words(folder)
        assert sorted(path.name for path in folder.glob("m*")) == ["m", "m-lock"]


# ---- killed and rotated at any moment --------------------------------------------------------------------------------


SEEDS = mostly_slow(range(60), 0, 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_killed_and_rotated_at_any_moment_it_writes_what_an_undisturbed_run_does(tmp_path, factory, calm, seed):
    schedule = Schedule(tmp_path, factory, random.Random(seed))
    schedule.begin()
    *parts, last = schedule.parts
    for part in parts:
        schedule.turn(part)
    stop(factory, factory.child, signal.SIGKILL)
    child = factory.start(tmp_path, *FOLLOW, "--save-every", "0")
    append(tmp_path / "log", last)  # only this process can have saved it
    until(lambda: n_committed(tmp_path) == 300)
    assert stop(factory, child) == 0, words(tmp_path)
    assert schedule.outputs.read() == calm, words(tmp_path)
    assert "may be" not in words(tmp_path)
    # a schedule that never gets anywhere would prove nothing
    assert schedule.rotation.n >= 3
    assert schedule.n_kills_amid_lines >= 1


class Schedule:
    """Lines that are written, files that are rotated and processes that are killed, in an order drawn by lot."""

    def __init__(self, folder, factory, rng):
        self._folder, self._factory, self._rng = folder, factory, rng
        self._log = folder / "log"
        self.rotation, self.outputs = Rotation(self._log, rng), Outputs(folder)
        self._saving = ["--save-records", rng.choice(["5", "40", "1000"])]
        self._saving += ["--save-every", rng.choice(["0", "0.05", "9"])]
        text = mixed_lines()
        cuts = [0, *sorted(rng.sample(range(20, 280), 9)), len(text)]
        self.parts = [b"".join(text[i:j]) for i, j in pairwise(cuts)]
        self._most = 0  # lines that were ever there
        self.n_kills_amid_lines = 0

    def begin(self):
        """Start for the first time, killed at once a few times; what is rotated before the first save is not read."""
        if self._rng.random() < 0.5:
            append(self._log, self.parts.pop(0))
        for _ in range(self._rng.randrange(3)):
            self._start()
            self._pause()
            self._kill()
        self._start()
        until(lambda: notes_of(self._folder / "m"))

    def turn(self, part):
        """Write some lines and rotate; kill the process at some moment; rotate; start the next."""
        cut = self._rng.randrange(len(part))
        append(self._log, part[:cut])
        self._perhaps_rotate()
        append(self._log, part[cut:])
        self._perhaps_rotate()
        if self._rng.random() < 0.6:
            until(lambda: self._n_lines() > self._most)
            self._most = self._n_lines()
            self.n_kills_amid_lines += 1
        else:
            self._pause()  # in the middle of starting, most likely
        self._perhaps_rotate()
        self._kill()
        self._perhaps_rotate()
        self._start()
        self._perhaps_rotate()

    def _perhaps_rotate(self):
        # a writer that rotates in the middle of a line tears it itself
        if self._rng.random() < 0.25 and self._log.exists() and self._log.read_bytes()[-1:] == b"\n":
            self.rotation()
        if self._rng.random() < 0.15:
            self.outputs.rotate()

    def _n_lines(self):
        return sum(text.count(b"\n") for text in self.outputs.read())

    def _start(self):
        self._child = self._factory.start(self._folder, *FOLLOW, *self._saving)

    def _kill(self):
        stop(self._factory, self._child, signal.SIGKILL)

    def _pause(self):
        time.sleep(self._rng.uniform(0.0, 0.15))
