"""Every metric against a plain float64 reference, and every interval against its nominal coverage."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

from fedmt.core.errors import FedmtError
from fedmt.metrics import METRICS, Metric, intervals, ranking
from fedmt.metrics.calibration_error import expected_calibration_error
from fedmt.metrics.counts import weighted_counts
from fedmt.metrics.intervals import FEWEST, bootstrap, drawn_weights, of_the_mean, resamples, wilson
from fedmt.metrics.measuring import Answers, by_class, values, with_intervals

# -- references: one sample at a time, in float64, none of them by torchmetrics ----------------------------


def pairs(p: np.ndarray, y: np.ndarray, k: int) -> float:
    """The AUROC by its definition, over all pairs of a sample of class k and another sample."""
    positive, negative = p[y == k, k], p[y != k, k]
    if not len(positive) or not len(negative):
        return math.nan
    return float(np.mean([(a > b) + 0.5 * (a == b) for a in positive for b in negative]))


def stepwise_precision(p: np.ndarray, y: np.ndarray, k: int) -> float:
    if not (y == k).any() or (y == k).all():
        return math.nan
    total, before = 0.0, 0.0
    for threshold in sorted(set(p[:, k]), reverse=True):
        taken = p[:, k] >= threshold
        recall = (taken & (y == k)).sum() / (y == k).sum()
        total += (recall - before) * (y[taken] == k).mean()
        before = recall
    return float(total)


def share(part: np.ndarray, whole: np.ndarray) -> float:
    return float(part[whole].mean()) if whole.any() else math.nan


def f1(g: np.ndarray, y: np.ndarray, k: int) -> float:
    both, either = ((g == k) & (y == k)).sum(), (g == k).sum() + (y == k).sum()
    return float(2 * both / either) if either else math.nan


def binned(p: np.ndarray, y: np.ndarray, bins: int = 15) -> float:
    total = 0.0
    for b in range(bins):
        inside = (p.max(1) > b / bins) & (p.max(1) <= (b + 1) / bins)
        if inside.any():
            total += inside.sum() * abs((p.argmax(1) == y)[inside].mean() - p.max(1)[inside].mean())
    return float(total / len(y))


def over_classes(of_class):
    return lambda p, y: np.array([of_class(p, y, k) for k in range(p.shape[1])])


REFERENCE_BY_CLASS = {
    "precision": over_classes(lambda p, y, k: share(y == k, p.argmax(1) == k)),
    "sensitivity": over_classes(lambda p, y, k: share(p.argmax(1) == k, y == k)),
    "specificity": over_classes(lambda p, y, k: share(p.argmax(1) != k, y != k)),
    "auroc": over_classes(pairs),
    "average_precision": over_classes(stepwise_precision),
}
REFERENCE = {
    "accuracy": lambda p, y: np.mean(p.argmax(1) == y),
    "balanced_accuracy": lambda p, y: np.nanmean(REFERENCE_BY_CLASS["sensitivity"](p, y)),
    "macro_f1": lambda p, y: np.nanmean([f1(p.argmax(1), y, k) for k in range(p.shape[1])]),
    "auroc": lambda p, y: np.nanmean(REFERENCE_BY_CLASS["auroc"](p, y)),
    "average_precision": lambda p, y: np.nanmean(REFERENCE_BY_CLASS["average_precision"](p, y)),
    "brier_score": lambda p, y: np.mean(
        [((p[i] - np.eye(p.shape[1])[k]) ** 2).sum() for i, k in enumerate(y)]
    ),
    "log_loss": lambda p, y: -np.mean([math.log(max(p[i, k], 2.0**-23)) for i, k in enumerate(y)]),
    "ece": binned,
}


def made_up(samples: int, classes: int, seed: int, sharp: float = 2.0) -> tuple[Tensor, Tensor]:
    """Uneven classes, informative probabilities, and some ties."""
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(samples, generator=generator) ** 2 * classes).long().clamp(0, classes - 1)
    logits = torch.randn(samples, classes, generator=generator)
    logits[torch.arange(samples), labels] += 1.0
    probabilities = (sharp * logits).softmax(1)
    probabilities[: samples // 4] = (16 * probabilities[: samples // 4]).round() / 16
    return probabilities, labels


CASES = {
    "plain": made_up(80, 4, 0),
    "two classes": made_up(60, 2, 1),
    "a class without samples": (made_up(50, 5, 2)[0], made_up(50, 5, 2)[1].clamp_max(3)),
    "one class only": (made_up(20, 3, 3)[0], torch.ones(20, dtype=torch.int64)),
    "sure and wrong": (torch.eye(3)[[0, 1, 2, 0, 1]], torch.tensor([0, 1, 1, 2, 2])),
}


@pytest.mark.parametrize("case", CASES)
def test_values_against_plain_references(case):
    probabilities, labels = CASES[case]
    p, y = probabilities.double().numpy(), labels.numpy()
    assert {m.name for m in METRICS.values() if m.function} == set(REFERENCE)
    assert {m.name for m in METRICS.values() if m.by_class} == set(REFERENCE_BY_CLASS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a mean over no class
        for name, reference in REFERENCE.items():
            found = METRICS[name].function(probabilities, labels).item()
            assert found == pytest.approx(float(reference(p, y)), abs=2e-6, nan_ok=True), name
        for name, reference in REFERENCE_BY_CLASS.items():
            found = METRICS[name].by_class(probabilities, labels).tolist()
            assert found == pytest.approx(reference(p, y).tolist(), abs=2e-6, nan_ok=True), name


def test_the_accuracy_is_to_the_bit_what_it_was_before_there_were_metrics():
    for seed in range(50):
        probabilities, labels = made_up(7 + 13 * seed, 3, seed)
        before = (probabilities.argmax(1) == labels).float().mean().item()
        assert METRICS["accuracy"].function(probabilities, labels).item() == before


def test_probabilities_that_rounding_left_above_one_are_not_taken_for_logits():
    probabilities, labels = made_up(80, 4, 0)
    over = probabilities.clone()
    over[0] = torch.tensor([1.0000002, 0.0, 0.0, 0.0])
    exact = torch.where(over > 1, torch.ones_like(over), over)
    for name in ("auroc", "average_precision"):
        assert torch.equal(METRICS[name].by_class(over, labels), METRICS[name].by_class(exact, labels))


@pytest.mark.filterwarnings("ignore:No (positive|negative) samples in targets:UserWarning")
@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_torchmetrics(case):
    """A well-maintained library, which takes a second to import and ranks one test set at a time."""
    from torchmetrics.functional import classification as theirs

    probabilities, labels = CASES[case]
    guesses, classes = probabilities.argmax(1), probabilities.shape[1]
    found = {name: m.function(probabilities, labels).item() for name, m in METRICS.items() if m.function}
    expected = {
        "accuracy": theirs.multiclass_accuracy(guesses, labels, classes, average="micro").item(),
        "macro_f1": theirs.multiclass_f1_score(guesses, labels, classes, average="macro").item(),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    tp, fp, tn, fn, _ = theirs.multiclass_stat_scores(guesses, labels, classes, average=None).unbind(1)
    by_class = {
        "precision": tp / (tp + fp),
        "sensitivity": tp / (tp + fn),
        "specificity": tn / (tn + fp),
        "auroc": theirs.multiclass_auroc(probabilities, labels, classes, average=None),
        "average_precision": theirs.multiclass_average_precision(
            probabilities, labels, classes, average=None
        ),
    }
    judged = torch.tensor([0 < int((labels == k).sum()) < len(labels) for k in range(classes)])
    for name, values_by_class in by_class.items():
        if name in ("auroc", "average_precision"):  # torchmetrics gives a number if there is nothing to rank
            values_by_class = torch.where(judged, values_by_class, torch.nan)
        ours = METRICS[name].by_class(probabilities, labels)
        assert ours.tolist() == pytest.approx(values_by_class.tolist(), abs=1e-6, nan_ok=True), name


def test_calibration_error_is_guo_s_and_torchmetrics_except_at_confidence_one():
    from torchmetrics.functional.classification import multiclass_calibration_error

    probabilities, labels = made_up(400, 5, 4)
    probabilities = probabilities.clamp(0.001, 0.98)
    theirs = multiclass_calibration_error(probabilities, labels, 5, n_bins=15).item()
    assert expected_calibration_error(probabilities, labels).item() == pytest.approx(theirs, abs=1e-6)


# -- intervals ---------------------------------------------------------------------------------------------


def test_wilson_against_its_definition():
    """The interval ends at the shares p for which the observed share is exactly 1.96 deviations away."""
    for right, n in ((0, 10), (3, 10), (10, 10), (754, 2000)):
        share = right / n
        ends = wilson(torch.tensor(share, dtype=torch.float64), torch.tensor(n)).tolist()
        for end in ends:
            if 0 < end < 1:
                assert abs(share - end) / math.sqrt(end * (1 - end) / n) == pytest.approx(1.959964, abs=1e-5)
    assert wilson(torch.tensor(0.0), torch.tensor(10))[0] == 0
    assert wilson(torch.tensor(1.0), torch.tensor(10))[1] == 1
    assert wilson(torch.tensor(math.nan), torch.tensor(0)).isnan().all()


def test_the_interval_of_a_mean_by_hand():
    values = np.random.default_rng(0).random(50)
    half = 1.959964 * values.std(ddof=1) / math.sqrt(50)
    found = of_the_mean(torch.from_numpy(values)).tolist()
    assert found == pytest.approx([values.mean() - half, values.mean() + half], abs=1e-6)
    assert of_the_mean(torch.tensor([0.5])).isnan().all()


def test_weights_are_those_of_resamples_and_always_the_same():
    drawn = torch.cat(list(drawn_weights(30, 4, torch.device("cpu"))))
    assert drawn.shape == (resamples(30, 4), 30) and (drawn.sum(1) == 30).all()
    assert torch.equal(drawn, torch.cat(list(drawn_weights(30, 4, torch.device("cpu")))))
    assert drawn.var(0).mean().item() == pytest.approx(1 - 1 / 30, abs=0.05)
    assert resamples(10_000, 100) == FEWEST and resamples(1, 1) == 1000


@pytest.mark.parametrize("seed", range(3))
def test_a_weighted_sample_counts_as_a_repeated_one(seed):
    """What intervals compute from weights equals the metric on the resample itself."""
    probabilities, labels = made_up(60, 4, seed)
    weights = torch.cat(list(drawn_weights(60, 4, torch.device("cpu"))))[:5]
    for row in weights:
        again = torch.arange(60).repeat_interleave(row.long())
        p, y = probabilities[again], labels[again]
        of = weighted_counts(probabilities, labels, row[None])
        balanced = (of.tp / (of.tp + of.fn)).nanmean().item()
        assert balanced == pytest.approx(METRICS["balanced_accuracy"].function(p, y).item(), abs=1e-6)
        macro = (2 * of.tp / (2 * of.tp + of.fp + of.fn)).nanmean().item()
        assert macro == pytest.approx(METRICS["macro_f1"].function(p, y).item(), abs=1e-6)
        tn = METRICS["specificity"].by_class(p, y)
        assert (of.tn / (of.tn + of.fp))[0].tolist() == pytest.approx(tn.tolist(), nan_ok=True)
        for summed_up, name in ((ranking.area, "auroc"), (ranking.mean_precision, "average_precision")):
            expected = METRICS[name].by_class(p, y)
            for k in range(4):
                if not expected[k].isnan():
                    found = summed_up(ranking.ranked(probabilities[:, k], labels == k, row[:, None]))
                    assert found.item() == pytest.approx(expected[k].item(), abs=2e-6), name


@pytest.mark.parametrize("name", ["balanced_accuracy", "macro_f1", "auroc", "average_precision"])
def test_both_ways_to_resample_give_about_the_same_interval(name):
    probabilities, labels = made_up(150, 3, 5)
    metric = METRICS[name]
    fast = metric.ends(probabilities, labels)
    slow = bootstrap(metric.function, probabilities, labels)
    width = (slow[1] - slow[0]).item()
    assert fast.tolist() == pytest.approx(slow.tolist(), abs=0.15 * width)


@pytest.fixture
def quick(monkeypatch):
    """As many resamples as for a large test set, because coverage takes hundreds of intervals."""
    monkeypatch.setattr(intervals, "MOST", FEWEST)


def truth(name: str, sharp: float) -> float:
    """The metric of a test set so large that it is close to the population's value."""
    return float(METRICS[name].function(*drawn(50_000, 10**6, sharp)))


