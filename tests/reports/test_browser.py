"""The page in a real browser: it draws, answers to mouse and keyboard, prints, and asks for nothing outside.

Skipped without Chromium (Debian: `apt-get install chromium`) or without playwright.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from fedmt.metrics import METRICS
from fedmt.reports import content as report_content
from fedmt.reports.report import report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("no Chromium: the report's browser tests are skipped", allow_module_level=True)
if find_spec("playwright") is None:  # found, not imported: every worker imports this file
    pytest.skip("playwright is not installed", allow_module_level=True)

pytestmark = pytest.mark.slow

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
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
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


@pytest.fixture(scope="module")
def paired(make_run, tmp_path_factory) -> Path:
    """A run with a given M, one with an estimated M and its baseline, all tested on the same samples."""
    home = tmp_path_factory.mktemp("paired")
    runs = [
        make_run(home / "single", method="single", estimated=False, seed=1, skill=0.9, same_tests=True),
        make_run(home / "given", estimated=False, seed=2, skill=3.0, same_tests=True, temperature=0.5),
        make_run(home / "estimated", seed=3, skill=2.0, same_tests=True),
    ]
    report(runs, home / "report.html", "Paired", notice="Internal draft.")
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
    page.select_option("#detail", label="first")
    assert len(opened.requests) == 1
    assert page.locator("#curve-charts figure").count() == 8
    assert all(ink_of(page, f"#curve-charts figure:nth-child({i}) canvas") > 200 for i in range(1, 9))
    for canvas in ("#m-hat", "#m-true", "#confusion-0", "#confusion-1"):
        assert ink_of(page, canvas) > 1000, canvas
    for chart in ("#center-norms", "#center-cosines"):  # one line for each center
        assert ink_of(page, f"{chart} canvas") > 200, chart
    assert page.locator("svg[role=img] circle").count() > 5
    assert page.locator("#members tbody tr").count() == 5
    assert "third is not finished: round 4 of 8" in page.inner_text("#status")
    assert HOSTILE in page.inner_text("#classes-0") and page.locator("img").count() == 0
    assert "small_cnn" in page.inner_text("#again-body") and "torch 2.13.0" in page.inner_text("#again-body")


def test_the_page_opens_with_the_verdict_on_the_best_run(open_page, paired):
    page = open_page(paired.as_uri()).page
    answer = page.locator("#words p").first.inner_text()
    assert re.match(
        r"given \(FedMT\) is better than single: balanced accuracy is [\d.]+ points higher", answer
    )
    assert "paired over the same 300 test images" in answer
    assert page.locator("#detail option:checked").inner_text() == "given"
    assert page.inner_text("#notice") == "Internal draft." and "fedmt 0.1" in page.inner_text("#provenance")
    row = page.locator("#runs tbody tr", has_text="given").inner_text().split("\t")
    size = re.search(r"is ([\d.]+) points", answer)[1]  # the table and the sentences round alike
    assert f"+{size}" in row[3] and row[2].split()[0] in page.inner_text("#words")
    assert page.locator("#tiles .tile").count() == 5 and row[2].split()[0] in page.inner_text("#tiles")
    # A given M is drawn, under its own name.
    assert ink_of(page, "#m-hat") > 200 and "M as given" in page.inner_text("#m-body")
    assert page.locator("#m-true").count() == 0 and ink_of(page, "#priors") > 200
    # Calibration before and after the temperature that was fitted, in the wanted space.
    assert page.locator("#reliability-0").count() == page.locator("#scaled-0").count() == 1
    assert page.locator("#scaled-1").count() == 0


def test_the_threshold_moves_sensitivity_against_specificity(open_page, paired):
    page = open_page(paired.as_uri()).page

    def shares() -> list[float]:
        return [
            float(x.rstrip("%"))
            for x in page.locator("#classes .readout").first.locator("b").all_inner_texts()[:2]
        ]

    before = shares()
    page.focus("#threshold-0")
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    after = shares()
    assert after[0] >= before[0] and after[1] <= before[1] and after != before
    page.keyboard.press("End")
    assert shares() == [100.0, 0.0]
    page.select_option("#class-0", index=2)
    assert "ROC of kind 2" in page.inner_text("#classes-body")
    assert page.locator("#roc-0 path").count() == 6 and page.locator("#pr-0 circle").count() == 1


def test_table_data_and_pictures_can_be_saved(open_page, paired):
    page = open_page(paired.as_uri()).page

    def saved(selector: str) -> tuple[str, bytes]:
        with page.expect_download() as download:
            page.locator(selector).first.click()
        return download.value.suggested_filename, Path(download.value.path()).read_bytes()

    name, text = saved("#save-csv")
    lines = text.decode().splitlines()
    assert name == "Paired.csv" and len(lines) == 4 and lines[0].startswith("run,method,seed,rounds,seconds")
    assert lines[0].count(",") == lines[2].count(",") - lines[2].count(", ")
    name, text = saved("#save-json")
    assert name == "Paired.json" and len(json.loads(text)["runs"]) == 3
    for picture in ("#curve-charts .save", "#m-body .save", "#classes-body figure:has(#roc-0) .save"):
        name, image = saved(picture)
        assert name.endswith(".png") and image.startswith(b"\x89PNG") and len(image) > 3000


def test_every_metric_has_its_rows_and_curves(open_page, comparison, make_run, tmp_path):
    page = open_page(comparison.as_uri()).page
    titles = [m.title for m in METRICS.values() if m.function is not None]
    rows = page.locator("#metrics-table-0-0 tbody tr th").all_inner_texts()
    assert [r.removesuffix(" (lower is better)") for r in rows] == titles
    cells = page.locator("#metrics-table-0-0 tbody tr:nth-child(1) td").all_inner_texts()
    assert len(cells) == 3 and all(re.fullmatch(r"[\d.]+%\s+[\d.]+% to [\d.]+%", c) for c in cells)
    assert "by the mean M" in page.inner_text("#metrics-body")
    assert page.inner_text("#priors-0 tbody tr").startswith("as frequent as at the centers\t")
    assert "answers for classes that are equally frequent" in page.inner_text("#metrics-body")
    heads = page.locator("#classes-0 thead th").all_inner_texts()
    assert heads[2:] == [m.title for m in METRICS.values() if m.by_class is not None]
    page.select_option("#curve-metric", label="Log loss")
    assert "Log loss in 'fine'" in page.inner_text("#curve-charts")
    assert ink_of(page, "#curve-charts figure:nth-child(1) canvas") > 200
    report([make_run(tmp_path / "one")], tmp_path / "one.html")
    alone = open_page((tmp_path / "one.html").as_uri()).page
    assert alone.locator("#metrics-table thead th").all_inner_texts() == [
        "metric", "in 'fine'", "in 'coarse'", "in 'coarse', by the mean M",
    ]  # fmt: skip


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
    assert recall.inner_text() == "Sensitivity (recall)"

    def values() -> list[float]:
        cells = page.locator("#classes-0 tbody tr td:nth-child(4)").all_inner_texts()
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
    page.select_option("#detail", label="first")
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
    page.select_option("#detail", label="first")
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


@pytest.fixture(scope="module")
def axe():
    """The accessibility checker axe-core, which a page's own rules would not let in."""
    return pytest.importorskip("axe_playwright_python.sync_playwright").Axe()


