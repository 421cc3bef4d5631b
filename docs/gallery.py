"""Run docs/how-to/gallery.md and save its figures in docs/images/gallery/; part of ``make figures``."""

from __future__ import annotations

import re
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

PAGE = Path(__file__).resolve().parent / "how-to" / "gallery.md"
DPI = 100
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$(?:\n+^!\[[^\]]*\]\((?P<image>[^)]+)\)$)?", re.M | re.S)


def main() -> None:
    """Run the page block by block; save the figure of each block that is followed by an image."""
    namespace: dict[str, object] = {"__name__": "__docs__"}
    for block in BLOCK.finditer(PAGE.read_text("utf-8")):
        with TemporaryDirectory() as elsewhere, chdir(elsewhere):  # for files that the page saves
            exec(compile(block["code"], str(PAGE), "exec"), namespace)
        if block["image"] is not None:
            file = PAGE.parent / block["image"]
            file.parent.mkdir(parents=True, exist_ok=True)
            plt.gcf().savefig(file, dpi=DPI, metadata={"Software": None})
            plt.close("all")
            print(file)


if __name__ == "__main__":
    main()
