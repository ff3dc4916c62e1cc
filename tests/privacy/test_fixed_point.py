"""Updates as integers: the mean from their sum, against a float64 reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmt.core.errors import FedmtError
from fedmt.privacy.masking.fixed_point import Entry, Layout, NotASum

LAYOUT = Layout(
    (
        Entry("trunk", (2, 3), 3),
        Entry("head", (4,), 3, group=1),
        Entry("control:trunk", (2, 3), 3, equal=True),
    ),
    centers=6,
    heaviest=1024,
)


def center(rng: np.random.Generator, head: bool) -> dict[str, np.ndarray]:
    update = {"trunk": rng.normal(size=(2, 3)), "control:trunk": rng.normal(size=(2, 3))}
    if head:
        update["head"] = rng.normal(size=4)
    return {k: v.astype(np.float32) for k, v in update.items()}


@settings(max_examples=50, deadline=None)
@given(
    weights=st.lists(st.integers(1, 1024), min_size=1, max_size=6),
    heads=st.integers(0, 2**6 - 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_mean_is_that_of_a_float64_reference(weights: list[int], heads: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    updates = [center(rng, bool(heads >> i & 1)) for i in range(len(weights))]
    total = np.zeros(LAYOUT.length, np.uint32)
    for update, weight in zip(updates, weights, strict=True):
        total += LAYOUT.encode(update, weight)[0]
    mean = LAYOUT.decode(total, len(weights))
    for name in ("trunk", "head", "control:trunk"):
        having = [
            (u[name], 1 if ":" in name else w) for u, w in zip(updates, weights, strict=True) if name in u
        ]
        assert mean.counts.get(name, 0) == len(having)
        if not having:
            assert name not in mean.means
            continue
        heavy = sum(w for _, w in having)
        expected = sum(u.astype(np.float64) * w for u, w in having) / heavy
        # Each center rounds once, by at most half a step, and float32 rounds twice: w x and the mean.
        step = 2.0 ** (3 - LAYOUT.precision) * (1 if ":" in name else 1024)
        largest = sum(np.abs(u).max() * w for u, w in having)
        bound = (len(having) * step / 2 + 2.0**-22 * largest) / heavy
        assert np.abs(mean.means[name] - expected).max() <= bound
    assert mean.totals["trunk"] == sum(weights)


@settings(max_examples=30, deadline=None)
@given(size=st.floats(1e-6, 1.0), centers=st.integers(2, 16), seed=st.integers(0, 2**32 - 1))
def test_the_error_of_a_round_is_within_half_a_step_and_has_no_side(
    size: float, centers: int, seed: int
) -> None:
    """For updates of any size with equal weights, against float64. The mean error over many entries is close
    to 0."""
    layout = Layout((Entry("x", (4000,), 3),), centers)
    rng = np.random.default_rng(seed)
    updates = rng.normal(0, size, (centers, 4000)).clip(-7, 7).astype(np.float32)
    vectors = [layout.encode({"x": update})[0] for update in updates]
    found = layout.decode(np.sum(vectors, axis=0, dtype=np.uint32), centers).means["x"]
    step = 2.0 ** (3 - layout.precision)
    error = found - updates.astype(np.float64).mean(axis=0)
    assert np.abs(error).max() <= step / 2 + 2.0**-24 * np.abs(found).max()
    # Uniform within half a step: a standard error of step / sqrt(12 * 4000 * centers), here six times that.
    floats = 2.0**-24 * np.abs(found).max() / np.sqrt(4000)
    assert abs(error.mean()) <= 6 * (step / np.sqrt(12 * 4000 * centers) + floats)


def test_the_order_of_centers_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    vectors = [LAYOUT.encode(center(rng, i % 2 == 0), 1 + 99 * i)[0] for i in range(6)]
    forward = LAYOUT.decode(np.sum(vectors, axis=0, dtype=np.uint32), 6)
    backward = LAYOUT.decode(np.sum(vectors[::-1], axis=0, dtype=np.uint32), 6)
    assert all(np.array_equal(forward.means[k], backward.means[k]) for k in forward.means)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("centers", [10, 256, 2048])
def test_the_largest_entries_of_all_centers_do_not_overflow(bits: int, sign: int, centers: int) -> None:
    layout = Layout((Entry("x", (3,), 2),), centers=centers, bits=bits)
    vector, clipped = layout.encode({"x": np.full(3, sign * 1e9)})
    assert clipped == 3
    total = vector.copy()
    for _ in range(centers - 1):
        total += vector
    mean = layout.decode(total, centers)
    assert np.allclose(mean.means["x"], sign * 4, rtol=1e-5)
    assert mean.clipped == 3 * centers


def test_a_center_that_abstains_adds_nothing() -> None:
    update = center(np.random.default_rng(0), True)
    vector, _ = LAYOUT.encode(update, 7)
    alone = LAYOUT.decode(vector, 1)
    total = vector + LAYOUT.encode(None)[0]
    assert total[LAYOUT.values] == 2
    both = LAYOUT.decode(total, 2)
    assert all(np.array_equal(alone.means[k], both.means[k]) for k in update)
    assert both.counts["trunk"] == 1 and both.totals["head"] == 7
    nobody = LAYOUT.decode(LAYOUT.encode(None)[0], 1)
    assert nobody.means == {} and nobody.counts == {}


def test_sixty_four_bits_hold_statistics_of_very_different_size() -> None:
    layout = Layout((Entry("var", (3,), 20),), centers=10, heaviest=2**16, bits=64)
    values = np.float32([1e-5, 1.0, 1e5])
    mean = layout.decode(layout.encode({"var": values}, 60)[0], 1)
    assert np.allclose(mean.means["var"], values, rtol=1e-3)


@pytest.mark.parametrize(
    ("update", "weight", "message"),
    [
        ({"trunk": np.full((2, 3), np.nan), "control:trunk": np.zeros((2, 3))}, 1, "'trunk' contains NaN"),
        ({"trunk": np.zeros((2, 3))}, 1, "agreed tensors: 'control:trunk'"),
        ({"head": np.zeros(5)}, 1, "agreed tensors: 'head'"),
        ({"tail": np.zeros(4)}, 1, "agreed tensors: 'tail'"),
        ({"head": np.zeros(4)}, 0, "weight is 0, expected 1 to 1,024"),
        ({"head": np.zeros(4)}, 1025, "weight is 1025"),
    ],
)
def test_what_does_not_fit_is_refused(update: dict[str, np.ndarray], weight: int, message: str) -> None:
    with pytest.raises(FedmtError, match=message):
        LAYOUT.encode(update, weight)


def test_a_vector_that_is_no_sum_is_found_out() -> None:
    vector = np.random.default_rng(0).integers(0, 2**32, LAYOUT.length, dtype=np.uint32)
    with pytest.raises(NotASum):
        LAYOUT.decode(vector, 3)
    good = LAYOUT.encode(None)[0]
    with pytest.raises(NotASum):
        LAYOUT.decode(good, 2)


def test_a_layout_that_cannot_hold_the_sum_is_refused() -> None:
    with pytest.raises(FedmtError, match="power of two"):
        Layout((), centers=3, heaviest=1000)
    with pytest.raises(FedmtError, match="do not fit into 32 bits"):
        Layout((), centers=1024, heaviest=2**21)
    assert Layout.from_json(LAYOUT.to_json()) == LAYOUT
