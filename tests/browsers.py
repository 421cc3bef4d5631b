"""Browser for tests of the page, which records errors.

The page changes some time after an action or an answer of the service. Check it by `expect` or `until`, which wait; do
not assert at once. `page.url` does not change while a test polls it: use `Tab.address` or `page.wait_for_url`.
"""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

_AXE = Path(__file__).parent / "axe" / "axe.min.js"
_OPTIONS = (
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync", "--disable-background-networking",
    "--disable-component-update",
)  # fmt: skip
_SIZES = {"desktop": (1440, 900), "phone": (390, 844), "narrow": (360, 740)}
_GRAVE = ("serious", "critical")
_TIMEOUT = 60_000  # milliseconds to wait for anything


@contextmanager
def browser():
    """Headless Chromium; skip the test if it is not installed."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    api.expect.set_options(timeout=_TIMEOUT)
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=_OPTIONS)
        yield started
        started.close()


def expect(locator):
    """Return Playwright's assertions about an element, which wait until they hold."""
    from playwright.sync_api import expect

    return expect(locator)


class Tab:
    """A page of a service in a separate browser."""

    def __init__(self, started, url, *, theme="light", size="desktop"):
        width, height = _SIZES[size]
        self._context = started.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,
            has_touch=size != "desktop",
            is_mobile=size != "desktop",
            reduced_motion="reduce",
            timezone_id="UTC",
        )
        self._context.set_default_timeout(_TIMEOUT)
        self._context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.url = url
        self.page = self._context.new_page()
        self.problems = []  # errors of the console and the page
        self.expected = []  # parts of the texts of problems that a test causes; they may also come after its end
        self.requests = []
        self.page.on("console", lambda said: said.type == "error" and self.problems.append(said.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, route="/"):
        """Show a screen; return the page."""
        self.page.goto(f"{self.url}/#{route}")
        return self.page

    @property
    def address(self):
        """The address shown at this moment."""
        return self.page.evaluate("location.href")

    def faults(self):
        """Return accessibility violations found by axe, one line each."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(_AXE.read_text())
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        return [
            f"{fault['id']}: {json.dumps([node['target'] for node in fault['nodes']][:3])} {fault['help']}"
            for fault in found
            if fault["impact"] in _GRAVE
        ]

    def wait_until_it_fits(self):
        """Wait until the page is not wider than the screen."""
        self.page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")

    def close(self):
        """Close the browser of the tab."""
        self._context.close()
