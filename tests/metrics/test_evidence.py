"""Verdicts need evidence: what few samples decide is no verdict, and equally good models rarely get one."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmt.metrics import METRICS
from fedmt.metrics.comparing import differences, mean_difference
from fedmt.metrics.evidence import DRAWN, FEWEST_APART, FLIPS, Compared, sign_flip_test

OF_CLASSES = ["accuracy", "balanced_accuracy", "macro_f1"]
"""The metrics of the predicted classes, in which models with few different answers are nearly alike."""

WHOLE = [name for name, metric in METRICS.items() if metric.function is not None]


def mcnemar(one: int, other: int) -> float:
    """The exact test, from the number of samples that only one of two models has right."""
    apart, least = one + other, min(one, other)
    return min(1.0, 2 * sum(math.comb(apart, k) for k in range(least + 1)) / 2**apart)


def answers(right: Tensor, labels: Tensor, classes: int) -> Tensor:
    """One-hot probabilities. Wrong answers name the next class."""
    return torch.eye(classes)[torch.where(right, labels, (labels + 1) % classes)]


def side(shared: Tensor, own: float, accuracy: float, labels: Tensor, generator: torch.Generator) -> Tensor:
    """Answers that are right with the given probability, and those of the shared ones except for a share."""
    fresh = torch.rand(len(labels), generator=generator) < accuracy
    chosen = torch.rand(len(labels), generator=generator) < own
    return answers(torch.where(chosen, fresh, shared), labels, int(labels.max()) + 1)


def share_judged(
    labels: Tensor, own: float, accuracies: tuple[float, float], runs: int = 1, repetitions: int = 200
) -> float:
    """How often models are judged better or worse in balanced accuracy.

    own: the share of samples that each run answers by itself, with these true accuracies. All runs answer the
    rest alike.
    """
    generator, judged = torch.Generator().manual_seed(3), 0
    for _ in range(repetitions):
        shared = torch.rand(len(labels), generator=generator) < accuracies[0]
        sides = [[side(shared, own, a, labels, generator) for _ in range(runs)] for a in accuracies]
        found = differences(*sides, labels, ["balanced_accuracy"])["balanced_accuracy"]
        judged += found.judged != "no difference"
    return judged / repetitions


# -- the test ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("one", "other"), [(0, 0), (1, 0), (5, 0), (6, 0), (7, 1), (3, 3), (9, 3), (30, 14)])
def test_values_of_one_size_give_mcnemar_s_exact_test(one, other):
    values = torch.cat([torch.full((one,), 0.01), torch.zeros(50), torch.full((other,), -0.01)])
    error = 0.0 if one + other <= 12 else 4 * math.sqrt(0.02 / FLIPS)
    assert sign_flip_test(values) == pytest.approx(mcnemar(one, other), abs=error + 1e-12)
    assert sign_flip_test(-values) == sign_flip_test(values)


@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_the_small_values_of_many_samples_count_as_a_normal_number(monkeypatch, spread):
    """With a spread of 3, the largest of the values is a fifth of all."""
    generator = torch.Generator().manual_seed(1)
    values = (torch.randn(3 * DRAWN, generator=generator).double() * spread).exp()
    values *= torch.randint(2, values.shape, generator=generator) * 2 - 1
    for share in (0.0, 0.5, 1.0, 2.0):
        shifted = torch.cat([values, share * values.norm().reshape(1)])
        found = sign_flip_test(shifted)
        with monkeypatch.context() as patched:
            patched.setattr("fedmt.metrics.evidence.DRAWN", len(shifted))
            assert found == pytest.approx(sign_flip_test(shifted), abs=5 * math.sqrt(0.5 / FLIPS))


@pytest.mark.parametrize("seed", range(5))
def test_values_of_several_sizes_against_every_pattern_of_signs(seed):
    for count in (4, 9, 14):
        values = np.random.default_rng(seed).choice([-1 / 3, 1 / 3, 0.01, -0.07, 0.2], count)
        signs = np.array(list(itertools.product([1, -1], repeat=count)))
        expected = (np.abs(signs @ values) >= abs(values.sum()) - 1e-12).mean()
        error = 0.0 if count <= 12 else 4 * math.sqrt(0.25 / FLIPS)
        assert sign_flip_test(torch.from_numpy(values)) == pytest.approx(expected, abs=error + 1e-12)
    # The observed pattern is one of those that are drawn, so no difference is impossible by chance.
    assert sign_flip_test(torch.ones(100)) == 1 / (1 + FLIPS)


def test_what_samples_add_is_the_value():
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.rand(80, 5, generator=generator).softmax(1)
    labels = torch.randint(3, (80,), generator=generator)  # two classes have no samples
    summed = {name: metric for name, metric in METRICS.items() if metric.by_sample is not None}
    assert list(summed) == ["accuracy", "balanced_accuracy", "brier_score", "log_loss"]
    for name, metric in summed.items():
        assert metric.by_sample(probabilities, labels).shape == (80,)
        expected = metric.function(probabilities, labels).item()
        assert metric.by_sample(probabilities, labels).sum().item() == pytest.approx(expected, rel=1e-5), name


# -- verdicts ----------------------------------------------------------------------------------------------


@given(
    samples=st.sampled_from([30, 100, 400, 1412]),
    classes=st.sampled_from([2, 4, 7]),
    apart=st.integers(1, FEWEST_APART - 1),
    runs=st.sampled_from([(1, 1), (3, 1), (3, 3)]),
    data=st.data(),
)
def test_few_samples_that_differ_are_never_judged(samples, classes, apart, runs, data):
    """Whatever their classes, and whichever side has them right."""
    labels = torch.arange(samples) % classes
    places = data.draw(st.lists(st.integers(0, samples - 1), min_size=apart, max_size=apart, unique=True))
    favored = torch.tensor(data.draw(st.lists(st.booleans(), min_size=apart, max_size=apart)))
    one, other = (torch.ones(samples, dtype=torch.bool) for _ in range(2))
    one[places], other[places] = favored, ~favored
    first, second = (
        [answers(right, labels, classes)] * n for right, n in zip((one, other), runs, strict=True)
    )
    there, back = (differences(*sides, labels, OF_CLASSES) for sides in ((first, second), (second, first)))
    for name, found in there.items():
        assert found.judged == "no difference" and found.low <= 0 <= found.high, name
        mirrored = (-back[name].value, -back[name].high, -back[name].low)
        assert (found.value, found.low, found.high) == pytest.approx(mirrored, abs=1e-9)


def test_few_samples_with_other_probabilities_are_not_judged_in_any_metric():
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(200) % 2
    one = (torch.randn(200, 2, generator=generator) + torch.eye(2)[labels]).softmax(1)
    wrong = (one.argmax(1) != labels).nonzero().flatten()
    assert len(wrong) > FEWEST_APART
    for apart, judged in ((FEWEST_APART - 1, False), (len(wrong), True)):
        better = one.clone()
        better[wrong[:apart]] = torch.eye(2)[labels[wrong[:apart]]]
        found = differences([better], [one], labels)
        assert list(found) == WHOLE
        for name in set(WHOLE) - {"ece"}:
            assert (found[name].judged == "better") == judged, name
        assert judged or found["ece"].judged == "no difference"


def test_a_class_of_few_samples_does_not_decide():
    """One side has all three samples of a rare class right. Elsewhere both are right equally often."""
    labels = torch.tensor([0] * 3 + [1] * 100 + [2] * 100)
    one, other = (torch.ones(203, dtype=torch.bool) for _ in range(2))
    other[:3] = False
    one[10:25], other[30:45] = False, False
    found = differences([answers(one, labels, 3)], [answers(other, labels, 3)], labels, OF_CLASSES)
    assert found["balanced_accuracy"].value > 0.3 and found["balanced_accuracy"].judged == "no difference"


@pytest.mark.parametrize(
    ("samples", "classes", "own", "accuracy", "runs"),
    [(100, 2, 0.05, 0.8, 1), (100, 2, 0.3, 0.8, 1), (400, 7, 0.02, 0.65, 1), (200, 7, 0.3, 0.65, 3)],
)
def test_equally_good_models_are_rarely_judged(samples, classes, own, accuracy, runs):
    """In at most 5% of comparisons, and so rarely in more than 8.5% of 200."""
    labels = torch.arange(samples) % classes
    assert share_judged(labels, own, (accuracy, accuracy), runs) <= 0.085


def test_equally_good_models_are_rarely_judged_by_classes_of_two_samples():
    labels = torch.repeat_interleave(torch.arange(7), torch.tensor([70, 14, 6, 4, 2, 2, 2]))
    assert share_judged(labels, 0.3, (0.65, 0.65)) <= 0.085


def judged_by_patient(patients: int, images: int, repetitions: int = 100) -> list[float]:
    """How often two equally good models are judged, without and with the groups. A model that errs on one
    image of a patient errs on most of them."""
    generator, judged = torch.Generator().manual_seed(5), [0, 0]
    groups = torch.arange(patients).repeat_interleave(images)
    labels = groups % 3
    for _ in range(repetitions):
        sides = []
        for _ in range(2):
            patient = torch.rand(patients, generator=generator)[groups]
            noise = torch.rand(len(labels), generator=generator)
            sides.append([answers(0.8 * patient + 0.2 * noise < 0.7, labels, 3)])
        for place, together in enumerate((None, groups)):
            found = differences(*sides, labels, ["balanced_accuracy"], together)["balanced_accuracy"]
            judged[place] += found.judged != "no difference"
    return [count / repetitions for count in judged]


def test_equally_good_models_are_rarely_judged_by_the_images_of_the_same_patients():
    apart, together = judged_by_patient(patients=60, images=6)
    assert apart > 0.25 and together <= 0.085


def test_samples_that_belong_together_count_as_one():
    """Ten images that only one model has right are evidence, but not if five patients have two each."""
    labels = torch.arange(100) % 2
    right, wrong = (answers(torch.arange(100) >= n, labels, 2) for n in (0, 10))
    pairs = torch.arange(100) // 2
    for name in OF_CLASSES:
        alone, paired, own = (
            differences([right], [wrong], labels, [name], groups)[name].judged
            for groups in (None, pairs, torch.arange(100))
        )
        assert (alone, paired, own) == ("better", "no difference", "better"), name


def test_a_large_difference_is_found():
    """85% against 65% of 200 samples is nearly always found. Eight samples that only one has right do."""
    labels = torch.arange(200) % 4
    assert share_judged(labels, 1.0, (0.85, 0.65), repetitions=100) >= 0.95
    right, wrong = torch.ones(200, dtype=torch.bool), torch.arange(200) >= 8
    found = differences([answers(right, labels, 4)], [answers(wrong, labels, 4)], labels, OF_CLASSES)
    assert {d.judged for d in found.values()} == {"better"}


def test_separate_test_sets_are_evidence_together():
    labels = torch.arange(100) % 2
    right = answers(torch.ones(100, dtype=torch.bool), labels, 2)

    def found(name: str, tests: int, apart: int):
        wrong = answers(torch.arange(100) >= apart, labels, 2)
        return mean_difference([Compared([right], [wrong], labels)] * tests, name)

    for name in OF_CLASSES:
        # Each of the two intervals begins at zero, so that of their mean would lie above it.
        assert found(name, 2, 1).judged == "no difference" == found(name, 5, 1).judged
        assert found(name, 2, 3).judged == "better"
        assert (
            found(name, 1, 3)
            == differences([right], [answers(torch.arange(100) >= 3, labels, 2)], labels)[name]
        )
    alike = torch.zeros(100, dtype=torch.int64)
    assert mean_difference([Compared([right], [right], alike)], "auroc") is None
