"""Reads records of rounds and summaries from earlier versions. This is the only place that knows the old
format."""

from __future__ import annotations

import json
from typing import Any

OLD_MARK = " (mean M)"


class NotARecord(ValueError):
    """This JSON is something else."""


def read_record(line: str) -> dict[str, Any]:
    """One line of metrics.jsonl, whichever version wrote it."""
    record = json.loads(line)
    if not isinstance(record, dict) or not isinstance(record.get("round"), int):
        raise NotARecord("no record of a round")
    return modern(record)


def modern(written: dict[str, Any]) -> dict[str, Any]:
    """A round's record or a summary in today's form.

    Earlier versions had no metric except the accuracy, and stored the accuracy through the mean matrix as if
    it belonged to a label space called `coarse (mean M)`.

    >>> modern({"round": 3, "accuracy": {"coarse": 0.5, "coarse (mean M)": 0.6}})
    {'round': 3, 'accuracy': {'coarse': 0.5}, 'mean_matrix': {'accuracy': {'coarse': 0.6}}}
    """
    found = dict(written)
    for key in ("accuracy", "best_accuracy_of_any_round"):
        both = found.get(key)
        if isinstance(both, dict) and any(space.endswith(OLD_MARK) for space in both):
            found[key] = {space: v for space, v in both.items() if not space.endswith(OLD_MARK)}
            if key == "accuracy":
                marked = {s.removesuffix(OLD_MARK): v for s, v in both.items() if s.endswith(OLD_MARK)}
                found["mean_matrix"] = {key: marked}
    return found
