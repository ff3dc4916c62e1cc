"""Finds samples that are at two places. A test sample that was also trained on silently inflates every
accuracy."""

from __future__ import annotations

import torch
from torch import Tensor

from fedmt.core.errors import cut
from fedmt.data.center import Center, Federation


def overlaps(federation: Federation) -> list[str]:
    """Notes on tests and pairs of centers that have bit-identical samples in common.

    Groups, such as patients, are compared too, by their original values, because a model knows a patient from
    other images. Tests that share their samples (one in each label space) are reported once. This takes one
    pass over all samples.
    """
    centers = [federation.reference, *federation.centers]
    sums = {id(c): _sums(c.values) for c in centers}
    found = []
    told: set[int] = set()
    for test in federation.tests:
        if test.values.data_ptr() in told:
            continue
        told.add(test.values.data_ptr())
        own = _sums(test.values)
        counts = {c.name: _common(test, own, c, sums[id(c)]) for c in centers}
        places = [f"{count:,} at '{name}'" for name, count in counts.items() if count]
        if places:
            found.append(
                f"{test.name}: some of its {len(test):,} {test.input.word}s are also used for training, "
                f"which inflates its accuracy: {cut(places, 5)}."
            )
        numbers = {c.name: _common_groups(test, c) for c in centers}
        places = [f"{count:,} at '{name}'" for name, count in numbers.items() if count]
        if places and test.groups is not None:
            found.append(
                f"{test.name}: some of its {len(test.groups.unique()):,} groups are also used for training, "
                f"which inflates its accuracy: {cut(places, 5)}. Move each group to one place. If two places "
                "use the same names for different groups, add the place to the names."
            )
    pairs, shared = [], []
    for number, one in enumerate(centers):
        for two in centers[number + 1 :]:
            count = _common(one, sums[id(one)], two, sums[id(two)])
            if count:
                pairs.append(f"{count:,} of '{one.name}' and '{two.name}'")
            count = _common_groups(one, two)
            if count:
                shared.append(f"{count:,} of '{one.name}' and '{two.name}'")
    if pairs:
        found.append(f"{federation.input.word.capitalize()}s that two centers have: {cut(pairs, 5)}.")
    if shared:
        found.append(f"Groups of the same name at two centers: {cut(shared, 5)}.")
    return found


def _sums(values: Tensor) -> Tensor:
    """A checksum of each sample's bytes. Equal samples have equal checksums, and few others do."""
    return values.flatten(1).view(torch.uint8).sum(1, dtype=torch.int64)


def _common(one: Center, sums: Tensor, two: Center, other_sums: Tensor) -> int:
    """The number of samples of `one` that are also in `two`."""
    count = 0
    for i in torch.isin(sums, other_sums).nonzero().flatten().tolist():
        same = two.values[(other_sums == sums[i]).nonzero().flatten()]
        count += bool((same == one.values[i]).flatten(1).all(1).any())
    return count


def _common_groups(one: Center, two: Center) -> int:
    """The number of groups of `one` that are also in `two`. 0 if one of them has no groups."""
    if one.groups is None or two.groups is None:
        return 0
    return int(torch.isin(one.groups.unique(), two.groups).sum())
