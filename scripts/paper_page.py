"""Writes the generated parts of docs/results/paper.md from the raw files in docs/results/data.

    python scripts/paper_page.py            # with --check, only says whether the page is up to date

A generated part is between `<!-- generated: NAME -->` and `<!-- end -->`. The rest is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import mean

from paper_claims import CLAIMS
from paper_runs import Runs
from paper_tables import TITLES, Tables, plain_table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "results" / "paper.md"
FIGURES = PAGE.parent.parent / "figures"
PART = re.compile(r"(<!-- generated: (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

SEEDS = {"main": {"n = 5": 3, "n = 25": 3}, "fitzpatrick": {"5 %": 3, "10 %": 3, "20 %": 3}}
"""The number of seeds, for tables that ask for more than one."""

EXPERIMENTS = (
    "main", "paper_network", "estimators", "mhat", "noniid", "cifar100_ablation", "backbones", "scalability",
    "initialization", "cifar100_strategies", "cifar100_participation", "thresholds", "lambda2", "readings",
    "fitzpatrick", "baselines_search", "cifar100",
)  # fmt: skip


def part(name: str, tables: Tables) -> str:
    """One generated part: `table main accuracy.fine`, `figure coarse`, or one of the parts below."""
    kind, _, rest = name.partition(" ")
    if kind == "table":
        experiment, *metrics = rest.split()
        shown = []
        for metric in metrics:
            table = tables.table(experiment, metric)
            shown.append(table if len(metrics) == 1 else f"{TITLES[metric]}:\n\n{table}")
            if "Nothing" in table:
                return table
        return "\n\n".join(shown)
    if kind == "figure":
        file = FIGURES / f"paper-{rest}.png"
        return (
            f"![{rest}](../figures/{file.name})"
            if file.exists()
            else "(The figure appears when there are runs to draw.)"
        )
    return PARTS[name](tables)


def claims(tables: Tables) -> str:
    lines = [(claim.text, *claim.judged(tables)) for claim in CLAIMS]
    return plain_table(
        ("claim", "verdict", "what it rests on"),
        [(text, f"**{verdict}**", why) for text, verdict, why in lines],
    )


def seeds(tables: Tables) -> str:
    """How much the results of a cell differ between seeds."""
    lines = []
    for experiment, network in (("main", ""), ("paper_network", ", the paper's network")):
        for row, column in tables.cells(experiment):
            runs = tables.finished(experiment, row, column)
            values = [value for run in runs if (value := run.last("accuracy.fine")) is not None]
            if len(values) > 1:
                each = ", ".join(f"{value:.2f}" for value in values)
                figure = tables.figure(experiment, row, column, "accuracy.fine")
                assert figure is not None and figure.deviation is not None
                cell, spread = f"{column}, {row}{network}", max(values) - min(values)
                lines.append((cell, each, f"{figure.deviation:.2f}", f"{spread:.2f}"))
    return plain_table(("cell", "accuracy of each seed", "standard deviation", "range"), lines)


def repeats(tables: Tables) -> str:
    lines = []
    for runs in tables.runs.repeated():
        values = [f"{run.last('accuracy.fine'):.2f} ({run.about.get('date', 'earlier')})" for run in runs]
        lines.append((runs[0].file, ", ".join(values)))
    return plain_table(("run", "accuracy, and when"), lines) if lines else "No run was made twice."


def missing(tables: Tables) -> str:
    lines = []
    for name in EXPERIMENTS:
        wanted = SEEDS.get(name, {})
        ran, every, words = tables.missing(name, wanted)
        lines.append((f"`{name}`", f"{ran} of {every}", words or "nothing"))
    return plain_table(("experiment", "cells run", "what is missing"), lines)


def seconds(tables: Tables) -> str:
    """The cost of a run by method, and the machine and versions it was made with."""
    found: dict[tuple[str, int, str], list[float]] = {}
    versions: Counter[str] = Counter()
    for run in tables.runs.all:
        if run.finished and run.about.get("seconds") and run.about.get("device"):
            key = (str(run.config.method["name"]), run.config.training.rounds, str(run.about["device"]))
            found.setdefault(key, []).append(run.about["seconds"])
            versions[", ".join(f"{k} {v}" for k, v in (run.about.get("versions") or {}).items())] += 1
    if not found:
        return "All runs were made earlier; [their page](cifar100.md) has their cost."
    lines = [(m, str(r), d, str(len(s)), f"{mean(s):.0f}") for (m, r, d), s in sorted(found.items())]
    made = "; ".join(f"{text} ({count} runs)" for text, count in versions.items())
    return (
        plain_table(("method", "rounds", "device", "runs", "seconds per run"), lines)
        + f"\n\nMade with {made}."
    )


PARTS: dict[str, Callable[[Tables], str]] = {
    "claims": claims,
    "seeds": seeds,
    "repeats": repeats,
    "missing": missing,
    "seconds": seconds,
}


def written(text: str, tables: Tables) -> str:
    """The page with its generated parts written again."""
    return PART.sub(lambda found: f"{found[1]}\n{part(found[2], tables)}\n\n{found[4]}", text)


def main(arguments: list[str]) -> int:
    known = PAGE.read_text(encoding="utf-8")
    text = written(known, Tables(Runs()))
    if "--check" in arguments:
        return int(text != known)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