def drawn(samples: int, seed: int, sharp: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(samples, generator=generator) ** 2 * 3).long().clamp(0, 2)
    logits = torch.randn(samples, 3, generator=generator)
    logits[torch.arange(samples), labels] += 1.5
    return (sharp * logits).softmax(1), labels


@pytest.mark.parametrize("name", REFERENCE)
def test_intervals_cover_the_truth_as_often_as_they_say(name, quick):
    """They cover it in 95% of 300 test sets of 300 samples. A width wrong by a third fails these bounds."""
    sharp = 3.0  # far too confident, so that there is a calibration error to find
    real = truth(name, sharp)
    hits = 0
    for seed in range(300):
        low, high = METRICS[name].ends(*drawn(300, seed, sharp)).tolist()
        hits += low <= real <= high
    assert 0.91 <= hits / 300 <= 0.985, hits


@pytest.mark.parametrize("name", REFERENCE_BY_CLASS)
def test_intervals_by_class_cover_the_truth(name, quick):
    real = METRICS[name].by_class(*drawn(50_000, 10**6, 1.0))
    hits = 0
    for seed in range(100):
        ends = METRICS[name].ends_by_class(*drawn(300, seed, 1.0))
        assert ends.shape == (3, 2)
        hits += int(((ends[:, 0] <= real) & (real <= ends[:, 1])).sum())
    assert 0.9 <= hits / 300 <= 0.99, hits


