"""Single: the reference center's data alone. What every federated method must beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from fedmt.data.center import Center, Federation
from fedmt.methods.base import CenterRound, Method, Tensors


@dataclass(frozen=True)
class Single(Method):
    """The reference center's training of the base class, round after round; the centers stay out."""

    name: ClassVar[str] = "single"
    federated: ClassVar[bool] = False

    def center_round(
        self, center: Center, predictions: Tensor, kept: Tensors, round: int, rng: np.random.Generator
    ) -> CenterRound:
        return CenterRound(None, reason="Single trains at the reference center alone")

    def projections(
        self, federation: Federation, kept: Mapping[str, Tensors]
    ) -> dict[str, dict[str, Tensor]]:
        """The known correspondences: they cost no training, so Single may predict through them too."""
        found: dict[str, dict[str, Tensor]] = {}
        for center in federation.centers:
            known = center.correspondence
            if known is not None and known.coarse != federation.wanted:
                found.setdefault(known.coarse.name, {})[center.name] = known.matrix
        return found
