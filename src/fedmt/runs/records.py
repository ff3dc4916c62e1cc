"""Records of rounds, and summaries, as earlier versions wrote them: the one place that knows the old form."""

from __future__ import annotations

import json
from typing import Any

OLD_MARK = " (mean M)"


class NotARecord(ValueError):
    """JSON of something else."""


def read_record(line: str) -> dict[str, Any]:
    """One line of metrics.jsonl, whichever version wrote it."""
    record = json.loads(line)
    if not isinstance(record, dict) or not isinstance(record.get("round"), int):
        raise NotARecord("no record of a round")
    return modern(record)


def modern(written: dict[str, Any]) -> dict[str, Any]:
    """A round's record or a summary in today's form.

    Earlier versions had no metric but the accuracy, and kept the one through the mean matrix next to the
    others, as if it were that of a label space called `coarse (mean M)`.

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
