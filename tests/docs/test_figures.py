"""The figures in README and the other pages match the stored runs.

The README's table of results and the quickstart's are compared cell by cell. Elsewhere, only the text says
which run a figure belongs to, so the test is weaker: each figure with one decimal ("76.5", or the pair "76.5
± 0.8") must occur in the page's sources. test_results.py compares most pages in docs/results.
"""

import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import mean, stdev

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DATA = DOCS / "results" / "data"

UNITS = r"(?!\s?(?:s|ms|MB|GB|GHz|M|x|times|seconds|minutes)\b)"
FIGURE = re.compile(rf"(?<![\w.,:/-])(\d\d\.\d)(?![\d.]){UNITS}(?: ± (\d+\.\d))?")
"""A percentage as the pages write it, with or without its standard deviation."""

# -- the sources of figures ----------------------------------------------------------------------------------


def written(values: Iterable[float]) -> set[str]:
    """The mean of some percentages as shown on a page: alone, and with the standard deviation."""
    found = list(values)
    shown = f"{mean(found):.1f}"
    return {shown, f"{shown} ± {stdev(found):.1f}"} if len(found) > 1 else {shown}


def sweep(name: str) -> set[str]:
    """For a stored sweep: the mean of each metric of each cell, and the last round of each run."""
    stored = json.loads((DATA / f"{name}.json").read_text())
    found = set()
    for metric in (m for cell in stored["cells"] for m in cell["metrics"].values() if m["mean"] is not None):
        shown = f"{metric['mean']:.1f}"
        found |= {shown} if metric["sd"] is None else {shown, f"{shown} ± {metric['sd']:.1f}"}
    for run in stored["runs"]:
        for accuracy in (run.get("last_round") or {}).get("accuracy", {}).values():
            found |= written([100 * accuracy])
    return found


def cifar100() -> set[str]:
    """The last round of each run, the means over seeds, and the short runs of the search."""
    runs = defaultdict(list)
    found = set()
    for path in (DATA / "cifar100").glob("*-seed?.jsonl"):
        last = json.loads(path.read_text().splitlines()[-1])["accuracy"]
        for space, accuracy in last.items():
            runs[path.stem[:-1], space].append(100 * accuracy)
            found |= written([100 * accuracy])
    for line in (DATA / "cifar100" / "search.jsonl").read_text().splitlines():
        found |= written([100 * json.loads(line)["acc"]])
    return found.union(*map(written, runs.values()))


def assumptions() -> set[str]:
    runs = defaultdict(list)
    for run in json.loads((DATA / "assumptions.json").read_text())["runs"]:
        runs[run["case"]].append(100 * run["accuracy"])
    return set().union(
        *map(written, runs.values()), *(written([a]) for seeds in runs.values() for a in seeds)
    )


def priors() -> set[str]:
    lines = (DATA / "priors" / "search.jsonl").read_text().splitlines()
    results = [json.loads(line)["result"] for line in lines]
    return {
        f"{result[m]:.1f}" for result in results for m in ("accuracy", "balanced_accuracy") if m in result
    }


def paper() -> set[str]:
    """The figures in the paper's main table."""
    rows = tomllib.loads((ROOT / "experiments" / "main.toml").read_text())["rows"]
    return {f"{value:.1f}" for row in rows for value, _ in row.get("paper", {}).values()}


def skin() -> set[str]:
    """The last round of each run for the paper's table of skin images."""
    found = set()
    for path in (DATA / "paper").glob("fitzpatrick17k-*.json"):
        series = json.loads(path.read_text())["series"]
        found |= {f"{100 * series[f'accuracy.{space}'][-1]:.1f}" for space in ("nine", "three")}
    return found


def tutorial() -> set[str]:
    """The tutorial's figures, which tests/commands/test_tutorial.py compares with the printed ones."""
    return {m[1] for m in re.finditer(r"(\d\d\.\d)%", page("tutorial").read_text())}


@cache
def source(name: str) -> frozenset[str]:
    own = {f.__name__: f for f in (cifar100, assumptions, priors, paper, skin, tutorial)}
    return frozenset(own[name]() if name in own else sweep(name))


# -- the pages that quote them -------------------------------------------------------------------------------

SOURCES = {
    "README": ("methods", "suite", "trec", "thyroid", "cifar100", "assumptions", "paper"),
    "index": ("methods", "suite", "trec", "thyroid", "cifar100", "assumptions", "paper"),
    "why": ("methods",),
    "choosing": ("methods", "assumptions", "fitzpatrick17k-subset", "cifar100", "skin"),
    "correspondence": ("methods", "assumptions", "tutorial"),
}
"""The sources of each page, by its name without the folder."""

ELSEWHERE = {
    "tutorial": "tests/commands/test_tutorial.py",
    "quickstart": "its table below; how its settings were found is a diary, and its runs were not kept",
    "priors": "a diary of a search, partly on runs that were not kept",
    "rare-classes": "the same page under its new name",
    "secure-aggregation": "rounding in one small run; the runs were not kept",
    "security": "costs, which the header of benchmarks/trust_costs.py records",
    "performance": "speeds, which the headers of the scripts in benchmarks/ record",
    "performance-diary": "speeds, likewise",
}
"""Pages with figures that are not compared here, and the reason."""


