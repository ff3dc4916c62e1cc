"""Paired differences against plain references, and their intervals against their nominal coverage."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fedmt.core.rounding import points
from fedmt.metrics import METRICS, Metric
from fedmt.metrics.comparing import RESAMPLES, Difference, _ends, differences, verdict
from fedmt.metrics.intervals import drawn_weights, percentiles
from fedmt.metrics.measuring import Answers, with_intervals

WHOLE = [name for name, metric in METRICS.items() if metric.function is not None]


def drawn(samples: int, seed: int, gap: float = 0.6, alike: float = 0.8) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities of two models and the labels, with uneven classes. The first model is better by `gap`.

    alike: the correlation of the two models' noise.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(samples, generator=generator) ** 2 * 3).long().clamp(0, 2)
    shared, own, other = torch.randn(3, samples, 3, generator=generator)
    truth = torch.nn.functional.one_hot(labels, 3).float()
    rest = math.sqrt(1 - alike**2)
    one = (1.0 + gap) * truth + alike * shared + rest * own
    two = truth + alike * shared + rest * other
    # Far too confident: near a calibration error of zero, the estimate from few samples is itself biased.
    return (4 * one).softmax(1), (4 * two).softmax(1), labels


def by_hand(
    name: str, first: list[Tensor], second: list[Tensor], labels: Tensor
) -> tuple[float, float, float]:
    """One resample after another, with repeated rows, in float64, for each metric in the registry."""
    of = METRICS[name].function

    def side(runs: list[Tensor], chosen: Tensor) -> float:
        return float(np.mean([of(p[chosen].double(), labels[chosen]).item() for p in runs]))

    everyone = torch.arange(len(labels))
    value = side(first, everyone) - side(second, everyone)
    found = []
    for weights in drawn_weights(len(labels), first[0].shape[1], torch.device("cpu"), RESAMPLES):
        for row in weights:
            chosen = everyone.repeat_interleave(row.long())
            found.append(side(first, chosen) - side(second, chosen))
    low, high = np.quantile(np.array(found), [0.025, 0.975])
    if name == "ece":
        bias = np.mean(found) - value
        low, high = (end - bias if end * (end - bias) > 0 else 0.0 for end in (low, high))
    return value, float(low), float(high)


@pytest.mark.parametrize("seeds", [1, 2])
def test_against_a_plain_loop(seeds, monkeypatch):
    monkeypatch.setattr("fedmt.metrics.intervals.MOST", 40)
    monkeypatch.setattr("fedmt.metrics.comparing.RESAMPLES", 40)
    monkeypatch.setitem(globals(), "RESAMPLES", 40)
    runs = [drawn(60, 0), drawn(60, 0, gap=0.3)][:seeds]
    labels = runs[0][2]
    first, second = [r[0] for r in runs], [r[1] for r in runs]
    found = differences(first, second, labels)
    assert list(found) == WHOLE
    for name, difference in found.items():
        value, low, high = by_hand(name, first, second, labels)
        if difference.judged == "no difference":
            low, high = min(low, 0.0), max(high, 0.0)
        expected = (value, low, high)
        assert (difference.value, difference.low, difference.high) == pytest.approx(expected, abs=3e-6), name
        assert difference.first - difference.second == pytest.approx(difference.value, abs=1e-12)


def test_what_is_compared_against_itself_is_equal_and_the_sides_are_antisymmetric():
    one, two, labels = drawn(80, 1)
    there, back = differences([one], [two], labels), differences([two], [one], labels)
    for name in WHOLE:
        a, b = there[name], back[name]
        assert (a.value, a.low, a.high) == pytest.approx((-b.value, -b.high, -b.low), abs=1e-9), name
        assert (a.first, a.second) == (b.second, b.first)
    for difference in differences([one], [one], labels).values():
        assert (difference.value, difference.low, difference.high) == (0, 0, 0)
        assert difference.judged == "no difference"
    assert differences([one], [two], labels) == there  # it is the same every time


def test_a_metric_of_the_user_s_own_is_compared_one_resample_at_a_time(monkeypatch):
    own = Metric("toy", "Toy", lambda p, y: (p.argmax(1) == y).float().mean(), unit="share")
    monkeypatch.setitem(METRICS, "toy", own)
    one, two, labels = drawn(60, 2)
    found = differences([one], [two], labels, ["toy", "accuracy"])
    toy, accuracy = found["toy"], found["accuracy"]
    assert (toy.value, toy.low, toy.high) == pytest.approx(
        (accuracy.value, accuracy.low, accuracy.high), abs=1e-6
    )


def test_intervals_cover_the_true_difference_as_often_as_they_say(monkeypatch):
    """The intervals cover it in 95% of 200 test sets of 200 samples, for every metric. A width that is wrong
    by a third, in either direction, violates these bounds for every metric, and so does an unpaired
    interval."""
    monkeypatch.setattr("fedmt.metrics.intervals.MOST", 200)
    monkeypatch.setattr("fedmt.metrics.comparing.RESAMPLES", 200)
    one, two, labels = drawn(60_000, 10**6)
    real = {n: (METRICS[n].function(one, labels) - METRICS[n].function(two, labels)).item() for n in WHOLE}
    hits = dict.fromkeys(WHOLE, 0)
    for seed in range(200):
        one, two, labels = drawn(200, seed)
        for name, found in differences([one], [two], labels).items():
            hits[name] += found.low <= real[name] <= found.high
    for name, count in hits.items():
        assert 0.905 <= count / 200 <= 0.965, (name, count)


def test_the_paired_interval_is_narrower_where_the_models_err_alike():
    one, two, labels = drawn(300, 3, alike=0.95)
    alone = [with_intervals(Answers([p], labels))["balanced_accuracy"] for p in (one, two)]
    unpaired = math.hypot(*(x["high"] - x["low"] for x in alone))
    paired = differences([one], [two], labels, ["balanced_accuracy"])["balanced_accuracy"]
    assert paired.high - paired.low < 0.75 * unpaired
    one, two, labels = drawn(300, 3, alike=0.0)
    loose = differences([one], [two], labels, ["balanced_accuracy"])["balanced_accuracy"]
    assert paired.high - paired.low < 0.75 * (loose.high - loose.low)


def test_equal_sides_are_called_so():
    one, _, labels = drawn(300, 3)
    found = differences([one], [one], labels)
    assert {f.words() for f in found.values()} == {"no difference"}


def test_no_end_is_moved_across_zero():
    """An end of exactly zero stays there, and the calibration error's correction stops there."""
    drawn = torch.cat([torch.zeros(30), torch.linspace(0.001, 0.02, 970)]).double()
    low, high = percentiles(drawn).tolist()
    assert low == 0
    for value in (0.0, 0.009, 0.02, 0.05):
        assert _ends(METRICS["balanced_accuracy"], drawn, value) == (low, high)
        assert _ends(METRICS["ece"], drawn, value)[0] == 0
    drawn = torch.linspace(-0.01, 0.03, 1001).double()
    assert _ends(METRICS["ece"], drawn, 0.012) == pytest.approx((-0.007, 0.031))  # by as much as the bias
    assert _ends(METRICS["ece"], drawn, 0.03) == pytest.approx((0, 0.049))
    assert _ends(METRICS["ece"], -drawn, -0.03) == pytest.approx((-0.049, 0))
    assert _ends(METRICS["ece"], drawn + 0.02, 0.002) == pytest.approx((0, 0.021))


