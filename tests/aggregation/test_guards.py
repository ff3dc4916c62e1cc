"""The guards against float64, and each guard against the attack that it is meant for."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmt.aggregation import GUARDS, Clip, FedAvg, Guard, NoGuard, Received, RunningMean, Scaffold
from fedmt.aggregation.guards import (
    CoordinateMedian,
    FLTrust,
    GeometricMedian,
    TrimmedMeanGuard,
    Update,
    mixed,
)
from fedmt.aggregation.guards.geometry import cosine, distances, norm, products
from fedmt.core.errors import FedmtError

SHAPES = {"conv.weight": (2, 3, 2), "bias": (4,), "scalar": ()}


def updates(count: int, seed: int = 0, heads: bool = False) -> list[Update]:
    """Updates with one direction and some noise. heads: the first center's head differs from the others'."""
    rng = np.random.default_rng(seed)
    common = {k: rng.normal(size=s) for k, s in SHAPES.items()}
    found = []
    for number in range(count):
        tensors = {
            k: torch.from_numpy(np.asarray(common[k] + 0.5 * rng.normal(size=s), np.float32))
            for k, s in SHAPES.items()
        }
        if heads:
            tensors["head.0" if number == 0 else "head.1"] = torch.tensor([float(rng.normal())])
        found.append(Update(f"center-{number}", tensors, float(rng.integers(1, 9))))
    return found


def copies(given: list[Update]) -> list[Update]:
    return [Update(u.center, {k: v.clone() for k, v in u.tensors.items()}, u.weight) for u in given]


def combine(guard: Guard, given: list[Update], root=None, strategy=None):
    received = Received(strategy or FedAvg(), guard, {"conv.weight": torch.ones(2, 3, 2)})
    for update in copies(given):
        assert received.add(update.center, update.tensors, update.weight)
    return received.combine(root)


def flat(update) -> np.ndarray:
    return np.concatenate([update[k].double().numpy().ravel() for k in sorted(SHAPES)])


def rows(given: list[Update]) -> np.ndarray:
    return np.stack([flat(u.tensors) for u in given])


# -- what is measured ---------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), count=st.integers(1, 9))
def test_norm_and_cosine_of_every_center(seed, count):
    given_ = updates(count, seed)
    found = combine(NoGuard(), given_).facts
    matrix = rows(given_)
    mean = matrix.mean(0)
    for row, update in zip(matrix, given_, strict=True):
        facts = found[update.center]
        assert facts["update_norm"] == pytest.approx(np.linalg.norm(row), rel=1e-12)
        expected = row @ mean / np.linalg.norm(row) / np.linalg.norm(mean)
        assert facts["update_cosine"] == pytest.approx(expected, rel=1e-9)


def test_a_norm_of_what_float32_cannot_square():
    huge = {"w": torch.full((3, 4), 3e38)}
    assert norm(huge, ["w"]) == pytest.approx(3e38 * math.sqrt(12), rel=1e-6)
    assert cosine(huge, {"w": torch.full((3, 4), -1e-30)}) == pytest.approx(-1)
    assert cosine(huge, {"w": torch.zeros(3, 4)}) is None


def test_the_layout_in_memory_does_not_matter():
    value = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    other = value.to(memory_format=torch.channels_last)
    assert norm({"w": value}, ["w"]) == norm({"w": other}, ["w"])


@pytest.mark.parametrize("heads", [False, True])
def test_distances_are_over_what_both_have(heads):
    given_ = [u.tensors for u in updates(4, heads=heads)]
    found = distances(products(given_), 4)
    for i in range(4):
        for j in range(4):
            keys = given_[i].keys() & given_[j].keys()
            square = sum(float((given_[i][k].double() - given_[j][k].double()).square().sum()) for k in keys)
            assert float(found[i, j]) == pytest.approx(math.sqrt(square), abs=1e-6)


# -- what is not plausible ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in GUARDS if name != "none"])
@pytest.mark.parametrize("value", [1e6, 1e20, 3e38])
def test_an_absurd_update_is_left_out_and_named(name, value):
    given_ = updates(5)
    bad = Update("center-9", {k: torch.full_like(v, value) for k, v in given_[0].tensors.items()})
    root = given_[0].tensors
    found = combine(GUARDS[name](), [*given_, bad], root)
    honest = combine(GUARDS[name](), given_, root)
    assert found.left_out.keys() == {"center-9"} and "its norm is" in found.left_out["center-9"]
    assert all(torch.equal(found.mean[k], honest.mean[k]) for k in SHAPES)
    assert found.facts["center-9"]["update_norm"] > 1e6
    assert found.facts["center-0"] == honest.facts["center-0"]  # the mean is taken over the plausible updates
    with_it = combine(NoGuard(), [*given_, bad], root)
    assert not with_it.left_out and float(with_it.mean["bias"].abs().max()) > 1e4


def test_alone_it_is_measured_by_the_model():
    (one,) = updates(1)
    assert not combine(Clip(), [one]).left_out
    huge = Update("center-1", {k: 1e20 * v for k, v in one.tensors.items()})
    assert "that of the whole model" in combine(Clip(), [huge]).left_out["center-1"]


def test_an_update_is_also_measured_by_the_others():
    """It may be short compared with a large model, and yet 1,000 times as long as any other."""
    given_ = updates(5)
    longest = 1_500 * max(u.norm for u in given_) / given_[4].norm
    given_[4] = Update("center-4", {k: longest * v for k, v in given_[4].tensors.items()})
    received = Received(FedAvg(), Clip(), {"conv.weight": torch.full((2, 3, 2), 1e6)})
    assert all(received.add(u.center, u.tensors, u.weight) for u in copies(given_))
    found = received.combine().left_out
    assert found.keys() == {"center-4"} and "times the median" in found["center-4"]


def test_nan_is_refused_at_once():
    received = Received(FedAvg(), NoGuard(), {})
    assert not received.add("center-1", {"w": torch.tensor([math.nan])}, 1.0)
    assert received.combine().mean == {}


def test_a_control_variate_is_measured_by_itself():
    """SCAFFOLD's control variates are gradients, not the size of updates, and can be the only bad part."""
    given_ = [
        Update(u.center, {**u.tensors, "control:bias": 300 * u.tensors["bias"]}, u.weight) for u in updates(5)
    ]
    assert not combine(Clip(), given_, strategy=Scaffold()).left_out
    given_[1].tensors["control:bias"] *= 1e4
    found = combine(Clip(), given_, strategy=Scaffold())
    assert "control variate" in found.left_out["center-1"]
    assert found.facts["center-1"]["update_norm"] < 10
    given_[1].tensors["control:bias"] /= 500
    assert combine(Clip(), given_, strategy=Scaffold()).facts["center-1"]["clipped"] < 1


