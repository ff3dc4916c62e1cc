"""What a metric is: a pure function of predicted probabilities and true labels, and how it is read.

Throughout this room, probabilities are [N, J] (one row per test sample, one column per class) and labels are
[N]. Functions compute on the tensors' own device and return tensors, so that the results of several metrics
can be moved to the CPU at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedmt.core.errors import FedmtError, listed
from fedmt.core.rounding import percent
from fedmt.metrics.intervals import Statistic, bootstrap, by_weights, one_by_one, resampled

Function = Callable[[Tensor, Tensor], Tensor]
"""Takes (probabilities [N, J], labels [N]) and returns a result whose shape `Metric` states."""

Resampled = Callable[[Tensor, Tensor], Statistic]
"""Takes (probabilities [N, J], labels [N]) and returns a function from the weights [B, N] of resamples to
their values [B]. A row of weights need not sum to N (`intervals`)."""

TAKEN = frozenset(
    ("round", "learning_rate", "reference_loss", "losses", "centers", "seconds", "tests", "mean_matrix")
)
"""Keys of a round's record that are not metrics."""

Unit = Literal["share", "nats", "none"]


@dataclass(frozen=True)
class Metric:
    """One metric. It has a value for the whole test set (`function`), for each class (`by_class`), or both.

    name: its key in metrics.jsonl and summary.json, and in the names of trackers and experiment files.
    function: the value, a tensor without dimensions; NaN if the metric is not defined, like the AUROC on a
        test set of one class.
    interval: the ends [2] of the 95% confidence interval; by default a bootstrap of `function`.
    resampled: the values of many resamples at once, if that is faster than one after the other.
    by_class: the values [J], with NaN for a class where it is not defined.
    interval_by_class: their ends [J, 2]; by default a bootstrap of `by_class`.
    resampled_by_class: like `resampled`, with values [B, J].
    every_round: False for a metric that is too slow for that. It is computed only after the last round.
    by_sample: what each sample adds to the value [N], for a metric that is a sum over the samples. A
        difference between two models in such a metric is also tested exactly.
    inflated: True for a metric that noise of either sign makes larger, like a sum of absolute values.
        Resampling then makes it larger too, and the interval of a difference is corrected for this.
    """

    name: str
    title: str
    function: Function | None = None
    interval: Function | None = None
    by_class: Function | None = None
    interval_by_class: Function | None = None
    unit: Unit = "none"
    better: Literal["higher", "lower"] = "higher"
    every_round: bool = True
    resampled: Resampled | None = None
    resampled_by_class: Resampled | None = None
    by_sample: Function | None = None
    inflated: bool = False

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name in TAKEN:
            raise FedmtError(
                f"Metric '{self.name}': its name must be an identifier other than "
                f"{listed(sorted(TAKEN), 20)}, which a round's record uses."
            )

    def ends(self, probabilities: Tensor, labels: Tensor, groups: Tensor | None = None) -> Tensor:
        """The 95% confidence interval [2] of the value. groups: which samples belong together (`intervals`);
        a bootstrap of whole groups then replaces every other interval."""
        if groups is not None:
            statistic = self.statistic(probabilities, labels)
            ends = by_weights(statistic, probabilities, groups)
            if not self.inflated:
                return ends
            assert self.function is not None
            bias = resampled(statistic, probabilities, groups).nanmean()
            return (ends - (bias - self.function(probabilities, labels).cpu())).clamp_min(0)
        if self.interval is not None:
            return self.interval(probabilities, labels)
        if self.resampled is not None:
            return by_weights(self.resampled(probabilities, labels), probabilities)
        assert self.function is not None, f"{self.name} has no value for a whole test set"
        return bootstrap(self.function, probabilities, labels)

    def statistic(self, probabilities: Tensor, labels: Tensor) -> Statistic:
        """The values [B] of resamples, as a function of their weights [B, N]."""
        if self.resampled is not None:
            return self.resampled(probabilities, labels)
        assert self.function is not None, f"{self.name} has no value for a whole test set"
        return one_by_one(self.function, probabilities, labels)

    def ends_by_class(self, probabilities: Tensor, labels: Tensor, groups: Tensor | None = None) -> Tensor:
        """The 95% confidence intervals [J, 2] of the values by class. groups: as above."""
        if groups is None and self.interval_by_class is not None:
            return self.interval_by_class(probabilities, labels)
        if self.resampled_by_class is not None:
            return by_weights(self.resampled_by_class(probabilities, labels), probabilities, groups)
        assert self.by_class is not None, f"{self.name} has no values by class"
        if groups is None:
            return bootstrap(self.by_class, probabilities, labels)
        return by_weights(one_by_one(self.by_class, probabilities, labels), probabilities, groups)

    def format(self, value: float) -> str:
        """The value as people read it: `41.2%`, `0.873 nats` or `0.873`."""
        return formatted(value, self.unit)


def formatted(value: float, unit: Unit) -> str:
    """A share in percent with one decimal, any other value with three.

    >>> formatted(0.4123, "share"), formatted(0.8731, "nats"), formatted(0.8731, "none")
    ('41.2%', '0.873 nats', '0.873')
    """
    if unit == "share":
        return percent(value)
    return f"{value:.3f} nats" if unit == "nats" else f"{value:.3f}"
