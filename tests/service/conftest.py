"""Fixtures of the tests of the service: services in processes, and tabs of a browser that show their page."""

import pytest
from browsers import Tab, browser
from services import starting


@pytest.fixture
def start(programs, tmp_path):
    """Start services with a configuration, in the folder of the test."""
    with starting(programs, lambda: tmp_path) as begin:
        yield begin


@pytest.fixture(scope="module")
def make(programs, tmp_path_factory):
    """Start services with a configuration, which run until the last test of the module."""
    with starting(programs, lambda: tmp_path_factory.mktemp("service")) as begin:
        yield begin


@pytest.fixture(scope="module")
def chromium():
    """A browser. While it runs, this thread has an event loop, so other modules cannot share it."""
    with browser() as started:
        yield started


@pytest.fixture
def look(chromium):
    """Open tabs on a service; check at the end that none reported a problem."""
    tabs = []

    def begin(service, route=None, **options):
        tabs.append(Tab(chromium, service.url, **options))
        if route is not None:
            tabs[-1].open(route)
        return tabs[-1]

    yield begin
    problems = [one for tab in tabs for one in tab.problems if not any(part in one for part in tab.expected)]
    for tab in tabs:
        tab.close()
    assert not problems
