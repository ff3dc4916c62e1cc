"""The methods, one a file. They say what is computed; engines say how."""

from __future__ import annotations

from typing import Any

from fedmt.methods import fedmt, fedrep, fedtrans, semifl, single
from fedmt.methods.base import Answer, CenterRound, LocalWork, Method, Training
from fedmt.methods.fedmt import FedMT
from fedmt.methods.fedrep import FedRep
from fedmt.methods.fedtrans import FedTrans
from fedmt.methods.semifl import SemiFL
from fedmt.methods.single import Single
from fedmt.registry import Registry, subclass_of

METHODS: Registry[type[Method]] = Registry(
    "method",
    {m.name: m for m in (FedMT, Single, FedTrans, FedRep, SemiFL)},
    subclass_of(Method, "fedmt.methods.Method"),
)

PRESETS: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "paper": {m.__name__.rpartition(".")[2]: m.PAPER for m in (fedmt, single, fedtrans, fedrep, semifl)}
}
"""Named settings of whole config tables, by method; what a config says itself goes before them."""

__all__ = [
    "METHODS",
    "PRESETS",
    "Answer",
    "CenterRound",
    "FedMT",
    "FedRep",
    "FedTrans",
    "LocalWork",
    "Method",
    "SemiFL",
    "Single",
    "Training",
]
