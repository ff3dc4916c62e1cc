"""The means over the classes of precision, sensitivity and specificity, with their 95% intervals.

Single classes have Wilson's intervals. A mean of such shares has none, so its interval is a bootstrap: in
every resample of the test samples, the shares of all classes are computed and averaged.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedmt.metrics.counts import PRECISION, SENSITIVITY, SPECIFICITY, weighted_counts
from fedmt.metrics.intervals import by_weights

MEANS = (PRECISION.name, SENSITIVITY.name, SPECIFICITY.name)


def macro(probabilities: Tensor, labels: Tensor, groups: Tensor | None = None) -> dict[str, dict[str, float]]:
    """By metric, `value`, `low` and `high`. A class without a value, as one that is never predicted, is left
    out of the mean. groups: which samples belong together (`fedmt.metrics.intervals`).

    >>> macro(torch.eye(2)[[0, 0, 1]], torch.tensor([0, 1, 1]))["precision"]["value"]
    0.75
    """

    def means(weights: Tensor) -> Tensor:
        """[B, 3]: of each resample."""
        of = weighted_counts(probabilities, labels, weights)
        shares = (of.tp / (of.tp + of.fp), of.tp / (of.tp + of.fn), of.tn / (of.tn + of.fp))
        return torch.stack([share.nanmean(1) for share in shares], 1)

    values = means(torch.ones(1, len(labels)))[0].tolist()
    ends = by_weights(means, probabilities, groups).tolist()
    return {
        name: {"value": value, "low": low, "high": high}
        for name, value, (low, high) in zip(MEANS, values, ends, strict=True)
    }
