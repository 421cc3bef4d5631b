"""Take the pictures of the dashboard and of a report in docs/images/, in a browser; part of ``make figures``."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

IMAGES = Path(__file__).parent / "images"
SIZE = {"width": 1280, "height": 800}
FEW_COLOURS = 48  # of the animation
COLOURS = 256  # enough for flat colours, in a file of a few tens of kilobytes


@contextmanager
def demo() -> Iterator[str]:
    """Run the demo; yield its address."""
    command = [sys.executable, "-m", "polyaforest", "serve", "--demo", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = next(filter(None, (re.search(r"http://\S+", line) for line in process.stderr)))
        try:
            yield found[0]
        finally:
            process.terminate()


def save(page: Page, name: str) -> None:
    """Save a screenshot with few colours."""
    picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
    picture = picture.quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    picture.save(IMAGES / f"{name}.png", optimize=True)


def shot(page: Page) -> Image.Image:
    """Return a small picture for the animation."""
    picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
    return picture.resize((SIZE["width"] * 5 // 8, SIZE["height"] * 5 // 8), Image.Resampling.LANCZOS)


def animate(frames: list[Image.Image]) -> None:
    """Save an animation."""
    small = [frame.quantize(FEW_COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE) for frame in frames]
    small[0].save(
        IMAGES / "dashboard.gif", save_all=True, append_images=small[1:], duration=1500, loop=0, optimize=True
    )


def take_report(browser: Browser) -> None:
    """Take the report of the example file."""
    with tempfile.TemporaryDirectory() as folder:
        for words in ("demo", "detect server-metrics.csv --html report.html"):
            command = [sys.executable, "-m", "polyaforest", *words.split()]
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
        page = browser.new_page(viewport=SIZE)
        page.goto((Path(folder) / "report.html").as_uri())
        save(page, "report")


def take_dashboard(browser: Browser) -> None:
    """Take the dashboard of the demo, as pictures and as an animation."""
    with demo() as address:
        page = browser.new_page(viewport=SIZE)
        page.goto(address)
        page.locator(".lane").nth(7).wait_for(timeout=300_000)  # the past of all keys
        page.reload()
        page.locator(".attention").wait_for(timeout=300_000)  # the first live incident
        page.wait_for_timeout(5000)  # until the event has grown and is no longer marked as new
        save(page, "dashboard")
        frames = [shot(page)]
        page.locator(".attention .event-sentence").first.click()
        page.locator(".charts canvas").first.wait_for()
        page.wait_for_timeout(500)
        save(page, "dashboard-event")
        frames.append(shot(page))
        page.get_by_label("Note", exact=True).fill("restarting the database")
        page.get_by_label("Your name").first.fill("Ada")
        frames.append(shot(page))
        if page.get_by_role("button", name="Acknowledge").count():
            page.get_by_role("button", name="Acknowledge").click()
            page.get_by_text("Acknowledged by Ada", exact=False).wait_for()
            frames.append(shot(page))
        page.locator(".crumbs a").nth(1).click()
        page.locator(".charts canvas").first.wait_for()
        for _ in range(4):
            page.wait_for_timeout(700)
            frames.append(shot(page))
            page.keyboard.press("-")
        animate(frames)


def main() -> None:
    """Take all pictures."""
    program = shutil.which("chromium")
    if program is None:
        raise SystemExit("chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        take_report(browser)
        take_dashboard(browser)
        browser.close()


if __name__ == "__main__":
    main()
