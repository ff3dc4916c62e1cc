"""The losses against float64 references, for ordinary scores and where probabilities round to 0 or 1."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmt.core.losses import double_softmax_cross_entropy, fix_loss, mix_loss, projected_cross_entropy

quick = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**32)
scales = st.sampled_from([0.0, 1.0, 30.0, 300.0, 1e4])


class Case:
    """Float32 scores [B, K] of a given size, a valid matrix [J, K], and targets that it allows."""

    def __init__(self, seed: int, scale: float, partition: bool) -> None:
        rng = np.random.default_rng(seed)
        batch, coarse, fine = rng.integers(1, 6), rng.integers(1, 6), rng.integers(1, 8)
        z = rng.uniform(-scale, scale, (batch, fine))
        extreme = rng.random((batch, fine)) < 0.3
        z = np.where(extreme, rng.choice([-scale, scale], (batch, fine)), z)
        if partition:
            matrix = np.eye(coarse)[rng.integers(coarse, size=fine)].T
        else:
            matrix = rng.uniform(0, 1, (coarse, fine)) ** 4 * (rng.random((coarse, fine)) < 0.6)
            matrix[rng.integers(coarse, size=fine), np.arange(fine)] += 0.1
            matrix = matrix / matrix.sum(0)
        self.z, self.matrix = z.astype(np.float32), matrix.astype(np.float32)
        self.target = rng.choice(np.flatnonzero(matrix.sum(1)), size=batch)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        z = torch.from_numpy(self.z).requires_grad_()
        return z, torch.from_numpy(self.matrix), torch.from_numpy(self.target)


def log_sum_exp(values: np.ndarray) -> float:
    top = values.max()
    return float(top + np.log(np.exp(values - top).sum()))


def reference_loss(z: np.ndarray, matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """-log (M softmax(z))_y for one row at a time, as a difference of two log-sum-exps without M's zeros."""
    losses = []
    for row, label in zip(z.astype(np.float64), target, strict=True):
        kept = matrix[label] > 0
        joint = row[kept] + np.log(matrix[label][kept].astype(np.float64))
        losses.append(log_sum_exp(row) - log_sum_exp(joint))
    return np.array(losses)


def reference_gradient(z: np.ndarray, matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """softmax(z) - posterior, which is the derivative worked out by hand."""
    rows = []
    for row, label in zip(z.astype(np.float64), target, strict=True):
        kept = matrix[label] > 0
        joint = row[kept] + np.log(matrix[label][kept].astype(np.float64))
        grad = np.exp(row - log_sum_exp(row))
        grad[kept] -= np.exp(joint - log_sum_exp(joint))
        rows.append(grad)
    return np.array(rows)


@quick
@given(seeds, scales, st.booleans())
def test_projected_cross_entropy_value(seed: int, scale: float, partition: bool) -> None:
    case = Case(seed, scale, partition)
    expected = reference_loss(case.z, case.matrix, case.target)
    found = projected_cross_entropy(*case.tensors(), reduction="none")
    assert found.shape == (len(case.z),) and found.dtype == torch.float32
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-6, atol=2e-6)


@quick
@given(seeds, scales, st.booleans())
def test_projected_cross_entropy_gradient(seed: int, scale: float, partition: bool) -> None:
    case = Case(seed, scale, partition)
    z, matrix, target = case.tensors()
    projected_cross_entropy(z, matrix, target, "sum").backward()
    assert z.grad is not None and z.grad.isfinite().all()
    # The scores themselves are rounded: at 1e4, a float32 step is 1e-3, and so is the odds' relative error.
    tolerance = 1e-5 + 4e-7 * scale
    np.testing.assert_allclose(
        z.grad.numpy(), reference_gradient(case.z, case.matrix, case.target), atol=tolerance
    )

    naive = torch.from_numpy(case.z).double().requires_grad_()
    projected = naive.softmax(1) @ matrix.double().T
    (-projected.gather(1, target[:, None]).log().sum()).backward()
    assert naive.grad is not None
    finite = naive.grad.isfinite().all(1)
    if scale <= 30:  # exp(-60) is far from underflow in float64, so the naive formula must hold
        assert finite.all()
    torch.testing.assert_close(z.grad[finite].double(), naive.grad[finite], rtol=0, atol=tolerance)


