"""fedmt: federated learning between centers that label differently."""

from __future__ import annotations

import os

# Before torch is loaded: idle OpenMP threads shall soon sleep. By default they spin for milliseconds, and
# beside any other busy process that was measured to make a loop of small operations a hundred times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

from fedmt.data.center import Center, Federation
from fedmt.errors import FedmtError
from fedmt.labels import Correspondence, LabelSpace

__version__ = "0.1.0"
__all__ = ["Center", "Correspondence", "Federation", "FedmtError", "LabelSpace", "__version__"]
