"""Data sets are read from a directory, downloaded from a local server, or generated; errors name the remedy."""

import gzip
import hashlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from polyaforest import datasets
from polyaforest.datasets import DownloadError, _files, _registry, load, load_series

pytest.importorskip("pooch")
scipy_io = pytest.importorskip("scipy.io")

RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(40, 3)), (np.arange(40) % 10 == 0).astype(np.int8)


# ---- a server, and what it serves ------------------------------------------------------------------------------------


class Mirror(ThreadingHTTPServer):
    """Serve `files`; `promised` overrides the declared number of bytes."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.promised, self.requests = {}, {}, []
        self.before_second_half = lambda: None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def serve(self, name, *contents):
        """Serve files as the originals of a data set."""
        for path, content in zip(_registry.original(name).paths, contents, strict=True):
            self.files[f"/{path}"] = content


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(self.server.promised.get(self.path, len(content))))
        self.end_headers()
        half = len(content) // 2
        self.wfile.write(content[:half])
        self.server.before_second_half()
        self.wfile.write(content[half:])

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture
def mirror(monkeypatch):
    with Mirror() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        monkeypatch.setenv("POLYAFOREST_MIRROR", server.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def expect(monkeypatch):
    """Set the checksum of a data set to that of given arrays."""

    def set_checksum(name, *arrays):
        sha256 = hashlib.sha256()
        for array in arrays:
            sha256.update((array.dtype.str + str(array.shape)).encode() + array.tobytes())
        monkeypatch.setitem(_registry.SHA256, name, sha256.hexdigest())

    return set_checksum


@pytest.fixture
def cardio(mirror, expect):
    """The mirror, with a small table in place of Cardio's."""
    mirror.serve("cardio", mat_file(*TABLE))
    expect("cardio", *TABLE)
    return mirror


def mat_file(X, y):
    file = io.BytesIO()
    scipy_io.savemat(file, {"X": X, "y": y[:, None]})
    return file.getvalue()


def hdf5_file(X, y):
    """Write a file like MATLAB 7.3: transposed, after a header of 512 bytes."""
    h5py = pytest.importorskip("h5py")
    file = io.BytesIO()
    with h5py.File(file, "w", userblock_size=512) as stored:
        stored["X"], stored["y"] = X.T, y[None, :].astype(float)
    return file.getvalue()


def same(loaded, arrays):
    return all(np.array_equal(found, array) for found, array in zip(loaded[1:], arrays, strict=True))


# ---- downloads -------------------------------------------------------------------------------------------------------


