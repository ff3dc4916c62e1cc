"""Copies fill a class up to the number in the rule, and are in the same place as their originals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmt.data.copies import choose_copies, copy_numbers, rule_targets
from fedmt.data.splits import share_split
from fedmt.inputs.images.copies import make_copies

quick = settings(max_examples=60, deadline=None)
PAPER = [(200, 1000), (500, 1200), (1000, 1400), (1600, 1600)]


@pytest.mark.parametrize(
    ("count", "target"),
    [
        (0, 0),
        (1, 1000),
        (199, 1000),
        (200, 1200),
        (499, 1200),
        (500, 1400),
        (999, 1400),
        (1000, 1600),
        (1599, 1600),
        (1600, 1600),
        (5000, 5000),
    ],
)
def test_the_papers_rules(count: int, target: int) -> None:
    assert rule_targets(np.array([count]), PAPER, [False]).tolist() == [target]
    assert rule_targets(np.array([count]), PAPER, [True]).tolist() == [count]


@quick
@given(
    counts=st.lists(st.integers(8, 40), min_size=1, max_size=5),
    extra=st.integers(0, 90),
    share=st.floats(0.05, 0.3),
    centers=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_copies_fill_up_in_proportion_at_the_place_of_their_originals(
    counts: list[int], extra: int, share: float, centers: int, seed: int
) -> None:
    truth = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    split = share_split(truth, len(counts), share, centers, seed)
    places = [split.reference, *split.centers]
    targets = rule_targets(np.array(counts), [(30, 30 + extra)], [False] * len(counts))
    copies = choose_copies(places, truth, targets, seed)
    total = truth[torch.cat([*places, *copies])].bincount(minlength=len(counts))
    assert total.tolist() == [30 + extra if n < 30 else n for n in counts]
    for place, copied in zip(places, copies, strict=True):
        assert set(copied.tolist()) <= set(place.tolist())
        for k, (n, target) in enumerate(zip(counts, targets.tolist(), strict=True)):
            own, made = place[truth[place] == k], copied[truth[copied] == k]
            assert abs(len(made) - len(own) * (target - n) / n) < 1
            # No image is copied twice before every other image is copied once.
            times = [made.tolist().count(i) for i in own.tolist()]
            assert max(times) - min(times) <= 1
    again = choose_copies(places, truth, targets, seed)
    assert all(torch.equal(a, b) for a, b in zip(copies, again, strict=True))


def test_what_does_not_divide_goes_to_no_favored_place() -> None:
    truth = torch.arange(40).repeat_interleave(4)
    places = [torch.arange(i, 160, 4) for i in range(4)]
    copies = choose_copies(places, truth, np.full(40, 5), seed=0)
    numbers = [len(c) for c in copies]
    assert sum(numbers) == 40 and max(numbers) < 25


def images(n: int = 6, channels: int = 3) -> torch.Tensor:
    return torch.randint(
        60, 200, (n, channels, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )


@pytest.mark.parametrize("channels", [1, 3])
def test_copies_resemble_their_originals(channels: int) -> None:
    """Smooth images with different shades: a copy is closer to its original than to another image."""
    shades = torch.tensor([40.0, 120, 200])
    ramp = torch.linspace(-15, 15, 16)
    smooth = (shades[:, None, None, None] + ramp).expand(3, channels, 16, 16).to(torch.uint8)
    chosen = torch.tensor([2, 0, 1, 0, 2, 1] * 50)
    copies = make_copies(smooth, chosen, True, copy_numbers(0, 1))
    assert copies.dtype == torch.uint8 and copies.shape == (300, channels, 16, 16)
    middle = copies[:, :, 6:10, 6:10].float().mean((1, 2, 3))
    nearest = (middle[:, None] - shades).abs().argmin(1)
    assert (nearest == chosen).float().mean() > 0.97  # brightness may change the nearest one for a few
    assert len({c.numpy().tobytes() for c in copies}) > 200  # and copies differ from one another


def test_copies_follow_from_seed_and_place() -> None:
    chosen = torch.arange(6).repeat(50)  # more than one batch
    one = make_copies(images(), chosen, True, copy_numbers(0, 1))
    assert torch.equal(one, make_copies(images(), chosen, True, copy_numbers(0, 1)))
    assert not torch.equal(one, make_copies(images(), chosen, True, copy_numbers(0, 2)))
    assert not torch.equal(one, make_copies(images(), chosen, True, copy_numbers(1, 1)))
    # Fewer copies are the first of the same copies, so batches do not matter.
    assert torch.equal(one[:130], make_copies(images(), chosen[:130], True, copy_numbers(0, 1)))
    assert make_copies(images(), chosen[:0], True, copy_numbers(0, 1)).shape == (0, 3, 16, 16)


def test_without_flip_no_copy_is_mirrored() -> None:
    """Where left and right matter (digits, letters), a mirrored copy would belong to another class."""
    ramp = torch.linspace(0, 255, 32).to(torch.uint8).expand(1, 1, 32, 32)
    chosen = torch.zeros(200, dtype=torch.int64)
    for flip in (False, True):
        copies = make_copies(ramp, chosen, flip, copy_numbers(0, 0))[:, 0, 8:24].float().mean(1)
        mirrored = copies[:, 8] > copies[:, 23]
        assert mirrored.any() == flip
