"""The first line of a report: which run is compared with which, and what it says."""

import re
from dataclasses import replace

import numpy as np
import pytest

from fedmt.core.rounding import percent
from fedmt.reports.answer import answer
from fedmt.reports.configurations import configurations
from fedmt.reports.provenance import NOTICE
from fedmt.reports.report import Source, report
from fedmt.runs.comparison import compare
from fedmt.runs.evaluation import Place


@pytest.fixture
def made(make_run, tmp_path):
    """Runs by name, tested on the same 300 samples. skill: how good they are."""

    def make(name, method="fedmt", skill=1.5, seed=0, **options):
        options = {"rounds": 1, **options}
        path = make_run(tmp_path / name, method=method, skill=skill, seed=seed, same_tests=True, **options)
        return Source(path).reported(name)

    return make


def test_the_best_run_against_single(made):
    runs = [
        made("weak", skill=0.9, seed=1),
        made("alone", "single", 0.7, 2),
        made("strong", skill=3.0, seed=3),
    ]
    found = answer(runs)
    assert (found["verdict"], found["best"], found["baseline"]) == ("better", 2, 1)
    difference = compare({"a": runs[2].evaluation}, {"b": runs[1].evaluation}).differences["fine"]
    even = difference["balanced_accuracy"]
    shown = re.fullmatch(
        r"strong \(FedMT\) is better than alone \(Single\): balanced accuracy is ([\d.]+) points higher "
        r"\(95% interval \+([\d.]+) to \+([\d.]+), paired over the same 300 test images\)\.",
        found["headline"],
    )
    assert [float(x) for x in shown.groups()] == pytest.approx(
        [100 * even.value, 100 * even.low, 100 * even.high], abs=0.051
    )
    assert percent(difference["accuracy"].first) in found["details"][1]
    auroc = difference["auroc"]
    shown = re.fullmatch(
        r"AUROC: ([\d.]+) against ([\d.]+), ([\d.]+) higher \(95% interval \+([\d.]+) to \+([\d.]+)\)\.",
        found["details"][2],
    )
    numbers = [auroc.first, auroc.second, auroc.value, auroc.low, auroc.high]
    assert [float(x) for x in shown.groups()] == pytest.approx(numbers, abs=0.00051)
    assert "best of 2 on these test images" in found["details"][3]
    assert found["differences"].keys() == {0, 2}
    # The best run is also compared in its main figures, and the others in the figures of the table.
    assert found["differences"][2].keys() == {*found["differences"][0], "macro_f1", "auroc", "ece"}
    assert found["differences"][2]["accuracy"]["value"] == pytest.approx(
        difference["accuracy"].value, rel=1e-3
    )


def test_worse_and_no_difference(made):
    base, bad, twin = made("base", skill=3.0), made("bad", skill=0.7, seed=1), made("twin", skill=3.0)
    found = answer([base, bad])
    assert found["verdict"] == "worse" and ": do not use it. Balanced accuracy is" in found["headline"]
    assert found["best"] == found["baseline"] == 0  # a worse run should never come first
    found = answer([base, twin])
    assert found["verdict"] == "no difference"
    said = "no difference in balanced accuracy that 300 test images can show. Balanced accuracy is 0.0 points"
    assert said in found["headline"]


def test_seeds_of_one_configuration_are_pooled(made):
    seeds = [made(f"fed-seed{s}", skill=2 + s / 2, seed=s, training_seed=s) for s in range(3)]
    base = made("base", "single", 0.7, 9)
    groups = configurations([*seeds, base], range(4))
    assert [(g.name, g.places) for g in groups] == [("fed (3 seeds)", (0, 1, 2)), ("base (Single)", (3,))]
    found = answer([*seeds, base])
    assert found["headline"].startswith("fed (3 seeds) is better than base (Single): balanced accuracy")
    values = groups[0].values
    assert found["seeds"][0]["mean"] == pytest.approx(sum(values) / 3)
    mean = sum(values) / 3
    assert found["seeds"][0]["spread"] == pytest.approx((sum((v - mean) ** 2 for v in values) / 2) ** 0.5)
    assert found["details"][-1].startswith(f"fed (3 seeds): balanced accuracy {percent(mean)} on average")
    alone = answer(seeds)
    assert alone["verdict"] == "" and "on average over 3 seeds" in alone["headline"]
    # The same seed twice is not two seeds.
    copies = [replace(seeds[0], label="a"), replace(seeds[0], label="b")]
    assert len(configurations(copies, range(2))) == 2


def test_one_run_alone_says_what_it_reaches(made):
    run = made("only")
    found = answer([run])
    measured = run.evaluation.measured["metrics"]
    for name in ("balanced_accuracy", "accuracy"):
        for key in ("value", "low", "high"):
            assert percent(measured[name]["fine"][key]) in found["headline"]
    assert found["headline"].startswith("only (FedMT): balanced accuracy is")
    assert found["headline"].endswith("in 'fine', on 300 test images.") and found["baseline"] is None
    area = measured["auroc"]["fine"]
    said = (
        f" and AUROC is {area['value']:.3f} (95% interval {area['low']:.3f} to {area['high']:.3f}) in 'fine'"
    )
    assert said in found["headline"]
    assert answer([replace(run, evaluation=None)])["headline"] == ""
    # Samples of one class have no AUROC.
    test = run.evaluation.tests[0]
    alike = replace(run.evaluation, measured=None, tests=[replace(test, labels=np.zeros_like(test.labels))])
    assert "AUROC" not in (alone := answer([replace(run, evaluation=alike)])["headline"])
    assert re.search(r"balanced accuracy is [\d.]+% and accuracy is [\d.]+% in 'fine'", alone)


