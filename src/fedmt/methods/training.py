"""How centers train, common to all methods: the config's table [training]."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from fedmt.core.errors import FedmtError, at_least, positive, share


@dataclass(frozen=True)
class Training:
    """How centers train, whatever the method."""

    rounds: int = 200
    """Number of federated rounds. Accuracy grows with rounds until pseudo-labels drift; start with 20 to 50,
    and use more if the curves in the report still rise at the end."""
    local_epochs: int = 1
    """Passes that each center makes over its own samples per round. More passes mean fewer messages, but the
    centers' models drift further apart."""
    batch_size: int = 50
    """Number of samples per step at each center."""
    reference_epochs: int = 4
    """Passes that the reference center makes over its own samples after each round. Use 0 to leave the
    averaged model as it is."""
    reference_batch_size: int = 0
    """Samples per step at the reference center. With 0, it is a tenth of its samples, but at most 250, and at
    least `smallest_reference_batch`."""
    smallest_reference_batch: int = 10
    """The fewest samples per step at the reference center, if `reference_batch_size` is 0. If that is more
    than a third of its samples, it is lowered to a third of them, but not below 10. The default is 50 for
    images with a network that starts from random weights, except in the method `single`, and for every input
    in `fedtrans`. Many small steps on few samples would undo what the model learned from the centers."""
    reference_rate: float = 1.0
    """Learning rate of the reference center after each round, as a share of the centers' rate. In FedMT, the
    default is 0.1 for vectors, tables and text, and with `model.weights` or `model.freeze`: the model has
    features from the start, and would overfit the few samples of the reference center at the full rate. It is
    0.3 if every correspondence is estimated, except for a linear head on a frozen network."""
    warmup_epochs: int = 20
    """Passes over the reference center's samples before the first round, so that the first pseudo-labels are
    informative. Raise it if the first pseudo-labels are poor."""
    supervised_views: Literal["weak", "weak+strong", "strong+mixed"] = "strong+mixed"
    """How samples look in training on plain labels: at the reference center, and at every center in FedTrans
    and FedRep. `"weak"` is one weak view of each sample, `"weak+strong"` is both kinds, and `"strong+mixed"`
    trains with L_fix + L_mix, as FedMT does at its centers."""
    learning_rate: float = 0.1
    """Step size of SGD at the centers. If it is not set, it is 0.01 with `model.weights` (for a ResNet 0.03),
    and 0.003 with `model.freeze` and a linear head. Lower it if a loss becomes infinite."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """How the learning rate changes over the rounds. `"cosine"` lowers it to zero; `"constant"` suits runs
    whose number of rounds is not yet known."""
    momentum: float = 0.9
    """Momentum of SGD at every center."""
    nesterov: bool = True
    """Whether that momentum is Nesterov's."""
    weight_decay: float = 5e-4
    """Weight decay of SGD at every center."""
    clip: float = 5.0
    """Largest norm of a gradient; a longer one is scaled down to it. With 0, gradients are not clipped."""
    participation: float = 1.0
    """Share of the centers that is chosen in each round. Lower it to simulate centers that take part only
    sometimes."""
    dropouts: float = 0.0
    """Probability that a chosen center fails before it answers. It is for simulations."""
    weights: Literal["equal", "samples"] = "equal"
    """Whether centers count equally in the mean, or in proportion to their number of samples. Use `"samples"`
    if centers differ a lot in size. Each center then sends its number of samples."""
    logit_adjustment: bool = True
    """Whether training on wanted labels corrects for how frequent the classes are in that training set, so
    that the model answers as if all classes were equally frequent. Keep it on unless you want the frequencies
    of the training data in the predictions."""
    batch_norm: Literal["static", "static-reference", "running"] = "static"
    """Where batch-norm statistics come from. `"static"` pools those of all centers, `"static-reference"` uses
    those of the reference center alone, so that nothing but weights leaves a center, and `"running"` is
    ordinary batch norm. With `[privacy]`, the default is `"static-reference"`."""

    def __post_init__(self) -> None:
        at_least("training.rounds", self.rounds, 1)
        at_least("training.batch_size", self.batch_size, 1)
        at_least("training.smallest_reference_batch", self.smallest_reference_batch, 1)
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
        """The learning rate of round 1..rounds. The warm-up, round 0, has that of round 1."""
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
    "smallest_reference_batch": 10,
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
"""The printed choices of the paper's CIFAR-100 runs. Batch size and clipping are not printed, so they are
SemiFL's, except for its reference batch size of 10 for up to 1000 samples. The warm-up is the first round's
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
