"""The methods, one per file. They say what is computed; engines say how."""

from __future__ import annotations

from fedmt.core.registry import Registry, subclass_of
from fedmt.methods.base import Method
from fedmt.methods.fedmt import FedMT
from fedmt.methods.fedrep import FedRep
from fedmt.methods.fedtrans import FedTrans
from fedmt.methods.semifl import SemiFL
from fedmt.methods.single import Single
from fedmt.methods.training import Training
from fedmt.methods.work import Answer, CenterRound, LocalWork

METHODS: Registry[type[Method]] = Registry(
    "method",
    {m.name: m for m in (FedMT, Single, FedTrans, FedRep, SemiFL)},
    subclass_of(Method, "fedmt.methods.Method"),
)


def called(name: str) -> str:
    """What people call the method that a config names, which is what its class is called.

    Nothing is imported, because the name may be that of code that is not allowed here.

    >>> called("fedmt"), called("my.methods:Own")
    ('FedMT', 'Own')
    """
    return METHODS[name].__name__ if name in METHODS else name.rpartition(":")[2]


__all__ = [
    "METHODS",
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
    "called",
]