# -- the guards ---------------------------------------------------------------------------------------


def test_clipping_changes_no_honest_update():
    given_ = updates(6)
    plain = RunningMean()
    for update in copies(given_):
        plain.add(update.tensors, update.weight)
    found = combine(Clip(), given_)
    assert all(torch.equal(found.mean[k], plain.result()[k]) for k in SHAPES)
    assert found.counts == plain.counts and not any("clipped" in f for f in found.facts.values())


def test_clipping_brings_a_long_update_to_a_multiple_of_the_median():
    given_ = updates(5)
    given_[2] = Update("center-2", {k: -20 * v for k, v in given_[2].tensors.items()}, 3.0)
    matrix, weights = rows(given_), np.array([u.weight for u in given_])
    norms = np.linalg.norm(matrix, axis=1)
    factor = np.minimum(1, 2 * np.median(norms) / norms)
    expected = (weights[:, None] * factor[:, None] * matrix).sum(0) / weights.sum()
    found = combine(Clip(multiple=2), given_)
    np.testing.assert_allclose(flat(found.mean), expected, rtol=1e-5, atol=1e-6)
    assert found.facts["center-2"]["clipped"] == pytest.approx(factor[2])
    assert [c for c, f in found.facts.items() if "clipped" in f] == ["center-2"]


@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_the_coordinate_median_is_numpys(count):
    found = combine(CoordinateMedian(), updates(count))
    np.testing.assert_allclose(flat(found.mean), np.median(rows(updates(count)), axis=0), rtol=1e-6)


def test_the_trimmed_mean_is_the_mean_of_the_middle():
    given_ = [Update(u.center, u.tensors) for u in updates(6)]
    expected = np.sort(rows(given_), axis=0)[2:4].mean(0)
    np.testing.assert_allclose(flat(combine(TrimmedMeanGuard(trim=0.3), given_).mean), expected, rtol=1e-5)