@quick
@given(seeds)
def test_exact_at_the_extremes_of_a_partition(seed: int) -> None:
    """With scores of +-1e4 only, the loss is a ratio of counts, or 2e4 more, known in closed form."""
    rng = np.random.default_rng(seed)
    coarse, fine = rng.integers(1, 5), rng.integers(1, 9)
    group = rng.integers(coarse, size=fine)
    high = rng.random((6, fine)) < 0.4
    target = group[rng.integers(fine, size=6)]
    expected = []
    for row, label in zip(high, target, strict=True):
        mine = row[group == label]
        most = row.sum() or fine  # the number of classes that share the largest score
        if mine.any() or not row.any():
            expected.append(math.log(most / (mine.sum() or len(mine))))
        else:
            expected.append(2e4 + math.log(most / len(mine)))
    found = projected_cross_entropy(
        torch.from_numpy(np.where(high, 1e4, -1e4).astype(np.float32)),
        torch.from_numpy(np.eye(coarse, dtype=np.float32)[group].T),
        torch.from_numpy(target),
        reduction="none",
    )
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-7, atol=3e-7)


@quick
@given(seeds, scales)
def test_identity_matrix_is_ordinary_cross_entropy(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    z = torch.from_numpy(rng.uniform(-scale, scale, (4, 5)).astype(np.float32))
    target = torch.from_numpy(rng.integers(5, size=4))
    mine, other = z.clone().requires_grad_(), z.clone().requires_grad_()
    for reduction in ("none", "sum", "mean"):
        torch.testing.assert_close(
            projected_cross_entropy(mine, torch.eye(5), target, reduction),
            F.cross_entropy(other, target, reduction=reduction),
        )
    projected_cross_entropy(mine, torch.eye(5), target).backward()
    F.cross_entropy(other, target).backward()
    torch.testing.assert_close(mine.grad, other.grad)


@pytest.mark.parametrize("loss", [projected_cross_entropy, double_softmax_cross_entropy])
def test_reductions(loss: object) -> None:
    case = Case(3, 5.0, False)
    z, matrix, target = case.tensors()
    single = loss(z, matrix, target, reduction="none")  # type: ignore[operator]
    assert len(single) > 1  # otherwise a mean and a sum would be the same
    torch.testing.assert_close(loss(z, matrix, target, reduction="sum"), single.sum())  # type: ignore[operator]
    torch.testing.assert_close(loss(z, matrix, target), single.sum() / len(z))  # type: ignore[operator]


def test_one_class_of_everything_costs_nothing() -> None:
    """For a center without labels, the loss and its gradient are 0."""
    z = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).mul(20).requires_grad_()
    loss = projected_cross_entropy(z, torch.ones(1, 4), torch.zeros(5, dtype=torch.int64))
    loss.backward()
    torch.testing.assert_close(loss, torch.zeros(()), rtol=0, atol=1e-6)
    torch.testing.assert_close(z.grad, torch.zeros(5, 4), rtol=0, atol=1e-6)


def test_a_target_without_classes_is_infinite() -> None:
    matrix = torch.tensor([[1.0, 1], [0, 0]])
    assert projected_cross_entropy(torch.zeros(1, 2), matrix, torch.tensor([1])).item() == math.inf


def test_the_matrix_gets_no_nan_gradient_into_the_scores_from_tiny_entries() -> None:
    z = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    matrix = torch.tensor([[0.0, 1e-30, 1e-35], [1, 1, 1]])
    loss = projected_cross_entropy(z, matrix, torch.tensor([0]))
    loss.backward()
    assert loss.item() == pytest.approx(1e4 + 35 * math.log(10), rel=1e-6)
    torch.testing.assert_close(z.grad, torch.tensor([[1.0, 0, -1]]), rtol=0, atol=1e-3)


# -- double softmax -----------------------------------------------------------------------------------------


@quick
@given(seeds, scales, st.booleans())
def test_double_softmax(seed: int, scale: float, partition: bool) -> None:
    case = Case(seed, scale, partition)
    expected = []
    for row, label in zip(case.z.astype(np.float64), case.target, strict=True):
        f = np.exp(row - row.max())
        projected = case.matrix.astype(np.float64) @ (f / f.sum())
        expected.append(np.log(np.exp(projected).sum()) - projected[label])
    z, matrix, target = case.tensors()
    found = double_softmax_cross_entropy(z, matrix, target, reduction="none")
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=2e-6)
    others = len(matrix) - 1
    assert (found >= math.log(1 + others / math.e) - 1e-6).all()
    assert (found <= math.log(math.e + others) + 1e-6).all()
    found.sum().backward()
    assert z.grad is not None and z.grad.isfinite().all()


def test_double_softmax_reaches_its_bounds() -> None:
    z, target = torch.tensor([[1e4, 0.0, 0.0]]).expand(2, 3), torch.tensor([0, 2])
    found = double_softmax_cross_entropy(z, torch.eye(3), target, reduction="none")
    bounds = torch.tensor([math.log(1 + 2 / math.e), math.log(math.e + 2)])
    torch.testing.assert_close(found, bounds)


# -- pseudo-labels -------------------------------------------------------------------------------------------