def test_downloads_table_once_with_progress_bar(cardio, tmp_path, capsys):
    first = load("cardio", tmp_path)
    assert first.name == "cardio"
    assert same(first, TABLE)
    assert first.X.flags.c_contiguous
    assert (first.X.dtype, first.y.dtype) == (np.float64, np.int8)
    assert "100%|" in capsys.readouterr().err
    assert same(load("cardio", tmp_path), TABLE)
    assert len(cardio.requests) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["cardio.npz"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no variable says where the cache is")
def test_caches_downloads(cardio, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("POLYAFOREST_DATA", str(tmp_path))
    load("cardio")
    assert (tmp_path / "cache" / "polyaforest" / "cardio.npz").is_file()
    assert same(load("cardio", download=False), TABLE)
    monkeypatch.delenv("POLYAFOREST_DATA")
    monkeypatch.setattr(_files, "_beside_checkout", lambda: None)
    assert datasets.data_directory() == tmp_path / "cache" / "polyaforest"
    assert len(cardio.requests) == 1


def test_reads_hdf5_with_same_checksum(cardio, tmp_path):
    cardio.serve("cardio", hdf5_file(*TABLE))
    assert same(load("cardio", tmp_path), TABLE)


def test_seismic_drops_categories_and_alternative_keeps_them(mirror, expect, tmp_path):
    X, y = RNG.normal(size=(20, 15)), TABLE[1][:20]
    mirror.serve("seismic", mat_file(X, y))
    kept = np.ascontiguousarray(X[:, [3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14]])
    expect("seismic", kept, y)
    expect("seismic15", X, y)
    assert same(load("seismic", tmp_path), (kept, y))
    assert same(load("seismic15", tmp_path), (X, y))
    assert (tmp_path / "alt" / "seismic15.npz").is_file()


def test_ecoli_anomalies_are_three_smallest_classes(mirror, expect, tmp_path):
    lines = [
        f"0.1,0.2,0.3,0.4,0.5,0.6,{index / 8},{kind}" for index, kind in enumerate(["cp", "imS", "om", "omL", "imL"])
    ]
    mirror.serve("ecoli", "\n".join(lines).encode())
    X = np.array([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, index / 8] for index in range(5)])
    y = np.array([0, 1, 0, 1, 1], np.int8)
    expect("ecoli", X, y)
    assert same(load("ecoli", tmp_path), (X, y))


@pytest.mark.parametrize(
    ("name", "rows", "labels"),
    [
        ("yeast", [0, 1, 3, 4], [0, 0, 1, 1]),
        ("yeast_exc_vac", [0, 1, 5], [0, 0, 1]),
        ("yeast_erl", range(7), [0, 0, 1, 0, 0, 0, 0]),
    ],
)
def test_yeast_anomalies_are_requested_classes(mirror, expect, tmp_path, name, rows, labels):
    X = RNG.normal(size=(7, 8)).round(2)
    kinds = ["CYT", "NUC", "ERL", "ME1", "POX", "VAC", "ME2"]
    lines = [f"P{index}_YEAST  {'  '.join(map(str, row))}  {kinds[index]}" for index, row in enumerate(X.tolist())]
    mirror.serve(name, ("\n".join(lines) + "\n").encode())
    wanted = X[list(rows)], np.array(labels, np.int8)
    expect(name, *wanted)
    assert same(load(name, tmp_path), wanted)


def test_heart_anomalies_are_class_0(mirror, expect, tmp_path):
    mirror.serve("heart", gzip.compress(b"F1R\tF1S\ttarget\n59\t52\t1\n72\t62.5\t0\n"))
    wanted = np.array([[59.0, 52.0], [72.0, 62.5]]), np.array([0, 1], np.int8)
    expect("heart", *wanted)
    assert same(load("heart", tmp_path), wanted)


def test_series_labels_include_both_ends_of_windows(mirror, expect, tmp_path):
    name = "realKnownCause/nyc_taxi"
    minutes = [0, 30, 60, 90, 60, 120]  # with a step back, as one file has it
    start = datetime(2014, 7, 1, tzinfo=UTC).timestamp()
    rows = "".join(f"2014-07-01 {minute // 60:02}:{minute % 60:02}:00,{minute / 7!r}\n" for minute in minutes)
    windows = {f"{name}.csv": [["2014-07-01 00:30:00.000000", "2014-07-01 01:00:00.000000"]], "other.csv": []}
    mirror.serve(name, f"timestamp,value\n{rows}".encode(), json.dumps(windows).encode())
    wanted = (
        np.array([start + 60 * minute for minute in minutes], np.int64),
        np.array(minutes) / 7,
        np.array([0, 1, 1, 0, 1, 0], np.int8),
    )
    expect(name, *wanted)
    by_short_name = load_series("nyc", tmp_path)
    assert by_short_name.name == "nyc"
    assert same(by_short_name, wanted)
    assert same(load_series(name, tmp_path), wanted)
    assert len(mirror.requests) == 2  # the series and the windows


# ---- downloads that fail ---------------------------------------------------------------------------------------------


def test_rejects_and_discards_wrong_table(cardio, tmp_path):
    X, y = TABLE
    cardio.serve("cardio", mat_file(X + 1e-12, y))
    with pytest.raises(DownloadError, match=r"wrong checksum.*nothing stored"):
        load("cardio", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_checksum_covers_labels(cardio, tmp_path):
    X, y = TABLE
    cardio.serve("cardio", mat_file(X, 1 - y))
    with pytest.raises(DownloadError, match="SHA-256"):
        load("cardio", tmp_path)


def test_reports_broken_connection(cardio, tmp_path):
    path, content = next(iter(cardio.files.items()))
    cardio.promised[path] = 2 * len(content)
    with pytest.raises(DownloadError, match=r"'cardio'.*(could not be downloaded|cannot be read)"):
        load("cardio", tmp_path)
    assert list(tmp_path.iterdir()) == []
    cardio.promised.clear()
    assert same(load("cardio", tmp_path), TABLE)


@pytest.mark.parametrize("make", [mat_file, hdf5_file])
def test_reports_truncated_file(cardio, tmp_path, make):
    content = make(*TABLE)
    cardio.serve("cardio", content[: len(content) // 2])
    with pytest.raises(DownloadError, match="cannot be read"):
        load("cardio", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_reports_missing_file_with_url(mirror, tmp_path):
    with pytest.raises(DownloadError, match=f"404.*{mirror.url}.*cardio.mat.*POLYAFOREST_MIRROR"):
        load("cardio", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_error_without_network_names_remedies(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        unreachable = f"http://127.0.0.1:{taken.getsockname()[1]}"
    monkeypatch.setenv("POLYAFOREST_MIRROR", unreachable)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(DownloadError, match=r"POLYAFOREST_MIRROR.*POLYAFOREST_DATA"):
        load("cardio", tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="signals to a thread are a thing of Unix")
def test_interrupted_download_leaves_nothing(cardio, tmp_path):
    main = threading.main_thread().ident
    cardio.before_second_half = lambda: signal.pthread_kill(main, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        load("cardio", tmp_path)
    assert list(tmp_path.iterdir()) == []
    cardio.before_second_half = lambda: None
    assert same(load("cardio", tmp_path), TABLE)


@pytest.mark.parametrize("module", ["pooch", "tqdm", "h5py"])
def test_error_without_extra_names_install_command(cardio, tmp_path, monkeypatch, module):
    cardio.serve("cardio", hdf5_file(*TABLE))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"{module}: pip install polyaforest\[datasets\]"):
        load("cardio", tmp_path)


def test_reads_data_on_disk_without_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    monkeypatch.setenv("POLYAFOREST_DATA", str(tmp_path))
    np.savez(tmp_path / "cardio.npz", X=TABLE[0], y=TABLE[1])
    assert same(load("cardio"), TABLE)
    with pytest.raises(FileNotFoundError, match="is not on disk"):
        load("glass", download=False)


# ---- names and directories -------------------------------------------------------------------------------------------


def test_reports_missing_file_when_download_is_off(mirror, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cardio\.npz.*POLYAFOREST_DATA"):
        load("cardio", tmp_path, download=False)
    with pytest.raises(FileNotFoundError, match=r"nyc_taxi\.npz"):
        load_series("nyc", tmp_path, download=False)
    assert mirror.requests == []


@pytest.mark.parametrize(
    ("loader", "name", "near"),
    [
        (load, "Cardio", "'cardio'"),
        (load, "satimage2", "'satimage-2'"),
        (load_series, "nycc", "'nyc'"),
        (load_series, "realKnownCause/nyc_taxi.csv", "'realKnownCause/nyc_taxi'"),
        (load, "zzz", "choose from thyroid, mammography"),
        (datasets.make_toy, "moon", "'moons'"),
    ],
)
def test_unknown_name_suggests_close_names(loader, name, near):
    with pytest.raises(ValueError, match=f"unknown data set '{name}'.*{near}"):
        loader(name)


def test_reads_all_layouts_of_data_directory(tmp_path):
    X, y = TABLE
    time, label = np.arange(40), y
    (tmp_path / "nab").mkdir()
    np.savez(tmp_path / "cardio.npz", X=np.asfortranarray(X.astype(np.float32)), y=y)
    np.savez(tmp_path / "nab" / "at.npz", t=time, value=X[:, 0], label=label)
    name = "realTraffic/speed_t4013"
    np.savez(tmp_path / "nab_all.npz", **{f"{name}/t": time, f"{name}/value": X[:, 1], f"{name}/label": label})
    table = load("cardio", tmp_path, download=False)
    assert same(table, (X.astype(np.float32), y))
    assert table.X.dtype == np.float64
    assert table.X.flags.c_contiguous
    assert same(load_series("at", tmp_path, download=False), (time, X[:, 0], label))
    assert same(load_series("speed", tmp_path, download=False), (time, X[:, 1], label))
    assert same(load_series(name, tmp_path, download=False), (time, X[:, 1], label))
    with pytest.raises(FileNotFoundError):
        load_series("realTraffic/speed_6005", tmp_path, download=False)


@pytest.mark.parametrize("damage", [b"", b"not an archive", None])
def test_reports_damaged_file_with_path(tmp_path, damage):
    path = tmp_path / "cardio.npz"
    np.savez_compressed(path, X=TABLE[0], y=TABLE[1])
    content = path.read_bytes()
    path.write_bytes(content[:300] + bytes(100) + content[400:] if damage is None else damage)
    with pytest.raises(ValueError, match=r"cardio\.npz is damaged or not a data set.*delete it"):
        load("cardio", tmp_path)


def test_reports_file_without_labels(tmp_path):
    np.savez(tmp_path / "cardio.npz", X=TABLE[0])
    with pytest.raises(ValueError, match="not a data set"):
        load("cardio", tmp_path)


def test_environment_variable_sets_data_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYAFOREST_DATA", str(tmp_path))
    assert datasets.data_directory() == tmp_path
    assert datasets.data_directory("elsewhere").name == "elsewhere"
    monkeypatch.setenv("POLYAFOREST_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(NotADirectoryError, match=r"POLYAFOREST_DATA must be a directory; got .*nowhere"):
        datasets.data_directory()


def test_import_does_not_import_the_extra():
    code = (
        "import sys, polyaforest, polyaforest.datasets\n"
        "print(sorted({'pooch', 'h5py', 'tqdm', 'requests', 'scipy.io'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_every_name_has_source_commit_and_checksum():
    names = {*datasets.TABLES, *datasets.ALTERNATIVES, *datasets.NAB} - {"mulcross"}
    assert len(datasets.TABLES) == 30
    assert len(datasets.NAB) == 58
    assert len(datasets.SERIES) == 10
    assert set(_registry.SHORT_NAMES.values()) <= set(datasets.NAB)
    assert names == set(_registry.SHA256)
    for name in names:
        original = _registry.original(name)
        assert len(bytes.fromhex(original.sha256)) == 32
        for path in original.paths:
            _owner, _repository, commit, _file = path.split("/", 3)
            assert len(bytes.fromhex(commit)) == 20


# ---- series as tables ------------------------------------------------------------------------------------------------


def test_shingle_labels_windows_by_first_point():
    X, y = datasets.shingle([1, 2, 3, 4, 5], size=3, label=[1, 0, 0, 1, 1])
    assert X.tolist() == [[1, 2, 3], [2, 3, 4], [3, 4, 5]]
    assert y.tolist() == [1, 0, 0]
    assert X.flags.c_contiguous
    assert datasets.shingle(np.arange(12.0)).shape == (3, 10)
    series = datasets.Series("s", np.arange(12), np.arange(12.0), np.ones(12, np.int8))
    table = datasets.shingled(series, size=12)
    assert (table.name, table.X.shape, table.y.shape) == ("s", (1, 12), (1,))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1, 2]], 1), "1-D"),
        (([1, 2], 3), "size must be from 1 to"),
        (([1, 2], 0), "size must be from 1 to"),
        (([1, 2], 1, [1]), "label must have the shape"),
    ],
)
def test_shingle_rejects_invalid_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        datasets.shingle(*arguments)


# ---- generated sets --------------------------------------------------------------------------------------------------


def test_mulcross_is_white_with_two_dense_clusters():
    name, X, y = datasets.make_mulcross(20_000, 2_000)
    assert (name, X.shape, y.sum()) == ("mulcross", (20_000, 4), 2_000)
    assert np.allclose(X.mean(axis=0), 0)
    assert np.allclose(np.cov(X.T), np.eye(4))
    anomalies = X[y == 1]
    upper = anomalies[:, 1] > 0
    assert upper.sum() == 1_000
    # where the clusters' centres lie in the set of full size
    assert np.allclose(anomalies[upper].mean(axis=0), [1.12, 1.15, 2.42, 2.59], atol=0.1)
    assert np.allclose(anomalies[~upper].mean(axis=0), [1.12, -1.15, 2.42, -2.59], atol=0.1)
    assert anomalies[upper].std(axis=0).max() < 0.15
    assert 0 < y[:1_000].sum() < 1_000  # shuffled
    assert np.array_equal(X, datasets.make_mulcross(20_000, 2_000).X)
    assert not np.array_equal(X, datasets.make_mulcross(20_000, 2_000, seed=1).X)


def test_mulcross_matches_published_auc():
    from sklearn.ensemble import IsolationForest
    from sklearn.metrics import roc_auc_score

    _, X, y = datasets.make_mulcross(20_000, 2_000)
    score = -IsolationForest(random_state=0).fit(X).score_samples(X)
    assert roc_auc_score(y, score) == pytest.approx(0.97, abs=0.015)


def test_load_generates_mulcross_without_file(tmp_path):
    X, y = load("mulcross", tmp_path, download=False)[1:]
    assert X.shape == (262_144, 4)
    assert y.sum() == 26_214
    np.savez(tmp_path / "mulcross.npz", X=TABLE[0], y=TABLE[1])
    assert same(load("mulcross", tmp_path), TABLE)


@pytest.mark.parametrize("sizes", [(7, 1), (10, 11), (10, -1)])
def test_mulcross_rejects_invalid_sizes(sizes):
    with pytest.raises(ValueError, match="at least 8"):
        datasets.make_mulcross(*sizes)


@pytest.mark.parametrize("name", datasets.TOYS)
def test_toys_have_shaped_inliers_and_uniform_outliers(name):
    toy = datasets.make_toy(name, seed=3)
    assert (toy.name, toy.X.shape, toy.y.sum()) == (name, (500, 2), 75)
    assert np.abs(toy.X).max() < 8
    outliers = toy.X[toy.y == 1]
    assert np.abs(outliers).max() <= 6
    assert np.all(np.abs(outliers.mean(axis=0)) < 5 * np.sqrt(12 / 75))  # five standard errors
    assert 0 < toy.y[:100].sum() < 75
    assert np.array_equal(toy.X, datasets.make_toy(name, seed=3).X)
    assert not np.array_equal(toy.X, datasets.make_toy(name, seed=4).X)
    assert np.array_equal(load(name).X, datasets.make_toy(name).X)


def test_toys_have_the_shapes_of_their_names():
    inliers = {name: toy.X[toy.y == 0] for name in datasets.TOYS if (toy := datasets.make_toy(name, n=4000))}
    assert np.allclose(inliers["single blob"].std(axis=0), 0.5, atol=0.05)
    for name, deviation in (("two blobs tight", 0.5), ("two blobs spread", 0.3)):
        lower = inliers[name][inliers[name].sum(axis=1) < -2]
        assert np.allclose(np.median(lower, axis=0), -2, atol=0.05)
        assert np.allclose(np.median(np.abs(lower + 2), axis=0), 0.6745 * deviation, atol=0.05)
    upper, lower = np.array([-2, -1]), np.array([2, 1])  # the centres of the half circles
    reach = np.stack([np.linalg.norm(inliers["moons"] - centre, axis=1) for centre in (upper, lower)])
    assert np.abs(reach - 4).min(axis=0).max() < 1
    blob = inliers["moon and blob"][np.linalg.norm(inliers["moon and blob"] - [2, -2], axis=1) < 1.5]
    assert 0.45 < len(blob) / len(inliers["moon and blob"]) < 0.6


def test_toy_rejects_too_small_n():
    with pytest.raises(ValueError, match="at least 4"):
        datasets.make_toy("moons", n=3)


# ---- real data, if on disk -------------------------------------------------------------------------------------------

SIZES = {  # rows, columns, anomalies
    "thyroid": (3772, 6, 93),
    "mammography": (11183, 6, 260),
    "seismic": (2584, 11, 170),
    "satimage-2": (5803, 36, 71),
    "vowels": (1456, 12, 50),
    "musk": (3062, 166, 97),
    "http": (567498, 3, 2211),
    "smtp": (95156, 3, 30),
    "annthyroid": (7200, 6, 534),
    "arrhythmia": (452, 274, 66),
    "breastw": (683, 9, 239),
    "cardio": (1831, 21, 176),
    "ecoli": (336, 7, 9),
    "cover": (286048, 10, 2747),
    "glass": (214, 9, 9),
    "heart": (349, 44, 95),
    "ionosphere": (351, 33, 126),
    "letter": (1600, 32, 100),
    "lympho": (148, 18, 6),
    "mnist": (7603, 100, 700),
    "mulcross": (262144, 4, 26214),
    "optdigits": (5216, 64, 150),
    "pendigits": (6870, 16, 156),
    "pima": (768, 8, 268),
    "satellite": (6435, 36, 2036),
    "shuttle": (49097, 9, 3511),
    "vertebral": (240, 6, 30),
    "wbc": (378, 30, 21),
    "wine": (129, 13, 10),
    "yeast": (1363, 8, 64),
    "seismic15": (2584, 15, 170),
    "yeast_erl": (1484, 8, 5),
    "yeast_exc_vac": (1364, 8, 65),
}
ANOMALIES = {  # rows and anomalous windows, by their first points
    "at": (7258, 726),
    "cpu": (18041, 1490),
    "mt": (22686, 2268),
    "nyc": (10311, 1035),
    "ad_exchange": (1634, 165),
    "aws_cloud_cpu": (4023, 402),
    "google_tweets": (15833, 1432),
    "rogue_hold": (1873, 190),
    "rogue_updown": (5306, 530),
    "speed": (2486, 250),
}


def at_hand(loader, name):
    """Return the data set on disk, or skip the test."""
    try:
        return loader(name, download=False)
    except (FileNotFoundError, NotADirectoryError):
        pytest.skip("the data are not on this machine")


@pytest.mark.parametrize("name", SIZES)
def test_stored_tables_match_registry(name):
    table = at_hand(load, name)
    assert (*table.X.shape, table.y.sum()) == SIZES[name]
    if name != "mulcross":
        assert _files.digest((table.X, table.y)) == _registry.original(name).sha256


@pytest.mark.parametrize("name", datasets.NAB)
def test_stored_series_match_registry(name):
    series = at_hand(load_series, name)
    assert _files.digest(series[1:]) == _registry.original(name).sha256


@pytest.mark.parametrize("name", ANOMALIES)
def test_the_papers_series_have_its_sizes(name):
    series = at_hand(load_series, name)
    table = datasets.shingled(series)
    assert (len(table.y), table.y.sum()) == ANOMALIES[name]
    assert _files.digest(series[1:]) == _registry.original(_registry.SHORT_NAMES[name]).sha256
