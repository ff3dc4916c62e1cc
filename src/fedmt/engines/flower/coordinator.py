"""The engine at the coordinating site: the local engine's rounds, with the centers on other machines.

The reference center trains here. Requests to the other centers go through `Roll`. The answers are averaged in
the order of the names, with the local engine's arithmetic, so the result is bit-identical.

What is known here about a center (`State.kept`): the last round whose answer was accepted (`accepted`),
whether it has its own local layers (`layers`), and what its config allows it to send (M-hat, prior).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedmt.aggregation import Combined, Received, Weights, packed
from fedmt.config import DeploymentSpec
from fedmt.core import static_bn
from fedmt.core.errors import FedmtError
from fedmt.core.escaping import escaped
from fedmt.data.member import Member
from fedmt.engines.flower import wire
from fedmt.engines.flower.answers import (
    LeftOut,
    metrics_of,
    reason,
    same_weights,
    samples_of,
    shared_of,
    statistics_of,
    variances_stay_positive,
)
from fedmt.engines.flower.checking import misfit
from fedmt.engines.flower.plan import Plan, shape_digest
from fedmt.engines.flower.roll import Answer, Roll
from fedmt.engines.flower.trail import Trail, versions
from fedmt.engines.local import NOT_FINITE, LocalEngine
from fedmt.engines.site import Record
from fedmt.engines.state import State
from fedmt.methods.work import Tensors

log = logging.getLogger("flwr")


@dataclass
class FlowerEngine(LocalEngine):
    """federation: its centers are `elsewhere`. history: the number of rounds that a run may have to go back,
    for which centers must remember. keys: the fingerprint of each center's key; empty if any node may use any
    name. trail: the coordinator's audit log."""

    grid: Grid = field(kw_only=True)
    plan: Plan = field(kw_only=True)
    deployment: DeploymentSpec = field(kw_only=True)
    history: int = field(kw_only=True)
    keys: Mapping[str, str] = field(kw_only=True, default_factory=dict)
    trail: Trail = field(kw_only=True, default_factory=lambda: Trail(None))

    def __post_init__(self) -> None:
        super().__post_init__()
        self._plan = self.plan.to_json()
        self._checked_with: dict[str, Any] = {"plan": self._plan}
        """What every node is told in its check."""
        self._shape = shape_digest(self.model)
        self._spaces = {c.name: c.space for c in self.federation.roster.members}
        self._shares: dict[str, bool] = {}
        self._sizes: dict[str, int] = {}
        """For each center, the number of samples that it reported in its check, if it has to report it."""
        self._failed: dict[str, str] = {}
        self._asked = 0
        self._number = 0
        self._sent: Weights = {}
        self._holds: dict[str, str] = {}
        """For each center, the label under which it holds the model `_sent`. Unchanged parts are not sent."""
        self._unmeasured: dict[str, str] = {}

    def connect(self, run: str) -> None:
        """Calls the roll. Raises an error with a center's name and the reason if one does not fit."""
        # A center needs the frozen network only once. It keeps the network and the features computed with it.
        encoded = self.federation.encoded
        once = {} if encoded is None else {"frozen": wire.to_bytes(encoded.network.state_dict())}
        self.trail.write(
            "began",
            run=run,
            versions=versions(),
            keys=dict(self.keys),
            deployment=self.deployment.model_dump(mode="json"),
            plan=hashlib.sha256(json.dumps(self._plan, sort_keys=True).encode()).hexdigest(),
        )
        self.roll = Roll(self.grid, list(self._spaces), run, self._inspect, once, self.keys, self.trail)
        if self.method.schedule.centers_train:
            needed = min(self.deployment.min_centers, len(self._spaces))
            self.roll.call(self._checked_with, self.deployment.wait, needed)

    def _inspect(self, name: str, facts: Mapping[str, Any]) -> str:
        """What is wrong with a center's answer to the check."""
        if wrong := misfit(facts, self.plan, self._spaces[name], self._shape):
            return wrong
        self._shares[name] = bool(facts.get("shares"))
        training = self.method.training
        counted = training.weights == "samples" or training.batch_norm == "static"
        if counted and self.summing is None:
            try:
                self._sizes[name] = int(samples_of(facts, self._sizes.get(name)))
            except LeftOut as error:
                return str(error)
        if getattr(self.method, "average", False) and not self._shares[name]:
            return (
                "method.average needs its estimated correspondence, which its center.toml does not allow to "
                "leave it; set share_correspondence = true there, or method.average = false here"
            )
        return ""

    # -- a round ----------------------------------------------------------------------------------

    def _round(self, before: State) -> tuple[State, Record]:
        number = self._number = before.round + 1
        updates = Received(self.strategy, self.guard, before.weights)
        kept = dict(before.kept)
        absent = self._absent(number)
        records: dict[str, Record] = {name: {"absent": why} for name, why in absent.items()}
        present = [c for c in self.federation.roster.members if c.name not in absent]
        failed = self._failed = {}
        losses: dict[str, float] = {}
        if self.method.schedule.centers_train:
            self.roll.update(self._checked_with)
            with self._clock.phase("send"):
                messages = self._messages(before, number, present)
            answers = self.roll.ask("train", number, messages, self.deployment.timeout)
            del messages
            by_name = {c.name: c for c in present}
            while True:
                with self._clock.phase("centers"):
                    name, answer = next(answers, ("", Answer()))
                if not name:
                    break
                self.on_center(number, name)
                try:
                    record = self._take(by_name[name], answer, updates, kept, number)
                    records[name] = record
                    losses = losses or record.get("losses", {})
                    if "losses" in record and record["losses"].keys() != losses.keys():
                        del record["losses"]  # they are averaged by name
                except Exception as error:  # whatever is wrong with an answer affects only that center
                    failed[name] = why = reason(error)
                    records[name] = {"left_out": why}
                    log.warning("Round %s: center '%s' is left out: %s.", number, name, why)
                    self.trail.write("left out", center=name, round=number, why=why)
                    self._holds.pop(name, None)
                    if answer.facts.get("lost"):
                        kept.pop(name, None)  # it starts over from what it is sent next
                        if self.plan.frozen is not None:
                            self.roll.check_again(name)  # the frozen network may be what it lost
            self._asked = len(present)
            self._enough(number)
        records = {name: records[name] for name in sorted(records)}
        return self._close(before, updates, kept, records, {**absent, **failed})

    def _judge(
        self, combined: Combined, before: State, kept: dict[str, Tensors], records: dict[str, Record]
    ) -> None:
        super()._judge(combined, before, kept, records)
        for name, why in combined.left_out.items():
            log.warning("Round %s: center '%s' is left out: %s.", before.round + 1, name, why)
            self._failed[name] = why
            self._holds.pop(name, None)
        if combined.left_out:
            self._enough(before.round + 1)

    def _enough(self, number: int) -> None:
        asked, failed = self._asked, self._failed
        answered = asked - len(failed)
        if answered < min(self.deployment.min_centers, asked):
            reasons = "; ".join(f"'{name}': {why}" for name, why in failed.items())
            raise FedmtError(
                f"Round {number}: {answered} of {asked} centers answered, and deployment.min_centers is "
                f"{self.deployment.min_centers} ({reasons}). Every finished round is saved. Start the run "
                "again to continue."
            )

    def _messages(self, before: State, number: int, centers: Collection[Member]) -> dict[str, Any]:
        """For each center: the plan, the model, and what the strategy and the method tell it."""
        # Equal contents are created once and sent to the SuperLink once, for any number of centers.
        made: dict[tuple[str, ...], bytes] = {}

        def packed_bytes(kind: str, tensors: Weights) -> bytes:
            key = (kind, *sorted(tensors))
            if key not in made:
                made[key] = wire.to_bytes(wire.rounded(tensors, self.deployment.wire))
            return made[key]

        messages = {}
        for center in centers:
            name = center.name
            known = before.kept.get(name, {})
            accepted = int(known["accepted"]) if "accepted" in known else None
            # A center's own layers come from the center once it has some, and from here the first time.
            travels = self._travels(center)
            first = self.site.local - self._foreign(center) if "layers" not in known else frozenset()
            names = travels | first
            held = travels if name in self._holds else frozenset()
            changed = (k for k in names if not (k in held and self._same(k, before.weights[k])))
            model = {k: before.weights[k] for k in changed}
            tensors = {"weights": packed_bytes("weights", model)}
            server = {
                k: v
                for k, v in self.strategy.broadcast(before.server).items()
                if k.partition(":")[2] in travels
            }
            if server:
                tensors["server"] = packed_bytes("server", server)
            if "mean" in known:
                tensors["shared"] = wire.to_bytes({"mean": known["mean"]})
            facts = {
                **self._facts(number),
                "accepted": accepted,
                "base": self._holds.get(name),
                "keep_from": number - 1 - self.history,
            }
            messages[name] = wire.message(facts, **tensors)
        return messages

    def _facts(self, number: int) -> dict[str, Any]:
        return {"plan": self._plan, "run": self.roll.run, "round": number, "wire": self.deployment.wire}

    def _foreign(self, center: Member) -> frozenset[str]:
        return self.site.other_heads(None if center.space is None else center.space.name)

    def _travels(self, center: Member) -> frozenset[str]:
        """Names of the weights that travel between this site and a center, in both directions."""
        return frozenset(self.trainer.weights(copy=False)) - self.site.local - self._foreign(center)

    def _same(self, key: str, value: Tensor) -> bool:
        return key in self._sent and torch.equal(self._sent[key], value.cpu())

    def _take(
        self, center: Member, answer: Answer, updates: Received, kept: dict[str, Tensors], number: int
    ) -> Record:
        """Adds an answer to the others. Returns what is recorded about it."""
        if answer.problem:
            raise LeftOut(answer.problem)
        facts = answer.facts
        record = metrics_of(facts.get("metrics"))
        update = answer.tensors("update")
        weight = 1.0
        if self.method.training.weights == "samples":
            weight = samples_of(facts, self._sizes.get(center.name))
            record["samples"] = int(weight)
        shared = self._shared(center, answer.tensors("shared"))
        added = False
        if "abstained" in facts:
            record["abstained"] = escaped(facts["abstained"])
        elif "left_out" in facts:
            record["left_out"] = escaped(facts["left_out"])
        else:
            self._fits(center, update)
            variances_stay_positive(updates.model, update)
            update = {k: v.to(self.device) for k, v in update.items()}
            added = self._add(center.name, update, weight, updates, number)
            if not added:
                raise LeftOut(NOT_FINITE)
        memory: dict[str, Tensor] = {"accepted": torch.tensor(number), **shared}
        if added or "layers" in kept.get(center.name, {}):
            memory["layers"] = torch.tensor(1)  # it has trained, so it has its own layers
        kept[center.name] = memory
        return record

    def _shared(self, center: Member, found: Weights) -> Weights:
        return shared_of(found, center, len(self.federation.wanted))

    def _fits(self, center: Member, update: Weights) -> None:
        """Checks that an update has exactly the weights that travel, in their shapes."""
        names = self._travels(center)
        every = self.trainer.weights(copy=False)
        expected = {k: v for k, v in every.items() if k in names and v.is_floating_point()}
        if self.strategy.corrects:
            expected |= packed("control", {k: v for k, v in expected.items() if k in self._parameters})
        same_weights(update, expected)

    def _static_statistics(self, absent: Collection[str]) -> None:
        """As in the local engine, but the centers measure, which takes a second exchange in the round.

        The centers keep the model that they measure, so the next round sends only what has changed.
        """
        if self.method.training.batch_norm != "static" or not self.method.schedule.centers_train:
            return super()._static_statistics(absent)
        with self._clock.phase("statistics"):
            reference = self.federation.reference
            parts = [(float(len(reference)), self.trainer.statistics(reference.values))]
            weights = self.trainer.weights()
            present = [c for c in self.federation.roster.members if c.name not in absent]
            parts += self._measured({k: v.cpu() for k, v in weights.items()}, present, parts[0][1])
            self.trainer.set_statistics(static_bn.pool(parts))

    def _record(self, state: State, reference_loss: float | None, centers: dict[str, Record]) -> Record:
        for name, why in self._unmeasured.items():
            centers.setdefault(name, {})["left_out_of_statistics"] = why
        return super()._record(state, reference_loss, centers)

    def _measured(
        self, weights: Weights, centers: Collection[Member], own: static_bn.Statistics
    ) -> list[tuple[float, static_bn.Statistics]]:
        """Each center's number of samples and statistics of the model, in the order of the names.

        own: the statistics of the reference center, which the others are compared with.
        """
        self._sent, self._holds, self._unmeasured = weights, {}, {}
        labels, messages = self._statistics_messages(weights, centers)
        parts = []
        for name, answer in self.roll.ask(
            "query.statistics", self._number, messages, self.deployment.timeout
        ):
            try:
                if answer.problem:
                    raise LeftOut(answer.problem)
                found = statistics_of(answer.tensors("statistics"), own)
                samples = samples_of(answer.facts, self._sizes.get(name))
                parts.append((samples, {k: v.to(self.device) for k, v in found.items()}))
                self._holds[name] = labels[name]
            except Exception as error:  # as above
                self._unmeasured[name] = why = reason(error)
                log.warning(
                    "Round %s: center '%s' is left out of the statistics: %s.", self._number, name, why
                )
                self.trail.write("left out of the statistics", center=name, round=self._number, why=why)
        return parts

    def _statistics_messages(
        self, weights: Weights, centers: Collection[Member]
    ) -> tuple[dict[str, str], dict[str, RecordDict]]:
        """For each center, the label under which it should hold the model, and its message."""
        made: dict[frozenset[str], bytes] = {}
        labels, messages = {}, {}
        for center in centers:
            names = self._travels(center)
            if names not in made:
                plain = {k: v for k, v in weights.items() if k in names}
                made[names] = wire.to_bytes(wire.rounded(plain, self.deployment.wire))
            data = made[names]
            labels[center.name] = hashlib.blake2b(data, digest_size=16).hexdigest()
            facts = {**self._facts(self._number), "base": None, "label": labels[center.name]}
            messages[center.name] = wire.message(facts, weights=data)
        return labels, messages
