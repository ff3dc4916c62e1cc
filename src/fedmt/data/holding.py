"""Sets some of the reference center's samples aside before training, so that calibration uses unseen
samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedmt.data.center import Center, Federation
from fedmt.data.group_splits import chosen_groups
from fedmt.data.specs import CalibrationSpec


def hold_out(federation: Federation, spec: CalibrationSpec, seed: int) -> tuple[Federation, str]:
    """The federation with `held_out` taken from its reference center, and a note about it.

    `spec.share` of each class is taken, rounded down, but never its last sample. Groups are taken whole or
    not at all. If that is fewer than `spec.minimum` samples in total, nothing is taken: a temperature fitted
    on a handful of samples would be noise, and the reference center needs its few samples for training. The
    choice depends only on the seed.
    """
    reference = federation.reference
    assert reference.labels is not None
    labels = reference.labels.cpu().numpy()
    sizes = np.bincount(labels, minlength=len(federation.wanted))
    targets = np.array([min(int(spec.share * size), max(size - 1, 0)) for size in sizes.tolist()])
    stream = [seed, 0xCA11B]
    taken: list[int] = []
    if reference.groups is not None:
        found = chosen_groups(reference.labels, reference.groups, targets, stream, at_least_one=False)
        taken = np.flatnonzero(found).tolist()
    else:
        rng = np.random.default_rng(stream)
        for label, target in enumerate(targets):
            taken += rng.permutation(np.flatnonzero(labels == label))[:target].tolist()
    whole = "" if reference.groups is None else " in whole groups"
    if len(taken) < spec.minimum:
        return federation, (
            f"calibration: {spec.share:g} of each class{whole} are {len(taken)} samples of the reference "
            f"center, fewer than calibration.minimum = {spec.minimum}. None are held out, and predictions "
            "will not be calibrated."
        )
    held = torch.zeros(len(reference), dtype=torch.bool)
    held[taken] = True
    note = (
        f"calibration: {len(taken)} of the reference center's {len(reference)} samples are held out{whole} "
        "from training, to calibrate the finished model."
    )
    kept, aside = _part(reference, ~held), replace(_part(reference, held), name="held out")
    return replace(federation, reference=kept, held_out=aside), note


def _part(center: Center, chosen: torch.Tensor) -> Center:
    assert center.labels is not None
    index = chosen.nonzero().flatten()
    groups = None if center.groups is None else center.groups[index]
    labels = center.labels[index.to(center.labels.device)]
    return replace(center, values=center.values[index], labels=labels, groups=groups)
