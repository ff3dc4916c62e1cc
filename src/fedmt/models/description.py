"""What must be known about a model besides its weights: `model.json` in the run folder.

With it and a checkpoint, a model predicts in every label space of its federation, without the data.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from torch import Tensor

from fedmt.backbones.frozen import Frozen
from fedmt.backbones.given import PREFIX as GIVEN
from fedmt.backbones.timm import PREFIX as TIMM
from fedmt.core.digests import digest_of
from fedmt.core.errors import FedmtError
from fedmt.core.escaping import escaped
from fedmt.core.labels import Correspondence, LabelSpace
from fedmt.core.priors import log_prior
from fedmt.core.registry import NotAllowed, importing_only, option_names, value_at
from fedmt.data.center import Federation
from fedmt.data.member import Member, Roster
from fedmt.inputs import Input, from_json, to_json
from fedmt.methods import METHODS, Method
from fedmt.models.priors import Prior, Shares, uniform

FORMAT = "fedmt-model-1"

NAMING = (
    ("backbone",),
    ("method", "name"),
    ("method", "estimator"),
    ("input", "name"),
    ("frozen", "backbone"),
    ("frozen", "input", "name"),
)
"""The places in the file that may name code to be looked up."""


@dataclass(frozen=True)
class Description:
    """roster: who took part; its label spaces are in the order of the model's heads. tests: the test sets.

    input: what a sample is. method: its name and options. rounds: how many there will be.
    head: for a network that was given in Python, whether a head was added to it.
    calibration: the temperature and how it was found, once the run is finished and if samples were held out.
    frozen: the network in front of the trained one, whose features `input` then describes.
    adjusted: whether training made the network answer for equally frequent classes; if not, it answers for
        the reference center's. priors: known class frequencies by name: the 'reference' center's, and in an
        exported file the 'centers' too. Both are missing in files of earlier versions.
    prior: the default prior of its answers; None for the network's own.
    estimates: in an exported file, how many centers' estimates are in the mean 'centers'.
    private: whether the centers trained with differential privacy; false in files of earlier versions.
    """

    roster: Roster
    tests: tuple[Member, ...]
    input: Input
    backbone: str
    max_pool: bool | None
    method: dict[str, Any]
    rounds: int
    batch_norm: str
    calibration: dict[str, Any] | None = None
    head: bool | None = None
    frozen: Frozen | None = None
    adjusted: bool = False
    priors: Mapping[str, Shares] = field(default_factory=dict)
    prior: Prior | None = None
    estimates: int | None = None
    private: bool = False

    @property
    def wanted(self) -> LabelSpace:
        return self.roster.wanted

    @property
    def asked(self) -> Input:
        """What the model predicts: the samples themselves, not the features of a frozen backbone."""
        return self.input if self.frozen is None else self.frozen.input

    @property
    def own_prior(self) -> Prior | None:
        """The prior of the network's own answers. None in a file of an earlier version, which does not record
        it."""
        if self.adjusted:
            return Prior("uniform", uniform(len(self.wanted)))
        return Prior("reference", self.priors["reference"]) if "reference" in self.priors else None

    def known_priors(self, kept: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Prior]:
        """The priors by name. That of the centers comes from their estimates, or from the exported file."""
        centers = self.build_method().knowing(self.wanted).centers_prior(self.roster, kept)
        shares = self.priors if centers is None else {**self.priors, "centers": tuple(centers.tolist())}
        found = {name: Prior(name, values) for name, values in shares.items()}
        known = self.known_estimates(kept)
        if "centers" in found and known[0]:  # there are none if the method assumes the frequencies
            found["centers"] = dataclasses.replace(found["centers"], estimates=known)
        return found

    def known_estimates(self, kept: Mapping[str, Mapping[str, Tensor]]) -> tuple[int, int]:
        """Of how many centers the estimated class frequencies are known here, or were when the model was
        exported, and how many centers there are."""
        members = self.roster.members
        here = sum("prior" in kept.get(m.name, {}) for m in members)
        return (here if self.estimates is None else self.estimates), len(members)

    def log_shift(self, prior: Prior | None) -> Tensor:
        """What is added to the wanted logits so that they answer for a prior, [K]. Zeros for the network's
        own."""
        own = self.own_prior
        if prior is None or prior == own:
            return torch.zeros(len(self.wanted))
        if own is None:
            raise FedmtError(
                "prior: an earlier version of fedmt wrote this model and did not record how frequent the "
                "classes were at its reference center. Predict without a prior, or train the model again."
            )
        return log_prior(torch.tensor(prior.shares)) - log_prior(torch.tensor(own.shares))

    @property
    def spaces(self) -> dict[str, tuple[str, ...]]:
        """Name to classes, the wanted space first."""
        return {space.name: space.classes for space in self.roster.spaces}

    def build_method(self) -> Method:
        options = {k: v for k, v in self.method.items() if k != "name"}
        return TypeAdapter(METHODS.find(self.method["name"], "method.name")).validate_python(options)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "spaces": {name: list(classes) for name, classes in self.spaces.items()},
            "input": to_json(self.input),
            "backbone": self.backbone,
            "max_pool": self.max_pool,
            "method": self.method,
            "rounds": self.rounds,
            "batch_norm": self.batch_norm,
            "reference": _entry(self.roster.reference),
            "centers": [_entry(m) for m in self.roster.members],
            "tests": [{**_entry(t), **self._own_classes(t)} for t in self.tests],
            "calibration": self.calibration,
            **({} if self.head is None else {"head": self.head}),
            **({} if self.frozen is None else {"frozen": self.frozen.to_json()}),
            "adjusted": self.adjusted,
            "priors": {name: list(shares) for name, shares in self.priors.items()},
            **({} if self.prior is None else {"prior": asdict(self.prior)}),
            **({} if self.estimates is None else {"estimates": self.estimates}),
            **({"private": True} if self.private else {}),
        }

    def _own_classes(self, test: Member) -> dict[str, Any]:
        """The classes of a test in a space that no center labels in. Nothing else names them."""
        space = test.space
        return {} if space is None or space in self.roster.spaces else {"classes": list(space.classes)}

    @classmethod
    def from_json(cls, text: str, where: str | Path, allow: Collection[str] | None = ()) -> Description:
        """Checks what was written by `to_json`. `where` is part of the error messages. allow: the user's own
        code that it may name; None for any."""
        try:
            raw = json.loads(text)
            found = raw.pop("format", None)
        except (ValueError, AttributeError):
            raise FedmtError(f"{where}: not valid JSON, so the model cannot be loaded.") from None
        if found != FORMAT:
            raise FedmtError(
                f"{where}: it was written by another version of fedmt (format {found}, but this version has "
                f"{FORMAT}). Use that version, or train again."
            )
        if "image_shape" in raw:  # as written before there were inputs other than images
            raw["input"] = {"name": "images", "shape": raw.pop("image_shape")}
        if allow is not None:
            _refuse_code(raw, where, allow)
        try:
            with importing_only(allow):
                described = _File.model_validate(raw).description()
                described.build_method()
            return described
        except (ValidationError, KeyError) as error:
            first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": error.args}
            key = ".".join(map(str, first["loc"]))
            raise FedmtError(
                f"{where}: '{key}' is missing or does not have fedmt's format. The file was changed or "
                "damaged."
            ) from None
        except FedmtError as error:  # its method or input is not found here, or rejects its options
            raise FedmtError(f"{where}: {error}") from None


def _refuse_code(raw: Mapping[str, Any], where: str | Path, allow: Collection[str]) -> None:
    """A file from elsewhere may name any module, and looking it up would run it."""
    names = {".".join(place): value_at(raw, *place) for place in NAMING}
    refused = {
        place: name
        for place, name in names.items()
        if isinstance(name, str) and ":" in name and name not in allow and not name.startswith((GIVEN, TIMM))
    }
    if not refused:
        return
    code = ", ".join(f"{place} '{escaped(name, 80)}'" for place, name in refused.items())
    own = [escaped(name, 80) for name in dict.fromkeys(refused.values())]
    options = shlex.join(word for name in own for word in ("--allow", name))
    raise NotAllowed(
        f"{where}: the model names code that does not come with fedmt ({code}); loading it would import and "
        f"run that code. If you know and trust it, allow it: {options}, or fedmt.load(path, allow={own!r})."
    )


class _Entry(BaseModel):
    """A member as in the file. correspondence: rows are its classes, columns the wanted ones."""

    name: str
    samples: int | None
    space: str | None = None
    correspondence: list[list[float]] | None = None
    classes: list[str] | None = None


class _File(BaseModel):
    """The file, as far as pydantic checks it."""

    spaces: dict[str, list[str]]
    input: dict[str, Any]
    backbone: str
    max_pool: bool | None
    method: dict[str, Any]
    rounds: int
    batch_norm: str
    reference: _Entry
    centers: list[_Entry]
    tests: list[_Entry]
    calibration: dict[str, Any] | None = None
    head: bool | None = None
    frozen: dict[str, Any] | None = None
    adjusted: bool = False
    priors: dict[str, Shares] = Field(default_factory=dict)
    prior: Prior | None = None
    estimates: int | None = None
    private: bool = False

    def description(self) -> Description:
        spaces = {name: LabelSpace(name, classes) for name, classes in self.spaces.items()}
        wanted = next(iter(spaces.values()))

        def member(entry: _Entry) -> Member:
            if entry.classes:  # a test in a space that no center labels in
                spaces.setdefault(str(entry.space), LabelSpace(str(entry.space), entry.classes))
            space = None if entry.space is None else spaces[entry.space]
            known = None
            if space is not None and entry.correspondence is not None:
                known = Correspondence(entry.correspondence, wanted, space, "model.json")
            return Member(entry.name, space, known, entry.samples)

        roster = Roster(wanted, member(self.reference), tuple(map(member, self.centers)))
        return Description(
            roster,
            tuple(map(member, self.tests)),
            from_json(self.input),
            self.backbone,
            self.max_pool,
            self.method,
            self.rounds,
            self.batch_norm,
            self.calibration,
            self.head,
            None if self.frozen is None else Frozen.from_json(self.frozen),
            self.adjusted,
            self.priors,
            self.prior,
            self.estimates,
            self.private,
        )


def describe(
    federation: Federation,
    method: Method,
    backbone: str,
    max_pool: bool | None,
    head: bool | str | None = None,
) -> Description:
    """The description of the model that a run of `method` on `federation` produces.

    head: what is trained on the features, if the backbone is frozen. For a network given in Python, whether a
    head was added to it.
    """
    frozen, encoded = None, federation.encoded
    if isinstance(head, str) and encoded is not None:
        digest = digest_of(encoded.network.state_dict())
        frozen = Frozen(encoded.samples.input, backbone, max_pool, digest)
        backbone, max_pool = head, None
    options = {name: getattr(method, name) for name in option_names(type(method))}
    return Description(
        federation.roster,
        federation.tests,
        federation.input,
        backbone,
        max_pool,
        method={"name": METHODS.name_of(type(method)), **options},
        rounds=method.training.rounds,
        batch_norm=method.training.batch_norm,
        head=head if isinstance(head, bool) else None,
        frozen=frozen,
        adjusted=method.training.logit_adjustment,
        priors={"reference": tuple(federation.reference_prior.tolist())},
        private=method.privacy is not None,
    )


def _entry(member: Member) -> dict[str, Any]:
    known, space = member.correspondence, member.space
    return {
        "name": member.name,
        "samples": member.size,
        "space": space.name if space is not None else None,
        "correspondence": known.matrix.tolist() if known is not None else None,
    }


def with_calibration(description: Description, calibration: Mapping[str, Any]) -> Description:
    return dataclasses.replace(description, calibration=dict(calibration))
