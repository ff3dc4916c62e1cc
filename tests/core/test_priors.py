"""Class priors against float64 references and a known generative model."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmt.core.errors import FedmtError
from fedmt.core.labels import LabelSpace
from fedmt.core.priors import (
    class_shares,
    estimated_joint,
    estimated_prior,
    log_prior,
    named_shares,
)

PRIOR = np.array([0.5, 0.3, 0.15, 0.05])
M = np.array([[1.0, 0.8, 0.0, 0.3], [0.0, 0.2, 1.0, 0.7]])


def center(count: int, seed: int = 0, distance: float = 2.0):
    """Samples from a known generative model: scores [N, K] for a uniform prior, labels and the truth."""
    rng = np.random.default_rng(seed)
    truth = rng.choice(4, size=count, p=PRIOR)
    labels = (rng.random(count) > M[0, truth]).astype(np.int64)
    means = distance * np.eye(4)
    x = means[truth] + rng.normal(size=(count, 4))
    scores = np.exp(-((x[:, None] - means) ** 2).sum(2) / 2)
    scores /= scores.sum(1, keepdims=True)
    return torch.from_numpy(scores), torch.from_numpy(labels), truth


def reference_prior(g, m, labels, doubt, iterations):
    """The prior, computed by loops over the samples."""
    count = len(g)
    base = np.mean([m[y] / m[y].sum() for y in labels], axis=0)
    pi = base / base.sum()
    for _ in range(iterations):
        q = np.array([g[i] * pi * m[labels[i]] for i in range(count)])
        q /= q.sum(1, keepdims=True)
        weight = 1 - np.mean([row.max() for row in q]) if doubt is None else doubt
        pi = (1 - weight) * q.mean(0) + weight * base / base.sum()
    return pi


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), doubt=st.sampled_from([None, 0.0, 0.3]), iterations=st.integers(1, 4))
def test_the_prior_against_loops(seed, doubt, iterations):
    rng = np.random.default_rng(seed)
    coarse, wanted, count = rng.integers(2, 5), rng.integers(2, 6), int(rng.integers(1, 12))
    g, m = rng.dirichlet(np.ones(wanted), count), rng.dirichlet(np.ones(coarse), wanted).T
    labels = rng.integers(coarse, size=count)
    tensors = torch.from_numpy(g), torch.from_numpy(m), torch.from_numpy(labels)
    found = estimated_prior(*tensors, doubt, iterations)
    np.testing.assert_allclose(found.numpy(), reference_prior(g, m, labels, doubt, iterations), rtol=1e-9)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), doubt=st.sampled_from([None, 0.0, 0.3]))
def test_the_joint_against_loops(seed, doubt):
    rng = np.random.default_rng(seed)
    coarse, wanted, count = int(rng.integers(2, 5)), int(rng.integers(2, 6)), int(rng.integers(1, 12))
    g, labels = rng.dirichlet(np.ones(wanted), count), rng.integers(coarse, size=count)
    base = np.bincount(labels, minlength=coarse)[:, None] / count * np.ones(wanted) / wanted
    steadied = base
    for _ in range(3):
        q = np.array([g[i] * steadied[labels[i]] for i in range(count)])
        q /= q.sum(1, keepdims=True)
        weight = 1 - q.max(1).mean() if doubt is None else doubt
        joint = np.zeros_like(base)
        for i in range(count):
            joint[labels[i]] += q[i] / count
        steadied = (1 - weight) * joint + weight * base
    found = estimated_joint(torch.from_numpy(g), torch.from_numpy(labels), coarse, doubt, 3)
    np.testing.assert_allclose(found.numpy(), joint, rtol=1e-9)
    assert found.sum() == pytest.approx(1)


def test_the_estimates_converge_to_the_truth_as_samples_grow():
    """For T and E. Without doubt, EM maximizes a likelihood whose model is the true one."""
    errors = {"prior": [], "joint": []}
    for count in (300, 3000, 30000):
        scores, labels, _ = center(count)
        prior = estimated_prior(scores, torch.from_numpy(M), labels, 0.0, 300).numpy()
        joint = estimated_joint(scores, labels, 2, 0.0, 300).numpy()
        errors["prior"].append(np.abs(prior - PRIOR).sum())
        errors["joint"].append(np.abs(joint - M * PRIOR).sum())
    for found in errors.values():
        assert found[2] < 0.5 * found[0] and found[2] < 0.03, errors


def test_doubt_fades_as_the_scores_become_certain():
    """By default, a weak model's estimate stays close to even classes, and a strong model's is the truth."""
    errors = []
    for distance in (0.5, 2.0, 8.0):
        scores, labels, truth = center(3000, distance=distance)
        shares = np.bincount(truth, minlength=4) / 3000
        errors.append(np.abs(estimated_prior(scores, torch.from_numpy(M), labels).numpy() - shares).sum())
    assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-3, errors


def test_the_column_of_a_rare_class_is_what_its_samples_say():
    """An estimate that is pulled toward equally frequent classes gives this column's label only 0.86."""
    rng = np.random.default_rng(0)
    truth = rng.choice(4, size=4000, p=[0.45, 0.45, 0.09, 0.01])
    labels = torch.from_numpy(truth // 2)  # classes 2 and 3 have the second label
    means = 2.5 * np.eye(4)
    x = means[truth] + rng.normal(size=(4000, 4))
    scores = torch.from_numpy(-((x[:, None] - means) ** 2).sum(2) / 2).softmax(1)
    joint = estimated_joint(scores, labels, 2)
    by_label = joint / joint.sum(1, keepdim=True)
    assert by_label[1, 3] / by_label[:, 3].sum() > 0.92, by_label


def test_a_shifted_answer_is_that_of_the_other_prior():
    """softmax(z + log pi) is Bayes' rule: it gives the posterior for pi from that for a uniform prior."""
    scores, _, _ = center(50)
    shifted = (scores.log() + log_prior(torch.from_numpy(PRIOR))).softmax(1).numpy()
    expected = scores.numpy() * PRIOR
    np.testing.assert_allclose(shifted, expected / expected.sum(1, keepdims=True), rtol=1e-9)


def test_shares_of_labels():
    even = class_shares(torch.tensor([0, 1, 2, 2, 1, 0]), 3)
    assert (even == even[0]).all()
    with_absent = class_shares(torch.tensor([0, 0, 0, 1]), 3)
    torch.testing.assert_close(with_absent, torch.tensor([4 / 7, 2 / 7, 1 / 7]))
    assert log_prior(torch.tensor([1.0, 0.0])).isfinite().all()
    rare = torch.tensor([0.9999, 0.0001], dtype=torch.float64)
    torch.testing.assert_close(log_prior(rare), rare.log())  # a class of one sample in 10,000


@pytest.mark.parametrize(
    ("given_shares", "message"),
    [
        ({"a": 0.5, "b": 0.5}, "no share for 'c'"),
        ({"a": 0.5, "b": 0.3, "c": 0.1}, "sum to 0.9"),
        ({"a": 1.5, "b": -0.5, "c": 0.0}, "share of 'a' is 1.5"),
        ({"a": True, "b": 0.0, "c": 0.0}, "share of 'a' is True, expected a number"),
        ({"a": float("nan"), "b": 0.5, "c": 0.5}, "share of 'a' is nan, expected a number"),
        ({"a": 0.5, "b": 0.3, "d": 0.2}, "'d' is not in label space 'kind'"),
    ],
)
def test_shares_that_are_none(given_shares, message):
    with pytest.raises(FedmtError, match=message):
        named_shares(given_shares, LabelSpace("kind", ["a", "b", "c"]), "method.prior")


def test_named_shares_stand_in_the_order_of_the_classes():
    found = named_shares(
        {"c": 0.2, "a": 0.5, "b": np.float32(0.3)}, LabelSpace("kind", ["a", "b", "c"]), "method.prior"
    )
    assert list(found) == ["a", "b", "c"] and found["a"] == pytest.approx(0.5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_repeats_the_same_step():
    """On a GPU, the step is captured and replayed, for one center after another, of different sizes."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        for samples, classes in ((500, 7), (80, 3), (500, 7)):
            scores = torch.rand(samples, classes, generator=generator, dtype=torch.float64).softmax(1)
            labels = torch.randint(2, (samples,), generator=generator)
            matrix = torch.rand(2, classes, generator=generator, dtype=torch.float64)
            matrix = matrix / matrix.sum(0)
            there = [t.cuda() for t in (scores, matrix, labels)]
            for doubt in (None, 0.2):
                here = estimated_prior(scores, matrix, labels, doubt)
                torch.testing.assert_close(estimated_prior(*there, doubt).cpu(), here, rtol=0, atol=1e-10)
                here = estimated_joint(scores, labels, 2, doubt)
                found = estimated_joint(there[0], there[2], 2, doubt)
                torch.testing.assert_close(found.cpu(), here, rtol=0, atol=1e-10)
