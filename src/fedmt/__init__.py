"""fedmt: federated learning between centers that label differently."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# Before torch is loaded: idle OpenMP threads shall soon sleep. By default they spin for milliseconds, and
# beside any other busy process that was measured to make a loop of small operations a hundred times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
# Before CUDA starts: a hardware queue for every stream. With the usual 8, plans wait behind training in the
# queue they share, and small batches are 5% slower (docs/performance.md).
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

from fedmt.data.center import Center, Federation
from fedmt.errors import FedmtError
from fedmt.labels import Correspondence, LabelSpace

if TYPE_CHECKING:
    from fedmt.model import Model, load

__version__ = "0.1.0"
__all__ = [
    "Center",
    "Correspondence",
    "Federation",
    "FedmtError",
    "LabelSpace",
    "Model",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    """`fedmt.load` and `fedmt.Model`, when they are first asked for: they bring Pillow and pydantic."""
    if name in ("Model", "load"):
        from fedmt import model

        return getattr(model, name)
    raise AttributeError(f"module 'fedmt' has no attribute '{name}'")
