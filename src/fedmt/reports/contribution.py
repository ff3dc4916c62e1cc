"""What each center contributed: its part of the distance that the centers moved the model.

In a round, the mean update of C centers is u = (1/C) sum_c u_c. Its length is the sum of the centers' parts:

    |u| = sum_c |u_c| cos(u_c, u) / C

A center's contribution is the sum of its parts over all rounds, as a share of the sum of all. A center that
is absent has no part in that round. A center that moves against the others has a negative part. Every center
counts once, as in the cosines that a run records. The contribution shows who moved the model, not who made it
better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def contributions(metrics: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The contribution of each center, from the norms and cosines in the records of the rounds. They sum to
    1.

    Empty if no round has them, as with secure aggregation, or if the model did not move.
    """
    parts: dict[str, float] = {}
    for record in metrics:
        used = {
            name: one["update_norm"] * one["update_cosine"]
            for name, one in record["centers"].items()
            if "update_norm" in one and "update_cosine" in one and "left_out" not in one
        }
        for name, part in used.items():
            parts[name] = parts.get(name, 0.0) + part / len(used)
    total = sum(parts.values())
    return {name: part / total for name, part in parts.items()} if total > 0 else {}
