"""Draws docs/figures/report.png: the upper part of the quickstart's report, as Chromium shows it.

fedmt quickstart
python scripts/report_figure.py quickstart
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

OUT = Path(__file__).parent.parent / "docs" / "figures" / "report.png"
WIDTH, HEIGHT = 1440, 1230


def main(quickstart: Path) -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=1.5)
        page.goto((quickstart / "report.html").resolve().as_uri())
        page.screenshot(path=OUT)
        browser.close()
    # Few colors are in it: a palette takes half of the bytes.
    Image.open(OUT).convert("RGB").quantize(256).save(OUT, optimize=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
