"""Bad centers that train honestly on data that they have corrupted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedmt.aggregation.guards import Update
from fedmt.attacks.base import Attack, Predict
from fedmt.core.errors import FedmtError, listed, nearest, positive
from fedmt.data.center import Center, Federation


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Class j of J becomes class J - 1 - j."""

    name: ClassVar[str] = "label_flip"

    def spoil(self, center: Center, federation: Federation) -> Center:
        if center.space is None or center.labels is None:
            raise FedmtError(f"attack.centers: '{center.name}' has no labels to flip; choose another center.")
        return replaced(center, center.values, len(center.space) - 1 - center.labels)


@dataclass(frozen=True)
class Backdoor(Attack):
    """A mark in the corner of a sample stands for a class (Bagdasaryan et al. 2020). The bad center labels
    marked samples as it labels the target."""

    name: ClassVar[str] = "backdoor"

    target: str = ""
    """Wanted class that the attacker wants the model to predict for every marked sample."""
    share: float = 0.5
    """Share of a bad center's samples that is marked."""
    boost: float = 2.0
    """Factor by which a bad center scales its update."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("attack.boost", self.boost)
        if not 0 < self.share <= 1:
            raise FedmtError(f"attack.share: {self.share} given, expected 0 < share <= 1.")

    def spoil(self, center: Center, federation: Federation) -> Center:
        target = self._target(federation)
        known = center.correspondence
        if center.labels is None or (known is None and center.space != federation.wanted):
            raise FedmtError(
                f"attack.centers: it is unknown how '{center.name}' labels '{self.target}'. Choose another "
                "center."
            )
        label = target if known is None else int(known.matrix[:, target].argmax())
        count = round(self.share * len(center))
        values, labels = center.values.clone(), center.labels.clone()
        values[:count] = marked(values[:count])
        labels[:count] = label
        return replaced(center, values, labels)

    def send(self, update: Update, honest: Sequence[Update]) -> Update:
        return Update(update.center, {k: self.boost * v for k, v in update.tensors.items()}, update.weight)

    def success(self, federation: Federation, predict: Predict) -> float | None:
        """The share of the marked test samples of other classes that is classified as the target."""
        target = self._target(federation)
        tests = [t for t in federation.tests if t.space == federation.wanted and t.labels is not None]
        found = []
        for test in tests:
            assert test.labels is not None
            others = test.values[(test.labels != target).to(test.values.device)]
            if len(others) and federation.encoded is None:
                found.append(predict(marked(others)).argmax(1) == target)
        return float(torch.cat(found).float().mean()) if found else None

    def _target(self, federation: Federation) -> int:
        classes = federation.wanted.classes
        if self.target not in classes:
            raise FedmtError(
                f"attack.target: '{self.target}' is not a class of "
                f"'{federation.wanted.name}'.{nearest(self.target, classes)} Known: {listed(classes, 20)}."
            )
        return classes.index(self.target)


EDGE = 4
"""Length of the mark's sides."""


def marked(values: Tensor) -> Tensor:
    """Samples [N, ...] with a corner, or the last features, set to the largest value."""
    values = values.clone()
    largest = values.max()
    if values.dim() > 2:
        values[..., -EDGE:, -EDGE:] = largest
    else:
        values[:, -EDGE:] = largest
    return values


def replaced(center: Center, values: Tensor, labels: Tensor) -> Center:
    """The center with other samples. Its true labels stay known, to measure pseudo-labels."""
    return replace(center, values=values, labels=labels)
