"""How centers train, common to all methods: the config's table [training]."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from fedmt.core.errors import FedmtError, at_least, positive, share


@dataclass(frozen=True)
class Training:
    """How centers train, common to all methods.

    local_epochs, batch_size: at each center, per round. reference_epochs, reference_batch_size: at the
    reference center, per round. reference_rate: the learning rate there after each round, as a share of the
    centers'. A batch size of 0 stands for a tenth of its samples, limited to 10 to 250,
    which makes about ten steps per epoch. warmup_epochs: at the reference center before the first round, so
    that the first pseudo-labels are informative.
    supervised_views: what training on plain labels sees (the reference center's; every center's in FedTrans
    and FedRep): a 'weak' view of each sample, 'weak+strong', or 'strong+mixed', by L_fix + L_mix as at
    FedMT's centers.
    participation: share of the centers that is chosen in each round. dropouts: probability that a chosen
    center drops out. weights: centers count equally in the mean, or by their number of samples.
    logit_adjustment: training on wanted labels corrects for how frequent the classes are where it happens, so
    that the model answers for equally frequent classes (`fedmt.core.priors`).
    batch_norm: 'static' pools the statistics of all centers, 'static-reference' uses only those of the
    reference center (then nothing but weights travels), 'running' is ordinary batch norm.
    """

    rounds: int = 200
    local_epochs: int = 1
    batch_size: int = 50
    reference_epochs: int = 4
    reference_batch_size: int = 0
    reference_rate: float = 1.0
    warmup_epochs: int = 20
    supervised_views: Literal["weak", "weak+strong", "strong+mixed"] = "strong+mixed"
    learning_rate: float = 0.1
    schedule: Literal["cosine", "constant"] = "cosine"
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    clip: float = 5.0
    participation: float = 1.0
    dropouts: float = 0.0
    weights: Literal["equal", "samples"] = "equal"
    logit_adjustment: bool = True
    batch_norm: Literal["static", "static-reference", "running"] = "static"

    def __post_init__(self) -> None:
        at_least("training.rounds", self.rounds, 1)
        at_least("training.batch_size", self.batch_size, 1)
        for name in (
            "local_epochs",
            "reference_epochs",
            "reference_batch_size",
            "warmup_epochs",
            "weight_decay",
            "clip",
        ):
            at_least(f"training.{name}", getattr(self, name), 0)
        positive("training.learning_rate", self.learning_rate)
        positive("training.reference_rate", self.reference_rate)
        share("training.momentum", self.momentum)
        share("training.dropouts", self.dropouts)
        if not 0 < self.participation <= 1:
            raise FedmtError(f"training.participation: {self.participation} given, expected 0 < it <= 1.")

    def rate(self, round: int) -> float:
        """The learning rate of round 1..rounds; the warm-up, round 0, has that of round 1."""
        if self.schedule == "constant":
            return self.learning_rate
        done = max(round - 1, 0) / max(self.rounds, 1)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


PAPER_TRAINING: dict[str, Any] = {
    "rounds": 200,
    "local_epochs": 5,
    "reference_epochs": 5,
    "warmup_epochs": 5,
    "batch_size": 10,
    "reference_batch_size": 0,
    "reference_rate": 1.0,
    "supervised_views": "weak",
    "learning_rate": 0.03,
    "schedule": "cosine",
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 5e-4,
    "clip": 1.0,
    "participation": 1.0,
    "dropouts": 0.0,
    "weights": "equal",
    "logit_adjustment": False,
    "batch_norm": "static",
}
"""The printed choices of the paper's CIFAR-100 runs. Batch size and clipping are not printed and
are SemiFL's, except for its reference batch of 10 up to 1000 samples. The warm-up is the first round's
reference update."""

PAPER_AGGREGATION: dict[str, Any] = {"name": "fedavgm", "rate": 1.0, "momentum": 0.5}
"""SemiFL's server momentum, from the code that the paper builds on."""

PAPER_FEDMT: dict[str, Any] = {
    "estimator": "counting",
    "average": False,
    "smoothing": 0.0,
    "pseudo_labels": "plain",
    "prior": "ignored",
    "soft": False,
    "projection": "confident",
    "projection_loss": "proper",
    "xi": 0.95,
    "lambda_1": 1.0,
    "lambda_2": 1 / 16,
    "a": 0.75,
}
"""The printed choices of FedMT itself."""
