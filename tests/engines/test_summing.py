"""Updates and statistics as sums of integers, compared with the means of floats that they represent."""

import numpy as np
import torch

from fedmt.core import static_bn
from fedmt.engines.summing import (
    SummedStatistics,
    SummedUpdates,
    moment_layout,
    precision_notes,
    update_layout,
)
from fedmt.privacy.masking.fixed_point import Entry, Layout
from fedmt.privacy.masking.terms import Summing

TERMS = Summing(threshold=2, max_samples=100)
MODEL = {
    "body.weight": torch.zeros(3, 2),
    "head.weight": torch.zeros(2, 2),
    "other.weight": torch.zeros(4, 2),
    "bn.running_var": torch.tensor([2.0, 900.0]),
    "bn.num_batches_tracked": torch.tensor(3),
    "own.weight": torch.zeros(5),
}
PARAMETERS = {"body.weight", "head.weight", "other.weight", "own.weight"}
HEADS = [frozenset({"head.weight"}), frozenset({"other.weight"})]


def summed(by_samples: bool) -> SummedUpdates:
    layout = update_layout(
        TERMS, MODEL, PARAMETERS, frozenset({"own.weight"}), HEADS, True, by_samples, centers=4
    )
    return SummedUpdates(layout, torch.device("cpu"))


def update(seed: int, head: str) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    names = ("body.weight", head, "control:body.weight", f"control:{head}", "bn.running_var")
    return {k: 0.1 * torch.randn(MODEL[k.removeprefix("control:")].shape, generator=rng) for k in names}


def test_what_a_center_does_not_send_is_a_mean_over_the_others() -> None:
    updates = [
        (update(1, "head.weight"), 10),
        (update(2, "other.weight"), 90),
        (update(3, "head.weight"), 30),
    ]
    for by_samples in (False, True):
        total = summed(by_samples)
        for number, (own, weight) in enumerate(updates):
            assert total.add(f"center-{number}", own, weight if by_samples else 1)
        found = total.combine()
        assert set(found.mean) == set().union(*(own for own, _ in updates))
        for name, mean in found.mean.items():
            having = [
                (own[name].double(), weight if by_samples and ":" not in name else 1)
                for own, weight in updates
                if name in own
            ]
            expected = sum(v * w for v, w in having) / sum(w for _, w in having)
            assert torch.allclose(mean.double(), expected, rtol=0, atol=2e-4 if "bn" in name else 1e-6)
            assert found.counts[name] == len(having)
        assert total.clipped == 0


def test_entries_out_of_range_are_clipped_and_counted() -> None:
    total = summed(False)
    wild = update(1, "head.weight")
    wild["body.weight"][0, 0] = 1e20
    assert total.add("center", wild, 1)
    assert abs(float(total.combine().mean["body.weight"][0, 0]) - 8) < 1e-5
    assert total.clipped == 1
    wild["body.weight"][0, 0] = torch.nan
    assert not total.add("center", wild, 1)


def test_a_bound_on_the_samples_that_is_far_too_large_is_noted(make_federation) -> None:
    federation = make_federation()
    largest = max(map(len, federation.centers))
    assert precision_notes(TERMS, federation, True) == ()
    wide = Summing(threshold=2, max_samples=65_536)
    assert precision_notes(wide, federation, False) == precision_notes(None, federation, True) == ()
    (note,) = precision_notes(wide, federation, True)
    assert f"max_samples is 65,536, but the largest center has {largest:,} samples" in note
    # The note is right: the same update is encoded in the layouts of both bounds.
    coarse, fine = (
        Layout((Entry("x", (1,), 3),), 4, Summing(2, most).heaviest).encode({"x": np.float32([0.1])}, largest)
        for most in (65_536, largest)
    )
    factor = int(note.rpartition("rounded ")[2].split()[0].replace(",", ""))
    assert abs(int(fine[0][0]) / int(coarse[0][0]) / factor - 1) < 1e-3


def test_statistics_are_pooled_as_without_secure_aggregation() -> None:
    """Layers of very different sizes, with means far from 0, where second moments lose digits."""
    rng = np.random.default_rng(0)
    parts = []
    for samples in (7, 40, 100):
        statistics = {}
        for layer, size in (("a", 1e-3), ("b", 1.0), ("c", 1e4)):
            mean, var = rng.normal(3 * size, size, 5), size**2 * rng.uniform(0.01, 4, 5)
            statistics |= {f"{layer}.running_mean": mean, f"{layer}.running_var": var}
        parts.append((samples, {k: torch.from_numpy(v).float() for k, v in statistics.items()}))
    total = SummedStatistics(moment_layout(TERMS, parts[0][1], centers=3))
    for samples, found in parts:
        total.add(samples, found)
    expected = static_bn.pool((float(samples), found) for samples, found in parts)
    pooled = total.result()
    assert pooled.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(pooled[name], value, rtol=1e-5, atol=0), name


def test_no_batch_norm_has_no_statistics() -> None:
    total = SummedStatistics(moment_layout(TERMS, {}, centers=3))
    total.add(5, {})
    assert total.result() == {}