def cross_entropies(z: np.ndarray, target: np.ndarray) -> np.ndarray:
    return np.array([log_sum_exp(row) - row[y] for row, y in zip(z.astype(np.float64), target, strict=True)])


@quick
@given(seeds, st.sampled_from([1.0, 30.0, 1e4]), st.booleans(), st.booleans())
def test_fix_and_mix(seed: int, scale: float, scalar_share: bool, bool_mask: bool) -> None:
    rng = np.random.default_rng(seed)
    batch, fine = rng.integers(1, 8), rng.integers(1, 6)
    z = rng.uniform(-scale, scale, (batch, fine)).astype(np.float32)
    first, second = rng.integers(fine, size=(2, batch))
    confident = rng.random(batch) < 0.5
    share = (
        np.float32(rng.beta(0.75, 0.75)) if scalar_share else rng.beta(0.75, 0.75, batch).astype(np.float32)
    )
    scores, y_fix, y_mix = torch.from_numpy(z), torch.from_numpy(first), torch.from_numpy(second)
    mask = torch.from_numpy(confident) if bool_mask else torch.from_numpy(confident).float()

    ce_fix, ce_mix = cross_entropies(z, first), cross_entropies(z, second)
    # The sum is divided by the whole batch, not by the number of confident samples.
    expected_fix = sum(ce for ce, kept in zip(ce_fix, confident, strict=True) if kept) / batch
    blended = np.float64(share) * ce_fix + (1 - np.float64(share)) * ce_mix
    expected_mix = sum(ce for ce, kept in zip(blended, confident, strict=True) if kept) / batch
    tolerance = {"rel": 2e-6, "abs": 2e-6}
    assert fix_loss(scores, y_fix, mask).item() == pytest.approx(expected_fix, **tolerance)
    found = mix_loss(scores, y_fix, y_mix, torch.as_tensor(share), mask)
    assert found.shape == () and found.item() == pytest.approx(expected_mix, **tolerance)
    # A share of 1 uses only the fix partner, and 0 only the other. The mask is always the fix partner's.
    for whole, label in ((1.0, y_fix), (0.0, y_mix)):
        torch.testing.assert_close(
            mix_loss(scores, y_fix, y_mix, torch.tensor(whole), mask), fix_loss(scores, label, mask)
        )


@quick
@given(seeds, scales)
def test_soft_targets_are_the_mean_over_hard_ones(seed: int, scale: float) -> None:
    """CE(z, q) = sum_k q_k CE(z, k), in float64. One-hot targets are the hard ones."""
    rng = np.random.default_rng(seed)
    z = torch.from_numpy(rng.uniform(-scale, scale, (5, 4)))
    q, p = (torch.from_numpy(rng.dirichlet(np.full(4, 0.3), 5)) for _ in range(2))
    counts, share = torch.tensor([1.0, 0, 1, 1, 1]), torch.tensor(rng.random())
    log_f = z.numpy() - np.logaddexp.reduce(z.numpy(), axis=1, keepdims=True)
    first, second = ((-t.numpy() * log_f).sum(1) * counts.numpy() for t in (q, p))
    tolerance = {"rel": 1e-6, "abs": 1e-9}
    assert fix_loss(z, q, counts).item() == pytest.approx(first.mean(), **tolerance)
    expected = (share.item() * first + (1 - share.item()) * second).mean()
    assert mix_loss(z, q, p, share, counts).item() == pytest.approx(expected, **tolerance)
    hard = torch.from_numpy(rng.integers(4, size=5))
    torch.testing.assert_close(fix_loss(z, F.one_hot(hard, 4).double(), counts), fix_loss(z, hard, counts))


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_without_confident_samples_there_is_no_loss_and_no_gradient(scale: float) -> None:
    z = (torch.randn(6, 4, generator=torch.Generator().manual_seed(1)) * scale).requires_grad_()
    labels, none = torch.tensor([0, 1, 2, 3, 0, 1]), torch.zeros(6)
    loss = fix_loss(z, labels, none) + mix_loss(z, labels, labels.flip(0), torch.rand(6), none)
    loss.backward()
    assert loss.item() == 0
    assert z.grad is not None and torch.equal(z.grad, torch.zeros(6, 4))


def test_only_confident_rows_get_a_gradient() -> None:
    z = torch.randn(4, 3, generator=torch.Generator().manual_seed(2)).requires_grad_()
    labels, confident = torch.tensor([0, 1, 2, 0]), torch.tensor([True, False, True, False])
    (fix_loss(z, labels, confident) + mix_loss(z, labels, labels, torch.tensor(0.3), confident)).backward()
    # Both losses are the same here, each with 1/4 (softmax - one-hot) for confident samples.
    expected = (z.detach().softmax(1) - F.one_hot(labels, 3)) * confident[:, None] / 2
    torch.testing.assert_close(z.grad, expected)
