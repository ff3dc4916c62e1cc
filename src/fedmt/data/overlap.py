"""Images that are at two places: a test that was trained on flatters every accuracy, in silence."""

from __future__ import annotations

import torch
from torch import Tensor

from fedmt.data.center import Center, Federation
from fedmt.errors import cut


def overlaps(federation: Federation) -> list[str]:
    """Sentences on tests and pairs of centers that have images, to the last pixel, in common.

    Tests that share their images (one in each label space) are told once. One pass over all images.
    """
    centers = [c for c in (federation.reference, *federation.centers) if not c.remote]
    sums = {id(c): _sums(c.images) for c in centers}
    found = []
    told: set[int] = set()
    for test in federation.tests:
        if test.images.data_ptr() in told:
            continue
        told.add(test.images.data_ptr())
        own = _sums(test.images)
        counts = {c.name: _common(test, own, c, sums[id(c)]) for c in centers}
        places = [f"{count:,} at '{name}'" for name, count in counts.items() if count]
        if places:
            found.append(
                f"{test.name}: of its {len(test):,} images some are also trained on, which flatters its "
                f"accuracy: {cut(places, 5)}."
            )
    pairs = []
    for number, one in enumerate(centers):
        for two in centers[number + 1 :]:
            count = _common(one, sums[id(one)], two, sums[id(two)])
            if count:
                pairs.append(f"{count:,} of '{one.name}' and '{two.name}'")
    if pairs:
        found.append(f"Images that two centers have: {cut(pairs, 5)}.")
    return found


def _sums(images: Tensor) -> Tensor:
    """Of each image's pixels: images that are equal have equal ones, and few others do."""
    return images.sum((1, 2, 3), dtype=torch.int64)


def _common(one: Center, sums: Tensor, two: Center, other_sums: Tensor) -> int:
    """How many images of `one` are in `two`."""
    count = 0
    for i in torch.isin(sums, other_sums).nonzero().flatten().tolist():
        same = two.images[(other_sums == sums[i]).nonzero().flatten()]
        count += bool((same == one.images[i]).flatten(1).all(1).any())
    return count
