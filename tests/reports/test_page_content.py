"""The page in a real browser: what it draws and says, and what can be saved from it."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedmt.metrics import METRICS
from fedmt.reports.report import report
from fedmt.runs.evaluation import read_evaluation
from fedmt.runs.folder import RunFolder

pytestmark = pytest.mark.slow


def test_everything_is_drawn_and_nothing_is_asked_of_a_network(open_page, comparison, ink_of, hostile):
    opened = open_page(comparison.as_uri())
    page = opened.page
    page.select_option("#detail", label="first")
    assert len(opened.requests) == 1
    assert page.locator("#curve-charts figure").count() == 8
    assert all(ink_of(page, f"#curve-charts figure:nth-child({i}) canvas") > 200 for i in range(1, 9))
    for canvas in ("#m-hat", "#m-true", "#confusion-0", "#confusion-1"):
        assert ink_of(page, canvas) > 1000, canvas
    for chart in ("#center-norms", "#center-cosines"):  # one line per center
        assert ink_of(page, f"{chart} canvas") > 200, chart
    assert page.locator("svg[role=img] circle").count() > 5
    assert page.locator("#members tbody tr").count() == 5
    assert "third is not finished: round 4 of 8" in page.inner_text("#status")
    assert hostile in page.inner_text("#classes-0") and page.locator("img").count() == 0
    assert "small_cnn" in page.inner_text("#again-body") and "torch 2.13.0" in page.inner_text("#again-body")


def test_the_page_opens_with_the_verdict_on_the_best_run(open_page, paired, ink_of):
    page = open_page(paired.as_uri()).page
    answer = page.locator("#words p").first.inner_text()
    assert re.match(
        r"given \(FedMT\) is better than single: balanced accuracy is [\d.]+ points higher", answer
    )
    assert "paired over the same 300 test images" in answer
    assert page.locator("#detail option:checked").inner_text() == "given"
    assert page.inner_text("#notice") == "Internal draft." and "fedmt 0.1" in page.inner_text("#provenance")
    row = page.locator("#runs tbody tr", has_text="given").inner_text().split("\t")
    size = re.search(r"is ([\d.]+) points", answer)[1]  # the table and the sentences round in the same way
    assert f"+{size}" in row[3] and row[2].split()[0] in page.inner_text("#words")
    assert page.locator("#tiles .tile").count() == 5 and row[2].split()[0] in page.inner_text("#tiles")
    # A given M is drawn, under its own name.
    assert ink_of(page, "#m-hat") > 200 and "M as given" in page.inner_text("#m-body")
    assert page.locator("#m-true").count() == 0 and ink_of(page, "#priors") > 200
    # Calibration before and after the fitted temperature, in the wanted space.
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


def test_the_note_beneath_the_table_explains_only_what_is_there(open_page, make_run, tmp_path):
    run = RunFolder(make_run(tmp_path / "run"))

    def note() -> str:
        report([run.path], tmp_path / "report.html")
        return open_page((tmp_path / "report.html").as_uri()).page.inner_text("#summary")

    assert "each through its own matrix or head" in note()
    found = read_evaluation(run.evaluation_file)
    replace(found, tests=[t for t in found.tests if t.space == "fine"], measured=None).write(
        run.evaluation_file
    )
    records = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]

    def rewrite(spaces: list[str]) -> None:
        for record in records:
            for name in METRICS:
                if name in record:
                    record[name] = {s: v for s, v in record[name].items() if s in spaces}
        run.metrics_file.write_text("".join(json.dumps(r) + "\n" for r in records))

    rewrite(["fine"])
    assert "95% interval" in note() and "Outside the wanted space" not in note()
    replace(found, tests=[], measured=None).write(run.evaluation_file)
    rewrite([])
    assert "After the last round" not in note()


@pytest.mark.parametrize("groups", [None, np.arange(300) // 5])
def test_intervals_that_do_not_count_patients_say_so(open_page, make_run, tmp_path, groups):
    """The page itself computes the intervals at a threshold and of bins, as if every sample were alone."""
    run = RunFolder(make_run(tmp_path / "run"))
    found = read_evaluation(run.evaluation_file)
    replace(found, tests=[replace(t, groups=groups) for t in found.tests]).write(run.evaluation_file)
    report([run.path], tmp_path / "report.html")
    shown = open_page((tmp_path / "report.html").as_uri()).page.text_content("#classes-body")
    assert shown.count("too narrow") == (0 if groups is None else 4)  # two in each of two label spaces


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
    for picture in (
        ".card:has(#contributions) .save",
        "#curve-charts .save",
        "#m-body .save",
        "#classes-body figure:has(#roc-0) .save",
    ):
        name, image = saved(picture)
        assert name.endswith(".png") and image.startswith(b"\x89PNG") and len(image) > 3000


def test_a_picture_with_a_shortened_name_can_be_saved(open_page, make_run, tmp_path):
    """Some letters are two units of JavaScript. Half of one is not a text that a picture may contain."""
    sites = {"same_tests": True, "sites": ("\N{MATHEMATICAL BOLD CAPITAL W}" * 80, "Bonn")}
    runs = [make_run(tmp_path / m, method=m, **sites) for m in ("single", "fedmt")]
    report(runs, tmp_path / "report.html")
    page = open_page((tmp_path / "report.html").as_uri()).page
    for width in range(700, 800, 10):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(100)
        shown = page.text_content("#forest-0 text.strong")
        assert shown.endswith("…") and set(shown[:-1]) == {"\N{MATHEMATICAL BOLD CAPITAL W}"}
    with page.expect_download() as download:
        page.click(".card:has(#forest-0) .save")
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


def test_a_name_from_right_to_left_does_not_turn_what_follows(open_page, make_run, tmp_path):
    """On a phone, the number of samples stands after the name, in the same text."""
    name = "\N{HEBREW LETTER ALEF}\N{HEBREW LETTER BET}"
    report([make_run(tmp_path / "run", sites=(name, "Bonn"))], tmp_path / "report.html")
    page = open_page((tmp_path / "report.html").as_uri(), viewport={"width": 390, "height": 844}).page
    assert page.text_content("#forest-0 text.strong") == f"\u2068{name}\u2069, 150 images"


def test_every_metric_has_its_rows_and_curves(open_page, comparison, make_run, tmp_path, ink_of, soon):
    page = open_page(comparison.as_uri()).page
    titles = [m.title for m in METRICS.values() if m.function is not None]
    heads = page.locator("#metrics-table-0 thead th").all_inner_texts()
    assert [h.removesuffix(" (lower is better)") for h in heads] == ["run", *titles]
    cells = page.locator("#metrics-table-0 tbody tr td:nth-child(2)").all_inner_texts()
    assert len(cells) == 3 and all(re.fullmatch(r"[\d.]+%\s+[\d.]+% to [\d.]+%", c) for c in cells)
    # Label spaces are shown one at a time.
    assert not page.locator("#metrics-table-1").is_visible()
    page.click("#metrics-body .segments button:text('coarse')")
    assert page.locator("#metrics-table-1").is_visible()
    page.click("#mean-matrix-1 summary")
    soon(page.locator("#mean-matrix-1-table tbody tr")).to_have_count(3)
    page.click("#priors-box summary")
    first = page.locator("#priors-table tbody tr").first.inner_text()
    assert first.startswith("first\tas frequent as at the centers\t")
    assert "answers for classes that are equally frequent" in page.inner_text("#metrics-body")
    heads = page.locator("#classes-0 thead th").all_inner_texts()
    assert heads[2:] == [m.title for m in METRICS.values() if m.by_class is not None]
    page.select_option("#curve-metric", label="Log loss")
    assert "Log loss in 'fine'" in page.inner_text("#curve-charts")
    assert ink_of(page, "#curve-charts figure:nth-child(1) canvas") > 200
    file = make_run(tmp_path / "one") / "evaluation.npz"
    made = read_evaluation(file)
    replace(made, priors={"own": made.priors["own"]}).write(file)
    report([tmp_path / "one"], tmp_path / "one.html")
    alone = open_page((tmp_path / "one.html").as_uri()).page
    # Without other frequencies, there is no table, but the page says which ones its results are for.
    assert alone.locator("#priors-box").count() == 0
    assert "of answers for classes that are equally frequent." in alone.inner_text("#metrics-body")
    spaces = alone.locator("#metrics-table tbody th").all_inner_texts()
    assert spaces == ["fine", "coarse"] and alone.locator("#metrics-body .segments").count() == 0


def test_each_site_and_the_calibration_are_shown(open_page, paired, soon):
    page = open_page(paired.as_uri()).page
    assert page.locator("#forest-0 circle").count() == 4 and page.locator("#against circle").count() == 2
    page.click("#places-all-0 summary")
    rows = [r.split("\t")[:3] for r in page.locator("#places-0 tbody tr").all_inner_texts()]
    assert rows == [[site, run, "150"] for site in ("Bonn", "Kiel") for run in ("single", "given")]
    heads = page.locator("#calibration-0 thead th").all_inner_texts()
    assert heads == ["metric", "before", "after", "change"]
    cells = page.locator("#calibration-0 tbody tr").first.inner_text().split("\t")
    assert all(" to " in cell for cell in cells[1:])
    first = [cell.split("\n")[0].strip() for cell in cells]
    assert f"calibration error {first[1]}" in page.inner_text("figure:has(#reliability-0) figcaption")
    assert f"calibration error {first[2]}" in page.inner_text("figure:has(#scaled-0) figcaption")
    assert f"after temperature scaling: {first[2]}" in page.inner_text("#tiles")
    assert "95% interval" in page.inner_text("figure:has(#reliability-0) .legend")
    assert page.locator("#forest-differences-0 circle").count() == 2  # paired, one for each of the two sites
    # The mean over the classes has an interval in every column and in every label space.
    page.eval_on_selector_all(".away", "all => all.forEach(e => e.classList.remove('away'))")
    assert "no interval" not in page.inner_text("#classes-0 tfoot") + page.inner_text("#calibration-1")
    page.click("#contributions-table summary")
    shares = page.locator("#contributions-table tbody td:nth-child(2)")
    soon(shares).to_have_count(4)
    assert sum(float(s.rstrip("%")) for s in shares.all_inner_texts()) == pytest.approx(100, abs=0.2)


def test_seeds_of_one_configuration_are_one_line(open_page, make_run, tmp_path, soon):
    runs = [
        make_run(
            tmp_path / f"{method}-seed{seed}",
            method=method,
            skill=skill,
            same_tests=True,
            seed=10 * i + seed,
            training_seed=seed,
            finished=(method, seed) != ("fedmt", 2),
        )
        for i, (method, skill) in enumerate((("single", 0.9), ("fedmt", 2.0)))
        for seed in (0, 1, 2)
    ]
    report(runs, tmp_path / "seeds.html")
    page = open_page((tmp_path / "seeds.html").as_uri()).page
    rows = [r.split("\t") for r in page.locator("#runs tbody tr").all_inner_texts()]
    assert [r[0].split(" (")[0].strip() for r in rows] == ["single", "fedmt"]
    assert [r[2] for r in rows if not re.fullmatch(r"[\d.]+%\s+± [\d.]+ points", r[2].strip())] == []
    assert [r[-2].strip() for r in rows] == ["8", "8, 4 of 8"]  # one seed is still running
    assert rows[1][2].split()[0] in page.inner_text("#words") and "± " in page.inner_text("#tiles")
    assert page.locator("#show-1").count() == 1 and page.locator("#show-2").count() == 0
    page.locator("#curve-charts .chart").first.hover()
    soon(page.locator("#tip")).to_be_visible()
    assert page.inner_text("#tip").count("\n") == 2  # the means, not the thin lines of the seeds
    assert page.locator("#detail option").count() == 6  # the details show each run separately


def test_a_large_comparison_opens_soon_and_is_small(open_page, ink_of, make_run, tmp_path):
    """100 classes, 200 rounds and 10 runs: under 10 MB, and less than 2 s of work for the browser to open.

    This is the CPU time of the page's main thread, which other work on the machine does not change.
    """
    runs = [make_run(tmp_path / "run-0", 100, 20, 200, centers=20, samples=3_000)]
    runs += [shutil.copytree(runs[0], tmp_path / f"run-{i}") for i in range(1, 10)]
    report(runs, tmp_path / "large.html")
    size = (tmp_path / "large.html").stat().st_size
    opened = open_page("about:blank")
    page, session = opened.page, opened.context.new_cdp_session(opened.page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto((tmp_path / "large.html").as_uri())
    found = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
    print(f"\n{size / 1e6:.2f} MB, {found['TaskDuration']:.2f} s of work")
    assert size < 10e6 and 0.05 < found["TaskDuration"] < 2
    assert page.locator("#runs tbody tr").count() == 10 and ink_of(page, "#confusion-0") > 10_000