@pytest.mark.parametrize("look", ["light", "dark", "phone", "print"])
def test_axe_finds_nothing(open_page, comparison, axe, look):
    """WCAG 2.2 A and AA and axe's best practice: names, roles, landmarks, headings, contrast of text."""
    options = {"dark": {"color_scheme": "dark"}, "phone": {"viewport": {"width": 390, "height": 844}}}
    page = open_page(comparison.as_uri(), bypass_csp=True, **options.get(look, {})).page
    page.click("#show-1")  # a run that is not drawn must be legible too
    page.eval_on_selector_all("details", "all => all.forEach(d => d.open = true)")
    if look == "print":
        page.emulate_media(media="print")
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    found = axe.run(page, options={"runOnly": tags}).response
    told = [(v["id"], [n["html"][:200] for n in v["nodes"]]) for v in found["violations"]]
    assert told == [] and len(found["passes"]) > 20
    # What axe cannot decide: text of a drawing, and cells of a table that are scrolled out of sight.
    assert {v["id"] for v in found["incomplete"]} <= {"color-contrast"}
    undecided = [n for v in found["incomplete"] for n in v["nodes"] if not n["html"].startswith("<text")]
    in_sight = page.evaluate(
        """all => all.filter(one => { const s = document.querySelector(one).closest('.scroll');
          return !s || (s.scrollHeight <= s.clientHeight && s.scrollWidth <= s.clientWidth); })""",
        [n["target"][0] for n in undecided],
    )
    assert in_sight == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_in_a_matrix_stand_out(open_page, comparison, scheme):
    """Text on a canvas, which axe cannot see: in each cell the ink against its background, at least 4.5."""
    page = open_page(comparison.as_uri(), color_scheme=scheme, device_scale_factor=4).page
    cells = page.eval_on_selector(
        "#confusion-0",
        """c => { const context = c.getContext('2d'), scale = c.width / parseFloat(c.style.width), found = [];
        const left = +c.dataset.left * scale, size = +c.dataset.size * scale;
        for (let i = 0; i < 6; i++) for (let j = 0; j < 6; j++) {
          const d = context.getImageData(left + (j + .1) * size, (i + .1) * size, .8 * size, .8 * size).data;
          const colours = new Map();
          for (let k = 0; k < d.length; k += 4) {
            const key = 'rgb(' + d[k] + ',' + d[k + 1] + ',' + d[k + 2] + ')';
            colours.set(key, (colours.get(key) || 0) + 1);
          }
          found.push([...colours].sort((a, b) => b[1] - a[1]).slice(0, 40).map(c => c[0]));
        }
        return found; }""",
    )
    written = [c for c in cells if len(c) > 1]
    assert len(written) > 10
    worst = min(max(contrast(c[0], other) for other in c[1:]) for c in written)
    assert worst >= 4.5


