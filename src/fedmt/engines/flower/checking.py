"""The check before round 1: whether a center is what the federation's config says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedmt.core.errors import listed
from fedmt.core.labels import LabelSpace
from fedmt.engines.flower.answers import not_promised
from fedmt.engines.flower.plan import Plan


def misfit(facts: Mapping[str, Any], plan: Plan, expected: LabelSpace | None, shape: str) -> str:
    """What does not fit in a center's answer to the check. Empty if everything fits. Raises TypeError if it
    is malformed.

    expected: the label space that the config gives it. shape: the digest of the model's shape here.
    """
    if not well_formed(facts):
        raise TypeError
    if facts.get("version") != plan.version:
        return f"it runs fedmt {facts.get('version')}, but the coordinator runs {plan.version}"
    if said := other_labels(facts.get("space"), expected):
        return said
    if facts.get("model") != shape:
        return (
            f"model '{plan.config.model.backbone}' has different weights there (names, shapes or types); "
            "install the same code on both sides"
        )
    if facts.get("shape") != list(plan.read.shape):
        return f"its {plan.read.word}s have shape {facts.get('shape')}, expected {list(plan.read.shape)}"
    return not_promised(facts.get("privacy"), plan.config.privacy)


def other_labels(own: Sequence[Any] | None, expected: LabelSpace | None) -> str:
    """How a center's label space, [name, classes], differs from what the config gives it. Empty if it does
    not."""
    if own is None or expected is None:
        has, wants = ("no labels" if s is None else "labels" for s in (own, expected))
        return "" if has == wants else f"it has {has}, but the federation's config gives it {wants}"
    if own[0] != expected.name:
        return f"it labels in '{own[0]}', but the federation's config says '{expected.name}'"
    if list(own[1]) != list(expected):
        return (
            f"its classes of '{expected.name}' are {listed(own[1], 20)}, but the federation's config has "
            f"{listed(expected, 20)} (the order matters)"
        )
    return ""


def well_formed(facts: Mapping[str, Any]) -> bool:
    """Whether the compared parts have the types that fedmt writes.

    A center does not continue to its data if its space differs.
    """
    version, model, shape, space = (facts.get(key) for key in ("version", "model", "shape", "space"))
    sized = isinstance(shape, list) and all(isinstance(size, int) for size in shape)
    named = isinstance(space, list) and len(space) == 2 and isinstance(space[1], list)
    return (
        isinstance(version, str)
        and isinstance(model, str | None)
        and (shape is None or sized)
        and (space is None or (named and all(isinstance(name, str) for name in [space[0], *space[1]])))
    )
