"""What a method is: it says what each center computes in a round, as data and two functions.

A method knows no device, process or socket. For the reference center and for every other center, it returns a
`LocalWork`: the inputs of each step (sample indices, uniform numbers for the views), the round's fixed tables
(labels, pseudo-labels, M), how views are made of samples, and the loss of the model's answers. An engine runs
it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedmt.aggregation import Strategy
from fedmt.core.errors import FedmtError
from fedmt.core.labels import LabelSpace
from fedmt.core.priors import class_shares, log_prior
from fedmt.core.registry import OWN_TABLE, Named
from fedmt.data.center import Center
from fedmt.data.member import Roster
from fedmt.inputs import DEFAULT_INPUT, Input, Views
from fedmt.methods.fix_mix import MIXING, fix_mix_losses, fix_mix_steps, fix_mix_views
from fedmt.methods.sampling import Sampling, poisson_stream, sample_stream
from fedmt.methods.schedules import Alternate, Schedule
from fedmt.methods.training import Training
from fedmt.methods.work import Answer, CenterRound, LocalWork, Tensors, shifted
from fedmt.privacy import PrivacySpec


class NotPrivate(FedmtError):
    """Why a center cannot keep its privacy promise. It names only settings, so that it may be sent."""


Presets = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Maps the name of the preset, the table of the config and the key to a value."""


