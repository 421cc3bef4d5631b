"""The cache of compiled kernels: its directory name covers everything that affects machine code."""

import os
import sys
import warnings
from pathlib import Path

import llvmlite.binding
import numba
import pytest

from polyaforest.kernels import cache as kernel_cache
from polyaforest.kernels import source_states

new_directory = kernel_cache.kernel_directory.__wrapped__  # without the memory of this process


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """Provide an empty cache, and restore Numba's settings afterwards."""
    monkeypatch.setenv("POLYAFOREST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(kernel_cache, "STATES_AT_IMPORT", source_states())  # an editor may be at work
    for name in ("BOUNDSCHECK", "CPU_NAME", "CPU_FEATURES", "OPT"):
        monkeypatch.setattr(numba.config, name, getattr(numba.config, name))
    return tmp_path / "cache" / "kernels"


def changed_features(monkeypatch, **changes):
    features = llvmlite.binding.get_host_cpu_features()
    features.update({name.replace("_", "."): has for name, has in changes.items()})
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_features", lambda: features)


def test_directory_is_stable_for_same_sources(root):
    assert new_directory() == new_directory()
    assert new_directory().parent == root


def test_directory_changes_with_source_content(tmp_path, monkeypatch):
    source = tmp_path / "geometry.py"
    found = []
    for text in ("x <= 1", "x < 1", "x <= 1"):
        source.write_text(text)
        state = {str(source): (len(text),)}
        monkeypatch.setattr(kernel_cache, "STATES_AT_IMPORT", state)
        monkeypatch.setattr(kernel_cache, "source_states", lambda state=state: state)
        found.append(new_directory())
    assert found[0] == found[2] != found[1]


def test_key_covers_all_kernel_sources():
    package = Path(kernel_cache.__file__).parent
    expected = {str(path) for path in package.rglob("*.py")}
    assert set(source_states()) == expected


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (numba.config, "BOUNDSCHECK", 1),
        (numba.config, "OPT", 0),
        (numba.config, "CPU_NAME", "some other processor"),
        (numba, "__version__", "0.0"),
        (kernel_cache.llvmlite, "__version__", "0.0"),
        (kernel_cache.np, "__version__", "0.0"),
        (sys, "version", "0.0"),
    ],
)
def test_directory_changes_with_versions_and_settings(monkeypatch, owner, name, value):
    before = new_directory()
    monkeypatch.setattr(owner, name, value)
    assert new_directory() != before


def test_directory_changes_with_processor_unless_portable(monkeypatch):
    monkeypatch.setenv("POLYAFOREST_CPU", "portable")
    changed_features(monkeypatch, **dict.fromkeys(kernel_cache._BASELINES["x86_64"][1].replace(".", "_").split(), True))
    portable = new_directory()
    monkeypatch.setattr(numba.config, "CPU_NAME", None)
    monkeypatch.setattr(numba.config, "CPU_FEATURES", None)
    changed_features(monkeypatch, avx512f=False, shstk=False)
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_name", lambda: "another")
    assert new_directory() == portable
    monkeypatch.setenv("POLYAFOREST_CPU", "native")
    monkeypatch.setattr(numba.config, "CPU_NAME", None)
    monkeypatch.setattr(numba.config, "CPU_FEATURES", None)
    assert new_directory() != portable


@pytest.mark.skipif(kernel_cache.platform.machine() != "x86_64", reason="names a feature of x86")
def test_falls_back_to_native_kernels_if_portable_ones_cannot_run(monkeypatch):
    native = new_directory()
    changed_features(monkeypatch, avx2=False)
    other = new_directory()
    assert other != native
    monkeypatch.setenv("POLYAFOREST_CPU", "portable")
    with pytest.warns(RuntimeWarning, match=r"cannot run portable kernels \(x86-64-v3\): it lacks avx2"):
        assert new_directory() == other


def test_rejects_unknown_processor_setting(monkeypatch):
    monkeypatch.setenv("POLYAFOREST_CPU", "fast")
    with pytest.raises(ValueError, match="POLYAFOREST_CPU is 'fast'; set it to 'native' or 'portable'"):
        new_directory()


