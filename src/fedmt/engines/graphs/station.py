"""A device of a run, with what its workers need there: samples and each round's weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedmt.engines.eager.trainer import Trained
from fedmt.engines.graphs.flat import FlatModel
from fedmt.engines.graphs.worker import Base, Check
from fedmt.engines.site import Job


@dataclass(eq=False)
class Station:
    """device: where its workers run. samples: those of its centers as one tensor; None if they are in host
    memory. home: whether it is the run's own device, where weights come from and go to.

    Between two stations, everything is copied, even if both are the same device. So one GPU, or none, can
    demonstrate what several do.
    """

    device: torch.device
    samples: Tensor | None
    home: bool = True
    _moved: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    _base: Base | None = None

    def here(self, job: Job) -> Job:
        """The job with its received weights on this device. Each set of weights is sent once per round."""
        if self.home:
            return job
        return replace(job, received={k: self._sent(v) for k, v in job.received.items()})

    def check(self, check: Check) -> Check:
        """The reference for a capture, on this device."""
        if self.home:
            return check
        return Check(self.here(check.job), check.losses, _copied(check.weights, self.device))

    def base(self, flat: FlatModel, job: Job) -> Base:
        """The job's weights as a vector. It is the same for all centers of a round, except for their own
        layers."""
        if self._base is None or not _mostly(job.received, self._base.weights):
            self._base = Base(job.received, flat.packed(job.received))
        return self._base

    def back(self, done: Trained, device: torch.device) -> Trained:
        """What was trained here, copied to the run's own device."""
        if self.home:
            return done
        return Trained(
            done.losses,
            _copied(done.trainable, device),
            _copied(done.mean_gradient, device),
            _copied(done.weights, device),
        )

    def forget(self) -> None:
        """Releases a round's weights."""
        self._moved, self._base = {}, None

    def _sent(self, value: Tensor) -> Tensor:
        if id(value) not in self._moved:
            self._moved[id(value)] = (
                value,
                value.to(self.device, copy=True),
            )  # kept alive, so that its id stays unique
        return self._moved[id(value)][1]


def _copied(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {k: v.to(device, copy=True) for k, v in tensors.items()}


def _mostly(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    same = sum(value is other.get(key) for key, value in one.items())
    return 2 * same > len(one)
