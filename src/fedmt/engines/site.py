"""A center's side of a round: what it does with a model it received, and what it sends and keeps.

It is the same in every engine. The local engine calls it in a loop, and Flower's engine on the center's own
machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedmt.aggregation import Strategy, Transforms, Weights, all_finite, packed, transforms, unpacked
from fedmt.backbones.heads import head_keys
from fedmt.core import static_bn
from fedmt.core.errors import FedmtError
from fedmt.data.center import Center
from fedmt.data.member import Member
from fedmt.engines.budget import Allowed, Budget, Overspent
from fedmt.engines.eager.private import Noising
from fedmt.engines.eager.trainer import Terms, Trained, Trainer
from fedmt.engines.randomness import random_numbers
from fedmt.methods.base import Method
from fedmt.methods.work import CenterRound, LocalWork, Tensors

Record = dict[str, Any]
"""What is recorded about a round or about one center in it: a line of metrics.jsonl, or a part of one."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a center's round.

    update: what it sends after the transforms: trained minus received weights, and what the strategy needs in
        addition; None if the center abstained. trained: the weights at the end of its training.
    kept: what it remembers.
    """

    record: Record
    kept: Tensors
    update: Weights | None = None
    trained: Weights | None = None


@dataclass(frozen=True, eq=False)
class Job:
    """A center's local training, planned but not done.

    received: the weights it begins with. head: the head that answers. seed: for the backbone's own dropout.
        round: its number.
    keep: what the center remembers from this round. lasting: what it keeps between rounds, unchanged if this
    round fails.
    noising: for a private center, which trains with DP-SGD.
    """

    center: Center
    work: LocalWork
    received: Mapping[str, Tensor]
    head: int = 0
    seed: int = 0
    terms: Terms = field(default_factory=Terms)
    keep: Tensors = field(default_factory=dict)
    lasting: Tensors = field(default_factory=dict)
    record: Record = field(default_factory=dict)
    round: int = 0
    noising: Noising | None = None


class Site:
    """spaces: names of the federation's label spaces, the wanted one first, as the model's heads are.

    phase: a context that measures the time of a named phase. transforms: what happens to an update before it
        is sent.
    budget: the centers' privacy budget, if the method is private. By default, that of a simulation.
    """

    def __init__(
        self,
        trainer: Trainer,
        method: Method,
        strategy: Strategy,
        spaces: list[str],
        seed: int,
        phase: Callable[[str], AbstractContextManager[None]],
        transforms: Transforms = (),
        budget: Budget | None = None,
    ) -> None:
        method.check_strategy(strategy)
        method.check_privacy(strategy)
        self.budget = budget or Budget(seed)
        method = method.seeing(trainer.input)
        self.trainer, self.method, self.strategy = trainer, method, strategy
        self.seed, self.phase, self.transforms = seed, phase, transforms
        self._head = {name: i for i, name in enumerate(spaces)} if method.heads else {}
        self.heads = head_keys(trainer.model)
        if method.heads and len(self.heads) != len(spaces):
            raise FedmtError(
                f"Method '{method.name}' needs a model with a head for each of {len(spaces)} label spaces; "
                f"this one has {max(len(self.heads), 1)}. Make it with fedmt.backbones.heads.add_heads."
            )
        self.local: frozenset[str] = frozenset()
        """Names of the weights that never leave their center."""
        if method.heads == "kept":
            self.local = self.local.union(*self.heads)
        if strategy.keeps_batch_norm:
            self.local |= _batch_norm_keys(trainer)

    def head(self, space: str | None) -> int:
        """The head that answers in a label space. None is the wanted space."""
        return self._head.get(space, 0) if space is not None else 0

    def model_of(self, weights: Mapping[str, Tensor], kept: Tensors) -> Weights:
        """A center's own model: the shared weights with its own local layers."""
        own = {k: v.to(self.trainer.device) for k, v in unpacked("weights", kept).items()}
        return {**weights, **own}

    # -- a round in three parts, so that an engine can process many centers at once -------------------

    def center_round(
        self,
        center: Center,
        weights: Mapping[str, Tensor],
        server: Mapping[str, Tensor],
        kept: Tensors,
        number: int,
    ) -> Outcome:
        """Procedure B: pseudo-labels from the received model, then local training of a copy of it."""
        planned = self.plan(center, weights, server, kept, number)
        if isinstance(planned, Outcome):
            return planned
        with self.phase("train"):
            done = self.run(planned)
        return self.finish(planned, done)

    def plan(
        self,
        center: Center,
        weights: Mapping[str, Tensor],
        server: Mapping[str, Tensor],
        kept: Tensors,
        number: int,
        predictions: Tensor | None = None,
    ) -> Job | Outcome:
        """Pseudo-labels and batches; if the center abstains, its outcome instead.

        predictions: those of the received model, if the engine already has them.
        """
        method = self.method
        lasting = {k: v for k, v in kept.items() if k.startswith(("weights:", "control:", "privacy:"))}
        allowed: Allowed | None = None
        if method.privacy is not None:
            try:
                allowed = self.budget.allow(method, center, kept, number)
            except Overspent as reason:
                return Outcome({"abstained": str(reason)}, lasting)
            lasting |= allowed.ledger.to_kept()
        received = self.model_of(weights, kept)
        with self.phase("pseudo_labels"):
            if predictions is None and method.guesses:
                self.trainer.load(received)
                predictions = self.trainer.predict(center.values)
            rng = random_numbers(self.seed, number, center.name) if allowed is None else allowed.rng
            plan = method.center_round(
                center, torch.empty(0) if predictions is None else predictions, kept, number, rng
            )
            # Anything else that could be reported about a private center's round depends on all of its
            # records.
            told: Record = _told(center, plan) if allowed is None else {"privacy_spent": allowed.spent}
        if plan.work is None:
            return Outcome({**told, "abstained": plan.reason}, {**lasting, **plan.keep})
        job = self._job(center, plan.work, received, server, plan.keep, lasting, number, told)
        return job if allowed is None else replace(job, noising=allowed.noising)

    def plan_reference(
        self,
        reference: Center,
        weights: Mapping[str, Tensor],
        server: Mapping[str, Tensor],
        kept: Tensors,
        number: int,
    ) -> Job | None:
        """The reference center's training as one of the centers. Its local layers are those of `weights`."""
        rng = random_numbers(self.seed, number, reference.name)
        work = self.method.reference_work(reference, number, rng)
        if work is None:
            return None
        return self._job(reference, work, weights, server, {}, kept, number, {})

    def _job(
        self,
        center: Center,
        work: LocalWork,
        received: Mapping[str, Tensor],
        server: Mapping[str, Tensor],
        keep: Tensors,
        lasting: Tensors,
        number: int,
        record: Record,
    ) -> Job:
        strategy = self.strategy
        job = self.job(center, work, received, number)
        shared = self._shared(job)
        correction = strategy.correction(server, lasting)
        terms = Terms(
            strategy.proximal, {k: v for k, v in correction.items() if k in shared}, strategy.corrects
        )
        return replace(job, terms=terms, keep=keep, lasting=lasting, record=record)

    def job(self, center: Center, work: LocalWork, received: Mapping[str, Tensor], number: int) -> Job:
        """Plain local training. The backbone's own dropout is seeded in the same way as the batches."""
        dropout = random_numbers(self.seed, number, f"dropout of {center.name}")
        head, seed = self.head(work.space), int(dropout.integers(2**62))
        return Job(center, work, received, head, seed, round=number)

    def run(self, job: Job) -> Trained:
        """Trains a copy of what was received, step by step. The returned weights belong to the model."""
        self.trainer.load(job.received)
        if job.noising is not None:
            return self.trainer.train_privately(job.center.values, job.work, job.noising, job.head, job.terms)
        return self.trainer.train(job.center.values, job.work, job.head, job.seed, job.terms)

    def finish(self, job: Job, done: Trained) -> Outcome:
        """What the center sends and keeps."""
        strategy, trained = self.strategy, done.weights
        update = self.difference(job, trained)
        control, sent = strategy.controls(
            job.lasting, {k: v for k, v in done.mean_gradient.items() if k in update}
        )
        # This includes the counters next to the statistics, so that a layer that is kept locally is kept
        # complete.
        foreign = self.other_heads(job.work.space)
        own = {k: v.clone() for k, v in trained.items() if k in self.local and k not in foreign}
        if not all_finite((*update.values(), *sent.values(), *own.values())):
            record = {**job.record, "left_out": "its weights are not finite: training diverged"}
            return Outcome(record, {**job.lasting, **job.keep})
        kept = {
            **job.lasting,
            **self.method.after_training(job.keep, done.trainable),
            **packed("weights", own),
            **control,
        }
        name, number = job.center.name, job.round
        rng = random_numbers(self.seed, number, f"update of {name}")
        update = transforms.before_sending(self.transforms, {**update, **sent}, number, name, rng)
        losses = {"losses": done.losses} if job.noising is None else {}
        return Outcome({**job.record, **losses}, kept, update, trained)

    def difference(self, job: Job, trained: Mapping[str, Tensor]) -> Weights:
        """Trained minus received weights, for the weights that are averaged."""
        names = [k for k in self._shared(job) if job.received[k].is_floating_point()]
        changed = torch._foreach_sub([trained[k] for k in names], [job.received[k] for k in names])
        return dict(zip(names, changed, strict=True))

    def _shared(self, job: Job) -> list[str]:
        """Names of the weights that are averaged: neither the local layers nor other spaces' heads."""
        foreign = self.other_heads(job.work.space)
        return [k for k in job.received if k not in self.local and k not in foreign]

    def participation(
        self, counts: Mapping[str, int], everyone: Sequence[Member], parameters: Collection[str]
    ) -> dict[str, float]:
        """For each parameter, the share of the centers that have it whose update is in the mean."""
        having = dict.fromkeys(parameters, len(everyone))
        for head, keys in enumerate(self.heads):
            mine = [c for c in everyone if c.space is not None and self.head(c.space.name) == head]
            having |= dict.fromkeys(keys, len(mine))
        return {k: counts[k] / max(having[k], 1) for k in counts.keys() & having.keys()}

    def other_heads(self, space: str | None) -> frozenset[str]:
        """Names of the weights of all heads except that of `space`. Its training does not change them.

        (They have no gradient, but weight decay would still shrink them.)
        """
        mine = self.head(space)
        return frozenset().union(*(keys for i, keys in enumerate(self.heads) if i != mine))


