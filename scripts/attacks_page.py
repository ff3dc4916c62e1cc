"""Copies the results of `fedmt reproduce attacks` into docs/results, as stored figures and as tables.

    python scripts/attacks_page.py [reproduced/attacks.json]

If a file is given, the figures that the page needs are copied from it to docs/results/data/attacks.json. The
tables of docs/results/attacks.md are written from the stored figures. Their text is written by hand.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
STORED, PAGE = RESULTS / "data" / "attacks.json", RESULTS / "attacks.md"
METRICS = ("accuracy.garment", "attack_success")
MIXED = "NNM"
"""Marks the label of a column whose updates are mixed first. These columns have a separate table."""


def kept(made: Mapping[str, Any]) -> dict[str, Any]:
    """The stored part of a sweep: the figures of its cells, and how many of their runs diverged."""
    failed = [run["label"].rpartition(", seed ")[0] for run in made["runs"] if run["status"] == "failed"]
    cells = []
    for cell in made["cells"]:
        metrics = {name: {k: cell["metrics"][name][k] for k in ("mean", "sd", "n")} for name in METRICS}
        diverged = failed.count(f"{cell['column']}, {cell['row']}")
        if diverged or any(found["n"] for found in metrics.values()):
            place = {"row": cell["row"], "column": cell["column"]}
            cells.append({**place, "metrics": metrics, "diverged": diverged})
    about = ("experiment", "title", "command", "date", "versions")
    return {**{key: made[key] for key in about}, "cells": cells}


def cell_text(cell: Mapping[str, Any] | None, metric: str) -> str:
    """`74.0 ± 0.3`, `diverged`, or nothing."""
    if cell is None:
        return ""
    found, diverged = cell["metrics"][metric], cell.get("diverged", 0)
    if found["mean"] is None:
        return "diverged" if diverged and metric == METRICS[0] else ""
    text = f"{found['mean']:.1f}" + ("" if found["sd"] is None else f" ± {found['sd']:.1f}")
    return text + (f" ({diverged} of {found['n'] + diverged} diverged)" if diverged else "")


def table(stored: Mapping[str, Any], metric: str, mixed: bool) -> str:
    """A Markdown table of the columns with or without mixing; empty if nothing was run."""
    cells = {(c["row"], c["column"]): c for c in stored["cells"]}
    columns = [c for c in _labels(stored, "column") if (MIXED in c) == mixed]
    lines = []
    for row in _labels(stored, "row"):
        texts = [cell_text(cells.get((row, column)), metric) for column in columns]
        if any(texts):
            lines.append(f"| {row} | {' | '.join(texts)} |")
    if not lines:
        return ""
    return "\n".join([f"| | {' | '.join(columns)} |", "| --- |" + " ---: |" * len(columns), *lines])


def tables(stored: Mapping[str, Any], metric: str) -> str:
    """Both tables, one below the other."""
    both: Sequence[str] = [table(stored, metric, mixed) for mixed in (False, True)]
    return "\n\n".join(filter(None, both))


def _labels(stored: Mapping[str, Any], kind: str) -> list[str]:
    return list(dict.fromkeys(cell[kind] for cell in stored["cells"]))


def main() -> None:
    if len(sys.argv) > 1:
        made = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        STORED.write_text(json.dumps(kept(made), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    page = PAGE.read_text(encoding="utf-8")
    for metric in METRICS:
        marks = rf"(<!-- table: {re.escape(metric)} -->\n).*?(<!-- end of table -->)"
        text = tables(stored, metric)
        page, count = re.subn(marks, lambda m, text=text: f"{m[1]}\n{text}\n\n{m[2]}", page, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"{PAGE}: the marks of the table of {metric} are missing.")
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
