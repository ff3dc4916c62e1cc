"""A center's side, Flower's ClientApp: it checks a plan, trains, and measures statistics.

Data leaves the center only in `_check`, `_train`, `_statistics`, `_reveal` and `_said`. Full errors go to the
center's own log. The coordinator gets them without file names or labels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor

import fedmt
from fedmt.aggregation import unpacked
from fedmt.backbones.frozen import encode
from fedmt.config import build_method, build_strategy, build_transforms
from fedmt.config.freezing import features_of
from fedmt.core.digests import digest_of
from fedmt.core.errors import FedmtError
from fedmt.core.registry import NotAllowed, importing_only
from fedmt.data.center import Center
from fedmt.engines.budget import Budget, privacy_notes
from fedmt.engines.device import pick_device, place_centers
from fedmt.engines.eager.trainer import Trainer
from fedmt.engines.flower import wire
from fedmt.engines.flower.identity import signed
from fedmt.engines.flower.keys import Key, fingerprint
from fedmt.engines.flower.ledger import LedgerFile
from fedmt.engines.flower.masked import Masking
from fedmt.engines.flower.memory import Lost, Unable
from fedmt.engines.flower.plan import Plan, shape_digest
from fedmt.engines.flower.settings import CenterFile
from fedmt.engines.flower.task import Task, open_task
from fedmt.engines.flower.trail import described, versions
from fedmt.engines.site import Outcome, Site
from fedmt.engines.summing import arrays, moments
from fedmt.methods.base import NotPrivate
from fedmt.methods.training import Training

log = logging.getLogger("flwr")

app = ClientApp()


@app.query("check")
def check(message: Message, context: Context) -> Message:
    """Before round 1: describes this center, so that the coordinator can compare it with its config."""
    return _guarded(_check, message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """A center's part of a round. It sends its update, or reports that it abstained."""
    return _guarded(_train, message, context)


@app.query("reveal")
def reveal(message: Message, context: Context) -> Message:
    """With secure aggregation: sends the seeds that remove the masks from a sum."""
    return _guarded(_reveal, message, context)


@app.query("statistics")
def statistics(message: Message, context: Context) -> Message:
    """With batch_norm = "static": mean and variance of each batch-norm layer over the center's samples."""
    return _guarded(_statistics, message, context)


def _guarded(work: Callable[[Task], Message], message: Message, context: Context) -> Message:
    """Replaces an exception's text, which Flower would send as it is."""
    try:
        task = open_task(message, context)
    except Exception as error:
        _log(error)
        return _answer(message, {"center": None, "problem": "its center.toml has a problem"})
    try:
        # Code that a plan names beyond what is checked by name is not imported either.
        with importing_only(task.settings.importable):
            task.trail.write("asked", **_about(task), versions=versions(), parts=described(message.content))
            return work(task)
    except (Unable, NotAllowed, NotPrivate) as error:
        log.error("%s", error)
        return _refuse(task, {"problem": _in_one_line(error), "lost": isinstance(error, Lost)})
    except Exception as error:
        _log(error)
        return _refuse(task, {"problem": "it failed; see its own log for the reason"})


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _log(error: Exception) -> None:
    log.error("%s", error, exc_info=not isinstance(error, FedmtError))


def _refuse(task: Task, facts: Mapping[str, Any]) -> Message:
    try:
        task.trail.write("refused", **_about(task), why=facts["problem"])
    except FedmtError as error:  # the disk may be full, which may be the cause
        log.error("%s", error)
    return _said(task, facts)


def _about(task: Task) -> dict[str, Any]:
    metadata = task.message.metadata
    return {
        "kind": metadata.message_type,
        "run": task.facts.get("run"),
        "round": task.facts.get("round"),
        "message": metadata.message_id,
    }


def _check(task: Task) -> Message:
    file = task.settings.file
    facts: dict[str, Any] = {"version": fedmt.__version__, "shares": file.share_correspondence}
    if file.privacy is not None:
        facts["privacy"] = {"epsilon": file.privacy.epsilon, "delta": file.privacy.delta}
    try:
        plan = task.plan
        space = task.settings.space()
        facts["space"] = None if space is None else [space.name, list(space)]
        facts["model"] = shape_digest(plan.network())
        if space is None or space in plan.spaces:
            center, notes = task.settings.center_and_notes(plan)
            for note in notes:
                log.warning("%s", note)
            _unchanged(task, center)
            method = _site(task, plan).method
            method.check_private_center(center)
            for note in privacy_notes(method, [center]):
                log.info("%s", note)
            facts["shape"] = list(center.input.shape)
            training = plan.config.training
            if masking := _masking(task):
                facts["masking"] = masking.announcement(task.facts["masking"], _size(file, center))
            elif training.weights == "samples" or training.batch_norm == "static":
                facts["samples"] = _size(file, center)  # from here on, this is its weight in a mean
            if plan.frozen is not None:
                task.memory.keep_frozen(task.tensors("frozen"), plan.frozen.digest)
    except (Unable, NotAllowed):
        raise
    except NotPrivate as error:
        log.error("%s", error)
        facts["problem"] = f"it has its own [privacy], which cannot be guaranteed: {_in_one_line(error)}"
    except Exception as error:
        _log(error)
        facts["problem"] = "its data or its center.toml has a problem; see its own log"
    return _reply(task, facts)


