"""Splits are exact, disjoint, balanced or true to their prior, and depend only on the seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmt.core.errors import FedmtError
from fedmt.data.splits import Split, iid_split, natural_split, reference_counts, share_split
from fedmt.data.uneven import long_tailed_prior, long_tailed_split, non_iid_priors, non_iid_split

quick = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**32)


def labels(counts: list[int], seed: int = 0) -> Tensor:
    """A shuffled set with these numbers of images per class."""
    truth = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return truth[torch.randperm(len(truth), generator=torch.Generator().manual_seed(seed))]


def distinct_images(indices: Tensor) -> Tensor:
    return torch.tensor(sorted(set(indices.tolist())))


def disjoint(split: Split) -> bool:
    """No image is in two places, and none is twice at the reference center."""
    parts = [split.reference, *map(distinct_images, split.centers)]
    return len(distinct_images(torch.cat(parts))) == sum(map(len, parts))


def same(a: Split, b: Split) -> bool:
    return a.notes == b.notes and all(
        torch.equal(x, y) for x, y in zip((a.reference, *a.centers), (b.reference, *b.centers), strict=True)
    )


def histograms(split: Split, truth: Tensor, classes: int) -> Tensor:
    return torch.stack([torch.bincount(truth[c], minlength=classes) for c in split.centers])


# IID


@quick
@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    per_class=st.integers(1, 4),
    centers=st.integers(1, 6),
    part=st.floats(0, 1),
    seed=seeds,
)
def test_iid_is_exact_disjoint_and_balanced(
    counts: list[int], per_class: int, centers: int, part: float, seed: int
) -> None:
    assume(min(counts) >= per_class + centers)
    truth, classes = labels(counts), len(counts)
    most = iid_split(truth, classes, per_class, centers, None, seed)
    samples = max(1, round(part * len(most.centers[0])))
    split = iid_split(truth, classes, per_class, centers, samples, seed)
    for one in (most, split):
        assert disjoint(one) and not one.notes
        assert torch.bincount(truth[one.reference]).tolist() == [per_class] * classes
        table = histograms(one, truth, classes)
        assert (table.amax(1) - table.amin(1)).max() <= 1
    assert [len(c) for c in split.centers] == [samples] * centers
    # "As many as possible" means that one more per center does not fit.
    with pytest.raises(FedmtError, match="Lower samples to"):
        iid_split(truth, classes, per_class, centers, len(most.centers[0]) + 1, seed)


def test_iid_as_in_the_paper() -> None:
    truth = labels([500] * 100)
    split = iid_split(truth, 100, per_class=10, centers=10, samples=4000, seed=0)
    assert len(split.reference) == 1000
    assert (histograms(split, truth, 100) == 40).all()
    assert disjoint(split)


def test_remainders_are_spread_over_centers_and_classes() -> None:
    truth = labels([20] * 10)
    table = histograms(iid_split(truth, 10, 1, centers=5, samples=24, seed=3), truth, 10)
    assert (table.sum(1) == 24).all()
    assert (table.sum(0) == 12).all()


def test_remainders_go_to_classes_that_have_them() -> None:
    truth = labels([5, 5, 9, 9])
    table = histograms(iid_split(truth, 4, 1, centers=4, samples=None, seed=0), truth, 4)
    assert table.tolist() == [[1, 1, 2, 2]] * 4


def test_iid_is_random_within_a_class() -> None:
    truth = torch.zeros(1000, dtype=torch.int64)
    split = iid_split(truth, 1, 10, 3, 300, seed=0)
    assert abs(split.centers[0].double().mean() - 499.5) < 5 * 1000 / (12 * 300) ** 0.5
    assert not torch.equal(split.centers[0], split.centers[0].sort().values)


def test_iid_errors_name_the_class_and_a_way_out() -> None:
    truth = labels([100, 30, 100])
    names = ["nevus", "melanoma", "wart"]
    with pytest.raises(FedmtError, match=r"'melanoma' has 30 samples.*needs 40 of .*lower per_class to 30"):
        iid_split(truth, 3, 40, 2, None, 0, names)
    with pytest.raises(
        FedmtError, match=r"'melanoma' has 30 samples.*needs 50: 10 .* 20 .* samples to 32 or"
    ):
        iid_split(truth, 3, 10, 2, 60, 0, names)
    iid_split(truth, 3, 10, 2, 32, 0, names)
    with pytest.raises(FedmtError, match=r"Class 1 has 30 samples.*2 are left for 4 centers"):
        iid_split(truth, 3, 28, 4, None, 0)
    with pytest.raises(FedmtError, match="Class 3 has no samples"):
        iid_split(truth, 4, 1, 2, None, 0)


# Non-IID


@quick
@given(classes=st.integers(2, 12), centers=st.integers(1, 9), gamma=st.floats(0, 0.999), seed=seeds)
def test_priors_are_the_papers(classes: int, centers: int, gamma: float, seed: int) -> None:
    priors = non_iid_priors(classes, centers, gamma, seed)
    assert priors.shape == (centers, classes) and priors.dtype == torch.float64
    torch.testing.assert_close(priors.sum(1), torch.ones(centers, dtype=torch.float64))
    # In units in which the majority classes' prior, the largest one, is 4 / (1 - gamma) > .55.
    top = 4 / (1 - gamma)
    scaled = priors / priors.amax(1, keepdim=True) * top
    major = scaled > 0.56
    assert (major.sum(1) == 2).all()
    torch.testing.assert_close(scaled[major] / top, torch.ones(2 * centers, dtype=torch.float64))
    assert ((scaled[~major] >= 0.35 - 1e-9) & (scaled[~major] <= 0.55 + 1e-9)).all()
    # Majority classes take turns, two at a time, so their numbers of turns differ by at most one.
    times = major.sum(0)
    assert times.max() - times.min() <= 1


@quick
@given(
    counts=st.lists(st.integers(8, 60), min_size=2, max_size=8),
    per_class=st.integers(1, 3),
    centers=st.integers(1, 5),
    samples=st.integers(1, 80),
    gamma=st.sampled_from([0.0, 0.1, 0.9, 0.99]),
    seed=seeds,
)
def test_non_iid_is_exact_and_disjoint(
    counts: list[int], per_class: int, centers: int, samples: int, gamma: float, seed: int
) -> None:
    truth, classes = labels(counts), len(counts)
    split = non_iid_split(truth, classes, per_class, centers, samples, gamma, seed)
    assert disjoint(split)
    assert torch.bincount(truth[split.reference]).tolist() == [per_class] * classes
    assert [len(c) for c in split.centers] == [samples] * centers
    repeated = sum(len(c) - len(distinct_images(c)) for c in split.centers)
    assert bool(split.notes) == (repeated > 0)
    if repeated:
        assert f"{repeated} of all {centers * samples} samples" in split.notes[0]
    # Images repeat only if a class is used up, and shares are in proportion to what was drawn.
    drawn = histograms(split, truth, classes)
    distinct = torch.stack(
        [torch.bincount(truth[distinct_images(c)], minlength=classes) for c in split.centers]
    )
    left = torch.tensor(counts) - per_class
    assert torch.equal(distinct.sum(0), torch.minimum(left, drawn.sum(0)))
    for k in range(classes):
        order = drawn[:, k].argsort(stable=True)
        assert (distinct[order, k].diff() >= -1).all()
        assert ((distinct[:, k] > 0) == (drawn[:, k] > 0)).all()


@pytest.mark.parametrize("gamma", [0.1, 0.9, 0.99])
def test_non_iid_histogram_matches_its_prior(gamma: float) -> None:
    truth = labels([500] * 100)
    split = non_iid_split(truth, 100, per_class=10, centers=10, samples=4000, gamma=gamma, seed=1)
    expected = 4000 * non_iid_priors(100, 10, gamma, 1)
    chi2 = ((histograms(split, truth, 100) - expected) ** 2 / expected).sum(1)
    # 99 degrees of freedom: mean 99, standard deviation 14.
    assert (chi2 < 99 + 5 * 14).all()
    assert 99 - 3 * 14 / 10**0.5 < chi2.mean() < 99 + 3 * 14 / 10**0.5
    assert disjoint(split)


def test_the_papers_most_heterogeneous_split_says_that_it_repeats() -> None:
    truth = labels([500] * 100)
    (note,) = non_iid_split(truth, 100, 10, 10, 4000, 0.99, seed=0).notes
    assert "gamma 0.99: 20 of 100 classes" in note
    assert "10 of 10 centers" in note
    assert non_iid_split(truth, 100, 10, 10, 1000, 0.1, seed=0).notes == ()


def test_a_class_too_rare_for_all_its_centers() -> None:
    truth = labels([500, 5, 500])
    with pytest.raises(FedmtError, match=r"'b' has 5 samples: after 2 .* 3 are left for 4 centers"):
        non_iid_split(truth, 3, 2, 4, 200, 0.1, 0, names=["a", "b", "c"])


# Both


def both(truth: Tensor, seed: int, centers: int = 3) -> tuple[Split, Split]:
    return iid_split(truth, 5, 2, centers, 20, seed), non_iid_split(truth, 5, 2, centers, 20, 0.9, seed)


@quick
@given(seed=seeds)
def test_the_seed_alone_decides(seed: int) -> None:
    truth = labels([40] * 5)
    first = both(truth, seed)
    torch.rand(3)
    np.random.rand(3)
    state = torch.get_rng_state()
    again = both(truth, seed)
    assert torch.equal(state, torch.get_rng_state())
    for a, b, c in zip(first, again, both(truth, seed + 1), strict=True):
        assert same(a, b)
        assert not same(a, c)
    for other in (first[1], *both(truth, seed, centers=2)):
        assert torch.equal(first[0].reference, other.reference)


def test_a_seeds_split_stays_what_it_was() -> None:
    """A change here changes the data of every benchmark, so it must be deliberate."""
    iid, non_iid = both(torch.arange(60) % 5, seed=7, centers=2)
    assert iid.reference.tolist() == [51, 13, 52, 20, 2, 30, 49, 53, 44, 21]
    assert iid.centers[0].tolist()[:8] == [22, 48, 56, 43, 54, 29, 57, 5]
    assert non_iid.centers[1].tolist()[:8] == [37, 17, 16, 42, 56, 11, 1, 36]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"truth": torch.zeros(9)}, "integers"),
        ({"truth": torch.zeros(3, 3, dtype=torch.int64)}, "integers"),
        ({"truth": torch.tensor([0, 1, 5])}, "Label 5 is outside the wanted space of 2 classes"),
        ({"truth": torch.tensor([0, 1, -1])}, "Label -1"),
        ({"classes": 0}, "classes is 0"),
        ({"per_class": 0}, "per_class is 0"),
        ({"centers": 0}, "centers is 0"),
        ({"samples": 0}, "samples is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"gamma": 1.0}, "gamma is 1.0"),
        ({"gamma": float("nan")}, "gamma is nan"),
        ({"classes": 1, "truth": torch.zeros(9, dtype=torch.int64)}, "classes is 1, expected 2"),
    ],
)
def test_arguments_are_checked(change, expected) -> None:  # type: ignore[no-untyped-def]
    given: dict[str, Any] = {"truth": labels([20, 20]), "classes": 2, "per_class": 1, "centers": 2}
    given |= {"samples": 4, "seed": 0, "gamma": 0.5, **change}
    with pytest.raises(FedmtError, match=expected):
        non_iid_split(**given)
    if "gamma" not in change and "expected 2" not in expected:
        del given["gamma"]
        with pytest.raises(FedmtError, match=expected):
            iid_split(**given)


# A share


@quick
@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    share=st.floats(0.01, 0.9),
    centers=st.integers(1, 6),
    seed=seeds,
)
def test_share_split_is_exact_disjoint_and_even(
    counts: list[int], share: float, centers: int, seed: int
) -> None:
    truth, classes = labels(counts), len(counts)
    taken = reference_counts(np.array(counts), share)
    assert all(t >= 1 and (abs(t - share * n) <= 0.5 or t == 1) for t, n in zip(taken, counts, strict=True))
    if min(n - t for t, n in zip(taken, counts, strict=True)) < centers:
        with pytest.raises(FedmtError, match=r"samples: after \d+ for the reference center, \d are left for"):
            share_split(truth, classes, share, centers, seed)
        return
    split = share_split(truth, classes, share, centers, seed)
    assert disjoint(split) and not split.notes
    assert torch.bincount(truth[split.reference]).tolist() == taken.tolist()
    table = histograms(split, truth, classes)
    assert table.sum(0).tolist() == [n - t for n, t in zip(counts, taken, strict=True)]  # all are used
    assert (table.amax(0) - table.amin(0)).max() <= 1
    assert table.sum(1).max() - table.sum(1).min() <= 1
    assert same(split, share_split(truth, classes, share, centers, seed))
    # The reference center is the same in every split.
    if min(counts) - taken.max() >= centers:
        for other in (
            iid_split(truth, classes, taken.tolist(), centers, None, seed),
            share_split(truth, classes, share, 1, seed),
        ):
            assert torch.equal(split.reference, other.reference)


def test_share_split_is_random_and_follows_from_the_seed() -> None:
    truth = labels([300, 60])
    one, other = (share_split(truth, 2, 0.1, 3, seed) for seed in (0, 1))
    assert not same(one, other)
    assert one.centers[0].max() > 250 and one.centers[0].min() < 110
    with pytest.raises(FedmtError, match="no samples"):
        share_split(truth, 3, 0.1, 3, 0)
    with pytest.raises(FedmtError, match=r"reference_share is 1\.0"):
        share_split(truth, 2, 1.0, 3, 0)


def test_a_number_for_each_class() -> None:
    truth = labels([30, 40])
    for split in (
        iid_split(truth, 2, [2, 5], 3, 6, 0),
        non_iid_split(truth, 2, [2, 5], 3, 6, 0.1, 0),
    ):
        assert truth[split.reference].bincount().tolist() == [2, 5] and disjoint(split)
    with pytest.raises(FedmtError, match="'b' has 40 samples, but the reference center needs 41"):
        iid_split(truth, 2, [2, 41], 3, None, 0, ["a", "b"])
    with pytest.raises(FedmtError, match="per_class is 0"):
        iid_split(truth, 2, [2, 0], 3, None, 0)


def test_a_natural_split_keeps_the_frequencies_of_the_set() -> None:
    truth = labels([400, 130, 30])
    split = natural_split(truth, 3, 10, 4, seed=1)
    assert disjoint(split)
    assert truth[split.reference].bincount().tolist() == [10, 10, 10]
    held = torch.stack([truth[c].bincount(minlength=3) for c in split.centers])
    assert held.sum(0).tolist() == [390, 120, 20]  # nothing is left over
    assert (held.amax(0) - held.amin(0)).max() <= 1
    with pytest.raises(FedmtError, match=r"Class 2 has 30 samples: after 28 .*per_class or reference_share"):
        natural_split(truth, 3, 28, 4, seed=1)


def test_a_long_tail_falls_geometrically_and_every_center_has_its_own_order() -> None:
    shares = long_tailed_prior(10, 50)
    np.testing.assert_allclose(shares.sum(), 1)
    np.testing.assert_allclose(shares[0] / shares[-1], 50)
    np.testing.assert_allclose(shares[1:] / shares[:-1], 50 ** (-1 / 9))
    truth = labels([700] * 10)
    split = long_tailed_split(truth, 10, 3, 6, 300, 50, seed=0)
    assert disjoint(split) and not split.notes
    assert truth[split.reference].bincount().tolist() == [3] * 10
    orders = set()
    for center in split.centers:
        held = truth[center].bincount(minlength=10)
        assert len(center) == 300
        np.testing.assert_allclose(sorted(held.tolist(), reverse=True), 300 * shares, atol=1)
        orders.add(tuple(held.argsort(descending=True).tolist()))
    assert len(orders) == 6
    again = long_tailed_split(truth, 10, 3, 6, 300, 50, seed=0)
    assert all(map(torch.equal, split.centers, again.centers))


def test_a_long_tail_with_too_few_samples_repeats_those_of_its_own_and_says_so() -> None:
    truth = labels([40] * 5)
    split = long_tailed_split(truth, 5, 2, 4, 60, 10, seed=3)
    assert disjoint(split) and "Long-tailed split, imbalance 10" in split.notes[0]
    assert [len(c) for c in split.centers] == [60] * 4
    with pytest.raises(FedmtError, match=r"imbalance is 0\.5, expected 1 or more"):
        long_tailed_split(truth, 5, 2, 4, 60, 0.5, seed=3)