def test_lines_stand_out_from_the_paper():
    """At least 3, WCAG's measure for what is drawn; in both looks."""
    files = Path(report_content.__file__).parent / "page"
    css = (files / "page.css").read_text()
    light, dark = re.findall(r"--paper: (#\w+)", css)
    dark_lines = re.findall(
        r"#\w{6}", re.search(r"DARK_LINES = \[(.*?)\]", (files / "basics.js").read_text())[1]
    )
    assert light == "#fff" and len(dark_lines) == len(report_content.COLOURS)
    for paper, lines in (("#ffffff", report_content.COLOURS), (dark, dark_lines)):
        assert min(contrast(hexadecimal(c), hexadecimal(paper)) for c in lines) >= 3
        assert len(set(lines)) == 7


def test_the_page_works_by_keyboard_alone(open_page, comparison):
    """Tab reaches every control and picture once, in the order of the page, each with a visible focus."""
    page = open_page(comparison.as_uri()).page
    at = """() => { const e = document.activeElement, o = getComputedStyle(e);
      if (!e.dataset.place) e.dataset.place = [...document.querySelectorAll('*')].indexOf(e);
      return [e.tagName, +e.dataset.place, o.outlineStyle, parseFloat(o.outlineWidth)]; }"""
    wanted = page.eval_on_selector_all(
        "a[href], button, input, select, summary, [tabindex='0']", "all => all.length"
    )
    seen = []
    for _ in range(wanted):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(at))
    assert all(tag != "BODY" and style == "solid" and width >= 2 for tag, _, style, width in seen)
    places = [place for _, place, _, _ in seen]
    assert len(set(places)) == wanted and places == sorted(places)
    page.keyboard.press("Tab")
    page.focus("a.skip")
    page.keyboard.press("Enter")
    assert page.url.endswith("#summary")


def test_a_printed_comparison_says_what_is_on_it(open_page, comparison, tmp_path):
    """Summary and curves of all runs; the rest of the one that was chosen, which the paper names."""
    page = open_page(comparison.as_uri()).page
    page.select_option("#detail", label="second")
    page.click("#show-2")
    closed = "details:not(.alternative):not([open])"
    before = page.locator(closed).count()
    page.evaluate("addEventListener('beforeprint', () => { window.printed = document.body.innerText; })")
    page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    printed = page.evaluate("window.printed")
    assert "Why centers abstained" in printed and before and page.locator(closed).count() == before
    page.emulate_media(media="print")
    text = page.inner_text("body")
    assert "What follows is of the run second, which was chosen on the screen." in text
    assert "Of the others (first, third)" in text and "print again" in text
    assert "Not drawn, as chosen on the screen: third." in text
    assert all(name in page.inner_text("#summary") for name in ("first", "second", "third"))
    assert not page.locator("#detail").is_visible() and not page.locator("nav").is_visible()


@pytest.mark.parametrize("look", ["light", "dark", "phone", "print"])
def test_every_look_is_legible(open_page, comparison, look, tmp_path):
    """Contrast of text at least 4.5, no sideways scrolling of the page; pictures go to FEDMT_SHOTS if set."""
    options = {"dark": {"color_scheme": "dark"}, "phone": {"viewport": {"width": 390, "height": 844}}}
    page = open_page(comparison.as_uri(), **options.get(look, {})).page
    if look == "print":
        page.emulate_media(media="print", color_scheme="dark")
    colours = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert contrast(*colours) > 4.5
    assert (luminance(colours[1]) < 0.2) == (look == "dark")
    wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]
    where = Path(os.environ.get("FEDMT_SHOTS", tmp_path))
    page.screenshot(path=where / f"{look}.png", full_page=True)
    assert (where / f"{look}.png").stat().st_size > 50_000


def contrast(one: str, other: str) -> float:
    """WCAG's contrast of two colours, 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def hexadecimal(colour: str) -> str:
    """`#rrggbb` as `rgb(r, g, b)`."""
    return "rgb({}, {}, {})".format(*(int(colour[i : i + 2], 16) for i in (1, 3, 5)))


def luminance(colour: str) -> float:
    """WCAG's relative luminance of `rgb(r, g, b)`."""
    parts = [int(float(x)) / 255 for x in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_large_comparison_opens_soon_and_is_small(open_page, make_run, tmp_path):
    """100 classes, 200 rounds, 10 runs: under 10 MB and open in under 2 s (here: 4, machines are shared)."""
    runs = [make_run(tmp_path / "run-0", 100, 20, 200, centers=20, samples=10_000)]
    runs += [shutil.copytree(runs[0], tmp_path / f"run-{i}") for i in range(1, 10)]
    report(runs, tmp_path / "large.html")
    size = (tmp_path / "large.html").stat().st_size
    begin = time.perf_counter()
    page = open_page((tmp_path / "large.html").as_uri()).page
    seconds = time.perf_counter() - begin
    print(f"\n{size / 1e6:.2f} MB, open in {seconds:.2f} s")
    assert size < 10e6 and seconds < 4
    assert page.locator("#runs tbody tr").count() == 10 and ink_of(page, "#confusion-0") > 10_000
