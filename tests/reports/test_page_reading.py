"""The page in a real browser responds to mouse and keyboard."""

import re

import pytest

pytestmark = pytest.mark.slow


def test_a_run_can_be_hidden_and_shown(open_page, comparison, ink_of, soon):
    page = open_page(comparison.as_uri()).page
    canvas = "#curve-charts figure:nth-child(1) canvas"
    before = ink_of(page, canvas)
    page.focus("#show-1")
    page.keyboard.press("Space")
    soon(page.locator("#runs tr.off")).to_have_count(1)
    assert ink_of(page, canvas) != before and "second" in page.inner_text("#runs tr.off")
    page.click("#show-1")
    soon(page.locator("#runs tr.off")).to_have_count(0)
    assert ink_of(page, canvas) == before


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


def test_hovering_and_arrow_keys_read_values(open_page, comparison, soon):
    page = open_page(comparison.as_uri()).page
    page.locator("#curve-charts .chart").first.hover()
    soon(page.locator("#tip")).to_have_text(re.compile("first: .*%"))
    page.select_option("#detail", label="first")
    page.click("#classes-body .segments button:text('coarse')")
    page.locator("#confusion-1").hover(position={"x": 90, "y": 20})
    soon(page.locator("#tip")).to_have_text(re.compile("^true: group 0"))
    page.click("#classes-body .segments button:text('fine')")
    page.focus("#confusion-0")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    soon(page.locator("figure:has(#confusion-0) .said")).to_have_text(re.compile("^true: b; predicted:.*%"))
    page.locator("#curve-charts .chart").first.focus()
    page.keyboard.press("ArrowLeft")
    soon(page.locator("#curve-charts .said").first).to_contain_text("second:")


def test_another_run_and_another_center_in_detail(open_page, comparison, hostile):
    page = open_page(comparison.as_uri()).page
    page.select_option("#detail", label="first")
    assert hostile in page.inner_text("#classes-0")
    page.select_option("#detail", label="second")
    assert hostile not in page.inner_text("#classes-0") and "kind 0" in page.inner_text("#classes-0")
    page.select_option("#center", label="center-2")
    assert "M-hat, center-2" in page.inner_text("#m-body")


def test_tables_stand_for_pictures(open_page, comparison, soon):
    page = open_page(comparison.as_uri()).page
    page.click("#classes-body .segments button:text('coarse')")
    page.click("#confusion-1-table summary")
    cells = page.locator("#confusion-1-table tbody td")
    soon(cells).to_have_count(9)
    assert sum(map(int, cells.all_inner_texts())) == 300
    unnamed = page.eval_on_selector_all(
        "canvas.heat, .chart, svg[role=img], [role=region], section",
        "all => all.filter(e => !e.getAttribute('aria-label') && !e.getAttribute('aria-labelledby')).length",
    )
    assert unnamed == 0
    controls = page.eval_on_selector_all("select, input", "all => all.filter(e => !e.labels.length).length")
    assert controls == 0


def test_the_page_works_by_keyboard_alone(open_page, comparison):
    """Tab reaches every control and picture once, in the order of the page, each with a visible focus."""
    page = open_page(comparison.as_uri()).page
    at = """() => { const e = document.activeElement, o = getComputedStyle(e);
      if (!e.dataset.place) e.dataset.place = [...document.querySelectorAll('*')].indexOf(e);
      return [e.tagName, +e.dataset.place, o.outlineStyle, parseFloat(o.outlineWidth)]; }"""
    wanted = page.eval_on_selector_all(
        "a[href], button, input, select, summary, [tabindex='0']",
        "all => all.filter(e => e.checkVisibility()).length",
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
    page.wait_for_function("location.hash === '#summary'")  # soon, not at once