def page(name: str) -> Path:
    """A page by its name. Pages of results are excluded, because they have their own tests."""
    if name == "README":
        return ROOT / "README.md"
    found = [p for p in DOCS.rglob(f"{name}.md") if "results" not in p.parts]
    return found[0] if found else DOCS / f"{name}.md"


def figures(text: str) -> list[str]:
    """The figures of a page outside its code and links. Pairs are kept together."""
    text = re.sub(r"^ *```.*?^ *```$|`[^`\n]+`|\]\([^)]*\)|<!--.*?-->", " ", text, flags=re.M | re.S)
    return [f"{m[1]} ± {m[2]}" if m[2] else m[1] for m in FIGURE.finditer(text)]


def strangers(name: str, text: str) -> list[str]:
    """The figures that are in none of the page's sources."""
    known = frozenset().union(*map(source, SOURCES[name]))
    return [figure for figure in figures(text) if figure not in known]


@pytest.mark.parametrize("name", SOURCES)
def test_a_page_quotes_stored_figures(name):
    text = page(name).read_text()
    assert not strangers(name, text), f"{page(name)}: not in {', '.join(SOURCES[name])}"
    changed = text.replace(figures(text)[0], "98.7")  # no run reached this
    assert strangers(name, changed), "a figure that is out of date must be noticed"


@pytest.mark.parametrize(
    ("name", "sources", "rows"),
    [
        ("methods", ["methods"], r"\| .* ± "),
        ("assumptions", ["assumptions", "methods"], r"\| .* ± "),
        ("fitzpatrick17k-subset", ["fitzpatrick17k-subset"], r"\| (seven|three) classes"),
    ],
)
def test_a_page_of_results_quotes_stored_figures(name, sources, rows):
    """Tables that test_results.py does not compare."""
    known = frozenset().union(*map(source, sources))
    lines = [
        line for line in (DOCS / "results" / f"{name}.md").read_text().splitlines() if re.match(rows, line)
    ]
    for line in lines:
        assert figures(line) and set(figures(line)) <= known, line
    assert len(lines) > 1


def test_every_page_with_figures_is_known():
    for path in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        if "results" not in path.parts and figures(path.read_text()):
            assert path.stem in {*SOURCES, *ELSEWHERE}, (
                f"{path} has {figures(path.read_text())}: enter it in SOURCES or, with a reason, in ELSEWHERE"
            )


# -- tables, cell by cell ------------------------------------------------------------------------------------

BASELINES = ("FedTrans", "FedRep", "SemiFL")
RESULTS = {
    "Garments": ("methods", "3 images per class", "accuracy.garment"),
    "CIFAR-100": ("suite", "CIFAR-100, long-tailed", "balanced_accuracy"),
    "Skin": ("suite", "Skin (Fitzpatrick 17k, a subset)", "balanced_accuracy"),
    "Questions": ("trec", "10 %", "balanced_accuracy"),
    "Thyroid": ("thyroid", "10 patients of each diagnosis", "balanced_accuracy"),
}
"""Each line of the README's table: the sweep, its row and the metric."""


def test_the_table_of_results_in_the_readme():
    lines = [line for line in page("README").read_text().splitlines() if re.match(r"\| \[", line)]
    shown = {re.match(r"\| \[([^]]+)", line)[1]: line for line in lines}
    for label, (name, row, metric) in RESULTS.items():
        cells = json.loads((DATA / f"{name}.json").read_text())["cells"]
        found = {c["column"]: c["metrics"][metric]["mean"] for c in cells if c["row"] == row}
        best = max(BASELINES, key=found.__getitem__)
        bound = found.get("All fine labels", found.get("All diagnoses"))
        expected = [found["Single"], found[best], found["FedMT (T)"], found["FedMT (E)"], bound]
        texts = [f"{value:.1f}" for value in expected]
        texts[1] += f" ({best})"
        assert [t.strip(" *") for t in shown[label].split("|")[2:-1]] == texts, label
        assert f"](docs/results/{name}.md)" in shown[label], label


def test_the_table_of_the_quickstart():
    stored = json.loads((DATA / "methods.json").read_text())
    cells = {cell["column"]: cell["metrics"] for cell in stored["cells"]}
    lines = page("quickstart").read_text().splitlines()
    for method in ("Single", "FedMT (T)", "FedMT (E)"):
        runs = [run for run in stored["runs"] if run["label"].startswith(f"{method}, ")]
        seeds = [100 * run["last_round"]["accuracy"]["garment"] for run in runs]
        spaces = [cells[method][f"accuracy.{space}"] for space in ("garment", "department", "layer")]
        row = [t.strip(" *") for t in next(r for r in lines if r.startswith(f"| {method} |")).split("|")]
        gain = f"{spaces[0]['mean'] - cells['Single']['accuracy.garment']['mean']:+.1f}"
        assert row[2:-1] == [
            *(f"{accuracy:.1f}" for accuracy in seeds),
            f"{spaces[0]['mean']:.1f} ± {spaces[0]['sd']:.1f}",
            "" if method == "Single" else gain,
            *(f"{space['mean']:.1f}" for space in spaces[1:]),
        ]