@dataclass(frozen=True)
class Method(Named, ABC):
    """Base class of the methods: supervised training, and the reference center's part."""

    schedule: ClassVar[Schedule] = Alternate()
    """Who trains when in a round."""
    guesses: ClassVar[bool] = True
    """Whether `center_round` reads the received model's predictions; if not, they are not computed."""
    heads: ClassVar[Literal["shared", "kept"] | None] = None
    """Whether the model has a head for every label space: 'shared' by the centers that label in it, or 'kept'
    at each center and never sent. None: the model has one head only, for the wanted space."""
    presets: ClassVar[Presets] = {}
    """Named settings of whole config tables; the keys that a config sets itself take precedence."""
    private: ClassVar[bool] = False
    """Whether, with `privacy`, nothing that a center trains with or sends depends on more than one record,
    except for sums with noise. Each class must declare this itself, because it is not inherited."""

    training: Training = field(default_factory=Training, metadata=OWN_TABLE)
    augmentation: Views = field(default_factory=DEFAULT_INPUT.views, metadata=OWN_TABLE)
    privacy: PrivacySpec | None = field(default=None, kw_only=True, metadata=OWN_TABLE)
    """The privacy of the centers. The reference center's training is not private."""

    def seeing(self, input: Input) -> Method:
        """The method with views of this input's samples."""
        views = self.augmentation.on(input)
        return self if views == self.augmentation else replace(self, augmentation=views)

    def knowing(self, wanted: LabelSpace) -> Method:
        """The method with its per-class options in the order of the wanted space, checked."""
        return self

    # -- the reference center ---------------------------------------------------------------------

    def reference_work(self, reference: Center, round: int, rng: np.random.Generator) -> LocalWork | None:
        """Supervised training on the reference center's data, in the rounds in which the schedule lets it
        train. Round 0 is the warm-up."""
        training = self.training
        epochs = training.reference_epochs if round > 0 else training.warmup_epochs
        rate = training.rate(round)
        if round > 0 and self.schedule.centers_train:
            rate *= training.reference_rate
        return self.supervised_work(reference, epochs, self.reference_batch(reference), rate, rng)

    def reference_batch(self, reference: Center) -> int:
        training, samples = self.training, len(reference)
        # An epoch should have three steps, except with very few samples.
        least = min(training.smallest_reference_batch, max(math.ceil(samples / 3), 10))
        return training.reference_batch_size or min(max(samples // 10, least), 250)

    # -- the centers ------------------------------------------------------------------------------

    @abstractmethod
    def center_round(
        self, center: Center, predictions: Tensor, kept: Tensors, round: int, rng: np.random.Generator
    ) -> CenterRound:
        """What a center does in a round, from the received model's probabilities [N, K] on its samples (empty
        unless the method `guesses`) and from what it kept from the previous round."""

    def after_training(self, keep: Tensors, trained: Tensors) -> Tensors:
        """What a center keeps, from the round's `keep` and the trained values of `LocalWork.trainable`."""
        return {**keep, **trained}

    def exchange(self, roster: Roster, kept: Mapping[str, Tensors]) -> Mapping[str, Tensors]:
        """What the centers keep after a round, if they learn about each other beyond the model's weights."""
        return kept

    # -- predicting -------------------------------------------------------------------------------

    def answers(self, roster: Roster, kept: Mapping[str, Tensors]) -> dict[str, list[Answer]]:
        """How to predict in each other label space, by its name. The accuracies of several answers are
        averaged.

        By default, the reference center's model through the known correspondences, which need no training.
        """
        found: dict[str, list[Answer]] = {}
        for member in roster.members:
            known = member.correspondence
            if known is not None and known.coarse != roster.wanted:
                found.setdefault(known.coarse.name, []).append(Answer(matrix=known.matrix))
        return found

    def centers_prior(self, roster: Roster, kept: Mapping[str, Tensors]) -> Tensor | None:
        """The frequencies of the wanted classes at the centers, float64 [K]: the mean of their estimates,
        weighted by their sizes, or equally if a size is unknown. None if no estimate is known here, or that
        of only one of several centers: a model that is given away would contain exactly this estimate."""
        found = [(kept[m.name], m.size) for m in roster.members if "prior" in kept.get(m.name, {})]
        if not found or len(found) == 1 < len(roster.members):
            return None
        sizes = [int(own["size"]) if "size" in own else size for own, size in found]
        weights = torch.tensor([1.0 if size is None or None in sizes else float(size) for size in sizes])
        priors = torch.stack([own["prior"].double().cpu() for own, _ in found])
        weights = weights.double()
        return weights @ priors / weights.sum()

    # -- which strategies make sense --------------------------------------------------------------

    def check_strategy(self, strategy: Strategy) -> None:
        """Rejects a strategy that does not make sense with this method and training, and says why."""
        if strategy.keeps_batch_norm and self.training.batch_norm != "running":
            raise FedmtError(
                f"aggregation.name: '{strategy.name}' leaves batch-norm layers and their statistics at their "
                f"center, but training.batch_norm = '{self.training.batch_norm}' replaces the statistics by "
                "others; set training.batch_norm = 'running'."
            )

    # -- privacy ----------------------------------------------------------------------------------

    def check_privacy(self, strategy: Strategy) -> None:
        """Rejects settings under which a center could not keep its promise, all of them at once."""
        if self.privacy is None:
            return
        problems = list(self._not_private(strategy))
        if problems:
            raise NotPrivate("privacy: these settings would break it:\n  " + "\n  ".join(problems))

    def _not_private(self, strategy: Strategy) -> Iterator[str]:
        """Which settings would break the promise, and what to set instead."""
        if not vars(type(self)).get("private", False):
            yield (
                f"method.name: '{self.name}' does not declare that it keeps records separate (`private = "
                "True` in its class)"
            )
        if self.training.batch_norm != "static-reference":
            yield (
                f"training.batch_norm: '{self.training.batch_norm}' shares or uses statistics of the "
                "centers' batches; set 'static-reference', which uses those of the reference center"
            )
        if strategy.keeps_batch_norm:
            yield f"aggregation.name: '{strategy.name}' keeps statistics of a center's batches; use another"

    def known_size(self, center: Center) -> int:
        """A center's number of samples. For a private center, the number that may be known."""
        return len(center) if self.privacy is None else self.privacy.public_size(len(center))

    def check_private_center(self, center: Center) -> None:
        """The same for a member."""
        if self.privacy is None:
            return
        size = self.privacy.public_size(len(center))
        if self.privacy.delta * size >= 1:
            raise NotPrivate(
                f"Center '{center.name}': privacy.delta = {self.privacy.delta:g} at {size:,} records would "
                f"allow a center to publish one of them; set it well below {1 / size:.1g}."
            )

    def _drawn(
        self, center: Center, visited: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, Tensor | None]:
        """The batches of a center in a round, from the samples that train: [S, B]. With privacy, [E, 1] and
        the sizes of the steps."""
        training = self.training
        if self.privacy is None:
            return sample_stream(visited, training.local_epochs, training.batch_size, rng), None
        return poisson_stream(visited, Sampling.of(self.privacy, training, len(center)), rng)

    # -- supervised training ----------------------------------------------------------------------

    def supervised_work(
        self,
        center: Center,
        epochs: int,
        batch: int,
        learning_rate: float,
        rng: np.random.Generator,
        space: str | None = None,
        privately: bool = False,
    ) -> LocalWork | None:
        """Cross-entropy on a center's own labels, with the head of `space`. None if there are no epochs.

        privately: as `privacy` requires. Epochs and batch size are then those of the centers.
        """
        if epochs == 0:
            return None
        assert center.labels is not None
        tables = {"label": center.labels}
        wanted = space is None or center.labels_as_wanted
        if self.training.logit_adjustment and wanted and not privately:
            shares = class_shares(center.labels, len(center.space or ()))
            if not bool((shares == shares[0]).all()):
                tables["log_prior"] = log_prior(shares)
        sizes = None
        if privately:
            index, sizes = self._drawn(center, np.arange(len(center)), rng)
        else:
            index = sample_stream(np.arange(len(center)), epochs, batch, rng)
        if self.training.supervised_views == "strong+mixed":
            steps = fix_mix_steps(index, len(center), MIXING, self.augmentation, rng, alone=privately)
            views, loss = self.mixed_views, self.mixed_loss
        else:
            uniforms = self.augmentation.strong_numbers + 2 * self.augmentation.weak_numbers
            steps = {
                "index": torch.from_numpy(index),
                "uniforms": torch.from_numpy(rng.random((*index.shape, uniforms), dtype=np.float32)),
            }
            views, loss = self.weak_strong_views, self.supervised_loss
        return LocalWork(views, loss, steps, tables, learning_rate, space, samplewise=("label",), sizes=sizes)

    def supervised_round(self, center: Center, round: int, rng: np.random.Generator) -> CenterRound:
        """A center's round of supervised training in its own space. It abstains without labels."""
        if center.space is None:
            return CenterRound(None, reason=f"it has no labels, and {self.name} learns from labels alone")
        training = self.training
        work = self.supervised_work(
            center,
            training.local_epochs,
            training.batch_size,
            training.rate(round),
            rng,
            center.space.name,
            privately=self.privacy is not None,
        )
        return CenterRound(work)

    def weak_strong_views(self, samples: Tensor, steps: Tensors) -> Tensor:
        """A weak and a strong view of each sample, [S, B, ...] to [S, 2B, ...], or only the weak view."""
        options, few = self.augmentation, self.augmentation.weak_numbers
        flat, uniforms = samples.flatten(0, 1), steps["uniforms"].flatten(0, 1)
        plain = options.weak(flat, uniforms[:, :few])
        if self.training.supervised_views == "weak":
            weak: Tensor = plain.unflatten(0, samples.shape[:2])
            return weak
        base = options.weak(flat, uniforms[:, few : 2 * few])
        views = torch.stack([plain, options.strong(base, flat, uniforms[:, 2 * few :])])
        pairs: Tensor = views.unflatten(1, samples.shape[:2]).transpose(0, 1)
        return pairs.flatten(1, 2)

    def supervised_loss(self, logits: Tensor, step: Tensors, tables: Tensors) -> dict[str, Tensor]:
        """Cross-entropy (R_s at the reference center), the mean over the views of each sample."""
        logits, target = shifted(logits, tables), tables["label"][step["index"]]
        return {"loss": F.cross_entropy(logits, target.repeat(len(logits) // len(target)))}

    def mixed_views(self, samples: Tensor, steps: Tensors) -> Tensor:
        """Strong and mixed views of each batch and its partners: [S, 2, B, ...] to [S, 2B, ...]."""
        _, distorted, mixed = fix_mix_views(samples, steps, self.augmentation)
        return torch.cat([distorted, mixed], 1)

    def mixed_loss(self, logits: Tensor, step: Tensors, tables: Tensors) -> dict[str, Tensor]:
        """`L_fix + L_mix` against a center's own labels, from the logits [2B, K] of its views."""
        strong_logits, mixed_logits = shifted(logits, tables).chunk(2)
        everyone = torch.ones_like(step["index"][0])
        l_fix, l_mix = fix_mix_losses(strong_logits, mixed_logits, step, tables["label"], everyone)
        return {"loss": l_fix + l_mix}
