"""The local engine: all centers in one process, on one device or on several.

A round is a function of the state before it. The same seed gives the same weights. They are bit-identical on
the same type of CPU with the same number of threads. A center's random numbers come only from the seed, the
round and its name, and updates are averaged in the order of the names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from fedmt.aggregation import Clip, Combined, FedAvgM, Guard, Received, Strategy, Transform, Weights
from fedmt.aggregation.base import packed
from fedmt.aggregation.transforms import after_receiving
from fedmt.attacks import Attack
from fedmt.data.center import Center, Federation
from fedmt.engines.clock import Clock
from fedmt.engines.compiled import compiled
from fedmt.engines.device import apart, every, place
from fedmt.engines.eager.trainer import Precision, Trained, Trainer
from fedmt.engines.graphs.fleet import assemble
from fedmt.engines.graphs.passes import Passes
from fedmt.engines.randomness import absent_centers, random_numbers
from fedmt.engines.records import averaged, judge
from fedmt.engines.scoring import scores_of
from fedmt.engines.site import Job, Outcome, Record, Site
from fedmt.engines.state import State, on_cpu
from fedmt.engines.summing import SummedUpdates, check_terms, layout_at, pooled_statistics
from fedmt.engines.testing import Tested, answered, measured
from fedmt.methods.base import Method
from fedmt.methods.work import Tensors
from fedmt.privacy.masking.terms import Summing

Updates = Received | SummedUpdates
"""What collects the updates of a round."""

NOT_FINITE = "its update contains NaN or Inf"


@dataclass
class LocalEngine:
    """Runs a method on a federation.

    model: samples [B, ...] as a network sees them to logits [B, K]; its weights are the starting point.
    precision: the network's precision, see `Trainer`. strategy: how updates are averaged. guard: what is done
    about updates that are too large or point in another direction.
    graphs: train centers side by side, each step as a CUDA graph (`fleet`); None does so on a GPU. If false,
        centers train one after the other, step by step: the reference for every faster way.
    devices: those that centers are dealt over, `device` first, with graphs alone; by default all that it is.
    prefetch: samples stay in host memory, sent ahead of their steps; None: where they do not fit on a GPU.
    compile: compile the network, with graphs alone. on_center: called with (round, name) before each center.
    transforms: what happens to an update before it is sent and after it is received, in this order.
    summing: sum updates and statistics as integers, as with secure aggregation. None sums them as they are.
    attack: the simulated bad centers. Their data have already been corrupted.
    """

    federation: Federation
    method: Method
    model: nn.Module
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: Precision = "auto"
    strategy: Strategy = field(default_factory=FedAvgM)
    graphs: bool | None = None
    compile: bool = False
    on_center: Callable[[int, str], None] = lambda round, name: None
    transforms: tuple[Transform, ...] = ()
    guard: Guard = field(default_factory=Clip)
    summing: Summing | None = None
    attack: Attack | None = None
    devices: Sequence[torch.device] = ()
    prefetch: bool | None = None

    def __post_init__(self) -> None:
        self._clock = Clock(self.device)
        self.method = self.method.seeing(self.federation.input).knowing(self.federation.wanted)
        self.trainer = Trainer(
            self.model, self.method.training, self.device, self.federation.input, self.precision
        )
        spaces = [space.name for space in self.federation.spaces]
        self.site = Site(
            self.trainer, self.method, self.strategy, spaces, self.seed, self._clock.phase, self.transforms
        )
        if self.method.schedule.centers_train:
            for center in self.federation.centers:
                self.method.check_private_center(center)
        self._parameters = frozenset(name for name, _ in self.model.named_parameters())
        graphs = self.device.type == "cuda" if self.graphs is None else self.graphs
        devices = tuple(self.devices) or every(self.device)
        if not graphs or not self.method.schedule.centers_train:
            devices = devices[:1]
        placed = place(self.federation, devices, graphs, self.prefetch)
        self.federation = placed.federation
        # With Single, no center trains, and with Flower, centers train elsewhere. One model is then enough.
        here = self.federation.centers if self.method.schedule.centers_train else ()
        self._fleet = assemble(placed, here, self.trainer, self.site.run) if graphs else None
        self.trainer.compiled = compiled(self.model, self.method.training, self.compile)
        self._clipped = 0
        if self.summing is not None:
            check_terms(self.summing, self.federation, self.method.training.participation)
        self._urgent: torch.cuda.Stream | None = None
        if self._fleet is not None and self.device.type == "cuda":
            self._urgent = torch.cuda.Stream(self.device, priority=-1)
            self.trainer.passes = Passes(self.device)

    # -- rounds -----------------------------------------------------------------------------------

    def start(self) -> tuple[State, Record]:
        """Round 0: the reference center's warm-up, statistics and a first test."""
        with self._apart():
            self._clock.restart()
            self.on_center(0, self.federation.reference.name)
            state = State(0, self.trainer.weights())
            state, loss = self._reference_update(state, absent=self._absent(0))
            return state, self._record(state, loss, {})

    def round(self, before: State) -> tuple[State, Record]:
        """One round: the centers train (B), their updates are averaged (C), the reference center trains (A).

        This is Algorithm 1 shifted by the warm-up, so that every round ends with the model that is tested.
        """
        with self._apart():
            self._clock.restart()
            # A state read from a checkpoint is not on the device yet.
            return self._round(before.to(self.device))

    def _round(self, before: State) -> tuple[State, Record]:
        number = before.round + 1
        updates = self._updates(before)
        outcomes: dict[str, Outcome] = {}
        absent = self._absent(number)
        centers = self.federation.centers if self.method.schedule.centers_train else ()
        present = [c for c in centers if c.name not in absent]
        for job, done in self._trained(self._planned(present, before, number, outcomes)):
            outcome = self.site.finish(job, done)
            self._average(job.center, outcome, updates, number)
            # What was handed over for averaging need not be kept.
            outcomes[job.center.name] = replace(outcome, update=None, trained=None)
        kept = dict(before.kept)
        for center in present:
            kept[center.name] = on_cpu(outcomes[center.name].kept)
        records: dict[str, Record] = {
            c.name: {"absent": absent[c.name]} if c.name in absent else outcomes[c.name].record
            for c in centers
        }
        return self._close(before, updates, kept, records, absent)

    def _updates(self, before: State) -> Updates:
        """What collects the updates of a round."""
        if self.summing is None:
            return Received(self.strategy, self.guard, before.weights)
        layout = layout_at(self.summing, self.site, before.weights, len(self.federation.roster.members) + 1)
        return SummedUpdates(layout, self.device)

    def _close(
        self,
        before: State,
        updates: Updates,
        kept: dict[str, Tensors],
        records: dict[str, Record],
        absent: Mapping[str, str],
    ) -> tuple[State, Record]:
        """A round after its centers: averaging (C), the reference center (A), statistics, test."""
        number = before.round + 1
        weights, loss, root = before.weights, None, None
        reference = self.federation.reference
        self.on_center(number, reference.name)
        if self.method.schedule.reference_counts_in_mean:
            own = self.site.plan_reference(
                reference, before.weights, before.server, before.kept.get(reference.name, {}), number
            )
            for job, done in self._trained([own] if own is not None else []):
                outcome = self.site.finish(job, done)
                if outcome.trained is None:
                    continue
                # Its local layers are stored in the state itself, not under a center's name.
                local = {k: v.clone() for k, v in outcome.trained.items() if k in self.site.local}
                others = self.site.other_heads(None)
                weights = {**weights, **{k: v for k, v in local.items() if k not in others}}
                loss = outcome.record["losses"]["loss"]
                root = self.site.difference(job, outcome.trained) if self.guard.needs_root else None
                self._average(reference, outcome, updates, number)
                lasting = {k: v for k, v in outcome.kept.items() if not k.startswith("weights:")}
                kept[reference.name] = on_cpu(lasting)
        elif self.guard.needs_root:
            root = self._root(before)
        with self._clock.phase("aggregate"):
            if self.attack is not None and isinstance(updates, Received):
                updates.updates = self.attack.on_updates(updates.updates)
            combined = updates.combine(root)
            self._clipped = updates.clipped if isinstance(updates, SummedUpdates) else 0
            self._judge(combined, before, kept, records)
            everyone = list(self.federation.roster.members)
            if self.method.schedule.reference_counts_in_mean:
                everyone.append(self.federation.reference)
            share = self.site.participation(combined.counts, everyone, self._parameters)
            weights, server = self.strategy.aggregate(
                weights, combined.mean, before.server, self.trainer.parameters, share
            )
        absent = {**absent, **combined.left_out}
        state = State(number, weights, server, self.method.exchange(self.federation.roster, kept))
        state, after = self._reference_update(state, absent)
        return state, self._record(state, after if loss is None else loss, records)

    def _planned(
        self, centers: Sequence[Center], before: State, number: int, outcomes: dict[str, Outcome]
    ) -> Iterator[Job]:
        """The centers' jobs, each planned when it is needed. Centers that abstain are added to `outcomes`."""
        predictions: Mapping[str, Tensor] = {}
        if self._fleet is not None and self.method.guesses and not self.site.local:
            with self._clock.phase("pseudo_labels"):
                self.trainer.load(before.weights)
                predictions = self._fleet.predictions(centers)
        for center in centers:
            self.on_center(number, center.name)
            kept = before.kept.get(center.name, {})
            planned = self.site.plan(
                center, before.weights, before.server, kept, number, predictions.get(center.name)
            )
            if isinstance(planned, Outcome):
                outcomes[center.name] = planned
            else:
                yield planned

    def _trained(self, jobs: Iterable[Job], phase: str = "train") -> Iterator[tuple[Job, Trained]]:
        """Each job with its result, in order. Jobs run one by one, or side by side in the fleet.

        A result must be used before the next is requested: the model may be the engine's only one.
        """
        if self._fleet is None:
            for job in jobs:
                with self._clock.phase(phase):
                    done = self.site.run(job)
                yield job, done
        else:
            with self._clock.phase(phase):
                yield from self._fleet.train(jobs)

    def _root(self, before: State) -> Weights | None:
        """The update that the reference center's own labels give to the model that the centers received."""
        reference, number = self.federation.reference, before.round + 1
        own = self.site.plan_reference(reference, before.weights, before.server, {}, number)
        for job, done in self._trained([own] if own is not None else [], "reference"):
            return self.site.difference(job, done.weights)
        return None

    def _judge(
        self, combined: Combined, before: State, kept: dict[str, Tensors], records: dict[str, Record]
    ) -> None:
        judge(combined, before, kept, records)

    def _average(self, center: Center, outcome: Outcome, updates: Updates, number: int) -> None:
        """Adds a center's update to the others, if it has one."""
        if outcome.update is not None:
            own = center is self.federation.reference
            counted = len(center) if own else self.method.known_size(center)
            weight = counted if self.method.training.weights == "samples" else 1.0
            if not self._add(center.name, outcome.update, weight, updates, number):
                outcome.record["left_out"] = NOT_FINITE

    def _add(self, name: str, update: Weights, weight: float, updates: Updates, number: int) -> bool:
        """Adds a received update after the transforms. False if it is not finite and does not count."""
        with self._clock.phase("aggregate"):
            rng = random_numbers(self.seed, number, f"received from {name}")
            update = after_receiving(self.transforms, update, number, name, rng)
            return updates.add(name, update, weight)

    def _reference_update(self, state: State, absent: Collection[str]) -> tuple[State, float | None]:
        """Procedure A, then the batch-norm statistics of the resulting model."""
        reference, number, schedule = self.federation.reference, state.round, self.method.schedule
        self.trainer.load(state.weights)
        loss, work = None, None
        if schedule.reference_trains_after(number, self.method.training.rounds):
            rng = random_numbers(self.seed, number, reference.name)
            work = self.method.reference_work(reference, number, rng)
        if work is not None:
            if schedule.keeps_shared_model:
                self._static_statistics(absent)
                state = replace(state, server={**state.server, **packed("shared", self.trainer.weights())})
            job = self.site.job(reference, work, state.weights, number)
            for _, done in self._trained([job], "reference"):
                loss = done.losses["loss"]
                if self._fleet is not None:
                    self.trainer.load(done.weights)
        self._static_statistics(absent)
        weights = self.trainer.weights()
        # The other spaces' heads are not part of the reference center's training.
        foreign = self.site.other_heads(None)
        weights = {k: state.weights[k] if k in foreign else v for k, v in weights.items()}
        return replace(state, weights=weights), loss

    def _static_statistics(self, absent: Collection[str]) -> None:
        """Pools the statistics of the present centers' unaugmented samples into the loaded model."""
        mode = self.method.training.batch_norm
        if mode == "running":
            return
        with self._clock.phase("statistics"):
            centers = [self.federation.reference]
            if mode == "static" and self.method.schedule.centers_train:
                centers += [c for c in self.federation.centers if c.name not in absent]
            parts = ((float(len(c)), self.trainer.statistics(c.values)) for c in centers)
            summing = self.summing if mode == "static" else None
            everyone = len(self.federation.roster.members) + 1
            self.trainer.set_statistics(pooled_statistics(parts, summing, everyone))

    def _absent(self, number: int) -> dict[str, str]:
        names = [m.name for m in self.federation.roster.members]
        return absent_centers(names, self.method.training, self.seed, number)

    # -- testing ----------------------------------------------------------------------------------

    def _record(self, state: State, reference_loss: float | None, centers: dict[str, Record]) -> Record:
        with self._clock.phase("test"):
            last = state.round == self.method.training.rounds
            metrics = measured(self._tested(state), last)
        record: Record = {
            "round": state.round,
            **metrics,
            "learning_rate": self.method.training.rate(state.round),
            "reference_loss": reference_loss,
        }
        if self.attack is not None:
            self.trainer.load(state.weights)
            success = self.attack.success(self.federation, self.trainer.predict)
            record |= {} if success is None else {"attack_success": success}
        record |= averaged(centers)
        if self._clipped:
            record["clipped_entries"] = self._clipped
        record["centers"] = centers
        record["seconds"] = {k: round(v, 4) for k, v in self._clock.seconds.items()}
        return record

    def _tested(self, state: State) -> list[Tested]:
        answers = self.method.answers(self.federation.roster, state.kept)
        return answered(self.federation, answers, scores_of(self.site, state))

    def tested(self, state: State) -> list[Tested]:
        """A state's answers to each test set, in its label space."""
        with self._apart():
            return self._tested(state.to(self.device))

    def _apart(self) -> AbstractContextManager[None]:
        """With a fleet, all work except its training (a center's plan, averaging) has priority on the
        device."""
        return apart(self.device, self._urgent)
