"""The page in a real browser: it draws, answers to mouse and keyboard, prints, and asks for nothing outside.

Skipped without Chromium (Debian: `apt-get install chromium`) or without playwright.
"""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmt.report import report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("no Chromium: the report's browser tests are skipped", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api")

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
HOSTILE = "</script><img src=x onerror=boom()>"


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Opened:
    """A page, with what it complained of and asked for."""

    def __init__(self, browser, address: str, **options: object) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        # The last is the tests' own doing: they read pixels.
        self.page.on(
            "console",
            lambda m: m.text.startswith("Canvas2D: Multiple readback") or self.complaints.append(m.text),
        )
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.goto(address)


@pytest.fixture
def open_page(browser) -> Iterator[object]:
    opened: list[Opened] = []

    def go(address: str, **options: object) -> Opened:
        opened.append(Opened(browser, address, **options))
        return opened[-1]

    yield go
    for one in opened:
        one.context.close()
        outside = [u for u in one.requests if not u.startswith(("file:", "data:", "http://127.0.0.1:"))]
        assert outside == [] and one.complaints == []


@pytest.fixture(scope="module")
def comparison(make_run, tmp_path_factory) -> Path:
    """Three runs, one of them unfinished, with a class name that tries to be HTML."""
    home = tmp_path_factory.mktemp("comparison")
    names = (HOSTILE, "b", "c", "d", "e", "f")
    runs = [
        make_run(home / "first", names=names, seed=1),
        make_run(home / "second", rounds=12, seed=2),
        make_run(home / "third", finished=False, seed=3),
    ]
    report(runs, home / "report.html")
    return home / "report.html"


def ink_of(page, selector: str) -> int:
    """How many pixels of a canvas differ from its first one."""
    return page.eval_on_selector(
        selector,
        """c => { const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0;
        for (let i = 0; i < d.length; i += 4)
          if (d[i] !== d[0] || d[i+1] !== d[1] || d[i+2] !== d[2] || d[i+3] !== d[3]) n++;
        return n; }""",
    )


def test_everything_is_drawn_and_nothing_is_asked_of_a_network(open_page, comparison):
    opened = open_page(comparison.as_uri())
    page = opened.page
    assert len(opened.requests) == 1
    assert page.locator("#curve-charts figure").count() == 8
    assert all(ink_of(page, f"#curve-charts figure:nth-child({i}) canvas") > 200 for i in range(1, 9))
    for canvas in ("#m-hat", "#m-true", "#confusion-0", "#confusion-1"):
        assert ink_of(page, canvas) > 1000, canvas
    assert page.locator("svg[role=img] circle").count() > 5
    assert page.locator("#members tbody tr").count() == 5
    for row in page.locator("#runs tbody tr").all_inner_texts():  # the table and the sentences round alike
        assert row.split("\t")[2].split()[0] in page.inner_text("#words")
    assert "third is not finished: round 4 of 8" in page.inner_text("#status")
    assert HOSTILE in page.inner_text("#classes-0") and page.locator("img").count() == 0
    assert "small_cnn" in page.inner_text("#again-body") and "torch 2.13.0" in page.inner_text("#again-body")


def test_a_run_can_be_hidden_and_shown(open_page, comparison):
    page = open_page(comparison.as_uri()).page
    canvas = "#curve-charts figure:nth-child(1) canvas"
    before = ink_of(page, canvas)
    page.focus("#show-1")
    page.keyboard.press("Space")
    page.wait_for_timeout(100)
    assert ink_of(page, canvas) != before
    assert page.locator("#runs tr.off").count() == 1 and "second" in page.inner_text("#runs tr.off")
    page.click("#show-1")
    page.wait_for_timeout(100)
    assert page.locator("#runs tr.off").count() == 0 and ink_of(page, canvas) == before


def test_tables_sort_both_ways(open_page, comparison):
    page = open_page(comparison.as_uri()).page
    recall = page.locator("#classes-0 thead th").nth(3)

    def values() -> list[float]:
        cells = page.locator("#classes-0 tbody tr td:last-child").all_inner_texts()
        return [float(c.split("%")[0]) for c in cells]

    recall.locator("button").click()
    up = values()
    assert up == sorted(up) and len(set(up)) > 1 and recall.get_attribute("aria-sort") == "ascending"
    recall.locator("button").focus()
    page.keyboard.press("Enter")
    assert values() == up[::-1] and recall.get_attribute("aria-sort") == "descending"


def test_hovering_and_arrow_keys_read_values(open_page, comparison):
    page = open_page(comparison.as_uri()).page
    page.locator("#curve-charts .chart").first.hover()
    tip = page.inner_text("#tip")
    assert "first:" in tip and "%" in tip
    page.locator("#confusion-1").hover(position={"x": 90, "y": 20})
    assert page.inner_text("#tip").startswith("true: group 0")
    page.focus("#confusion-0")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    said = page.locator("figure:has(#confusion-0) .said").inner_text()
    assert said.startswith("true: b; predicted:") and "%" in said
    page.locator("#curve-charts .chart").first.focus()
    page.keyboard.press("ArrowLeft")
    assert "second:" in page.locator("#curve-charts .said").first.inner_text()


def test_another_run_and_another_center_in_detail(open_page, comparison):
    page = open_page(comparison.as_uri()).page
    assert HOSTILE in page.inner_text("#classes-0")
    page.select_option("#detail", label="second")
    assert HOSTILE not in page.inner_text("#classes-0") and "kind 0" in page.inner_text("#classes-0")
    page.select_option("#center", label="center-2")
    assert "M-hat, center-2" in page.inner_text("#m-body")


def test_tables_stand_for_pictures(open_page, comparison):
    page = open_page(comparison.as_uri()).page
    page.click("#confusion-1-table summary")
    cells = page.locator("#confusion-1-table tbody td").all_inner_texts()
    assert len(cells) == 9 and sum(map(int, cells)) == 300
    unnamed = page.eval_on_selector_all(
        "canvas.heat, .chart, svg[role=img], [role=region], section",
        "all => all.filter(e => !e.getAttribute('aria-label') && !e.getAttribute('aria-labelledby')).length",
    )
    assert unnamed == 0
    controls = page.eval_on_selector_all("select, input", "all => all.filter(e => !e.labels.length).length")
    assert controls == 0


@pytest.mark.parametrize("look", ["light", "dark", "phone", "print"])
def test_every_look_is_legible(open_page, comparison, look, tmp_path):
    """Contrast of text at least 4.5, no sideways scrolling of the page; pictures go to FEDMT_SHOTS if set."""
    options = {"dark": {"color_scheme": "dark"}, "phone": {"viewport": {"width": 380, "height": 800}}}
    page = open_page(comparison.as_uri(), **options.get(look, {})).page
    if look == "print":
        page.emulate_media(media="print", color_scheme="dark")
    colours = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    ink, paper = (sorted_luminance(c) for c in colours)
    high, low = max(ink, paper), min(ink, paper)
    assert (high + 0.05) / (low + 0.05) > 4.5
    assert (paper < 0.2) == (look == "dark")
    wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]
    where = Path(os.environ.get("FEDMT_SHOTS", tmp_path))
    page.screenshot(path=where / f"{look}.png", full_page=True)
    assert (where / f"{look}.png").stat().st_size > 50_000


def sorted_luminance(colour: str) -> float:
    """WCAG's relative luminance of `rgb(r, g, b)`."""
    parts = [int(float(x)) / 255 for x in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_large_comparison_opens_soon_and_is_small(open_page, make_run, tmp_path):
    """100 classes, 200 rounds, 10 runs: under 10 MB and open in under 2 s (here: 4, machines are shared)."""
    runs = [
        make_run(tmp_path / f"run-{i}", 100, 20, 200, centers=20, samples=10_000, seed=i) for i in range(10)
    ]
    report(runs, tmp_path / "large.html")
    size = (tmp_path / "large.html").stat().st_size
    begin = time.perf_counter()
    page = open_page((tmp_path / "large.html").as_uri()).page
    seconds = time.perf_counter() - begin
    print(f"\n{size / 1e6:.2f} MB, open in {seconds:.2f} s")
    assert size < 10e6 and seconds < 4
    assert page.locator("#runs tbody tr").count() == 10 and ink_of(page, "#confusion-0") > 10_000
