"""Attacks: simulations of bad centers, for benchmarks of guards (`fedmt reproduce attacks`)."""

from __future__ import annotations

from fedmt.attacks.base import Attack
from fedmt.attacks.samples import Backdoor, LabelFlip
from fedmt.attacks.updates import ALittleIsEnough, InnerProduct, Scale, SignFlip
from fedmt.core.registry import Registry, subclass_of

ATTACKS: Registry[type[Attack]] = Registry(
    "attack",
    {a.name: a for a in (LabelFlip, SignFlip, Scale, ALittleIsEnough, InnerProduct, Backdoor)},
    subclass_of(Attack, "fedmt.attacks.Attack"),
)

__all__ = [
    "ATTACKS",
    "ALittleIsEnough",
    "Attack",
    "Backdoor",
    "InnerProduct",
    "LabelFlip",
    "Scale",
    "SignFlip",
]
