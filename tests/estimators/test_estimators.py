"""Estimators of M are always valid, counting matches a calculation by hand, and EM keeps three promises."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmt.core.labels import Correspondence, LabelSpace, frobenius_error
from fedmt.core.priors import estimated_joint, estimated_prior
from fedmt.core.pseudo_labels import align, confident_pseudo_labels
from fedmt.estimators import ESTIMATORS, Estimate, Evidence
from fedmt.estimators.base import normalized
from fedmt.estimators.counting import counting
from fedmt.estimators.expectation_maximization import by_label, expectation_maximization

quick = settings(max_examples=50, deadline=None)
seeds = st.integers(0, 2**32)
kinds = st.sampled_from(["soft", "sharp", "one-hot", "zeros", "tiny", "ties", "mixed"])
thresholds = st.one_of(st.sampled_from([0.0, 0.5, 0.95, 1.0]), st.floats(0, 1))


def probabilities(rng: np.random.Generator, kind: str, count: int, wanted: int) -> np.ndarray:
    """Rows that a model may give, and some that it should not."""
    if kind == "soft":
        return rng.dirichlet(np.ones(wanted), size=count)
    if kind == "sharp":
        return rng.dirichlet(np.full(wanted, 0.05), size=count)
    if kind == "one-hot":
        return np.eye(wanted)[rng.integers(wanted, size=count)]
    if kind == "zeros":
        return np.zeros((count, wanted))
    if kind == "tiny":
        f = 10 ** rng.uniform(-40, 0, (count, wanted))
        return f / f.sum(1, keepdims=True)
    if kind == "ties":
        return np.full((count, wanted), 1 / wanted)
    parts = [
        probabilities(rng, kind, count, wanted) for kind in ("soft", "sharp", "one-hot", "zeros", "tiny")
    ]
    return np.stack(parts)[rng.integers(len(parts), size=count), np.arange(count)]


def assert_valid(estimate: Estimate, coarse: int, wanted: int, dtype: torch.dtype) -> None:
    matrix, filled = estimate.matrix, estimate.filled
    assert matrix.shape == (coarse, wanted) and matrix.dtype == dtype
    assert filled.shape == (wanted,) and filled.dtype == torch.bool
    assert ((matrix >= 0) & (matrix <= 1 + 1e-6)).all()  # this is false for NaN too
    torch.testing.assert_close(matrix.sum(0), torch.ones(wanted, dtype=dtype), rtol=0, atol=1e-6)
    torch.testing.assert_close(
        matrix[:, filled], torch.full((coarse, int(filled.sum())), 1 / coarse, dtype=dtype)
    )
    names = [str(i) for i in range(max(coarse, wanted))]
    Correspondence(matrix, LabelSpace("wanted", names[:wanted]), LabelSpace("center", names[:coarse]))


@quick
@given(
    seeds, kinds, st.sampled_from([0, 1, 2, 7, 40]), st.integers(1, 5), st.integers(1, 6), thresholds,
    st.sampled_from([torch.float32, torch.float64]),
)  # fmt: skip
def test_whatever_comes_in_a_valid_correspondence_comes_out(
    seed: int, kind: str, count: int, coarse: int, wanted: int, threshold: float, dtype: torch.dtype
) -> None:
    rng = np.random.default_rng(seed)
    f = torch.from_numpy(probabilities(rng, kind, count, wanted)).to(dtype)
    labels = torch.from_numpy(rng.integers(coarse, size=count))
    before = f.clone()
    assert_valid(counting(f, labels, coarse, threshold), coarse, wanted, dtype)
    for iterations in (0, 1, 20):
        assert_valid(
            expectation_maximization(f, labels, coarse, iterations=iterations), coarse, wanted, dtype
        )
    assert torch.equal(f, before)


def test_confident_pseudo_labels_exceed_the_threshold() -> None:
    f = torch.tensor([[0.25, 0.75], [0.75, 0.25], [0.5, 0.5], [0.1, 0.9]])
    label, confident = confident_pseudo_labels(f, 0.75)
    assert label.tolist()[:2] == [1, 0] and label[3] == 1 and label.dtype == torch.int64
    assert confident.tolist() == [False, False, False, True]  # strictly more than the threshold


@quick
@given(
    seeds, st.sampled_from(["soft", "sharp", "one-hot", "zeros"]), st.integers(0, 40), st.integers(1, 4),
    st.integers(1, 5), thresholds,
)  # fmt: skip
def test_counting_is_a_loop_over_the_samples(
    seed: int, kind: str, count: int, coarse: int, wanted: int, threshold: float
) -> None:
    rng = np.random.default_rng(seed)
    f = probabilities(rng, kind, count, wanted).astype(np.float32)
    labels = rng.integers(coarse, size=count)
    seen = [[0] * wanted for _ in range(coarse)]
    for row, label in zip(f.tolist(), labels.tolist(), strict=True):
        if max(row) > threshold:
            seen[label][row.index(max(row))] += 1
    found = counting(torch.from_numpy(f), torch.from_numpy(labels), coarse, threshold)
    for k in range(wanted):
        total = sum(seen[j][k] for j in range(coarse))
        assert bool(found.filled[k]) == (total == 0)
        for j in range(coarse):
            expected = seen[j][k] / total if total else 1 / coarse
            assert found.matrix[j, k].item() == pytest.approx(expected, abs=1e-6)


def test_columns_without_evidence_are_filled_and_reported() -> None:
    f = torch.tensor([[1.0, 0, 0], [1.0, 0, 0], [0, 0.6, 0.4]])
    labels = torch.tensor([0, 1, 1])
    found = counting(f, labels, 2, threshold=0.95)
    assert found.filled.tolist() == [False, True, True]
    assert found.matrix.tolist() == [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]
    # EM needs no confidence. Only a class to which no sample gives any probability lacks evidence.
    found = expectation_maximization(f[:, :2].contiguous(), labels, 2)
    assert found.filled.tolist() == [False, False]
    found = expectation_maximization(torch.tensor([[0.7, 0.3, 0.0]] * 3), labels, 2)
    assert found.filled.tolist() == [False, False, True]
    assert found.matrix[:, 2].tolist() == [0.5, 0.5]


# -- EM ----------------------------------------------------------------------------------------------------


def likelihood(f: Tensor, labels: Tensor, matrix: Tensor) -> float:
    """sum_i log sum_k f_ik M[y_i, k]"""
    return float((f * matrix[labels]).sum(1).log().sum())


def reference_em(f: np.ndarray, labels: np.ndarray, coarse: int, iterations: int) -> np.ndarray:
    """Textbook EM, with loops over labels and samples."""
    matrix = np.full((coarse, f.shape[1]), 1 / coarse)
    for _ in range(iterations):
        mass = np.zeros_like(matrix)
        for row, label in zip(f, labels, strict=True):
            mass[label] += row * matrix[label] / (row * matrix[label]).sum()
        matrix = mass / mass.sum(0)
    return matrix


@quick
@given(seeds, st.integers(1, 40), st.integers(1, 4), st.integers(1, 5), st.sampled_from([0, 1, 2, 5, 20]))
def test_em_is_the_textbook_iteration(
    seed: int, count: int, coarse: int, wanted: int, iterations: int
) -> None:
    rng = np.random.default_rng(seed)
    f = rng.dirichlet(np.ones(wanted), size=count)
    labels = rng.integers(coarse, size=count)
    found = expectation_maximization(torch.from_numpy(f), torch.from_numpy(labels), coarse, iterations)
    expected = reference_em(f, labels, coarse, iterations)
    np.testing.assert_allclose(found.matrix.numpy(), expected, rtol=1e-7, atol=1e-9)
    # Only the ratios within a row matter, so scores that do not sum to 1 give the same result.
    scaled = torch.from_numpy(f * rng.uniform(0.1, 3, (count, 1)))
    again = expectation_maximization(scaled, torch.from_numpy(labels), coarse, iterations)
    np.testing.assert_allclose(again.matrix.numpy(), expected, rtol=1e-7, atol=1e-9)


@quick
@given(
    seeds, st.sampled_from(["soft", "sharp", "one-hot", "tiny", "ties"]), st.integers(1, 60),
    st.integers(1, 4), st.integers(1, 5),
)  # fmt: skip
def test_the_likelihood_never_falls(seed: int, kind: str, count: int, coarse: int, wanted: int) -> None:
    rng = np.random.default_rng(seed)
    f = torch.from_numpy(probabilities(rng, kind, count, wanted))
    labels = torch.from_numpy(rng.integers(coarse, size=count))
    values = [
        likelihood(f, labels, expectation_maximization(f, labels, coarse, iterations=k).matrix)
        for k in (0, 1, 2, 3, 4, 10, 11, 20, 21)
    ]
    for before, after in pairwise(values):
        assert after >= before - 1e-9 * (1 + abs(before))


TRUTH = np.array(
    [
        [1.0, 0.8, 0.1, 0.0, 0.0, 0.0],
        [0.0, 0.2, 0.9, 0.0, 0.5, 0.9],
        [0.0, 0.0, 0.0, 1.0, 0.5, 0.1],
    ]
)


def sampled(seed: int, count: int, noise: float) -> tuple[Tensor, Tensor]:
    """Features around one point per class, their exact Bayes classifier, and labels drawn from TRUTH."""
    rng = np.random.default_rng(seed)
    wanted = TRUTH.shape[1]
    prior = np.array([0.2, 0.2, 0.2, 0.15, 0.15, 0.1])
    y = rng.choice(wanted, size=count, p=prior)
    x = np.eye(wanted)[y] + noise * rng.standard_normal((count, wanted))
    log_joint = np.log(prior) + x / noise**2
    f = np.exp(log_joint - log_joint.max(1, keepdims=True))
    labels = (rng.random(count)[:, None] > TRUTH.cumsum(0).T[y]).sum(1)
    return torch.from_numpy(f / f.sum(1, keepdims=True)).float(), torch.from_numpy(labels)


@pytest.mark.parametrize("seed", range(4))
def test_em_recovers_the_correspondence(seed: int) -> None:
    truth = torch.from_numpy(TRUTH)
    # A decent classifier, with a quarter of its guesses confident.
    f, labels = sampled(seed, 3000, noise=0.5)
    assert 0.1 < (f.max(1).values > 0.95).float().mean() < 0.4
    assert frobenius_error(expectation_maximization(f, labels, 3).matrix, truth) < 0.15
    # A poor one, with hardly one in a hundred confident: counting has few samples per class, EM has all.
    f, labels = sampled(seed, 1500, noise=0.8)
    assert (f.max(1).values > 0.95).float().mean() < 0.02
    em = frobenius_error(expectation_maximization(f, labels, 3).matrix, truth)
    assert em < 0.4
    assert em < frobenius_error(counting(f, labels, 3, threshold=0.95).matrix, truth)


@quick
@given(seeds, st.integers(1, 50))
def test_the_order_of_the_samples_does_not_matter(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    f = probabilities(rng, "mixed", count, 4).astype(np.float32)
    labels, order = rng.integers(3, size=count), rng.permutation(count)
    for estimate in (
        lambda f, labels: counting(f, labels, 3, 0.4),
        lambda f, labels: expectation_maximization(f, labels, 3),
    ):
        one = estimate(torch.from_numpy(f), torch.from_numpy(labels))
        two = estimate(torch.from_numpy(f[order]), torch.from_numpy(labels[order]))
        torch.testing.assert_close(one.matrix, two.matrix, rtol=0, atol=1e-6)
        assert torch.equal(one.filled, two.filled)


def test_frobenius_error() -> None:
    assert frobenius_error(torch.eye(2), torch.eye(2)) == 0
    assert frobenius_error(
        torch.tensor([[1.0, 0], [0, 1]]), torch.tensor([[0.0, 0], [1, 1]])
    ) == pytest.approx(2**0.5)


# -- alignment --------------------------------------------------------------------------------------------


@quick
@given(seeds, kinds, st.integers(0, 12), st.integers(1, 5), st.integers(1, 6))
def test_aligned_guesses_against_loops(seed: int, kind: str, count: int, coarse: int, wanted: int) -> None:
    rng = np.random.default_rng(seed)
    guesses = probabilities(rng, kind, count, wanted)
    matrix = rng.dirichlet(np.ones(coarse), size=wanted).T
    labels = rng.integers(coarse, size=count)
    expected = np.zeros(wanted)
    for label in labels:
        expected += matrix[label] / matrix[label].sum()
    found = align(torch.from_numpy(guesses), torch.from_numpy(matrix), torch.from_numpy(labels)).numpy()
    for i in range(count):
        scaled = guesses[i] * expected / np.maximum(guesses.sum(0), 1e-12)
        reference = scaled / scaled.sum() if scaled.sum() > 0 else guesses[i]
        np.testing.assert_allclose(found[i], reference, rtol=1e-9, atol=1e-12)


def test_alignment_undoes_a_preference_within_a_label() -> None:
    """Two wanted classes share a label. The model always prefers the first, but more strongly for some
    samples."""
    matrix = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    labels = torch.tensor([0, 0, 0, 0, 1, 1])
    first = torch.tensor([0.95, 0.9, 0.6, 0.55])
    guesses = torch.cat([torch.stack([first, 1 - first, 0 * first], 1), torch.tensor([[0.0, 0, 1]] * 2)])
    found = align(guesses, matrix, labels)
    assert guesses.argmax(1).tolist() == [0, 0, 0, 0, 2, 2]
    assert found.argmax(1).tolist() == [0, 0, 1, 1, 2, 2]
    # If a center has more of another label, the shares within this one must not change.
    more = align(
        torch.cat([guesses, guesses[4:].repeat(9, 1)]), matrix, torch.cat([labels, labels[4:].repeat(9)])
    )
    torch.testing.assert_close(more[:6], found)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_scores_that_are_no_probabilities_still_give_a_valid_matrix(bad: float) -> None:
    rng = np.random.default_rng(0)
    scores = torch.from_numpy(rng.dirichlet(np.ones(4), size=30))
    scores[::3, 1] = bad
    labels = torch.from_numpy(rng.integers(3, size=30))
    for estimate in (counting(scores, labels, 3, 0.3), expectation_maximization(scores, labels, 3)):
        assert_valid(estimate, 3, 4, torch.float64)


def test_counting_in_half_precision_does_not_overflow() -> None:
    scores = torch.tensor([[0.9, 0.1]], dtype=torch.float16).expand(70_000, 2)
    estimate = counting(scores, torch.zeros(70_000, dtype=torch.int64), 2, 0.5)
    assert estimate.matrix.tolist() == [[1.0, 0.5], [0.0, 0.5]]


# -- by name ----------------------------------------------------------------------------------------------


@quick
@given(seeds, kinds, st.integers(1, 5), st.integers(1, 6), st.booleans())
def test_every_known_one_gives_a_valid_matrix(
    seed: int, kind: str, coarse: int, wanted: int, again: bool
) -> None:
    rng = np.random.default_rng(seed)
    f = torch.from_numpy(probabilities(rng, kind, 20, wanted)).float()
    labels = torch.from_numpy(rng.integers(coarse, size=20))
    before = torch.full((coarse, wanted), 1 / coarse) if again else None
    for name, entry in ESTIMATORS.items():
        estimator = entry()
        assert estimator.name == name
        found = estimator.estimate(Evidence(f, labels, coarse, 0.5, before, np.random.default_rng(seed), 2))
        free = estimator.free_parameters(found.matrix)
        torch.testing.assert_close(estimator.matrix_of(free), found.matrix, rtol=1e-5, atol=1e-6)
        moved = (
            estimator.matrix_of(free + 0.1 * torch.randn_like(free)) if estimator.trained else found.matrix
        )
        for matrix in (found.matrix, moved):
            filled = torch.zeros(wanted, dtype=torch.bool) if found.filled is None else found.filled
            assert_valid(Estimate(matrix, filled), coarse, wanted, torch.float32)


def test_what_is_trained_begins_near_uniform_and_is_then_what_is_remembered() -> None:
    learnable = ESTIMATORS["learnable"]()
    f, labels = torch.full((4, 3), 1 / 3), torch.zeros(4, dtype=torch.int64)
    first = learnable.estimate(Evidence(f, labels, 2, 0.5, None, np.random.default_rng(0), 0)).matrix
    again = learnable.estimate(Evidence(f, labels, 2, 0.5, None, np.random.default_rng(0), 0)).matrix
    assert torch.equal(first, again) and 0 < (first - 0.5).abs().max() < 0.2
    known = torch.tensor([[0.9, 0.2, 0.0], [0.1, 0.8, 1.0]])
    found = learnable.estimate(Evidence(f, labels, 2, 0.5, known, np.random.default_rng(0), 0))
    assert torch.equal(found.matrix, known) and found.filled is None


def test_a_frequent_label_does_not_attract_the_classes_of_rare_ones() -> None:
    """Nine in ten samples have label 0 and class 0. A weak model assigns a third of them to other classes."""
    rng = np.random.default_rng(0)
    classes, label_of = 6, torch.tensor([0, 1, 1, 2, 2, 2])
    truth = torch.from_numpy(np.where(rng.random(4000) < 0.9, 0, rng.integers(1, classes, 4000)))
    logits = 2.5 * F.one_hot(truth, classes) + torch.from_numpy(rng.normal(0, 1.6, (4000, classes)))
    evidence = Evidence(logits.softmax(1), label_of[truth], 3, 0.95, None, rng, 0)
    joint = estimated_joint(evidence.probabilities, evidence.labels, 3)
    assert (joint.argmax(0) != label_of).sum() >= 3  # the result of only dividing the columns
    found = ESTIMATORS["em"]().estimate(evidence)
    assert torch.equal(found.matrix.argmax(0), label_of)
    assert found.prior is not None and found.prior.argmax() == 0
    torch.testing.assert_close(found.prior.sum(), torch.ones((), dtype=found.prior.dtype))


def test_equally_frequent_labels_change_nothing() -> None:
    joint = torch.rand(3, 5, dtype=torch.float64)
    joint = joint / joint.sum(1, keepdim=True) / 3
    torch.testing.assert_close(normalized(by_label(joint), torch.float64).matrix, joint / joint.sum(0))


def test_the_estimate_is_the_mean_of_all_so_far_and_later_a_moving_mean() -> None:
    rng = np.random.default_rng(0)
    rounds = [torch.from_numpy(rng.dirichlet(np.ones(4), size=60)) for _ in range(30)]
    labels = torch.from_numpy(rng.integers(3, size=60))

    def estimate(f: Tensor, before: Tensor | None, earlier: int) -> Tensor:
        return ESTIMATORS["em"]().estimate(Evidence(f, labels, 3, 0.95, before, rng, earlier)).matrix

    each = [estimate(f, None, 0) for f in rounds]
    kept = None
    for earlier, f in enumerate(rounds):
        before, kept = kept, estimate(f, kept, earlier)
        if earlier < 10:
            torch.testing.assert_close(kept, torch.stack(each[: earlier + 1]).mean(0))
        else:
            torch.testing.assert_close(kept, 0.9 * before + 0.1 * each[earlier])


def test_the_frequencies_are_those_under_the_mean_and_known_ones_are_part_of_the_scores() -> None:
    rng, em = np.random.default_rng(0), ESTIMATORS["em"]()
    f = torch.from_numpy(rng.dirichlet(np.ones(4), size=60))
    before = torch.from_numpy(rng.dirichlet(np.ones(3), size=4).T.copy())
    labels = torch.from_numpy(rng.integers(3, size=60))
    found = em.estimate(Evidence(f, labels, 3, 0.95, before, rng, 4))
    assert found.prior is not None
    torch.testing.assert_close(found.prior, estimated_prior(f, found.matrix, labels))
    pi = torch.from_numpy(rng.dirichlet(np.ones(4)))
    known = em.estimate(Evidence(f, labels, 3, 0.95, before, rng, 4, pi))
    matrix, scores = np.full((3, 4), 1 / 3), (f * pi).numpy()
    for _ in range(20):
        q = scores * matrix[labels]
        q /= q.sum(1, keepdims=True)
        matrix = np.stack([q[labels.numpy() == j].sum(0) for j in range(3)])
        matrix /= matrix.sum(0)
    np.testing.assert_allclose(known.matrix.numpy(), matrix, rtol=1e-9)
    assert known.prior is None


def test_guesses_that_are_wrong_for_one_round_do_not_move_a_class_to_another_label() -> None:
    """Class 0 belongs to label 0. In the fifth round, the few samples of the rare label 1 look like it."""
    labels = torch.cat([torch.zeros(200, dtype=torch.int64), torch.ones(10, dtype=torch.int64)])
    right = F.one_hot(torch.where(labels == 0, torch.arange(210) % 2, 2), 3).double() * 0.9 + 0.1 / 3
    wrong = right.clone()
    wrong[labels == 1] = torch.tensor([0.9, 0.05, 0.05], dtype=torch.float64)
    rng, em, kept = np.random.default_rng(0), ESTIMATORS["em"](), None
    alone = em.estimate(Evidence(wrong, labels, 2, 0.95, None, rng, 0)).matrix
    assert alone[:, 0].argmax() == 1  # the guesses of that round alone
    for earlier, guesses in enumerate([right, right, right, right, wrong]):
        kept = em.estimate(Evidence(guesses, labels, 2, 0.95, kept, rng, earlier)).matrix
        assert kept[:, 0].argmax() == 0
