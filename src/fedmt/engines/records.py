"""What a round's record says of all centers together."""

from __future__ import annotations

from collections.abc import Mapping

from fedmt.engines.site import Record

MEANS = ("confident_share", "pseudo_label_accuracy", "correspondence_error", "prior_error")


def averaged(centers: Mapping[str, Record]) -> Record:
    """The means of the centers' own measures and losses, over those that have them."""
    found: Record = {}
    for key in MEANS:
        values = [c[key] for c in centers.values() if key in c]
        if values:
            found[key] = sum(values) / len(values)
    trained = [c["losses"] for c in centers.values() if "losses" in c]
    if trained:
        found["losses"] = {k: sum(c[k] for c in trained) / len(trained) for k in trained[0]}
    return found