def patients(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """60 patients with 1 to 9 images each, who differ more than their images do."""
    generator = torch.Generator().manual_seed(seed)
    groups = torch.arange(60).repeat_interleave(torch.randint(1, 10, (60,), generator=generator))
    labels = (torch.rand(60, generator=generator) * 3).long()[groups]
    logits = 1.5 * torch.randn(60, 3, generator=generator)[groups]
    logits += 0.5 * torch.randn(len(groups), 3, generator=generator)
    logits[torch.arange(len(groups)), labels] += 1.5
    return logits.softmax(1), labels, groups


def test_resamples_of_groups_are_whole():
    groups = torch.tensor([0, 0, 1, 2, 2, 2])
    drawn = torch.cat(list(drawn_weights(6, 4, torch.device("cpu"), groups=groups)))
    assert (drawn[:, [0, 2, 3]].sum(1) == 3).all()  # as many groups as there are
    assert torch.equal(drawn, drawn[:, [0, 2, 3]][:, groups])
    assert (drawn.sum(1) != 6).any()


def test_intervals_of_patients_cover_the_truth(quick):
    """Among 150 test sets of 60 patients. Intervals of independent images would cover it in about 70%."""
    many = [patients(10**6 + i) for i in range(150)]
    p, y = torch.cat([m[0] for m in many]), torch.cat([m[1] for m in many])
    real = {
        name: float(METRICS[name].function(p, y)) for name in ("accuracy", "balanced_accuracy", "log_loss")
    }
    hits, apart = dict.fromkeys(real, 0), dict.fromkeys(real, 0)
    for seed in range(150):
        one, labels, groups = patients(seed)
        for name, value in real.items():
            for found, together in ((hits, groups), (apart, None)):
                low, high = METRICS[name].ends(one, labels, together).tolist()
                found[name] += low <= value <= high
    assert all(0.88 <= hit / 150 <= 0.99 for hit in hits.values()), hits
    assert all(hit / 150 < 0.85 for hit in apart.values()), apart


def test_every_metric_has_an_interval_of_patients(quick):
    probabilities, labels, groups = patients(0)
    whole = with_intervals(Answers([probabilities], labels, groups))
    assert set(whole) == set(REFERENCE)
    assert all(one["low"] < one["value"] < one["high"] for one in whole.values())
    for found in by_class(probabilities, labels, groups).values():
        for value, low, high in zip(*found.values(), strict=True):
            assert low <= value <= high
    # One patient does not show how much patients differ.
    alone = with_intervals(Answers([probabilities], labels, torch.zeros_like(groups)))
    assert not any("low" in one for one in alone.values())


# -- the registry, and measuring ---------------------------------------------------------------------------


def test_an_unknown_metric_is_named_with_the_nearest():
    assert METRICS.find("auroc", "metric") is METRICS["auroc"]
    with pytest.raises(FedmtError, match=r"'balanced_acuracy'\. Did you mean 'balanced_accuracy'\?"):
        METRICS.find("balanced_acuracy", "metric")


def test_every_metric_says_what_it_is():
    for name, metric in METRICS.items():
        assert name == metric.name and metric.title and (metric.function or metric.by_class)
        assert metric.better == ("lower" if name in ("brier_score", "log_loss", "ece") else "higher")
    assert METRICS["accuracy"].format(0.4123) == "41.2%" and METRICS["log_loss"].format(0.5) == "0.500 nats"


def test_several_answers_are_averaged_and_what_is_undefined_is_left_out():
    (one, labels), (two, _) = made_up(40, 3, 0), made_up(40, 3, 9)
    found = values({"a": Answers([one, two], labels), "b": Answers([one], labels)}, last=True)
    first, second = (METRICS["ece"].function(p, labels).item() for p in (one, two))
    assert found["a"]["ece"] == pytest.approx((first + second) / 2, abs=1e-7)
    assert found["b"]["ece"] == pytest.approx(first, abs=1e-7)
    assert "auroc" not in values({"a": Answers([one], labels)}, last=False)["a"]
    alike = torch.zeros(40, dtype=torch.int64)
    assert "auroc" not in values({"a": Answers([one], alike)}, last=True)["a"]
    shown = with_intervals(Answers([one, two], labels))
    assert list(shown) == [n for n, m in METRICS.items() if m.function]
    assert all(r["low"] <= r["value"] <= r["high"] for r in shown.values())
    classes = by_class(one, alike)
    assert classes["sensitivity"]["value"][1:] == [None, None] == classes["sensitivity"]["low"][1:]
    assert classes["auroc"]["value"] == [None] * 3


def test_a_metric_without_an_interval_of_its_own_has_one_by_resampling():
    metric = Metric("toy", "Toy", lambda p, y: p[:, 0].mean(), by_class=lambda p, y: p.mean(0))
    probabilities, labels = made_up(200, 3, 0)
    expected = of_the_mean(probabilities[:, 0]).tolist()
    assert metric.ends(probabilities, labels).tolist() == pytest.approx(expected, abs=0.01)
    assert metric.ends_by_class(probabilities, labels)[0].tolist() == pytest.approx(expected, abs=0.01)
