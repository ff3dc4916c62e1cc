"""FedMT: Federated Learning with Mixed-type Labels (Zhang, Peng, Zhang, Talhouk, Niu, Li).

All centers train one K-class model. A center whose labels live in another space of J classes
learns through its correspondence M (J x K), given or estimated. Algorithm 1, by its procedures:

    A. the reference center trains the model on its own data         `reference_work` (base class)
    B. each center receives it, guesses wanted labels, trains        `center_round`, `center_loss`
    C. the updates of the centers that trained are averaged          `fedmt.aggregation`

The order is that of `schedules.Alternate`.

If the paper is silent or can be read in two ways, the choice is an option below. The default is the value
that measured best, and the preset `paper` has the printed values (see docs/development/architecture.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Strict
from torch import Tensor

from fedmt.aggregation import Strategy
from fedmt.core.errors import FedmtError, at_least, positive, share
from fedmt.core.labels import LabelSpace, frobenius_error, posterior
from fedmt.core.losses import double_softmax_cross_entropy, projected_cross_entropy
from fedmt.core.priors import estimated_prior, log_prior, named_shares
from fedmt.core.pseudo_labels import align, confident_pseudo_labels, normalized
from fedmt.data.center import Center
from fedmt.data.member import Member, Roster
from fedmt.estimators import ESTIMATORS, Estimator, Evidence
from fedmt.methods.base import Method, NotPrivate, Presets
from fedmt.methods.fix_mix import MIXING, fix_mix_losses, fix_mix_steps, fix_mix_views
from fedmt.methods.known import Known
from fedmt.methods.schedules import Alternate, Schedule
from fedmt.methods.training import PAPER_AGGREGATION, PAPER_FEDMT, PAPER_TRAINING
from fedmt.methods.work import Answer, CenterRound, LocalWork, Tensors, shifted

FREE = "free"
"""The name of what is trained in addition to the model, if M-hat is trained (`Estimator.trained`)."""


@dataclass(frozen=True)
class FedMT(Method):
    """The options of FedMT. The first values are the defaults; the preset `paper` has the printed ones."""

    name: ClassVar[str] = "fedmt"
    schedule: ClassVar[Schedule] = Alternate()
    private: ClassVar[bool] = True
    presets: ClassVar[Presets] = {
        "paper": {"method": PAPER_FEDMT, "training": PAPER_TRAINING, "aggregation": PAPER_AGGREGATION}
    }

    correspondence: Literal["given", "estimated"] = "given"
    """`"given"` uses each center's correspondence where one is known and estimates the others: FedMT (T).
    `"estimated"` estimates all of them, and known ones only measure the error of M-hat: FedMT (E)."""
    estimator: str = "em"
    """How M-hat is estimated: by expectation maximization over all samples (`"em"`), by counting confident
    pseudo-labels as in the paper (`"counting"`), trained (`"learnable"`), or by `"package.module:Name"`."""
    average: bool = False
    """Whether each center trains with the mean of the M-hats of all centers that label in the same space,
    taken from the previous round. It helps small centers. M-hat then leaves its center."""
    smoothing: float = 0.01
    """Share of the uniform matrix that is mixed into M-hat before training with it, so that an early, wrong
    zero is not final. The paper uses none."""
    pseudo_labels: Literal["posterior", "plain"] = "posterior"
    """Whether pseudo-labels come from the model alone (`"plain"`, as in the paper) or are sharpened by the
    center's own label (`"posterior"`)."""
    prior: Literal["estimated", "uniform", "ignored"] | dict[str, Annotated[float, Strict()]] = "estimated"
    """How frequent the wanted classes are at a center. With `"estimated"`, each center estimates it from its
    labels and the model's answers. If the frequencies are known, use `"uniform"` or a table `{class = share}`
    for all centers. `"ignored"`, as in the paper, uses the model's answers as they are."""
    soft: bool = True
    """Whether samples with an uncertain pseudo-label train too, with the whole guess as their target. If
    false, as in the paper, they wait until the model is confident."""
    projection: Literal["all", "confident", "none"] = "none"
    """Which samples the projection loss R^p uses: `"all"`, the `"confident"` ones (as in the paper; only with
    `soft = false`), or `"none"`. With `soft = true` the loss adds little, and costs a weak view."""
    projection_loss: Literal["proper", "double-softmax"] = "proper"
    """`"proper"` is the cross-entropy of M f. `"double-softmax"` is what the code behind the published curves
    computes; use it only to reproduce them."""
    xi: float = 0.95
    """Threshold of confidence: a pseudo-label with a higher probability counts as certain."""
    lambda_1: float = 1.0
    """Weight of the mixing loss L_mix relative to L_fix."""
    lambda_2: float = 0.5
    """Weight of L_fix and L_mix relative to R^p. It has no effect with `projection = "none"`."""
    a: float = MIXING
    """Shape of the Beta(a, a) distribution that mixing shares are drawn from."""

    def __post_init__(self) -> None:
        at_least("training.local_epochs", self.training.local_epochs, 1)
        at_least("method.lambda_1", self.lambda_1, 0)
        at_least("method.lambda_2", self.lambda_2, 0)
        share("method.smoothing", self.smoothing)
        if not 0 <= self.xi < 1:
            raise FedmtError(f"method.xi: {self.xi} given, expected a threshold with 0 <= xi < 1.")
        positive("method.a", self.a)
        if self.projection == "none" and self.pseudo_labels == "plain":
            raise FedmtError(
                "method.projection: 'none' with method.pseudo_labels = 'plain' would leave the centers' own "
                "labels unused. Set method.pseudo_labels = 'posterior', or use method 'semifl'."
            )
        if self._estimator.trained and self.projection == "none":
            raise FedmtError(
                f"method.projection: 'none' with method.estimator = '{self.estimator}', which only R^p "
                "trains. Set method.projection = 'all' or method.estimator = 'em'."
            )
        if self.projection == "confident" and self.soft:
            raise FedmtError(
                "method.projection: 'confident' with method.soft = true, but then the other samples train "
                "too. Set method.soft = false (the paper) or method.projection = 'all'."
            )

    def _not_private(self, strategy: Strategy) -> Iterator[str]:
        yield from super()._not_private(strategy)
        if self.correspondence == "estimated":
            yield "method.correspondence: 'estimated' computes M-hat from all records; set 'given'"
        if self.average:
            yield (
                "method.average: the mean of the centers' M-hats is computed from all records; set it to "
                "false"
            )

    def check_private_center(self, center: Center) -> None:
        super().check_private_center(center)
        if self.privacy is not None and center.space is not None and not self._uses_given(center):
            raise NotPrivate(
                f"Center '{center.name}': [privacy] needs its correspondence, which is not given. An "
                "estimate would be computed from all of its records. Give the correspondence of its label "
                "space."
            )

    def knowing(self, wanted: LabelSpace) -> FedMT:
        if isinstance(self.prior, str):
            return self
        return replace(self, prior=named_shares(self.prior, wanted, "method.prior"))

    @cached_property
    def _estimator(self) -> Estimator:
        return ESTIMATORS.find(self.estimator, "method.estimator")()

    def center_round(
        self, center: Center, predictions: Tensor, kept: Tensors, round: int, rng: np.random.Generator
    ) -> CenterRound:
        """Procedure B up to the batches: pseudo-labels, S_fix, M-hat, S_mix."""
        known = self._correspondence(center, predictions, kept, rng)
        labels, matrix, prior = known.labels, known.matrix, known.prior
        joint = matrix if prior is None else matrix * prior
        if self.pseudo_labels == "posterior":
            guess = posterior(predictions, joint, labels)
        else:
            guess = predictions if prior is None else normalized(predictions * prior)
        if self._assumed is not None and self.privacy is None:  # it fixes the shares of all samples together
            guess = align(guess, joint, labels)
        pseudo, confident = confident_pseudo_labels(guess, self.xi)
        fix = confident.nonzero().flatten().cpu().numpy()
        if len(fix) == 0 and not self.soft and self.privacy is None:  # abstaining tells about all records
            reason = f"no pseudo-label is more confident than xi = {self.xi}"
            return CenterRound(None, known.keep, pseudo, confident, known.facts, reason)

        visited = np.arange(len(center)) if self.soft or self.projection == "all" else fix
        batches, sizes = self._drawn(center, visited, rng)
        alone = self.privacy is not None
        steps = fix_mix_steps(batches, len(center), self.a, self.augmentation, rng, alone)
        if self.soft:
            certain = F.one_hot(pseudo, guess.shape[1]).to(guess)
            target, counts = torch.where(confident[:, None], certain, guess), torch.ones_like(guess[:, 0])
        else:
            target, counts = pseudo, confident.float()
        facts = dict(known.facts)
        if self.projection != "none" and self.projection_loss == "proper" and known.learned is None:
            no_class = (matrix == 0).all(1)
            unprojected = int(no_class[labels[torch.from_numpy(visited).to(labels.device)]].sum())
            if unprojected:
                facts["unprojected_samples"] = float(unprojected)
            # Such a label has probability 0, and R^p would be infinite. A row of ones makes it 0 without a
            # gradient, as at a center without labels.
            matrix = matrix.masked_fill(no_class[:, None], 1.0)
        tables = {"label": labels, "matrix": matrix, "target": target, "counts": counts}
        if prior is not None:
            tables["log_prior"] = log_prior(prior)
        work = LocalWork(
            self.center_views,
            self.center_loss,
            steps,
            tables,
            self.training.rate(round),
            trainable={} if known.learned is None else {FREE: self._estimator.free_parameters(known.learned)},
            samplewise=("label", "target", "counts"),
            sizes=sizes,
        )
        return CenterRound(work, known.keep, pseudo, confident, facts)

    def center_views(self, samples: Tensor, steps: Tensors) -> Tensor:
        """Weak views of each batch (for R^p), strong views, and views mixed with its partners: [S, 2, B, ...]
        to [S, 3B, ...], or without R^p to [S, 2B, ...]."""
        plain, distorted, mixed = fix_mix_views(samples, steps, self.augmentation)
        return torch.cat([distorted, mixed] if self.projection == "none" else [plain, distorted, mixed], 1)

    def center_loss(self, logits: Tensor, step: Tensors, tables: Tensors) -> dict[str, Tensor]:
        """`R^p + lambda_2 (L_fix + lambda_1 L_mix)` of one step, from the logits [3B, K] of its views."""
        index = step["index"][0]
        logits = shifted(logits, tables)
        *plain_logits, strong_logits, mixed_logits = logits.split(len(index))
        l_fix, l_mix = fix_mix_losses(
            strong_logits, mixed_logits, step, tables["target"], tables["counts"][index]
        )
        loss = l_fix + self.lambda_1 * l_mix
        if not plain_logits:
            return {"loss": loss, "fix": l_fix, "mix": l_mix}
        projection_loss = (
            projected_cross_entropy if self.projection_loss == "proper" else double_softmax_cross_entropy
        )
        matrix = tables["matrix"]
        if FREE in tables:
            # Smoothed here, because the trained values are remembered. If these were smoothed themselves,
            # they would fade.
            matrix = self._smoothed(self._estimator.matrix_of(tables[FREE]))
        r_p = projection_loss(plain_logits[0], matrix, tables["label"][index])
        return {"loss": r_p + self.lambda_2 * loss, "projection": r_p, "fix": l_fix, "mix": l_mix}

    def after_training(self, keep: Tensors, trained: Tensors) -> Tensors:
        """A trained M-hat is remembered as the resulting matrix."""
        if FREE not in trained:
            return keep
        return {**keep, "correspondence": self._estimator.matrix_of(trained[FREE])}

    def exchange(self, roster: Roster, kept: Mapping[str, Tensors]) -> Mapping[str, Tensors]:
        """With `average`: each center learns the mean of the M-hats in its space.

        This includes a center that has no M-hat yet, because it may take part for the first time in the next
        round.
        """
        if not self.average:
            return kept
        by_space: dict[str, list[Tensor]] = {}
        estimating = [(c, c.space.name) for c in roster.members if c.space and not self._uses_given(c)]
        for center, space in estimating:
            if "correspondence" in kept.get(center.name, {}):
                by_space.setdefault(space, []).append(kept[center.name]["correspondence"])
        means = {space: torch.stack(matrices).mean(0) for space, matrices in by_space.items()}
        # A copy for each, because centers share no memory, and a checkpoint rejects tensors that do.
        shared = {
            c.name: {**kept.get(c.name, {}), "mean": means[space].clone()}
            for c, space in estimating
            if space in means
        }
        return {**kept, **shared}

    def answers(self, roster: Roster, kept: Mapping[str, Tensors]) -> dict[str, list[Answer]]:
        """By projection: with M if it is used, else with the M-hat that each center recorded."""
        found: dict[str, list[Answer]] = {}
        for center in roster.members:
            if center.space is None or center.space == roster.wanted:
                continue
            if self._uses_given(center):
                assert center.correspondence is not None
                matrix = center.correspondence.matrix
            elif "correspondence" in kept.get(center.name, {}):
                matrix = kept[center.name]["correspondence"]
            else:
                continue
            found.setdefault(center.space.name, []).append(Answer(matrix=matrix))
        return found

    def centers_prior(self, roster: Roster, kept: Mapping[str, Tensors]) -> Tensor | None:
        """The assumed prior, if it is not estimated."""
        if self._assumed is None:
            return super().centers_prior(roster, kept)
        classes = len(roster.wanted)
        return torch.tensor(self._assumed or [1 / classes] * classes, dtype=torch.float64)

    def _uses_given(self, center: Member) -> bool:
        # A center that labels in the wanted space needs no estimate: its labels are the wanted ones.
        usable = self.correspondence == "given" or center.labels_as_wanted
        return center.correspondence is not None and usable

    @cached_property
    def _assumed(self) -> list[float] | None:
        """The prior that is assumed for every center, in the order of the wanted classes. Uniform is []."""
        if isinstance(self.prior, str):
            return [] if self.prior == "uniform" else None
        return list(self.prior.values())

    def _correspondence(
        self, center: Center, predictions: Tensor, kept: Tensors, rng: np.random.Generator
    ) -> Known:
        """The center's labels, its prior, and the matrix to train with: given, or estimated and smoothed."""
        prior = predictions.new_tensor(self._assumed) if self._assumed else None
        if center.labels is None or center.space is None:
            # Without labels, everything belongs to one class. R^p is then 0 and the posterior is plain.
            one = predictions.new_ones(1, predictions.shape[1])
            known = Known(torch.zeros_like(predictions[:, 0], dtype=torch.int64), one, prior)
        elif self._uses_given(center):
            assert center.correspondence is not None
            known = Known(center.labels, center.correspondence.matrix.to(predictions), prior)
        else:
            known = self._estimated(center, predictions, prior, kept, rng)
        if self.privacy is not None:
            return known  # an estimate would use all records; without one, all classes count equally
        if self.prior == "estimated" and known.prior is None:
            found = estimated_prior(predictions, known.matrix, known.labels)
            known = replace(known, prior=found)
        if self.prior == "estimated":
            assert known.prior is not None
            known = replace(known, keep={**known.keep, "prior": known.prior})
        return known

    def _estimated(
        self,
        center: Center,
        predictions: Tensor,
        prior: Tensor | None,
        kept: Tensors,
        rng: np.random.Generator,
    ) -> Known:
        """The same for a center whose correspondence is estimated."""
        assert center.labels is not None and center.space is not None
        scores = predictions
        if self._assumed is not None:
            # M is not known yet, so the shares can only be enforced over the whole center.
            row = predictions.new_ones(1, predictions.shape[1]) if prior is None else prior[None]
            guess = predictions if prior is None else normalized(predictions * prior)
            scores = align(guess, row, torch.zeros_like(center.labels))
        assumed = None if self.prior == "estimated" else torch.ones_like(predictions[0])
        before = kept["correspondence"].to(predictions) if "correspondence" in kept else None
        earlier = int(kept["estimates"]) if "estimates" in kept else 0
        evidence = Evidence(scores, center.labels, len(center.space), self.xi, before, rng, earlier, assumed)
        estimate = self._estimator.estimate(evidence)
        matrix = estimate.matrix
        facts = {} if estimate.filled is None else {"filled_columns": float(estimate.filled.sum())}
        if center.correspondence is not None:
            facts["correspondence_error"] = frobenius_error(matrix, center.correspondence.matrix)
        keep = {"correspondence": matrix, "estimates": torch.tensor(earlier + 1)}
        if self.average and "mean" in kept:
            matrix = kept["mean"].to(predictions)
        learned = matrix if self._estimator.trained else None
        found = estimate.prior if self.prior == "estimated" else prior
        return Known(center.labels, self._smoothed(matrix), found, learned, keep, facts)

    def _smoothed(self, matrix: Tensor) -> Tensor:
        """[J, K], with the share `smoothing` of the uniform matrix."""
        return matrix.lerp(torch.full_like(matrix, 1 / len(matrix)), self.smoothing)