def test_a_metric_that_is_not_defined_is_left_out_and_one_sample_has_no_verdict():
    one, two, _ = drawn(20, 4)
    found = differences([one], [two], torch.zeros(20, dtype=torch.int64))
    assert "auroc" not in found and "accuracy" in found
    right, wrong = torch.eye(3)[:1], torch.eye(3)[1:2]
    for alone in differences([right], [wrong], torch.tensor([0])).values():
        assert alone.judged == "no difference"


def test_one_patient_tells_nothing_about_others():
    """Every resample of a single group is the test set itself, which looks like an interval without width."""
    one, two, labels = drawn(40, 4)
    groups = torch.zeros(40, dtype=torch.int64)
    for alone in differences([one], [two], labels, groups=groups).values():
        assert math.isnan(alone.low) and math.isnan(alone.high) and alone.judged == "no difference"
        assert "too few test samples for an interval" in alone.words() or alone.value == 0
    groups[20:] = 1
    assert not math.isnan(differences([one], [two], labels, groups=groups)["accuracy"].low)


def of(name: str, value: float, low: float, high: float) -> dict[str, Difference]:
    return {name: Difference(name, 0.5 + value, 0.5, value, low, high)}


@pytest.mark.parametrize(
    ("value", "low", "high", "word", "said"),
    [
        (0.062, 0.041, 0.083, "better", "FedMT is better than Single in balanced accuracy, tested on 1,412 "),
        (0.002, -0.01, 0.01, "no difference", "no difference in balanced accuracy that 1,412 test images"),
        (-0.05, -0.07, -0.03, "worse", " in balanced accuracy, tested on 1,412 test images: do not use it."),
        (0.1, math.nan, math.nan, "no difference", "too few test samples for an interval"),
        (0.1, 0.0, 0.2, "no difference", "no difference"),
    ],
)
def test_the_verdict_rests_on_balanced_accuracy(value, low, high, word, said):
    found = of("auroc", -0.2, -0.3, -0.1) | of("balanced_accuracy", value, low, high)
    judged = verdict(found, 1412, "FedMT", "Single", "test image")
    assert judged.word == word and said in judged.sentence
    # The AUROC differs in each of these cases, so no sentence may speak of a difference in general.
    assert judged.sentence.endswith(
        " AUROC, not part of this verdict: 0.300 against 0.500, 0.200 lower (95% interval -0.300 to -0.100)."
    )


def test_a_lower_loss_is_better():
    assert of("log_loss", -0.2, -0.3, -0.1)["log_loss"].judged == "better"
    assert of("log_loss", 0.2, 0.1, 0.3)["log_loss"].judged == "worse"
    assert Difference("accuracy", 1, 1, 0, math.nan, 0).to_json()["low"] is None


def test_differences_are_rounded_as_in_the_report():
    """A test set of 2,000 samples often has a half as its second digit. The report rounds it upward."""
    one = Difference("balanced_accuracy", 0.7125, 0.7, 0.0125, -0.0025, 0.0225)
    assert one.words() == "1.3 points higher (95% interval -0.3 to +2.3)"
    assert points(one.value) == "1.3"


def test_a_difference_without_an_interval_is_shown_without_one():
    one = Difference("balanced_accuracy", 0.7125, 0.7, 0.0125, math.nan, math.nan)
    assert one.figures() == "+1.3 (no interval)"
    assert Difference("auroc", 0.8, 0.9, -0.1, -0.2, 0.05).figures() == "-0.100 (-0.200 to +0.050)"
