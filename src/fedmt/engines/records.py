"""What a round's record says about its centers."""

from __future__ import annotations

from collections.abc import Mapping

from fedmt.aggregation import Combined
from fedmt.engines.site import Record
from fedmt.engines.state import State
from fedmt.methods.work import Tensors

MEANS = ("confident_share", "pseudo_label_accuracy", "correspondence_error", "prior_error")


def averaged(centers: Mapping[str, Record]) -> Record:
    """The means of the centers' own measures and losses, over the centers that have them."""
    found: Record = {}
    for key in MEANS:
        values = [c[key] for c in centers.values() if key in c]
        if values:
            found[key] = sum(values) / len(values)
    trained = [c["losses"] for c in centers.values() if "losses" in c]
    if trained:
        found["losses"] = {k: sum(c[k] for c in trained) / len(trained) for k in trained[0]}
    return found


def judge(combined: Combined, before: State, kept: dict[str, Tensors], records: dict[str, Record]) -> None:
    """Records what was measured on each update. The round does not count for a center that was left out, so
    it continues from what it kept before."""
    for name, facts in combined.facts.items():
        if name in records:  # the reference center is not one of them
            records[name] |= facts
    for name, why in combined.left_out.items():
        records[name] = {**combined.facts[name], "left_out": why}
        kept.pop(name, None)
        if name in before.kept:
            kept[name] = dict(before.kept[name])