def test_keeps_most_recently_used_directories(root):
    for age in range(12):
        (root / f"used-{age}-days-ago" / "kernels").mkdir(parents=True)
        (root / f"used-{age}-days-ago" / "kernels" / "code.nbc").write_text("code")
        os.utime(root / f"used-{age}-days-ago", (1e9 - 86400 * age,) * 2)
    directory = new_directory()
    assert {path.name for path in root.iterdir()} == {directory.name, *(f"used-{age}-days-ago" for age in range(7))}


def test_removes_empty_files_after_crash():
    directory = new_directory()
    (directory / "kernels").mkdir()
    for name, content in {"a.nbi": "", "a.1.nbc": "", "b.nbi": "index", "b.1.nbc": "code"}.items():
        (directory / "kernels" / name).write_text(content)
    new_directory()
    assert {file.name for file in (directory / "kernels").iterdir()} == {"b.nbi", "b.1.nbc"}


@pytest.fixture
def read_only(root, tmp_path, monkeypatch):
    """Provide a read-only cache; root can write everywhere, so simulate it."""
    monkeypatch.setattr(kernel_cache.tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    is_usable = kernel_cache._is_usable
    monkeypatch.setattr(kernel_cache, "_is_usable", lambda place: root not in place.parents and is_usable(place))
    return root


def test_copies_read_only_cache_silently(read_only, tmp_path):
    key = kernel_cache._key()
    (read_only / key / "kernels").mkdir(parents=True)
    (read_only / key / "kernels" / "a.nbi").write_text("index")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        directory = new_directory()
        assert new_directory() == directory
    assert directory.is_relative_to(tmp_path / "tmp")
    assert (directory / "kernels" / "a.nbi").read_text() == "index"
    assert [path.name for path in directory.parent.iterdir()] == [key]  # nothing else is left


def test_replaces_empty_read_only_cache_with_warning(read_only, tmp_path):
    with pytest.warns(RuntimeWarning, match=r"is not writable, so .* may be emptied.*Set POLYAFOREST_CACHE_DIR to"):
        directory = new_directory()
    assert directory.is_relative_to(tmp_path / "tmp")
    assert directory.parents[1].stat().st_mode & 0o777 == 0o700


def test_ignores_temporary_directory_writable_by_others(read_only, tmp_path):
    prepared = tmp_path / "tmp" / f"polyaforest-{os.getuid()}"
    prepared.mkdir()
    prepared.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="is not writable"):
        assert prepared not in new_directory().parents
    assert not any(prepared.iterdir())


def test_caches_nothing_without_writable_directory(read_only, monkeypatch):
    monkeypatch.setattr(kernel_cache, "_is_usable", lambda place: False)
    with pytest.warns(RuntimeWarning, match="each process compiles them again"):
        assert new_directory() is None


def test_caches_nothing_after_sources_changed(monkeypatch):
    states = source_states()
    path = next(iter(states))
    monkeypatch.setattr(kernel_cache, "STATES_AT_IMPORT", states | {path: (0, 0, 0, 0)})
    with pytest.warns(RuntimeWarning, match=r"have changed since this process started\. Restart the process"):
        assert new_directory() is None


def test_does_not_cache_kernels_of_changed_file(monkeypatch):
    states, directory = source_states(), new_directory()
    path = next(iter(states))
    monkeypatch.setattr(kernel_cache, "kernel_directory", lambda: directory)
    monkeypatch.setattr(kernel_cache, "STATES_AT_IMPORT", states | {path: (0, 0, 0, 0)})
    with kernel_cache.caching(path) as may_cache:
        assert not may_cache


def test_keeps_cache_directory_of_other_numba_users(monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", "theirs")
    monkeypatch.setattr(kernel_cache, "kernel_directory", lambda: Path("ours"))
    with kernel_cache.caching(next(iter(source_states()))) as may_cache:
        assert (may_cache, numba.config.CACHE_DIR) == (True, "ours")
    assert numba.config.CACHE_DIR == "theirs"
