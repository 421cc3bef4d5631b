"""Settings and fixtures of all tests. Each run uses a new seed; the header says how to repeat it."""

import gc
import warnings

import pytest
from effort import SEED, seed_of_run
from processes import Programs, Watches
from surroundings import reset_environment, reset_signals

from polyaforest.cli import run

reset_environment()

KINDS = frozenset({"unit", "property", "statistical", "end_to_end", "fault", "fuzz"})


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    config.option.hypothesis_seed = str(seed_of_run(config.getoption("hypothesis_seed", None)))


def pytest_collection():
    """Do not search for garbage while modules are imported: nearly everything that they make stays."""
    gc.disable()


def pytest_collection_finish():
    """Leave what modules have made out of all later searches for garbage, which would take a second each."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_report_header(config):
    return f"repeat with {SEED}={config.option.hypothesis_seed}"


@pytest.hookimpl(tryfirst=True)  # before markers select tests
def pytest_collection_modifyitems(items):
    """Mark tests whose module names no other kind as unit tests."""
    for item in items:
        if KINDS.isdisjoint(marker.name for marker in item.iter_markers()):
            item.add_marker(pytest.mark.unit)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    reset_signals()  # PySpark replaces the handler of SIGINT


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.failed:
        report.sections.append(("Seed of the run", f"repeat with {SEED}={item.config.option.hypothesis_seed}"))
    return report


@pytest.fixture(scope="session", autouse=True)
def default_signals():
    """Reset signals before other fixtures start processes, except in the process that only starts test workers."""
    reset_signals()


@pytest.fixture(scope="session")
def any_seed(pytestconfig):
    """A new seed in each run, for statistical tests that hold for nearly all seeds.

    Each case may fail by chance once in a million times, so that a whole run hardly ever does.
    """
    return int(pytestconfig.option.hypothesis_seed)


@pytest.fixture
def cli(capfd, monkeypatch):
    """Run the program within this process; return exit code, stdout and stderr."""

    def call(*args):
        monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # `run` replaces it
        with pytest.raises(SystemExit) as left:
            run([str(arg) for arg in args])
        return left.value.code, *capfd.readouterr()

    return call


@pytest.fixture(scope="session")
def programs():
    """Run the program in forked processes, which start immediately."""
    started = Programs()
    yield started
    started.close()


@pytest.fixture
def factory(programs):
    """Start processes of `polyaforest watch`."""
    made = Watches(programs)
    yield made
    made.close()
