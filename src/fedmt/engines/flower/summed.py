"""The engine at the coordinating site with secure aggregation. It learns sums, and nothing about a single
center.

A round asks twice: first for masked updates, and then for the seeds that remove the masks from their sum.
Statistics of batch-norm layers are summed in the same way. All that is known about a center is whether it
answered.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from flwr.app import RecordDict

from fedmt.core.errors import FedmtError
from fedmt.data.member import Member
from fedmt.engines.flower import wire
from fedmt.engines.flower.answers import LeftOut, reason
from fedmt.engines.flower.coordinator import FlowerEngine
from fedmt.engines.flower.roll import Answer
from fedmt.engines.local import LocalEngine
from fedmt.engines.site import Record
from fedmt.engines.state import State
from fedmt.engines.summing import SummedStatistics, SummedUpdates, moment_layout
from fedmt.methods.work import Tensors
from fedmt.privacy.masking.agreement import Announcement, Announcements, Refused
from fedmt.privacy.masking.center import Masked
from fedmt.privacy.masking.coordinator import Lost, MaskedSum
from fedmt.privacy.masking.fixed_point import Layout, Vector
from fedmt.privacy.masking.masks import Context

log = logging.getLogger("flwr")

LOST_IN_A_ROW = 3
"""This many rounds without a sum stop the run."""


@dataclass
class SummedFlowerEngine(FlowerEngine):
    """Uses the terms of `summing`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.summing is not None
        self._terms = self.summing
        self._checked_with["masking"] = asdict(self._terms)
        self._keys: dict[str, Announcement] = {}
        self._masking: dict[str, Any] = {}
        """What a message says about the sum that it belongs to."""
        self._lost = 0
        self._forgot: set[str] = set()
        """Centers that have to start over."""

    def _inspect(self, name: str, facts: Mapping[str, Any]) -> str:
        if problem := super()._inspect(name, facts):
            return problem
        try:
            self._keys[name] = Announcement.from_json(facts.get("masking"))
        except Refused as error:
            return f"its key for secure aggregation is missing ({error})"
        return ""

    def _facts(self, number: int) -> dict[str, Any]:
        return {**super()._facts(number), **self._masking}

    # -- a sum ------------------------------------------------------------------------------------

    def _begin(self, purpose: str, centers: Collection[Member], layout: Layout) -> MaskedSum:
        here: Announcements = {c.name: self._keys[c.name] for c in centers if c.name in self.roll.nodes}
        # Random, so that a round that is repeated after a stop never uses the same masks.
        context = Context(self.roll.run, self._number, purpose, secrets.token_hex(8))
        total = MaskedSum(context, self._terms.threshold, here, layout)
        self._masking = {"masking": {"request": total.request().decode(), "layout": layout.to_json()}}
        return total

    def _gather(
        self, kind: str, total: MaskedSum, messages: Mapping[str, RecordDict], failed: dict[str, str]
    ) -> dict[str, wire.Weights]:
        """Asks for masked vectors. Returns, for each center in the sum, what its file allows to be sent along
        with it. failed: collects the others, with reasons."""
        taken: dict[str, wire.Weights] = {}
        for name, answer in self.roll.ask(kind, self._number, messages, self.deployment.timeout):
            self.on_center(self._number, name)
            try:
                if answer.problem:
                    raise LeftOut(answer.problem)
                total.add(name, _masked(answer))
                taken[name] = answer.tensors("shared")
            except Exception as error:  # whatever is wrong with an answer affects only that center
                failed[name] = why = str(error) if isinstance(error, Refused) else reason(error)
                log.warning("Round %s: center '%s' is left out: %s.", self._number, name, why)
                self.trail.write("left out", center=name, round=self._number, why=why)
                if answer.facts.get("lost"):
                    self._forgot.add(name)
        return taken

    def _reveal(self, total: MaskedSum) -> Vector:
        """Asks for the seeds and returns the sum without its masks."""
        base = {"run": self.roll.run, "round": self._number}
        requests = total.reveal_requests()
        messages = {n: wire.message({**base, "reveal": r.decode()}) for n, r in requests.items()}
        for name, answer in self.roll.ask("query.reveal", self._number, messages, self.deployment.timeout):
            try:
                if answer.problem:
                    raise LeftOut(answer.problem)
                total.take(name, str(answer.facts.get("revealed")).encode())
            except Exception as error:
                why = str(error) if isinstance(error, Refused) else reason(error)
                log.warning("Round %s: center '%s' revealed no seeds: %s.", self._number, name, why)
        found = total.total()
        for name, problem in total.problems.items():
            log.warning("Round %s: center '%s': %s.", self._number, name, problem)
        return found

    # -- a round ----------------------------------------------------------------------------------

    def _round(self, before: State) -> tuple[State, Record]:
        if not self.method.schedule.centers_train:
            return super()._round(before)
        number = self._number = before.round + 1
        updates = self._updates(before)
        assert isinstance(updates, SummedUpdates)
        kept = dict(before.kept)
        absent = self._absent(number)
        present = [c for c in self.federation.roster.members if c.name not in absent]
        failed = self._failed = {c.name: "it is not connected" for c in present}
        self.roll.update(self._checked_with)
        lost = ""
        with self._clock.phase("centers"):
            try:
                total = self._begin("update", present, updates.layout)
                asked = [c for c in present if c.name in total.participants]
                failed = self._failed = {n: why for n, why in failed.items() if n not in total.participants}
                messages = self._messages(before, number, asked)
                answers = self._gather("train", total, messages, failed)
                del messages
                updates.add_total(self._reveal(total), len(total.survived))
                self._accept(answers, asked, kept, number)
                self._lost = 0
            except Lost as error:
                lost = str(error)
            finally:
                self._masking = {}
        for name in failed:
            self._holds.pop(name, None)
            self.roll.check_again(name)  # it may have a new key, or need the frozen network again
            if name in self._forgot:
                kept.pop(name, None)
        self._forgot.clear()
        self._asked = len(present)
        if lost:
            self._give_up(lost, failed)
        else:
            self._enough(number)
        records: dict[str, Record] = {name: {"absent": why} for name, why in absent.items()}
        for name in (c.name for c in present):
            why = failed.get(name) or (f"the sum of the round was lost: {lost}" if lost else "")
            records[name] = {"left_out": why} if why else {}
        records = {name: records[name] for name in sorted(records)}
        return self._close(before, updates, kept, records, {**absent, **failed})

    def _accept(
        self,
        answers: Mapping[str, wire.Weights],
        asked: Collection[Member],
        kept: dict[str, Tensors],
        number: int,
    ) -> None:
        """What is kept about the centers in the sum. A center's own layers are sent every time, because
        nobody here knows whether it trained or abstained. It uses those that it has."""
        for center in asked:
            if center.name not in answers:
                continue
            try:
                shared = self._shared(center, answers[center.name])
            except (LeftOut, FedmtError) as error:
                log.warning("Round %s: center '%s': %s.", number, center.name, error)
                shared = {}
            kept[center.name] = {"accepted": torch.tensor(number), **shared}

    def _give_up(self, lost: str, failed: Mapping[str, str]) -> None:
        """A round without a sum. The model stays the same, and the next round is another attempt."""
        self._lost += 1
        log.warning("Round %s: the updates could not be summed: %s.", self._number, lost)
        self.trail.write("no sum", round=self._number, why=lost)
        if self._lost >= LOST_IN_A_ROW:
            reasons = "; ".join(f"'{name}': {why}" for name, why in failed.items())
            raise FedmtError(
                f"Round {self._number}: the updates could not be summed in {self._lost} rounds: "
                f"{lost}{(f' ({reasons})' if reasons else '')}. Every finished round is saved. Start the run "
                "again to continue."
            )

    # -- statistics -------------------------------------------------------------------------------

    def _static_statistics(self, absent: Collection[str]) -> None:
        if self.method.training.batch_norm != "static" or not self.method.schedule.centers_train:
            return LocalEngine._static_statistics(self, absent)
        with self._clock.phase("statistics"):
            reference = self.federation.reference
            own = self.trainer.statistics(reference.values)
            everyone = len(self.federation.roster.members) + 1
            pooled = SummedStatistics(moment_layout(self._terms, own, everyone))
            pooled.add(len(reference), own)
            present = [c for c in self.federation.roster.members if c.name not in absent]
            weights = {k: v.cpu() for k, v in self.trainer.weights().items()}
            self._sent, self._holds, self._unmeasured = weights, {}, {}
            failed: dict[str, str] = {}
            try:
                if own:
                    total = self._begin("statistics", present, pooled.layout)
                    asked = [c for c in present if c.name in total.participants]
                    labels, messages = self._statistics_messages(weights, asked)
                    answers = self._gather("query.statistics", total, messages, failed)
                    self._holds = {name: labels[name] for name in answers}
                    pooled.add_total(self._reveal(total), len(total.survived))
            except Lost as error:
                log.warning("Round %s: the statistics could not be summed: %s.", self._number, error)
                failed = {c.name: f"the sum was lost: {error}" for c in present}
            finally:
                self._masking = {}
            self._unmeasured = failed
            self.trainer.set_statistics(pooled.result())


def _masked(answer: Answer) -> Masked:
    found = answer.tensors("masked")
    vector, dealt = found.get("vector"), found.get("dealt")
    if vector is None or dealt is None or vector.dtype not in (torch.int32, torch.int64):
        raise LeftOut("its answer has no masked update")
    bits = "<u4" if vector.dtype == torch.int32 else "<u8"
    return Masked(dealt.numpy().tobytes(), vector.numpy().view(bits))
