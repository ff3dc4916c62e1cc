"""Accuracy in every label space that has a test set."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fedmt.data.center import Federation


def accuracies(
    federation: Federation,
    projections: Mapping[str, Mapping[str, Tensor]],
    predict: Callable[[Tensor], Tensor],
) -> dict[str, float]:
    """By label space, the wanted one by `predict` (uint8 images to probabilities [N, K]) itself.

    projections: for another space, each center's matrix [J, K] into it. There, the mean over the centers,
    each through its own matrix; and, under '<space> (mean M)', through the mean of their matrices.
    """
    predictions: dict[int, Tensor] = {}  # tests in several spaces share their images
    counted: dict[str, tuple[float, int]] = {}

    def count(space: str, accuracy: float, samples: int) -> None:
        """Several test sets in one space count as one."""
        right, total = counted.get(space, (0.0, 0))
        counted[space] = (right + accuracy * samples, total + samples)

    for test in federation.tests:
        if test.space is None or test.labels is None:
            continue
        scores = predictions.get(id(test.images))
        if scores is None:
            scores = predictions[id(test.images)] = predict(test.images)
        if test.space == federation.wanted:
            count(test.space.name, _accuracy(scores, test.labels), len(test))
            continue
        matrices = [m.to(scores) for m in projections.get(test.space.name, {}).values()]
        if matrices:
            each = [_accuracy(scores @ m.T, test.labels) for m in matrices]
            count(test.space.name, sum(each) / len(each), len(test))
            mean = torch.stack(matrices).mean(0)
            count(f"{test.space.name} (mean M)", _accuracy(scores @ mean.T, test.labels), len(test))
    return {space: right / total for space, (right, total) in counted.items()}


def _accuracy(scores: Tensor, labels: Tensor) -> float:
    return (scores.argmax(1) == labels).float().mean().item()
