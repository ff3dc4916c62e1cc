"""What a coordinator's plan may name: a center runs only code that it allows.

A plan names a method, a strategy, an estimator, an input and a network. Each may be 'package.module:Name',
which would be imported and called. A center's file lists the names that it allows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from fedmt.aggregation import STRATEGIES
from fedmt.backbones import BACKBONES
from fedmt.backbones.timm import PREFIX as TIMM
from fedmt.core.errors import cut
from fedmt.core.escaping import escaped
from fedmt.core.registry import NotAllowed, value_at
from fedmt.estimators import ESTIMATORS
from fedmt.inputs import INPUTS
from fedmt.methods import METHODS

BUILT_IN = "built-in"
NAMING = (
    ("config", "input"),
    ("config", "method", "name"),
    ("config", "method", "estimator"),
    ("config", "aggregation", "name"),
    ("config", "model", "backbone"),
    ("config", "model", "head"),
    ("input", "name"),
    ("frozen", "backbone"),
    ("frozen", "input", "name"),
)
"""The places in a plan that name code to be looked up."""
REGISTRIES = (METHODS, STRATEGIES, ESTIMATORS, INPUTS, BACKBONES)


def built_in_names() -> list[str]:
    return [name for registry in REGISTRIES for name in registry]


def named(plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every (place, name) of a received plan that would be looked up."""
    for place in NAMING:
        value = value_at(plan, *place)
        if isinstance(value, str):
            yield ".".join(place).removeprefix("config."), value


def check_names(plan: Mapping[str, Any], allow: Collection[str]) -> None:
    """Rejects a plan that names code that the center does not allow. The error lists all of it."""
    known = frozenset(built_in_names()) if BUILT_IN in allow else frozenset()
    refused = [
        f"{place} = '{escaped(name, 80)}'"
        for place, name in named(plan)
        if name not in allow and name not in known and not (known and name.startswith(TIMM))
    ]
    if refused:
        raise NotAllowed(
            f"its center.toml does not allow {cut(refused, 5)}; whoever runs the center may add "
            f"{'it' if len(refused) == 1 else 'them'} to `allow` there"
        )
