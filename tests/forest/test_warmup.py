"""`polyaforest warmup` compiles everything that the first calls would compile."""

from __future__ import annotations

import os
import subprocess
import sys

import numba
import numpy as np
import pytest

pytestmark = [pytest.mark.end_to_end, pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")]

# The types that each entry point was compiled for by the groups, then by calls of the public interface.
WALK = """
import importlib, pkgutil
import numpy as np
from numba.core.registry import CPUDispatcher
import polyaforest.kernels.rng, polyaforest.kernels
from polyaforest import BatchMPF, EpsilonPhi, SeriesMPF, StreamingMPF, Tree
from polyaforest.forest import warmup

names = [found.name for found in pkgutil.iter_modules(polyaforest.kernels.__path__)]
modules = [importlib.import_module(f"polyaforest.kernels.{name}") for name in names]
entries = {
    f"{kernel.py_func.__module__}.{name}": kernel
    for module in [*modules, polyaforest.kernels.rng]
    for name, kernel in vars(module).items()
    if isinstance(kernel, CPUDispatcher) and kernel.stats.cache_path is not None
}
for group in warmup.PURPOSES["everything"]:
    warmup.compile_group(group)
ahead = {name: set(kernel.signatures) for name, kernel in entries.items()}
print("never compiled:", [name for name, signatures in ahead.items() if not signatures])

X = np.random.default_rng(0).normal(size=(300, 2))
gappy = X.copy()
gappy[::7, 1] = np.nan
settings = dict(n_estimators=3, random_state=0)
for score in ("typicality", "multiscale", "mass", "log_mass", EpsilonPhi(0.01, 0.1)):
    for detector in (StreamingMPF(**settings, score_type=score), BatchMPF(**settings, score_type=score)):
        detector.fit(X)
        detector.predict(X)
        detector.explain(X[:2])
        detector.mass(X[:5], return_std=True)
        detector.partial_fit(X[:9])
        detector.delete_rows(X[:2])
for detector in (StreamingMPF(**settings, missing="marginalise"), BatchMPF(**settings, missing="marginalise")):
    detector.fit(gappy).predict(gappy)
    detector.explain(gappy[:2])
for samples in (64, None):
    stream = StreamingMPF(**settings, window=100, max_samples=samples, tree=Tree(max_depth=5))
    for row in range(0, 300, 50):
        stream.detect_then_learn(X[row : row + 50], explain=True)
    stream.delete(stream.keys_[:2])
    stream.leaves(X[:3])
series = SeriesMPF().fit(X[:, :1])
series.detect_then_learn(X[:50, :1], explain=True)
print("compiled later:", [name for name, kernel in entries.items() if set(kernel.signatures) != ahead[name]])

# The cache is keyed by the sources of kernels: a change of a tuple defined elsewhere would go unnoticed.
def classes(kind):
    yield from [kind.instance_class] if hasattr(kind, "instance_class") else []
    for part in getattr(kind, "types", ()):
        yield from classes(part)

used = {one for kernel in entries.values() for kinds in kernel.signatures for kind in kinds for one in classes(kind)}
print("defined in:", *sorted({".".join(one.__module__.split(".")[:2]) for one in used}))
"""


def run(*command, **environment):
    given = {**os.environ, **environment}
    ended = subprocess.run(command, capture_output=True, text=True, env=given, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended


def test_all_kernels_are_compiled_ahead_for_the_types_that_calls_use():
    printed = run(sys.executable, "-c", WALK).stdout
    assert printed == "never compiled: []\ncompiled later: []\ndefined in: polyaforest.kernels\n"


@pytest.mark.slow
def test_warmup_leaves_nothing_to_compile(tmp_path):
    file, cache = tmp_path / "table.csv", {"POLYAFOREST_CACHE_DIR": str(tmp_path / "cache")}
    np.savetxt(file, np.random.default_rng(0).normal(size=(200, 2)), delimiter=",", header="a,b", comments="")
    program = [sys.executable, "-m", "polyaforest"]
    assert "Compiling for this machine, once: about" in run(*program, "detect", file, **cache).stderr
    assert "Compiling" not in run(*program, "detect", file, **cache).stderr
    for is_first in (True, False):
        said = run(*program, "warmup", **cache).stderr
        assert "All kernels are compiled for this machine (" in said
        assert ("Compiling" in said) == is_first
    n_files = len(list((tmp_path / "cache").rglob("*.nbc")))
    run(sys.executable, "-c", WALK, **cache)
    assert len(list((tmp_path / "cache").rglob("*.nbc"))) == n_files


def test_command_imports_scikit_learn_without_slow_libraries(tmp_path):
    file = tmp_path / "table.csv"
    np.savetxt(file, np.random.default_rng(0).normal(size=(200, 2)), delimiter=",", header="a,b", comments="")
    script = f"""
import sys
from polyaforest.cli import run
try:
    run(["detect", {str(file)!r}, "--quiet"])
except SystemExit:
    pass
print("sklearn" in sys.modules, "pandas" in sys.modules, "scipy.stats._stats_py" in sys.modules)
import pandas, scipy.stats
print(len(pandas.DataFrame({{"a": [1]}})), scipy.stats.norm.cdf(0.0))
"""
    assert run(sys.executable, "-c", script).stdout.splitlines()[-2:] == ["True False False", "1 0.5"]
