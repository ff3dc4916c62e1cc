"""The model card: what is known about a model in one table, with unknown facts marked as unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fedmt
from fedmt.core.errors import listed
from fedmt.data.member import Member
from fedmt.metrics import HEADLINE
from fedmt.models import Model
from fedmt.models.correspondences import in_short, origin
from fedmt.models.priors import by_class

UNKNOWN = "not known"


def model_card(model: Model, measured: Mapping[str, Mapping[str, float]] | None) -> dict[str, Any]:
    """measured: the metrics of exactly this round, by label space and metric, for the answer that the model
    gives. None if nothing was measured."""
    accuracy = {s: m[HEADLINE] for s, m in (measured or {}).items() if HEADLINE in m}
    about = model.description
    origins = {c.name: said for c in about.roster.members if (said := _origin(model, c)) is not None}
    encoder = model.predictor().encoder
    first = model.state.weights if encoder is None else encoder.state_dict()
    normalization = {k: first[k].flatten().tolist() for k in ("mean", "std")}
    return {
        "model": {
            "made_with": f"fedmt {fedmt.__version__}",
            # What happened replaces what the config requested.
            "method": {**about.method, **({"correspondence": in_short(origins)} if origins else {})},
            "backbone": about.backbone if about.frozen is None else about.frozen.backbone,
            **({} if about.frozen is None else {"frozen": "the backbone", "head": about.backbone}),
            "parameters": sum(p.numel() for p in model.predictor().parameters()),
            "round": model.round,
            "rounds_planned": about.rounds,
            "input": {"name": model.input.name, **model.input.signature(), "normalization": normalization},
            "license": UNKNOWN,
        },
        "label_spaces": {
            space: {
                "classes": list(classes),
                "wanted": space == model.spaces[0],
                "answered_by": _answered_by(model, space),
            }
            for space, classes in about.spaces.items()
        },
        "correspondences": {
            space: {
                "rows": list(model.classes(space)),
                "columns": list(model.classes()),
                "matrix": [[round(v, 6) for v in row] for row in model.predictor().matrix(space).tolist()],
            }
            for space in model.spaces
            if space not in model.predictor().parts
        },
        "data": {
            "reference_center": {"name": about.roster.reference.name, "samples": about.roster.reference.size},
            "centers": [
                {
                    "name": c.name,
                    "samples": UNKNOWN if c.size is None else c.size,
                    "label_space": c.space.name if c.space is not None else "none: it has no labels",
                    "correspondence": origins.get(c.name, "not used in training"),
                }
                for c in about.roster.members
            ],
            "tests": [
                {"name": t.name, "samples": t.size, "label_space": t.space.name if t.space else None}
                for t in about.tests
            ],
            "origin": UNKNOWN,
            "collected": UNKNOWN,
            "who_is_in_it": UNKNOWN,
        },
        "accuracy": _accuracy(model, accuracy),
        "metrics": {space: dict((measured or {}).get(space, {})) or UNKNOWN for space in about.spaces},
        "calibration": about.calibration or "none: probabilities are the network's own",
        "prior": _prior(model),
        "intended_use": f"{UNKNOWN}: to be written by those who trained the model",
        "limits": _limits(model, accuracy),
    }


def _prior(model: Model) -> dict[str, Any] | str:
    """The frequencies of the wanted classes for which its answers are valid, and the label spaces of these
    answers."""
    if model.prior is None:
        return UNKNOWN
    shares = by_class(model.prior.shares, model.description.wanted)
    spaces = [space for space in model.spaces if model.from_wanted(space)]
    return {
        "name": model.prior.name,
        "answers_for": model.prior.words,
        "label_spaces": spaces,
        "shares": shares,
    }


def _answered_by(model: Model, space: str) -> str:
    about = model.description
    if space == model.spaces[0]:
        return "the model itself"
    if space not in model.spaces:
        return "nothing: the model has neither a correspondence nor a head for it"
    centers = _labeling_in(model, space)
    if space in model.predictor().parts:
        count = len(model.predictor().parts[space])
        return f"the mean of the heads of {count} centers" if count > 1 else "a head of its own"
    given = [c for c in centers if c.correspondence and about.method.get("correspondence") != "estimated"]
    estimated = [c for c in centers if c not in given and _has_estimate(model, c)]
    kind = "a given" if not estimated else "an estimated" if not given else "a partly estimated"
    count = len(given) + len(estimated)
    mean = f", the mean of those of {count} centers" if count > 1 else ""
    shares = f" ({len(given)} given, {len(estimated)} estimated)" if given and estimated else ""
    return f"the wanted space's probabilities through {kind} correspondence{mean}{shares}"


def _origin(model: Model, center: Member) -> str | None:
    return origin(model.description.method, model.spaces[0], center, _has_estimate(model, center))


def _has_estimate(model: Model, center: Member) -> bool:
    return "correspondence" in model.state.kept.get(center.name, {})


def _estimated(model: Model, space: str) -> bool:
    """Whether any of the matrices in a space is M-hat, which the center has then kept."""
    return any(_has_estimate(model, m) for m in _labeling_in(model, space))


def _labeling_in(model: Model, space: str) -> list[Member]:
    members = model.description.roster.members
    return [m for m in members if m.space is not None and m.space.name == space]


def _accuracy(model: Model, accuracy: Mapping[str, float]) -> dict[str, Any]:
    tested = {space: 0 for space in model.description.spaces}
    for test in model.description.tests:
        if test.space is not None and test.space.name in tested:
            tested[test.space.name] += test.size or 0
    found: dict[str, Any] = {}
    for space in model.description.spaces:
        measured = accuracy.get(space)
        if measured is None:
            found[space] = UNKNOWN
            continue
        found[space] = {"accuracy": measured, "test_samples": tested[space], "round": model.round}
        if len(model.predictor().parts.get(space, ())) > 1:
            found[space]["note"] = "mean of the accuracies of the single heads; not tested together"
        elif space != model.spaces[0] and model.calibrated(space):
            found[space]["note"] = "without the temperature, which may change the order of projected classes"
    return found


def _limits(model: Model, accuracy: Mapping[str, float]) -> list[str]:
    about, word = model.description, model.input.word
    article = "an" if word[0] in "aeiou" else "a"
    limits = [
        f"It always answers with one of its classes, whatever {article} {word} shows. It does not notice "
        "anything else.",
        f"Its performance on {word}s from elsewhere, or for groups of people within the data, is unknown.",
    ]
    if not model.finished:
        limits.append(f"Its training was not finished: round {model.round} of {about.rounds}.")
    untested = [s for s in model.spaces if s not in accuracy]
    if untested:
        limits.append(f"Its accuracy was not measured in {listed(untested)}.")
    uncalibrated = [s for s in model.spaces if not model.calibrated(s)]
    if uncalibrated:
        limits.append(
            f"Its probabilities are not calibrated in {listed(uncalibrated)}: 0.9 need not mean 90% right."
        )
    own = about.own_prior
    if own is not None and model.prior is not None and model.prior != own:
        limits.append(
            f"It answers for {model.prior.words}; its metrics were measured with answers for {own.words}."
        )
    estimated = [s for s in model.spaces[1:] if s not in model.predictor().parts and _estimated(model, s)]
    if estimated:
        limits.append(
            f"The correspondence with {listed(estimated)} was estimated by the training, not given by people."
        )
    silent = [s for s in about.spaces if s not in model.spaces]
    if silent:
        limits.append(f"It cannot answer in {listed(silent)}, in which centers labeled.")
    return limits
