"""What every source returns: a `SampleSet`, samples with labels in zero, one or several label spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fedmt.core.errors import FedmtError, together
from fedmt.core.labels import LabelSpace
from fedmt.inputs import DEFAULT_INPUT, Input

Split = Literal["train", "test"]


@dataclass(frozen=True, eq=False)
class SampleSet:
    """samples: [N, ...], as their input stores them.

    labels: label space name -> int64 [N], positions in that space; empty for unlabeled samples.
    spaces: the label spaces, under the same names.
    notes: sentences for the user about what was read and what was left out.
    input: what a sample is.
    snippets: what a report shows of each sample if its stored form cannot be shown.
    groups: int64 [N], equal for samples that belong together, such as those of a patient
        (`groups.group_numbers`); None if every sample stands for itself.
    sites: for a test set, the site of each sample, if the data names it (sites.py).
    """

    samples: Tensor
    labels: Mapping[str, Tensor] = field(default_factory=dict)
    spaces: Mapping[str, LabelSpace] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    input: Input | type[Input] = DEFAULT_INPUT
    snippets: tuple[str, ...] | None = None
    groups: Tensor | None = None
    sites: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def images(self) -> Tensor:
        """The samples, if they are images."""
        return self.samples


def label_positions(names: Sequence[str], space: LabelSpace, where: Sequence[str]) -> Tensor:
    """The labels `names` as positions in `space`, int64 [N]; `where[i]` is the place that has `names[i]`.

    Each distinct name is looked up once. If one is unknown, the error points to its first place.
    """
    known: dict[str, int] = {}
    problems: dict[str, str] = {}
    for name, place in zip(names, where, strict=True):
        if name in known or name in problems:
            continue
        try:
            known[name] = space.index(name, place)
        except FedmtError as error:
            problems[name] = str(error)
    if problems:
        raise together(list(problems.values()))
    return torch.tensor([known[name] for name in names])


def check_split(split: str, source: str) -> None:
    """`split` may come from a config, so its type annotation alone does not guarantee its value."""
    if split not in ("train", "test"):
        raise FedmtError(f"{source}: there is no split '{split}'; it is 'train' or 'test'.")
