"""Browser for tests of the page, which records errors."""

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


@contextmanager
def browser():
    """Headless Chromium; skip the test if it is not installed."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=_OPTIONS)
        yield started
        started.close()


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
        self._context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.url = url
        self.page = self._context.new_page()
        self.problems = []  # errors of the console and the page
        self.requests = []
        self.page.on("console", lambda said: said.type == "error" and self.problems.append(said.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, route="/"):
        """Show a screen; return the page."""
        self.page.goto(f"{self.url}/#{route}")
        return self.page

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

    def overflow(self):
        """Return the number of pixels by which the page exceeds the width of the screen."""
        return self.page.evaluate("Math.max(0, document.documentElement.scrollWidth - innerWidth)")

    def close(self):
        """Close the browser of the tab."""
        self._context.close()