def test_an_earlier_round_than_the_last_is_named(made):
    """The curves and the table may be further than the last predictions, as in a run that is watched."""
    done, base = made("done"), made("base", "single", seed=1)
    ahead = replace(done, metrics=[*done.metrics, {**done.metrics[-1], "round": 2}])
    assert "round" not in answer([done])["headline"]
    assert answer([ahead])["headline"].startswith("done (FedMT), after round 1: balanced accuracy is")
    assert not any("round" in said for said in answer([base, done])["details"])
    assert "done (FedMT): this compares its answers after round 1." in answer([base, ahead])["details"]


def test_the_auroc_is_stated_where_only_the_stored_comparison_is_left(made):
    run, base = made("federation", skill=3.0), made("alone", "single", 0.7, 2)
    there = answer([run, base])["details"]
    stored = compare({"a": run.evaluation}, {"b": base.evaluation}, ("FedMT", "Single"), "test image")
    summary = {**(run.summary or {}), "comparison": {"baseline": "gone", **stored.to_json()}}
    found = answer([replace(run, summary=summary)])
    assert found["headline"].startswith("FedMT is better than Single: balanced accuracy is")
    assert found["details"][:3] == there[:3] and found["details"][2].startswith("AUROC: 0.")


def test_runs_that_were_tested_on_other_samples_get_no_verdict(made, make_run, tmp_path):
    other = Source(make_run(tmp_path / "other", seed=5, rounds=1)).reported("other")
    found = answer([made("one"), other])
    assert found["verdict"] == "" and found["headline"].startswith("No verdict")
    assert "the test labels in 'fine'" in found["details"][0]


def test_the_notice_and_where_a_run_came_from(make_run, tmp_path):
    folder = make_run(tmp_path / "run", rounds=1)
    (folder / "data.json").write_text('{"reference": "0123456789abcdef", "center-0": "fedcba9876543210"}')
    report([folder], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert NOTICE in page and f"{folder}/config.toml" in page and "01234567" in page
    assert "fedmt 0.1.0, torch 2.13.0, python 3.11.7, on cpu" in page
    report([folder], tmp_path / "page.html", notice="<b>Draft")
    page = (tmp_path / "page.html").read_text()
    assert "&lt;b&gt;Draft" in page and NOTICE not in page and "<b>Draft" not in page


def test_differences_at_each_site_are_paired_over_its_samples(made):
    sites = {"sites": ("Bonn", "Kiel")}
    runs = [
        made("alone", "single", 0.7, 1, **sites),
        made("one", skill=3.0, seed=2, **sites),
        made("older", skill=2.0, seed=3),  # it does not record the samples' sites
    ]
    bonn, kiel = answer(runs)["sites"]
    assert (bonn["kind"], bonn["name"], bonn["samples"], kiel["name"]) == ("site", "Bonn", 150, "Kiel")
    assert bonn["differences"].keys() == kiel["differences"].keys() == {1}
    for first, found in enumerate((bonn, kiel)):
        # In float64, by hand: the mean over classes of the share of right answers, on every second sample.
        tests = [run.evaluation.tests[0] for run in (runs[1], runs[0])]
        labels = tests[0].labels[first::2]
        right = [(t.predicted[first::2] == labels).astype(np.float64) for t in tests]
        one, other = (np.mean([r[labels == k].mean() for k in range(6)]) for r in right)
        assert found["differences"][1]["value"] == pytest.approx(one - other, abs=1e-5)
        assert found["differences"][1]["low"] < one - other < found["differences"][1]["high"]
    moved = replace(runs[1].evaluation.tests[0], places=[Place("site", "Bonn", np.arange(150))])
    elsewhere = replace(runs[1], evaluation=replace(runs[1].evaluation, tests=[moved]))
    assert answer([runs[0], elsewhere])["sites"] == []


def test_configurations_that_begin_alike_have_names_of_their_own(made):
    """The source of M distinguishes them, or else the first of their runs, but never a list of all runs."""

    def pair(start, seed, **options):
        return [made(f"{start}-seed{i}-{seed}", seed=seed + i, training_seed=i, **options) for i in (0, 1)]

    given, estimated = pair("fedmt", 10, estimated=False), pair("fedmt", 20, rounds=2)
    names = [g.name for g in configurations([*given, *estimated], range(4))]
    assert names == ["fedmt, M given (2 seeds)", "fedmt, M estimated by em (2 seeds)"]
    longer = pair("fedmt", 30, rounds=3)
    names = [g.name for g in configurations([*estimated, *longer], range(4))]
    assert names == ["fedmt-seed0-20 and others (2 seeds)", "fedmt-seed0-30 and others (2 seeds)"]