@pytest.mark.parametrize("bad", [0, 2])
def test_the_geometric_median_has_the_least_sum_of_distances(bad):
    given_ = updates(7, seed=3)
    for number in range(bad):
        given_[number].tensors["conv.weight"] *= -30
    matrix, weights = rows(given_), np.array([u.weight for u in given_])
    z = matrix.mean(0)
    for _ in range(3000):  # plain Weiszfeld iteration in the space of the updates
        share = weights / np.maximum(np.linalg.norm(matrix - z, axis=1), 1e-12)
        z = share @ matrix / share.sum()
    found = combine(GeometricMedian(iterations=3000), given_)
    np.testing.assert_allclose(flat(found.mean), z, rtol=1e-3, atol=1e-4)
    assert sum(f["share"] for f in found.facts.values()) == pytest.approx(1)


def test_the_geometric_median_with_heads_of_some():
    """Each name is combined over the centers that have it."""
    given_ = updates(5, heads=True)
    found = combine(GeometricMedian(), given_)
    assert torch.equal(found.mean["head.0"], given_[0].tensors["head.0"])
    assert found.counts["head.1"] == 4 and found.counts["bias"] == 5
    same = [Update(f"center-{i}", dict(given_[0].tensors)) for i in range(3)]
    assert all(
        torch.allclose(v, given_[0].tensors[k]) for k, v in combine(GeometricMedian(), same).mean.items()
    )


def test_fltrust_follows_the_reference_center():
    given_ = updates(5, seed=1)
    root = {k: 0.1 * v for k, v in updates(6, seed=1)[5].tensors.items()}
    given_[4] = Update("center-4", {k: -3 * v for k, v in given_[4].tensors.items()}, 1.0)
    g0, matrix = flat(root), rows(given_)
    norms = np.linalg.norm(matrix, axis=1)
    trust = np.maximum(matrix @ g0 / norms / np.linalg.norm(g0), 0)
    expected = (trust[:, None] * np.linalg.norm(g0) / norms[:, None] * matrix).sum(0) / trust.sum()
    found = combine(FLTrust(), given_, root)
    np.testing.assert_allclose(flat(found.mean), expected, rtol=1e-4, atol=1e-6)
    assert found.facts["center-4"]["trust"] == 0 and found.counts["bias"] == 4
    # A head that the reference center does not train is scaled like the rest, and does not change its trust.
    heads = [Update(u.center, {**u.tensors, "head.1": torch.full((3,), 7.0)}) for u in given_]
    alike = combine(FLTrust(), heads, root)
    assert all(torch.equal(alike.mean[k], found.mean[k]) for k in SHAPES)
    head = 7 * (trust * np.linalg.norm(g0) / norms).sum() / trust.sum()
    np.testing.assert_allclose(alike.mean["head.1"].numpy(), head, rtol=1e-4)
    nobody = combine(FLTrust(), given_, {k: -v for k, v in root.items()})
    assert [c for c, f in nobody.facts.items() if f["trust"] > 0] == ["center-4"]


def test_mixing_takes_the_nearest():
    given_ = [Update(f"c{i}", {"w": torch.tensor([float(x)])}) for i, x in enumerate((0, 1, 3, 4, 50))]
    found = [float(u.tensors["w"]) for u in mixed(given_, 1)]
    assert found == [2.0, 2.0, 2.0, 2.0, pytest.approx((50 + 4 + 3 + 1) / 4)]
    assert [float(u.tensors["w"]) for u in given_] == [0, 1, 3, 4, 50]  # they are still needed
    assert [float(u.tensors["w"]) for u in mixed(given_, 0)] == pytest.approx([11.6] * 5)
    # A majority is always mixed, whatever the config asks for.
    assert float(mixed(given_, 4)[0].tensors["w"]) == pytest.approx(4 / 3)


def test_mixing_with_heads_of_some():
    given_ = updates(5, heads=True)
    found = mixed(given_, 1)
    assert [u.tensors.keys() for u in found] == [u.tensors.keys() for u in given_]
    assert torch.equal(found[0].tensors["head.0"], given_[0].tensors["head.0"])


@pytest.mark.parametrize(
    ("guard", "options", "said"),
    [
        (Clip, {"multiple": 0.5}, "aggregation.guard.multiple: 0.5 given"),
        (Clip, {"mix": -1}, "aggregation.guard.mix: -1 given"),
        (TrimmedMeanGuard, {"trim": 0.5}, "aggregation.guard.trim: 0.5 given"),
        (GeometricMedian, {"iterations": 0}, "aggregation.guard.iterations: 0 given"),
    ],
)
def test_options_that_make_no_sense(guard, options, said):
    with pytest.raises(FedmtError, match=said):
        guard(**options)


def test_only_no_guard_goes_with_hidden_updates():
    assert [name for name, guard in GUARDS.items() if not guard.needs_single_updates] == ["none"]
