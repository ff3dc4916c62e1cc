"""What a center of FedMT knows in a round, given or estimated, before it trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Known:
    """What a center trains with, and what it keeps.

    labels: [N]. matrix: [J, K], smoothed if it is estimated. prior: [K]; None if it is uniform or not used.
    learned: the matrix before smoothing, if it is trained with the model.
    """

    labels: Tensor
    matrix: Tensor
    prior: Tensor | None = None
    learned: Tensor | None = None
    keep: Tensors = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
