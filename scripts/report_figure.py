"""Draws two pictures of the quickstart's report, as Chromium shows it.

docs/figures/report-summary.png, for the README, is the page from its top to the end of the summary.
docs/figures/report.png, for the guide, is its first screen.

fedmt quickstart
python scripts/report_figure.py quickstart
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
SUMMARY, OUT = FIGURES / "report-summary.png", FIGURES / "report.png"
WIDTH, HEIGHT = 1440, 1290


def main(quickstart: Path) -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=1.5)
        page.goto((quickstart / "report.html").resolve().as_uri())
        page.screenshot(path=OUT)
        end = page.locator("#summary").bounding_box()
        assert end is not None
        top = {"x": 0, "y": 0, "width": WIDTH, "height": end["y"] + end["height"] + 16}
        page.screenshot(path=SUMMARY, full_page=True, clip=top)
        browser.close()
    # The picture has few colors, so a palette halves its size.
    for path in (SUMMARY, OUT):
        Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
