"""FedMT: Federated Learning with Mixed-type Labels (Zhang, Peng, Zhang, Talhouk, Niu, Li).

All centers train one K-class model. A center whose labels live in another space of J classes
learns through its correspondence M (J x K), given or estimated. Algorithm 1, by its procedures:

    A. the reference center trains the model on its own data         `reference_work` (base class)
    B. each center receives it, guesses wanted labels, trains        `center_round`, `center_loss`
    C. the updates of the centers that trained are averaged          `fedmt.aggregation`

Where the paper is silent or two readings exist, the choice is an option below, with the value that
measured best as the default; the preset `paper` gives the printed ones (see docs/architecture.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedmt.augment import WEAK_NUMBERS, strong, weak
from fedmt.data.center import Center, Federation
from fedmt.errors import FedmtError
from fedmt.estimation import (
    Estimate,
    align,
    confident_pseudo_labels,
    counting,
    expectation_maximisation,
    frobenius_error,
)
from fedmt.labels import posterior
from fedmt.losses import (
    double_softmax_cross_entropy,
    fix_loss,
    mix_loss,
    projected_cross_entropy,
)
from fedmt.methods.base import CenterRound, LocalWork, Method, Tensors, at_least, sample_stream


@dataclass(frozen=True)
class FedMT(Method):
    """
    correspondence: 'given' uses each center's own where it has one and estimates the rest, FedMT (T);
        'estimated' estimates all, FedMT (E), and known ones only measure the error of M-hat.
    estimator: how M-hat is made, by 'counting' (the paper) or by 'em'.
    pseudo_labels: from the model alone, 'plain' (the paper), or sharpened by the center's own label,
        'posterior': q_k ~ f_k M[label, k].
    alignment: hold the guesses' shares of the wanted classes, within each of the center's own, to what
        a uniform prior lets expect, against self-training's drift to the classes it already prefers
        (not in the paper; see `estimation.align`).
    smoothing: share of the uniform matrix mixed into M-hat before training with it (the paper: none). An
        early wrong zero must not be final, and a label that no confident sample carries must not cost
        an infinite loss: it then costs a constant, so it has no gradient.
    projection: which samples R^p sees, 'all' of the center or the 'confident' ones alone (the paper).
    projection_loss: 'proper' cross-entropy of M f, or the 'double-softmax' of the published curves.
    xi: confidence threshold. lambda_1: weight of L_mix beside L_fix. lambda_2: weight of both beside
        R^p. a: the mixing share is Beta(a, a).
    """

    name: ClassVar[str] = "fedmt"

    correspondence: Literal["given", "estimated"] = "given"
    estimator: Literal["counting", "em"] = "em"
    smoothing: float = 0.01
    pseudo_labels: Literal["posterior", "plain"] = "posterior"
    alignment: bool = False
    projection: Literal["all", "confident"] = "all"
    projection_loss: Literal["proper", "double-softmax"] = "proper"
    xi: float = 0.95
    lambda_1: float = 1.0
    lambda_2: float = 0.5
    a: float = 0.75

    def __post_init__(self) -> None:
        at_least("training.local_epochs", self.training.local_epochs, 1)
        at_least("method.lambda_1", self.lambda_1, 0)
        at_least("method.lambda_2", self.lambda_2, 0)
        if not 0 <= self.smoothing < 1:
            raise FedmtError(f"method.smoothing: {self.smoothing} given, expected 0 <= smoothing < 1.")
        if not 0 <= self.xi < 1:
            raise FedmtError(f"method.xi: {self.xi} given, expected a threshold with 0 <= xi < 1.")
        if not self.a > 0:
            raise FedmtError(f"method.a: {self.a} given, expected more than 0: it is that of Beta(a, a).")

    def center_round(
        self, center: Center, predictions: Tensor, kept: Tensors, round: int, rng: np.random.Generator
    ) -> CenterRound:
        """Procedure B up to the batches: pseudo-labels, S_fix, M-hat, S_mix."""
        labels, matrix, keep, facts = self._correspondence(center, predictions)
        guess = posterior(predictions, matrix, labels) if self.pseudo_labels == "posterior" else predictions
        if self.alignment:
            guess = align(guess, matrix, labels)
        pseudo, confident = confident_pseudo_labels(guess, self.xi)
        fix = confident.nonzero().flatten().cpu().numpy()
        if len(fix) == 0:
            reason = f"no pseudo-label is more confident than xi = {self.xi}"
            return CenterRound(None, keep, pseudo, confident, facts, reason)

        everything = np.arange(len(center))
        batches = sample_stream(
            everything if self.projection == "all" else fix,
            self.training.local_epochs,
            self.training.batch_size,
            rng,
        )
        partners = rng.choice(everything, size=batches.shape)  # S_mix: with replacement from S_c
        index = np.stack([batches, partners], axis=1)  # [S, 2, B]
        strong_shape = (*batches.shape, self.augmentation.strong_numbers)
        steps = {
            "index": torch.from_numpy(index),
            "weak": torch.from_numpy(rng.random((*index.shape, WEAK_NUMBERS), dtype=np.float32)),
            "strong": torch.from_numpy(rng.random(strong_shape, dtype=np.float32)),
            "share": torch.from_numpy(rng.beta(self.a, self.a, size=len(index)).astype(np.float32)),
        }
        tables = {"label": labels, "matrix": matrix, "pseudo": pseudo, "confident": confident.float()}
        work = LocalWork(self.center_views, self.center_loss, steps, tables, self.training.rate(round))
        return CenterRound(work, keep, pseudo, confident, facts)

    def center_views(self, images: Tensor, steps: Tensors) -> Tensor:
        """Each batch weakly, strongly and mixed with its partners: [S, 2, B, C, H, W] to [S, 3B, C, H, W]."""
        shape = images.shape[:3]
        both = weak(images.flatten(0, 2), steps["weak"].flatten(0, 2), self.augmentation)
        plain, partners = both.unflatten(0, shape).unbind(1)
        distorted = strong(plain.flatten(0, 1), steps["strong"].flatten(0, 1), self.augmentation)
        share = steps["share"].view(-1, 1, 1, 1, 1)
        mixed = share * plain + (1 - share) * partners
        return torch.cat([plain, distorted.view_as(plain), mixed], 1)

    def center_loss(self, logits: Tensor, step: Tensors, tables: Tensors) -> dict[str, Tensor]:
        """`R^p + lambda_2 (L_fix + lambda_1 L_mix)` of one step, from the logits [3B, K] of its views."""
        index, partner_index = step["index"]
        plain_logits, strong_logits, mixed_logits = logits.chunk(3)
        projection_loss = (
            projected_cross_entropy if self.projection_loss == "proper" else double_softmax_cross_entropy
        )
        pseudo, confident = tables["pseudo"], tables["confident"][index]
        r_p = projection_loss(plain_logits, tables["matrix"], tables["label"][index])
        l_fix = fix_loss(strong_logits, pseudo[index], confident)
        l_mix = mix_loss(mixed_logits, pseudo[index], pseudo[partner_index], step["share"], confident)
        loss = r_p + self.lambda_2 * (l_fix + self.lambda_1 * l_mix)
        return {"loss": loss, "projection": r_p, "fix": l_fix, "mix": l_mix}

    def projections(
        self, federation: Federation, kept: Mapping[str, Tensors]
    ) -> dict[str, dict[str, Tensor]]:
        """M where it is used, else the M-hat that each center recorded."""
        found: dict[str, dict[str, Tensor]] = {}
        for center in federation.centers:
            if center.space is None or center.space == federation.wanted:
                continue
            if self._uses_given(center):
                assert center.correspondence is not None
                matrix = center.correspondence.matrix
            elif "correspondence" in kept.get(center.name, {}):
                matrix = kept[center.name]["correspondence"]
            else:
                continue
            found.setdefault(center.space.name, {})[center.name] = matrix
        return found

    def _uses_given(self, center: Center) -> bool:
        known = center.correspondence
        # A center that labels in the wanted space needs no estimate: its labels are the wanted ones.
        return known is not None and (self.correspondence == "given" or known.coarse == known.fine)

    def _correspondence(
        self, center: Center, predictions: Tensor
    ) -> tuple[Tensor, Tensor, Tensors, dict[str, float]]:
        """The center's labels [N], its matrix [J, K], what to keep of it, and facts for the record."""
        if center.labels is None or center.space is None:
            # No labels: one class that everything belongs to. R^p is then 0 and the posterior plain.
            one = predictions.new_ones(1, predictions.shape[1])
            return torch.zeros_like(predictions[:, 0], dtype=torch.int64), one, {}, {}
        if self._uses_given(center):
            assert center.correspondence is not None
            return center.labels, center.correspondence.matrix.to(predictions), {}, {}
        if self.alignment:
            # M is not known yet, so the shares can be held over the whole center alone.
            everything = predictions.new_ones(1, predictions.shape[1])
            predictions = align(predictions, everything, torch.zeros_like(center.labels))
        estimate = self._estimate(predictions, center.labels, len(center.space))
        facts: dict[str, float] = {"filled_columns": float(estimate.filled.sum())}
        if center.correspondence is not None:
            facts["correspondence_error"] = frobenius_error(estimate.matrix, center.correspondence.matrix)
        smooth = estimate.matrix.lerp(torch.full_like(estimate.matrix, 1 / len(center.space)), self.smoothing)
        return center.labels, smooth, {"correspondence": estimate.matrix}, facts

    def _estimate(self, predictions: Tensor, labels: Tensor, classes: int) -> Estimate:
        if self.estimator == "em":
            return expectation_maximisation(predictions, labels, classes)
        return counting(predictions, labels, classes, self.xi)


PAPER: dict[str, dict[str, Any]] = {
    "method": {
        "name": "fedmt",
        "estimator": "counting",
        "smoothing": 0.0,
        "pseudo_labels": "plain",
        "alignment": False,
        "projection": "confident",
        "projection_loss": "proper",
        "xi": 0.95,
        "lambda_1": 1.0,
        "lambda_2": 1 / 16,
        "a": 0.75,
    },
    "training": {
        "rounds": 200,
        "local_epochs": 5,
        "reference_epochs": 5,
        "warmup_epochs": 5,
        "batch_size": 10,
        "reference_batch_size": 0,
        "reference_strong": False,
        "learning_rate": 0.03,
        "schedule": "cosine",
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 5e-4,
        "clip": 1.0,
        "server_rate": 1.0,
        "server_momentum": 0.5,
        "weights": "equal",
        "batch_norm": "static",
    },
}
"""The preset `paper`: the printed choices (batch size, clipping and server momentum, not printed, are
SemiFL's). The warm-up is the first round's reference update."""
