"""The page in a real browser: legible and accessible in light, dark, on a phone and in print."""

import os
import re
from pathlib import Path

import pytest

from fedmt.reports import content as report_content
from fedmt.reports.report import report

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def axe():
    """The accessibility checker axe-core, which a page's own security policy would block."""
    return pytest.importorskip("axe_playwright_python.sync_playwright").Axe()


@pytest.mark.parametrize("look", ["light", "dark", "phone", "print"])
def test_axe_finds_nothing(open_page, comparison, paired, axe, look):
    """WCAG 2.2 A and AA and axe's best practices: names, roles, landmarks, headings, contrast of text."""
    options = {"dark": {"color_scheme": "dark"}, "phone": {"viewport": {"width": 390, "height": 844}}}
    shown = paired if look in options else comparison  # the first has a verdict and sites, the second neither
    page = open_page(shown.as_uri(), bypass_csp=True, **options.get(look, {})).page
    page.click("#show-1")  # a run that is not drawn must be legible too
    page.eval_on_selector_all("details", "all => all.forEach(d => d.open = true)")
    page.eval_on_selector_all(".away", "all => all.forEach(e => e.classList.remove('away'))")
    if look == "print":
        page.emulate_media(media="print")
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    # For passing rules, one node per rule is enough. Otherwise, thousands would have to be described.
    options = {"runOnly": tags, "resultTypes": ["violations", "incomplete"]}
    found = axe.run(page, options=options).response
    told = [(v["id"], [n["html"][:200] for n in v["nodes"]]) for v in found["violations"]]
    assert told == [] and len(found["passes"]) > 20
    # axe cannot decide about text in a drawing, and about table cells that are scrolled out of view.
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
    """axe cannot see text on a canvas, so this compares ink and background in each cell: at least 4.5."""
    page = open_page(comparison.as_uri(), color_scheme=scheme, device_scale_factor=4).page
    cells = page.eval_on_selector(
        "#confusion-0",
        """c => { const context = c.getContext('2d'), scale = c.width / parseFloat(c.style.width), found = [];
        const left = +c.dataset.left * scale, size = +c.dataset.size * scale;
        for (let i = 0; i < 6; i++) for (let j = 0; j < 6; j++) {
          const d = context.getImageData(left + (j + .1) * size, (i + .1) * size, .8 * size, .8 * size).data;
          const colors = new Map();
          for (let k = 0; k < d.length; k += 4) {
            const key = 'rgb(' + d[k] + ',' + d[k + 1] + ',' + d[k + 2] + ')';
            colors.set(key, (colors.get(key) || 0) + 1);
          }
          found.push([...colors].sort((a, b) => b[1] - a[1]).slice(0, 40).map(c => c[0]));
        }
        return found; }""",
    )
    written = [c for c in cells if len(c) > 1]
    assert len(written) > 10
    worst = min(max(contrast(c[0], other) for other in c[1:]) for c in written)
    assert worst >= 4.5


def test_lines_stand_out_from_the_paper():
    """At least 3, WCAG's limit for graphics, in both looks."""
    files = Path(report_content.__file__).parent / "page"
    css = (files / "page.css").read_text()
    light, dark = re.findall(r"--paper: (#\w+)", css)
    dark_lines = re.findall(
        r"#\w{6}", re.search(r"DARK_LINES = \[(.*?)\]", (files / "basics.js").read_text())[1]
    )
    assert light == "#fff" and len(dark_lines) == len(report_content.COLORS)
    for paper, lines in (("#ffffff", report_content.COLORS), (dark, dark_lines)):
        assert min(contrast(hexadecimal(c), hexadecimal(paper)) for c in lines) >= 3
        assert len(set(lines)) == 7


def test_a_printed_comparison_says_what_is_on_it(open_page, comparison, tmp_path):
    """The summary and curves of all runs, and the rest of the selected one, which the printed page names."""
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


def test_nothing_is_wider_than_a_sheet_of_paper(open_page, comparison, paired):
    """A4 without its margins is 688 pixels wide. Every detail is expanded, as in print."""
    for shown in (comparison, paired):
        page = open_page(shown.as_uri(), viewport={"width": 688, "height": 900}).page
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        wide = page.eval_on_selector_all(
            "table, figure, canvas, svg, pre, .tile",
            """all => all.filter(e => e.getBoundingClientRect().right > innerWidth + 1)
            .map(e => e.id || e.outerHTML.slice(0, 80))""",
        )
        assert wide == []


@pytest.mark.parametrize("look", ["light", "dark", "phone", "print"])
def test_every_look_is_legible(open_page, comparison, look, tmp_path):
    """Contrast of text is at least 4.5, and the page does not scroll sideways. FEDMT_SHOTS saves pictures."""
    options = {"dark": {"color_scheme": "dark"}, "phone": {"viewport": {"width": 390, "height": 844}}}
    page = open_page(comparison.as_uri(), **options.get(look, {})).page
    if look == "print":
        page.emulate_media(media="print", color_scheme="dark")
    colors = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert contrast(*colors) > 4.5
    assert (luminance(colors[1]) < 0.2) == (look == "dark")
    wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]
    where = Path(os.environ.get("FEDMT_SHOTS", tmp_path))
    page.screenshot(path=where / f"{look}.png", full_page=True)
    assert (where / f"{look}.png").stat().st_size > 50_000


@pytest.mark.parametrize("width", [390, 800, 1400])
def test_a_long_name_makes_the_page_no_wider(open_page, make_run, tmp_path, width):
    """Names of runs and classes may be one long word. Tables scroll, and their cards keep their width."""
    names = tuple(f"a_class_with_a_name_that_has_many_words_number_{k}" for k in range(6))
    runs = [
        make_run(tmp_path / (m + "_with_a_long_name" * 6), method=m, names=names, same_tests=True)
        for m in ("single", "fedmt")
    ]
    report(runs, tmp_path / "report.html")
    page = open_page((tmp_path / "report.html").as_uri(), viewport={"width": width, "height": 900}).page
    page.eval_on_selector_all("details", "all => all.forEach(d => d.open = true)")
    page.wait_for_function("document.querySelectorAll('#confusion-0-table td').length > 0")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cards = page.eval_on_selector_all(
        "main .card", "all => all.filter(c => c.getBoundingClientRect().right > innerWidth).length"
    )
    assert cards == 0
    # Where a table continues to the right, its first column stays in sight. It must not cover the next one.
    covering = page.eval_on_selector_all(
        "#runs tbody th, #classes-0 tbody th",
        "all => all.filter(h => h.scrollWidth > h.clientWidth + 1).length",
    )
    assert covering == 0


def contrast(one: str, other: str) -> float:
    """WCAG's contrast of two colors, 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def hexadecimal(color: str) -> str:
    """`#rrggbb` as `rgb(r, g, b)`."""
    return "rgb({}, {}, {})".format(*(int(color[i : i + 2], 16) for i in (1, 3, 5)))


def luminance(color: str) -> float:
    """WCAG's relative luminance of `rgb(r, g, b)`."""
    parts = [int(float(x)) / 255 for x in color[color.index("(") + 1 : -1].split(",")[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
