"""Samples that are at two places: a test that was trained on flatters every accuracy, in silence."""

from __future__ import annotations

import torch
from torch import Tensor

from fedmt.core.errors import cut
from fedmt.data.center import Center, Federation


def overlaps(federation: Federation) -> list[str]:
    """Sentences on tests and pairs of centers that have samples, to the last bit, in common.

    Also groups, such as patients, by their original values: a model knows a patient from other images too.
    Tests that share their samples (one in each label space) are told once. One pass over all samples.
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
                f"{test.name}: of its {len(test):,} {test.input.word}s some are also trained on, which "
                f"flatters its accuracy: {cut(places, 5)}."
            )
        numbers = {c.name: _common_groups(test, c) for c in centers}
        places = [f"{count:,} at '{name}'" for name, count in numbers.items() if count]
        if places and test.groups is not None:
            found.append(
                f"{test.name}: of its {len(test.groups.unique()):,} groups some are also trained on, which "
                f"flatters its accuracy: {cut(places, 5)}. Move each to one place; where two places use the "
                "same names for different groups, add the place to the names."
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
    """Of each sample's bytes: samples that are equal have equal sums, and few others do."""
    return values.flatten(1).view(torch.uint8).sum(1, dtype=torch.int64)


def _common(one: Center, sums: Tensor, two: Center, other_sums: Tensor) -> int:
    """How many samples of `one` are in `two`."""
    count = 0
    for i in torch.isin(sums, other_sums).nonzero().flatten().tolist():
        same = two.values[(other_sums == sums[i]).nonzero().flatten()]
        count += bool((same == one.values[i]).flatten(1).all(1).any())
    return count


def _common_groups(one: Center, two: Center) -> int:
    """How many groups of `one` are in `two`; 0 where one of them names none."""
    if one.groups is None or two.groups is None:
        return 0
    return int(torch.isin(one.groups.unique(), two.groups).sum())