def _batch_norm_keys(trainer: Trainer) -> frozenset[str]:
    layers = static_bn.layers(trainer.model)
    if not layers:
        raise FedmtError(
            "aggregation.name: 'fedbn' leaves batch-norm layers at their center, but the model has none. "
            "Use another strategy or backbone."
        )
    return frozenset(f"{name}.{key}" for name, layer in layers.items() for key in layer.state_dict())


def _told(center: Center, plan: CenterRound) -> Record:
    """What is recorded about a center's pseudo-labels and estimates."""
    record: Record = dict(plan.facts)
    if plan.confident is not None and plan.pseudo_labels is not None:
        record["confident_share"] = plan.confident.float().mean().item()
        if center.truth is not None and plan.confident.any():
            right = (plan.pseudo_labels == center.truth)[plan.confident]
            record["pseudo_label_accuracy"] = right.float().mean().item()
    if center.truth is not None and "prior" in plan.keep:
        record["prior_error"] = _prior_error(plan.keep["prior"], center.truth)
    return record


def _prior_error(prior: Tensor, truth: Tensor) -> float:
    """The total variation distance between a prior [K] and the true shares, from 0 to 1."""
    shares = torch.bincount(truth, minlength=len(prior)).double().cpu() / len(truth)
    return float((prior.double().cpu() - shares).abs().sum() / 2)