def _train(task: Task) -> Message:
    plan, file, facts = task.plan, task.settings.file, task.facts
    site, number, memory = _site(task, plan), int(facts["round"]), task.memory
    (center,) = place_centers([_center(task, plan, site)], site.trainer.device)
    kept = memory.load(facts["accepted"])
    space = None if center.space is None else center.space.name
    weights = _whole(task, site, unpacked("weights", kept), site.other_heads(space))
    shared = task.tensors("shared")
    outcome = site.center_round(center, weights, task.tensors("server"), {**kept, **shared}, number)
    memory.save(number, outcome.kept, int(facts["keep_from"]))
    if masking := _masking(task):
        # Nothing else about the round leaves the center, except what its file allows: not even whether it
        # abstained.
        for key in ("abstained", "left_out"):
            if key in outcome.record:
                log.info("Round %s: %s.", number, outcome.record[key])
        weight = _size(file, center) if plan.config.training.weights == "samples" else 1
        values = None if outcome.update is None else arrays(outcome.update)
        tensors: dict[str, bytes] = {
            "masked": masking.masked(facts["masking"], number, "update", values, weight)
        }
        if own := _shareable(outcome, file, len(center)):
            tensors["shared"] = wire.to_bytes(own)
        return _reply(task, {}, **tensors)
    answer: dict[str, Any] = {}
    for key in ("abstained", "left_out"):
        if key in outcome.record:
            answer[key] = outcome.record[key]
    if file.share_metrics or file.privacy is not None:  # the record of a private round is what it spent
        answer["metrics"] = {k: v for k, v in outcome.record.items() if k not in answer}
    if plan.config.training.weights == "samples":
        answer["samples"] = _size(file, center)
    tensors = {}
    if outcome.update is not None:
        tensors["update"] = wire.to_bytes(wire.rounded(outcome.update, facts["wire"]))
    if own := _shareable(outcome, file, len(center)):
        tensors["shared"] = wire.to_bytes(own)
    return _reply(task, answer, **tensors)


def _statistics(task: Task) -> Message:
    if (
        task.settings.file.privacy is not None
    ):  # checked whatever the plan says, because a coordinator may ask for anything
        raise Unable("its [privacy] does not allow statistics of its samples to leave it")
    plan = task.plan
    site = _site(task, plan)
    center = _center(task, plan, site)
    weights = _whole(task, site, {}, frozenset().union(*site.heads))
    # The next round begins with this model, so only what changes has to be sent again.
    task.memory.receive(task.tensors("weights"), str(task.facts["label"]))
    site.trainer.load(weights)
    found = site.trainer.statistics(center.values)
    if masking := _masking(task):
        number = int(task.facts["round"])
        data = masking.masked(task.facts["masking"], number, "statistics", moments(found), len(center))
        return _reply(task, {}, masked=data)
    return _reply(task, {"samples": len(center)}, statistics=wire.to_bytes(found))


def _reveal(task: Task) -> Message:
    masking = Masking(task.settings, task.memory, str(task.facts["run"]), task.key)
    return _reply(task, {"revealed": masking.revealed(str(task.facts["reveal"]))})


def _masking(task: Task) -> Masking | None:
    """How the center masks what it sends. None if masking is neither requested nor required by its
    own file."""
    file = task.settings.file
    if "masking" not in task.facts:
        if file.peers:
            raise Unable(
                "its center.toml has [peers], so it sends only masked updates, but none were requested"
            )
        return None
    if file.share_metrics and not task.settings.simulated:
        raise Unable("its center.toml has share_metrics = true, which secure aggregation excludes")
    return Masking(task.settings, task.memory, str(task.facts["run"]), task.key)


