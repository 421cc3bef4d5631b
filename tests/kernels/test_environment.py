"""Results do not depend on the compiler, the cache or the memory."""

import contextlib
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import polyaforest
from polyaforest import BatchMPF, StreamingMPF

pytestmark = pytest.mark.end_to_end

PACKAGE = Path(polyaforest.__file__).parent

ANSWERS = """
import hashlib
import numpy as np
from polyaforest import BatchMPF, StreamingMPF, Tree

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3)) * [1, 100, 1e-3]
X[:10] = X[10:20]
new = np.concatenate([X, X * 3, X * 1e6])
for estimator in {estimators}:
    for score in {scores}:
        forest = estimator(n_estimators=4, tree=Tree(max_depth=6), score_type=score, random_state=0).fit(X)
        for part in (forest.forest_, forest.posterior_):
            for name, array in part._asdict().items():
                print(estimator.__name__, name, hashlib.sha256(np.ascontiguousarray(array)).hexdigest())
        print(score, float(forest.offset_).hex(), *(value.hex() for value in forest.score_samples(new).tolist()))
        print(*(value.hex() for value in forest.log_density(new).tolist()))
        print(*(value.hex() for value in forest.mass(new, [0.5, 4.0]).ravel().tolist()))
        print(hashlib.sha256(np.asarray(forest.leaves(new))).hexdigest())
"""
ALL_ANSWERS = ANSWERS.format(estimators="(StreamingMPF, BatchMPF)", scores=("multiscale", "mass", "log_mass"))
FEW_ANSWERS = ANSWERS.format(estimators="(StreamingMPF,)", scores=("log_mass",))


def run(script, **environment):
    """Run `script` in a new process; variables given as None are unset."""
    merged = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    return subprocess.run(
        [sys.executable, "-c", script], env=merged, capture_output=True, text=True, timeout=300, check=False
    )


def output(script, **environment):
    result = run(script, **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_importing_the_package_imports_no_compiler():
    script = "import sys, polyaforest; print(polyaforest.StreamingMPF(), *(n for n in sys.modules if n == 'numba'))"
    assert output(script).split() == ["StreamingMPF()"]


@pytest.mark.slow
def test_results_are_the_same_without_the_compiler():
    compiled, plain = output(ALL_ANSWERS, NUMBA_DISABLE_JIT=None), output(ALL_ANSWERS, NUMBA_DISABLE_JIT="1")
    for one, other in zip(compiled.splitlines(), plain.splitlines(), strict=True):
        assert one == other


def test_results_are_the_same_in_every_process():
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(FEW_ANSWERS, {})
    assert output(FEW_ANSWERS, PYTHONHASHSEED="1") == printed.getvalue()


@pytest.fixture
def no_cache(tmp_path):
    """Return code and variables with which no cache directory can be created: each has a file in its path."""
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    shutil.copytree(PACKAGE, tmp_path / "site" / "polyaforest", ignore=shutil.ignore_patterns("__pycache__"))
    nowhere = str(in_the_way / "sub")
    temporary = f"import tempfile; tempfile.tempdir = {nowhere!r}\n"
    return temporary, {
        "PYTHONPATH": str(tmp_path / "site"),
        "POLYAFOREST_CACHE_DIR": nowhere,
        "NUMBA_DISABLE_JIT": None,
    }


@pytest.mark.slow
def test_unwritable_cache_only_warns(no_cache):
    temporary, environment = no_cache
    result = run(temporary + "import polyaforest; print(polyaforest.__file__)\n" + FEW_ANSWERS, **environment)
    assert result.returncode == 0, result.stderr
    place, answers = result.stdout.split("\n", 1)
    assert place.startswith(environment["PYTHONPATH"])
    assert answers == output(FEW_ANSWERS, NUMBA_DISABLE_JIT=None)
    assert "Error" not in result.stderr
    assert result.stderr.count("each process compiles them again") == 1  # once, not once per kernel


def test_cache_directory_below_a_file_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    script = "from polyaforest.forest import grow; print(grow.cuts.make_leaf.__name__)"
    environment = {"POLYAFOREST_CACHE_DIR": str(tmp_path / "file" / "sub"), "TMPDIR": str(tmp_path)}
    result = run(script, **environment, NUMBA_DISABLE_JIT=None)
    assert (result.returncode, result.stdout) == (0, "make_leaf\n")
    assert f"compiled kernels are kept in {tmp_path}" in result.stderr


@pytest.mark.parametrize(
    ("estimator", "advice"),
    [
        (StreamingMPF, "set a smaller max_depth, lifetime, max_samples or n_estimators"),
        (BatchMPF, "set a smaller max_depth, lifetime or n_estimators"),
    ],
)
def test_forest_too_large_for_memory_is_rejected_before_growing(monkeypatch, estimator, advice):
    X = np.random.default_rng(0).normal(size=(100, 2))
    forest = estimator(n_estimators=5, random_state=0).fit(X)
    before = forest.score_samples(X)
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    with pytest.raises(MemoryError, match=rf"needs about .* GB \(5 trees of .* nodes.*{advice}"):
        forest.fit(X)
    np.testing.assert_array_equal(forest.score_samples(X), before)
    monkeypatch.undo()
    np.testing.assert_array_equal(forest.fit(X).score_samples(X), before)


COMPILE = """
import numba, numpy as np
numba.njit(lambda x: x + 1)(1)
from polyaforest.kernels.rng import fill_exponentials
fill_exponentials(np.arange(4, dtype=np.uint64), np.empty(1))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_terminal_reports_compilation_once(tmp_path):
    import pty

    terminal, end = pty.openpty()
    environment = {**os.environ, "POLYAFOREST_CACHE_DIR": str(tmp_path), "NUMBA_DISABLE_JIT": "0"}
    subprocess.run([sys.executable, "-c", COMPILE], env=environment, stderr=end, check=True)
    os.close(end)
    assert os.read(terminal, 4096).decode().count("polyaforest: compiling once for this machine") == 1
    os.close(terminal)


@pytest.mark.slow
def test_compilation_is_not_reported_without_a_terminal(tmp_path):
    environment = {**os.environ, "POLYAFOREST_CACHE_DIR": str(tmp_path), "NUMBA_DISABLE_JIT": "0"}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, check=True)
    assert done.stderr == b""
