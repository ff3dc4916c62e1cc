"""fedmt: federated learning between centers that label differently."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmt.api.result import Result
    from fedmt.api.training import train
    from fedmt.core.errors import FedmtError
    from fedmt.core.labels import Correspondence, LabelSpace
    from fedmt.data.arrays import CenterData
    from fedmt.data.center import Center, Federation
    from fedmt.models import Model, load

# Before torch is loaded: idle OpenMP threads shall soon sleep. By default they spin for milliseconds, and
# beside any other busy process that was measured to make a loop of small operations a hundred times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
# Before CUDA starts: a hardware queue for every stream. With the usual 8, plans wait behind training in the
# queue they share, and small batches are 5% slower (docs/development/performance-diary.md).
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

__version__ = "0.1.0"
__all__ = [
    "Center",
    "CenterData",
    "Correspondence",
    "Federation",
    "FedmtError",
    "LabelSpace",
    "Model",
    "Result",
    "__version__",
    "load",
    "train",
]

# Most of these modules import torch, which takes seconds. `fedmt --help` does not need it.
_HOMES = {
    "Center": "fedmt.data.center",
    "CenterData": "fedmt.data.arrays",
    "Correspondence": "fedmt.core.labels",
    "Federation": "fedmt.data.center",
    "FedmtError": "fedmt.core.errors",
    "LabelSpace": "fedmt.core.labels",
    "Model": "fedmt.models",
    "Result": "fedmt.api.result",
    "load": "fedmt.models",
    "train": "fedmt.api.training",
}


def __getattr__(name: str) -> Any:
    """The public names, each imported from its module when it is first used."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fedmt' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