def _site(task: Task, plan: Plan) -> Site:
    config = plan.config
    file = task.settings.file
    # The promise is the center's own, and so are the random numbers that protect it.
    method = replace(build_method(config), privacy=file.privacy).knowing(plan.wanted)
    strategy = build_strategy(config)
    budget = Budget(None, LedgerFile(file.state).charge)
    trainer = _trainer(plan, task.facts["plan"], method.training, pick_device(file.device))
    names = [space.name for space in plan.spaces]
    transforms = build_transforms(config)
    return Site(
        trainer, method, strategy, names, config.seed, lambda phase: nullcontext(), transforms, budget
    )


_kept: list[tuple[Any, Trainer]] = []
"""The last trainer of this process, and what it was made for. A resident process reuses it."""


def _trainer(plan: Plan, raw: Any, training: Training, device: torch.device) -> Trainer:
    """The trainer of a plan. Its previously loaded weights play no role in a round: a message brings the
    whole model, or the center has it on its disk."""
    made_for = (raw, training, device)
    precision = plan.config.precision
    if not _kept or _kept[0][0] != made_for:
        _kept.clear()  # released before the next one is made, because both may not fit in memory
        _kept.append((made_for, Trainer(plan.network(), training, device, plan.input, precision)))
    # This applies to the whole process, which may have trained in another precision before.
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    return _kept[0][1]


def _center(task: Task, plan: Plan, site: Site) -> Center:
    """What it trains with: its samples or, with a frozen backbone, their features, which are computed
    once."""
    center = task.settings.center(plan)
    _unchanged(task, center)
    if plan.frozen is None:
        return center
    label = f"{plan.frozen.digest} {digest_of({plan.read.name: center.values})}"
    features = task.memory.features(label)
    if features is None:
        network = plan.frozen.network(len(plan.wanted), task.memory.frozen(plan.frozen.digest))
        where = f"Center '{center.name}'"
        features = encode(network, center.input, center.values, site.trainer.device, where)
        task.memory.keep_features(features, label)
    return features_of(center, features, plan.input)


def _unchanged(task: Task, center: Center) -> None:
    """As in a local run, one model is not trained on two versions of a center's data."""
    if not task.memory.keep_data({center.name: digest_of(center.contents())}):
        log.error(
            "The data of this center (samples, labels or its correspondence) have changed since the run "
            "began. Restore them to continue, or ask the coordinator to start a new run."
        )
        raise Unable("its data have changed since the run began")


def _whole(task: Task, site: Site, own: Mapping[str, Tensor], unused: frozenset[str]) -> wire.Weights:
    """The model: the weights in this message on top of those the center already has, with its own layers.

    unused: heads that are not needed for this task. They are not sent at all.
    """
    base = task.facts["base"]
    weights = task.memory.received(base) if base is not None else {}
    weights.update(task.tensors("weights"))
    weights.update(own)
    expected = site.trainer.weights(copy=False)
    weights.update({k: v for k, v in expected.items() if k in unused and k not in weights})
    wrong = [k for k in expected if k not in weights or weights[k].shape != expected[k].shape]
    if wrong or len(weights) != len(expected):
        raise Unable(f"the model it received does not fit ({', '.join(wrong[:3]) or 'further weights'})")
    return {k: v.to(site.trainer.device) for k, v in weights.items()}


def _size(file: CenterFile, center: Center) -> int:
    """Its number of samples. For a private center, the number that may be known."""
    return len(center) if file.privacy is None else file.privacy.public_size(len(center))


def _shareable(outcome: Outcome, file: CenterFile, samples: int) -> wire.Weights:
    """The parts of the method's memory that center.toml allows to be sent. Nothing else that it keeps leaves
    the center."""
    allowed = {"correspondence": file.share_correspondence, "prior": file.share_prior}
    found = {k: v for k, v in outcome.kept.items() if allowed.get(k)}
    if "prior" in found:
        found["size"] = torch.tensor(samples)
    return found


def _reply(task: Task, facts: Mapping[str, Any], **tensors: bytes) -> Message:
    """The answer. What leaves the center with it is recorded in the center's own audit log."""
    reply = _said(task, facts, **tensors)
    key = None if task.key is None else fingerprint(task.key.public_key())
    task.trail.write("sent", **_about(task), key=key, parts=described(reply.content))
    return reply


def _said(task: Task, facts: Mapping[str, Any], **tensors: bytes) -> Message:
    # This also covers a message without them, because an exception raised here would leave the center
    # unchanged.
    who = {key: task.facts.get(key) for key in ("run", "round")} | {"center": task.settings.file.name}
    return _answer(task.message, {**who, **facts}, task.key, **tensors)


def _answer(message: Message, facts: Mapping[str, Any], key: Key | None = None, **tensors: bytes) -> Message:
    content = signed(wire.message(facts, **tensors), key, facts, message.metadata.message_id)
    return Message(content, reply_to=message)
