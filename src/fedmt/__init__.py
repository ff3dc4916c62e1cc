"""fedmt: federated learning between centers that label differently."""

from __future__ import annotations

import os

# Before torch is loaded: let idle OpenMP threads sleep. By default they spin, and beside any other busy
# process that spinning was measured to make a loop of small operations over a hundred times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from fedmt.data.center import Center, Federation
from fedmt.errors import FedmtError
from fedmt.labels import Correspondence, LabelSpace

__version__ = "0.1.0"
__all__ = ["Center", "Correspondence", "Federation", "FedmtError", "LabelSpace", "__version__"]
