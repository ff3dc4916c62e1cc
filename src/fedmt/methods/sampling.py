"""Which of a center's samples are in each step: full batches over epochs, or private random batches.

For differential privacy, each record is in a step's batch with the same probability, independently of all
others (Poisson sampling). The number of steps depends only on public numbers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmt.methods.training import Training
from fedmt.privacy import PrivacySpec


class Sampling(NamedTuple):
    """rate: the probability that a record is in a batch. steps: the number of steps in a round. expected: the
    average number of records in a batch, if the public number of records is the true one."""

    rate: float
    steps: int
    expected: float

    @classmethod
    def of(cls, privacy: PrivacySpec, training: Training, records: int) -> Sampling:
        size = privacy.public_size(records)
        rate = min(1.0, training.batch_size / size)
        return cls(rate, math.ceil(training.local_epochs * size / training.batch_size), rate * size)


def sample_stream(samples: np.ndarray, epochs: int, batch: int, rng: np.random.Generator) -> np.ndarray:
    """Batches [S, batch] that pass over `samples` `epochs` times, each time in a new order.

    Every batch is full, so that a step has one shape: S = ceil(epochs * N / batch), and the last batch is
    filled up from one more pass.
    """
    steps = math.ceil(epochs * len(samples) / batch)
    passes = math.ceil(steps * batch / len(samples))
    stream = np.concatenate([rng.permutation(samples) for _ in range(passes)])
    return stream[: steps * batch].reshape(steps, batch).astype(np.int64)


def poisson_stream(
    samples: np.ndarray, sampling: Sampling, rng: np.random.Generator
) -> tuple[np.ndarray, Tensor]:
    """The records [E, 1] of all steps, one after the other, and how many each step has, int64 [S].

    samples: those that contribute to a step. For any other record, a draw has no effect.
    """
    drawn = [samples[rng.random(len(samples)) < sampling.rate] for _ in range(sampling.steps)]
    index = np.concatenate([*drawn, np.empty(0, np.int64)]).astype(np.int64)
    return index[:, None], torch.tensor([len(d) for d in drawn], dtype=torch.int64)
