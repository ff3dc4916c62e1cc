"""Two models on the same test samples: the difference in every metric, with its 95% interval.

Both models are right and wrong on mostly the same samples. The difference of their metrics therefore varies
less between test samples than each metric does by itself, and overlapping intervals do not mean that the
models are equally good. Here the samples are resampled in pairs: each resample has the same samples on both
sides.

Like the intervals of single metrics, these tell how much the difference would vary with other test samples.
They do not include the variation between training seeds.

An interval by resampling is too narrow if few samples decide. It is therefore extended to zero unless the
samples that the sides answer differently are evidence enough (`fedmt.metrics.evidence`). The verdict, the
report and the tables of sweeps all rest on these intervals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean
from typing import Literal

import torch
from torch import Tensor

from fedmt.core.rounding import points
from fedmt.metrics import EVEN_HANDED, METRICS, Metric
from fedmt.metrics.evidence import Compared, evident
from fedmt.metrics.intervals import drawn_weights, percentiles

RESAMPLES = 500
"""The smallest number of resamples in a comparison, because a verdict depends on the ends of its interval."""

BESIDE = "auroc"
"""The metric that is stated in addition to the one that a verdict is based on."""


@dataclass(frozen=True)
class Difference:
    """One metric of two sides: its values, the first minus the second, and the ends of the 95% interval.

    The ends are NaN if there are too few samples.
    """

    metric: str
    first: float
    second: float
    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float | str | None]:
        """In a form that JSON can hold: an unknown end becomes None."""
        values = asdict(self)
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}

    @property
    def judged(self) -> Literal["better", "worse", "no difference"]:
        """How the first side is judged: whether the interval is entirely on one side of zero, and on which.

        >>> Difference("accuracy", 0.7, 0.6, 0.1, 0.05, 0.15).judged
        'better'
        >>> Difference("log_loss", 0.7, 0.6, 0.1, 0.05, 0.15).judged
        'worse'
        """
        if self.low > 0 or self.high < 0:
            return "better" if (self.low > 0) == (METRICS[self.metric].better == "higher") else "worse"
        return "no difference"

    def words(self) -> str:
        """The difference as people read it, shares in percentage points.

        >>> Difference("balanced_accuracy", 0.662, 0.6, 0.062, 0.041, 0.083).words()
        '6.2 points higher (95% interval +4.1 to +8.3)'
        """
        size = self._figure(abs(self.value)) + (" points" if METRICS[self.metric].unit == "share" else "")
        if self.value == self.low == self.high == 0:
            return "no difference"
        said = f"{size} {'higher' if self.value >= 0 else 'lower'}"
        if not math.isfinite(self.low + self.high):
            return f"{said} (too few test samples for an interval)"
        return f"{said} (95% interval {self._figure(self.low, True)} to {self._figure(self.high, True)})"

    def figures(self) -> str:
        """The same for a table.

        >>> Difference("balanced_accuracy", 0.662, 0.6, 0.062, 0.041, 0.083).figures()
        '+6.2 (+4.1 to +8.3)'
        """
        if not math.isfinite(self.low + self.high):
            return f"{self._figure(self.value, True)} (no interval)"
        value, low, high = (self._figure(x, True) for x in (self.value, self.low, self.high))
        return f"{value} ({low} to {high})"

    def _figure(self, x: float, sign: bool = False) -> str:
        """Rounded as in the report. A terminal may lack its minus sign."""
        if METRICS[self.metric].unit == "share":
            return points(x, sign).replace("\N{MINUS SIGN}", "-")
        return f"{x:{'+' if sign else ''}.3f}"


def differences(
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    labels: Tensor,
    metrics: Sequence[str] | None = None,
    groups: Tensor | None = None,
) -> dict[str, Difference]:
    """For each metric, the first side minus the second. A metric that is not defined here is left out.

    first, second: the probabilities [N, J] of one run or of several (other seeds of the same method), whose
    metrics are averaged. labels: [N]. metrics: names; by default all that have a value for a whole test set.
    groups: which samples belong together, such as those of a patient (`intervals`). None if no two do.

    >>> labels = torch.tensor([0, 1] * 50)
    >>> right, half = torch.eye(2)[labels], torch.eye(2)[torch.zeros(100, dtype=torch.int64)]
    >>> found = differences([right], [half], labels, ["accuracy"])["accuracy"]
    >>> found.value, found.judged
    (0.5, 'better')
    """
    compared = Compared(first, second, labels, groups)
    return {name: _cautious(one, [compared]) for name, one in _resampled(compared, metrics).items()}


def mean_difference(tests: Sequence[Compared], metric: str) -> Difference | None:
    """The mean of one metric's differences on test sets that are taken to have no samples in common.

    None if the metric is not defined on any of them.
    """
    each = [(test, _resampled(test, [metric]).get(metric)) for test in tests]
    known = [(test, one) for test, one in each if one is not None]
    return _cautious(_mean([one for _, one in known]), [test for test, _ in known]) if known else None


def _mean(found: Sequence[Difference]) -> Difference:
    """The errors on separate samples are independent, so their squares add up."""
    value = mean(d.value for d in found)
    below = math.hypot(*(d.value - d.low for d in found)) / len(found)
    above = math.hypot(*(d.high - d.value for d in found)) / len(found)
    one, other = mean(d.first for d in found), mean(d.second for d in found)
    return Difference(found[0].metric, one, other, value, value - below, value + above)


def _resampled(compared: Compared, metrics: Sequence[str] | None) -> dict[str, Difference]:
    """The differences with the intervals that resampling gives, however few samples decide."""
    first, second, labels, groups = compared
    chosen = [METRICS[name] for name in metrics] if metrics is not None else list(METRICS.values())
    sides = [[p.float() for p in side] for side in (first, second)]
    found: dict[str, Difference] = {}
    statistics = {}
    for metric in chosen:
        if metric.function is None:
            continue
        one, other = (_value(metric, side, labels) for side in sides)
        if math.isfinite(one - other):
            found[metric.name] = Difference(metric.name, one, other, one - other, math.nan, math.nan)
            statistics[metric.name] = [[metric.statistic(p, labels) for p in side] for side in sides]
    if groups is not None and not groups.any():
        return found  # as in `intervals`: a single group does not show how much groups differ
    drawn: dict[str, list[Tensor]] = {name: [] for name in found}
    samples, classes = sides[0][0].shape
    for weights in drawn_weights(samples, classes, labels.device, RESAMPLES, groups):
        for name, (ones, others) in statistics.items():
            means = (
                torch.stack([s(weights).cpu().double() for s in side]).mean(0) for side in (ones, others)
            )
            drawn[name].append(next(means) - next(means))
    for name, parts in drawn.items():
        low, high = _ends(METRICS[name], torch.cat(parts), found[name].value)
        found[name] = replace(found[name], low=low, high=high)
    return found


def _value(metric: Metric, side: Sequence[Tensor], labels: Tensor) -> float:
    assert metric.function is not None
    return float(torch.stack([metric.function(p, labels).cpu().double() for p in side]).mean())


def _ends(metric: Metric, drawn: Tensor, value: float) -> tuple[float, float]:
    """The percentile interval. If resampling inflates the metric, this bias is corrected.

    Resampling inflates the calibration error of either side, and more so that of the better calibrated one.
    The calibration error of few samples is itself too large by about as much. This is not corrected, because
    the interval belongs to the value that is shown. The bias is known only approximately, so the correction
    moves no end across zero. Other metrics are not corrected: there, the mean of the resamples differs from
    the value mostly by chance.
    """
    ends = percentiles(drawn)
    if metric.inflated:
        moved = ends - (drawn.nanmean() - value)
        ends = moved.masked_fill(moved * ends <= 0, 0)
    low, high = ends.tolist()
    return low, high


def _cautious(one: Difference, tests: Sequence[Compared]) -> Difference:
    """The difference, with an interval that includes zero unless the difference is evident."""
    if not (one.low > 0 or one.high < 0) or evident(METRICS[one.metric], tests):
        return one
    return replace(one, low=min(one.low, 0.0), high=max(one.high, 0.0))


@dataclass(frozen=True)
class Verdict:
    """Whether to prefer the first side, in one word and in a sentence for people."""

    word: Literal["better", "worse", "no difference"]
    sentence: str


def counted(samples: int, noun: str, groups: int | None = None) -> str:
    """What a comparison rests on. groups: how many, if the intervals count these and not the samples.

    >>> counted(216, "test image", 27)
    '216 test images in 27 groups'
    """
    within = "" if groups is None else f" in {groups:,} group{'' if groups == 1 else 's'}"
    return f"{samples:,} {noun}{'' if samples == 1 else 's'}{within}"


def verdict(
    found: Mapping[str, Difference],
    samples: int,
    first: str,
    second: str,
    noun: str = "test sample",
    groups: int | None = None,
) -> Verdict:
    """Judged on balanced accuracy, where rare classes count as much as common ones.

    The sentence names the metric, because the AUROC, which is stated too, may differ where it does not.

    first, second: what the sides are called. noun: what one of the samples is called. groups: as in
    `counted`.

    >>> balanced = Difference("balanced_accuracy", 0.602, 0.6, 0.002, -0.011, 0.015)
    >>> print(verdict({"balanced_accuracy": balanced}, 1412, "FedMT", "Single", "test image").sentence)
    FedMT and Single: no difference in balanced accuracy that 1,412 test images can show. Balanced accuracy: \
60.2% against 60.0%, 0.2 points higher (95% interval -1.1 to +1.5).
    """
    count = counted(samples, noun, groups)
    word = found[EVEN_HANDED].judged
    judged = METRICS[EVEN_HANDED].title.lower()
    said = {
        "better": f"{first} is better than {second} in {judged}, tested on {count}.",
        "no difference": f"{first} and {second}: no difference in {judged} that {count} can show.",
        "worse": f"{first} is worse than {second} in {judged}, tested on {count}: do not use it.",
    }[word]
    for name, note in ((EVEN_HANDED, ""), (BESIDE, ", not part of this verdict")):
        if name in found:
            metric, of = METRICS[name], found[name]
            values = f"{metric.format(of.first)} against {metric.format(of.second)}"
            said += f" {metric.title}{note}: {values}, {of.words()}."
    return Verdict(word, said)
