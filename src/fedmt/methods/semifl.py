"""SemiFL (Diao, Ding, Tarokh 2022): the centers' samples are treated as unlabeled.

Alternate training: each center trains on confident pseudo-labels of the model it receives, the reference
center then on its labels. It is what remains of FedMT without the centers' own labels.

    loss = L_fix + lambda_1 L_mix        over S_fix = {i : max_k f_k(x_i) > xi}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedmt.core.errors import FedmtError, at_least, positive
from fedmt.core.priors import estimated_prior, log_prior
from fedmt.core.pseudo_labels import confident_pseudo_labels, normalized
from fedmt.data.center import Center
from fedmt.methods.base import Method, Presets
from fedmt.methods.fix_mix import MIXING, fix_mix_losses, fix_mix_steps
from fedmt.methods.schedules import Alternate, Schedule
from fedmt.methods.training import PAPER_AGGREGATION, PAPER_TRAINING
from fedmt.methods.work import CenterRound, LocalWork, Tensors, shifted


@dataclass(frozen=True)
class SemiFL(Method):
    """SemiFL: only confident pseudo-labels. The centers' own labels are not used."""

    name: ClassVar[str] = "semifl"
    schedule: ClassVar[Schedule] = Alternate()
    private: ClassVar[bool] = True
    presets: ClassVar[Presets] = {
        "paper": {
            "method": {"xi": 0.95, "lambda_1": 1.0, "a": 0.75, "prior": "ignored"},
            "training": PAPER_TRAINING,
            "aggregation": PAPER_AGGREGATION,
        }
    }

    xi: float = 0.6
    """Threshold of confidence: a pseudo-label with a higher probability is used. The paper uses 0.95, which
    few guesses exceed in short runs."""
    lambda_1: float = 1.0
    """Weight of the mixing loss L_mix relative to L_fix."""
    a: float = MIXING
    """Shape of the Beta(a, a) distribution that mixing shares are drawn from."""
    prior: Literal["estimated", "ignored"] = "estimated"
    """How frequent the wanted classes are at a center: `"estimated"` by each center from the model's answers,
    or `"ignored"`, as in the paper."""

    def __post_init__(self) -> None:
        at_least("training.local_epochs", self.training.local_epochs, 1)
        at_least("method.lambda_1", self.lambda_1, 0)
        positive("method.a", self.a)
        if not 0 <= self.xi < 1:
            raise FedmtError(f"method.xi: {self.xi} given, expected a threshold with 0 <= xi < 1.")

    def center_round(
        self, center: Center, predictions: Tensor, kept: Tensors, round: int, rng: np.random.Generator
    ) -> CenterRound:
        """Pseudo-labels, S_fix, S_mix and their batches."""
        keep: dict[str, Tensor] = {}
        if self.prior == "estimated" and self.privacy is None:  # it would be estimated from all records
            # The labels in the center's own space are not used, so everything belongs to one class.
            one = predictions.new_ones(1, predictions.shape[1])
            nobody = torch.zeros_like(predictions[:, 0], dtype=torch.int64)
            keep["prior"] = estimated_prior(predictions, one, nobody)
            predictions = normalized(predictions * keep["prior"])
        pseudo, confident = confident_pseudo_labels(predictions, self.xi)
        fix = confident.nonzero().flatten().cpu().numpy()
        if len(fix) == 0 and self.privacy is None:
            reason = f"no pseudo-label is more confident than xi = {self.xi}"
            return CenterRound(None, keep, pseudo, confident, reason=reason)
        batches, sizes = self._drawn(center, fix, rng)
        alone = self.privacy is not None
        steps = fix_mix_steps(batches, len(center), self.a, self.augmentation, rng, alone)
        tables = {"pseudo": pseudo}
        if keep:
            tables["log_prior"] = log_prior(keep["prior"])
        work = LocalWork(
            self.mixed_views,
            self.center_loss,
            steps,
            tables,
            self.training.rate(round),
            samplewise=("pseudo",),
            sizes=sizes,
        )
        return CenterRound(work, keep, pseudo, confident)

    def center_loss(self, logits: Tensor, step: Tensors, tables: Tensors) -> dict[str, Tensor]:
        """`L_fix + lambda_1 L_mix` of one step, from the logits [2B, K] of its views."""
        strong_logits, mixed_logits = shifted(logits, tables).chunk(2)
        everyone = torch.ones_like(step["index"][0])  # the batch contains only S_fix
        l_fix, l_mix = fix_mix_losses(strong_logits, mixed_logits, step, tables["pseudo"], everyone)
        return {"loss": l_fix + self.lambda_1 * l_mix, "fix": l_fix, "mix": l_mix}
