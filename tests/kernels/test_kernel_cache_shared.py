"""Compiled kernels in real processes: an upgrade gets its own machine code, and nothing is compiled twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from processes import without_privileges

import polyaforest
from polyaforest.kernels.cache import COMPARES_CONTENT

pytestmark = [pytest.mark.end_to_end, pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")]

# The evidence at one cut. The kernel is in two_samples.py; its helper `cut_strength` is in polya.py.
EVIDENCE = """
import numpy as np
from polyaforest.kernels.two_samples import node_evidence
left, depth = np.array([1, -1, -1], np.int32), np.array([0, 1, 1])
counts, marked = np.array([[9], [4], [5]], np.int32), np.array([[4], [4], [0]], np.int32)
log_factorials, out = np.cumsum(np.log(np.maximum(np.arange(10.0), 1.0))), np.empty((3, 1))
node_evidence(left, depth, depth, counts, marked, 1.0, 0.5, log_factorials, out)
print(out[0, 0], bool(node_evidence.stats.cache_hits), node_evidence.stats.cache_path)
"""
KEEPS_REINSTALLED = numba.version_info.short >= COMPARES_CONTENT
COLD = "from polyaforest.forest import warmup; print(*warmup.cold('comparison'))"


@pytest.fixture
def site(tmp_path):
    """A copy of the package to upgrade."""
    install(tmp_path / "site")
    return tmp_path / "site"


def install(site, change=lambda text: text):
    """Install the package as pip does: every file is written again, and what it did not write stays."""
    package = Path(polyaforest.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(package, site / "polyaforest", copy_function=shutil.copy, ignore=ignored, dirs_exist_ok=True)
    helper = site / "polyaforest" / "kernels" / "polya.py"
    helper.write_text(change(helper.read_text(encoding="utf-8")), encoding="utf-8")


def run(script, site, cache, preexec_fn=None, **environment):
    given = {**os.environ, "PYTHONPATH": str(site), "POLYAFOREST_CACHE_DIR": str(cache), **environment}
    command = [sys.executable, "-W", "error", "-c", script]
    ended = subprocess.run(
        command, env=given, capture_output=True, text=True, timeout=300, check=False, preexec_fn=preexec_fn
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def evidence(site, cache, **options):
    """Return what the kernel calculates, and whether its machine code was on disk."""
    value, was_cached, place = run(EVIDENCE, site, cache, **options).split(maxsplit=2)
    return float(value), was_cached == "True", Path(place.strip())


def test_an_upgrade_of_a_helper_in_another_file_takes_effect(site, tmp_path):
    old, was_cached, place = evidence(site, tmp_path / "cache")
    assert not was_cached
    assert place.is_relative_to(tmp_path / "cache" / "kernels")
    assert evidence(site, tmp_path / "cache") == (old, True, place)

    install(site, lambda text: text.replace("return gamma * level * level", "return 7.0 * gamma * level * level"))
    new, was_cached, _ = evidence(site, tmp_path / "cache")
    assert not was_cached
    assert new != old
    assert new == evidence(site, tmp_path / "empty cache")[0]

    install(site)
    value, was_cached, _ = evidence(site, tmp_path / "cache")
    assert (value, was_cached) == (old, KEEPS_REINSTALLED)
    assert evidence(site, tmp_path / "cache")[:2] == (old, True)
    assert not list(site.rglob("*.nbi"))  # nothing is kept beside the sources


@pytest.mark.slow
def test_nothing_is_left_to_compile_after_the_same_sources_are_installed_again(site, tmp_path):
    compile_group = "from polyaforest.forest import warmup; warmup.compile_group('two samples')"
    assert run(COLD, site, tmp_path / "cache") == "grow two samples\n"
    run(compile_group, site, tmp_path / "cache")
    install(site)
    assert run(COLD, site, tmp_path / "cache") == ("grow\n" if KEEPS_REINSTALLED else "grow two samples\n")
    run(compile_group, site, tmp_path / "cache")
    assert run(COLD, site, tmp_path / "cache") == "grow\n"


def test_kernels_of_others_stay_in_their_cache(site, tmp_path):
    (tmp_path / "others.py").write_text("import numba\n@numba.njit(cache=True)\ndef add(x):\n    return x + 1\n")
    script = f"{EVIDENCE}import sys; sys.path.append({str(tmp_path)!r}); import others; others.add(1)\n"
    run(script, site, tmp_path / "cache", NUMBA_CACHE_DIR=str(tmp_path / "theirs"))
    assert {file.name.split("-")[0] for file in (tmp_path / "theirs").rglob("*.nbi")} == {"others.add"}
    assert {file.name.split("-")[0] for file in (tmp_path / "cache").rglob("*.nbi")} == {"two_samples.node_evidence"}


@pytest.mark.skipif(sys.platform != "linux", reason="gives up privileges by a call of Linux")
def test_a_read_only_cache_is_used_without_a_notice(site, tmp_path):
    value = evidence(site, tmp_path / "cache")[0]
    folders = [tmp_path / "cache", *(path for path in (tmp_path / "cache").rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    for _ in range(2):
        again = evidence(site, tmp_path / "cache", TMPDIR=str(temporary), preexec_fn=without_privileges)
        assert again[:2] == (value, True)
        assert again[2].is_relative_to(temporary)


ANOTHER_PROCESSOR = """
import llvmlite.binding
features = llvmlite.binding.get_host_cpu_features()
features.update({name: False for name in features if name.startswith(("avx512", "sha", "gfni"))})
llvmlite.binding.get_host_cpu_features = lambda: features
llvmlite.binding.get_host_cpu_name = lambda: "skylake"
"""


def test_portable_kernels_calculate_the_same_and_serve_another_processor(site, tmp_path):
    cache, portable = tmp_path / "cache", {"POLYAFOREST_CPU": "portable"}
    native = evidence(site, cache)[0]
    assert evidence(site, cache, **portable)[:2] == (native, False)
    value, was_cached, _ = run(ANOTHER_PROCESSOR + EVIDENCE, site, cache, **portable).split(maxsplit=2)
    assert (float(value), was_cached) == (native, "True")


def test_an_unknown_processor_is_an_error_of_the_command_line(tmp_path):
    np.savetxt(tmp_path / "table.csv", np.eye(20), delimiter=",", header=",".join("abcdefghijklmnopqrst"), comments="")
    ended = subprocess.run(
        [sys.executable, "-m", "polyaforest", "detect", str(tmp_path / "table.csv")],
        env={**os.environ, "POLYAFOREST_CPU": "fast"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode != 0
    assert "POLYAFOREST_CPU is 'fast'; set it to 'native' or 'portable'" in ended.stderr
    assert "Traceback" not in ended.stderr
