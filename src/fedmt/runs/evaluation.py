"""The predictions of a run's last model on the test data, and who took part: the part of a report that needs
data.

A finished run leaves it as `evaluation.npz` in its folder, so that a report can be made where the data is
not. It holds no samples, only test labels, the site of each test sample where the data names it, which test
samples belong to one group, probabilities (float32), class names, the centers' sizes and label spaces, each
known correspondence and each estimate, and the metrics with their intervals.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedmt.core.errors import FedmtError
from fedmt.core.labels import Correspondence, LabelSpace
from fedmt.data.groups import together
from fedmt.data.member import Member
from fedmt.engines.local import LocalEngine
from fedmt.engines.state import State
from fedmt.engines.testing import Pooled, Tested, pooled
from fedmt.metrics.measuring import Answers, by_class, values, with_intervals
from fedmt.runs.files import write_atomically

Numbers = NDArray[Any]

FORMAT = 1


class Place(NamedTuple):
    """A part of the test samples in one label space. kind: "site" or "test set". positions: [n]."""

    kind: str
    name: str
    positions: Numbers


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions in one label space.

    probabilities: float32 [N, J]; float16 in files of earlier versions, where many scores of a confident
        model are equal. predicted: at full precision in these too.
    places: the sites and test sets that the samples are from, where there are several. None in earlier files.
    groups: which samples belong together, [N] from 0 on, without the names of the groups. None if no two do.
    """

    space: str
    labels: Numbers
    predicted: Numbers
    probabilities: Numbers
    places: Sequence[Place] = ()
    groups: Numbers | None = None

    @property
    def together(self) -> torch.Tensor | None:
        """The groups as int64."""
        return None if self.groups is None else torch.from_numpy(self.groups.astype(np.int64))


@dataclass(frozen=True, eq=False)
class Evaluation:
    """spaces: class names by label space, the wanted one first. members: who took part.

    estimates: each center's M-hat [J, K], by its name. reference: the name of the reference center.
    measured: see `measured`; None in files of earlier versions.
    priors: shares of the wanted classes: those that the answers are for ('own'), those of the 'reference'
        center, and those of the 'centers', where their estimates are known. Empty in earlier files.
    center_priors: the shares that each center estimated for itself, if it keeps them.
    """

    round: int
    spaces: Mapping[str, Sequence[str]]
    members: Sequence[Member]
    tests: Sequence[Predicted]
    estimates: Mapping[str, Numbers] = field(default_factory=dict)
    reference: str = ""
    measured: Mapping[str, Any] | None = None
    priors: Mapping[str, Sequence[float]] = field(default_factory=dict)
    center_priors: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def wanted(self) -> str:
        return next(iter(self.spaces))

    def write(self, path: Path) -> None:
        arrays: dict[str, Numbers] = {}
        members = []
        for number, member in enumerate(self.members):
            if member.correspondence is not None:
                arrays[f"truth/{number}"] = member.correspondence.matrix.cpu().numpy().astype(np.float32)
            if member.name in self.estimates:
                arrays[f"estimate/{number}"] = self.estimates[member.name].astype(np.float32)
            space = member.space.name if member.space is not None else None
            members.append([member.name, member.size, space, member.name == self.reference])
        for number, test in enumerate(self.tests):
            arrays[f"labels/{number}"] = test.labels.astype(np.uint16)
            arrays[f"predicted/{number}"] = test.predicted.astype(np.uint16)
            arrays[f"probabilities/{number}"] = test.probabilities.astype(np.float32)
            if test.groups is not None:
                arrays[f"groups/{number}"] = test.groups.astype(np.uint32)
            for i, place in enumerate(test.places):
                arrays[f"place/{number}/{i}"] = place.positions.astype(np.uint32)
        facts = {
            "format": FORMAT,
            "round": self.round,
            "spaces": [[name, list(classes)] for name, classes in self.spaces.items()],
            "members": members,
            "tests": [t.space for t in self.tests],
            "places": [[[p.kind, p.name] for p in t.places] for t in self.tests],
            "measured": self.measured,
            "priors": {name: list(shares) for name, shares in self.priors.items()},
            "center_priors": {name: list(shares) for name, shares in self.center_priors.items()},
        }
        arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]  # names are ours, not options
        write_atomically(path, buffer.getvalue())


def read_evaluation(path: Path) -> Evaluation | None:
    """None if the file does not exist or cannot be read. A report is then made without it."""
    try:
        with np.load(path, allow_pickle=False) as file:
            facts: dict[str, Any] = json.loads(file["facts"].tobytes())
            if facts["format"] != FORMAT:
                return None
            spaces = {name: LabelSpace(name, classes) for name, classes in facts["spaces"]}
            wanted = next(iter(spaces.values()))
            members, estimates, reference = [], {}, ""
            for i, (name, size, home, is_reference) in enumerate(facts["members"]):
                space, known = None if home is None else spaces[home], None
                if space is not None and f"truth/{i}" in file:
                    known = Correspondence(file[f"truth/{i}"], wanted, space, str(path))
                if f"estimate/{i}" in file:
                    estimates[name] = file[f"estimate/{i}"]
                members.append(Member(name, space, known, size))
                reference = name if is_reference else reference
            named = facts.get("places") or [[] for _ in facts["tests"]]
            tests = [
                Predicted(
                    space,
                    file[f"labels/{i}"],
                    file[f"predicted/{i}"],
                    file[f"probabilities/{i}"],
                    [Place(kind, name, file[f"place/{i}/{j}"]) for j, (kind, name) in enumerate(named[i])],
                    file.get(f"groups/{i}"),
                )
                for i, space in enumerate(facts["tests"])
            ]
            classes = {name: space.classes for name, space in spaces.items()}
            return Evaluation(
                facts["round"],
                classes,
                members,
                tests,
                estimates,
                reference,
                facts.get("measured"),
                facts.get("priors", {}),
                facts.get("center_priors", {}),
            )
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, FedmtError):
        return None


def evaluate(engine: LocalEngine, state: State) -> Evaluation:
    """The state's predictions on the engine's test data. Several test sets in one space are pooled."""
    federation = engine.federation
    tested = engine.tested(state)
    tests = []
    for part in pooled(tested):
        scores = part.probabilities.float().cpu().numpy()
        labels = part.labels.cpu().numpy()
        groups = None if part.groups is None else part.groups.numpy()
        tests.append(Predicted(part.space, labels, scores.argmax(1), scores, places_of(part), groups))
    roster = federation.roster
    kept = {m.name: state.kept.get(m.name, {}).get("correspondence") for m in roster.members}
    estimates = {name: m.float().cpu().numpy() for name, m in kept.items() if m is not None}
    spaces = {space.name: space.classes for space in federation.spaces}
    spaces |= {t.space.name: t.space.classes for t in federation.tests if t.space is not None}
    members = [roster.reference, *roster.members]
    name = roster.reference.name
    priors = _priors(engine, state)
    own = {m.name: state.kept.get(m.name, {}).get("prior") for m in roster.members}
    shares = {center: prior.tolist() for center, prior in own.items() if prior is not None}
    return Evaluation(state.round, spaces, members, tests, estimates, name, measured(tested), priors, shares)


def _priors(engine: LocalEngine, state: State) -> dict[str, list[float]]:
    reference = engine.federation.reference_prior
    adjusted = engine.method.training.logit_adjustment
    own = torch.full_like(reference, 1 / len(reference)) if adjusted else reference
    found = {"own": own, "reference": reference}
    centers = engine.method.centers_prior(engine.federation.roster, state.kept)
    if centers is not None:
        found["centers"] = centers
    return {name: shares.tolist() for name, shares in found.items()}


def measured(tested: Sequence[Tested]) -> dict[str, Any]:
    """Every metric of the answers, with its 95% interval.

    metrics: `{metric: {space: {"value", "low", "high"}}}`, the mean over the answers in a space. mean_matrix:
    the same for the answer through the mean matrix. by_class: `{metric: {space: {"value": [one per class],
    "low": [...], "high": [...]}}}`, of the mean of the answers. tests: `{test: {metric: value}}` for the test
    sets of a space that has several. places: see `by_place`; only where there is one.
    """
    found: dict[str, Any] = {"metrics": {}, "mean_matrix": {}, "by_class": {}}
    for part in pooled(tested):
        results: dict[str, Mapping[str, Any]] = {
            "metrics": with_intervals(part.answers),
            "by_class": by_class(part.probabilities.float(), part.labels, part.groups),
        }
        if part.mean_matrix is not None:
            results["mean_matrix"] = with_intervals(part.mean_matrix)
        for kind, metrics in results.items():
            for name, value in metrics.items():
                found[kind].setdefault(name, {})[part.space] = value
        if len(part.tests) > 1:
            each = {t.test.name: Answers(t.each, t.labels) for t in part.tests}
            found.setdefault("tests", {}).update(values(each, last=True))
    places = [place for part in pooled(tested) for place in by_place(part)]
    return {**found, "places": places} if places else found


def by_place(part: Pooled) -> list[dict[str, Any]]:
    """The results of each test set, if a label space has several, and of each site that the data names.

    Each is `{"kind": "test set" or "site", "name", "space", "samples", "metrics": {metric: {"value", "low",
    "high"}}}`.
    """
    each, labels, groups = part.answers
    found = []
    for kind, name, positions in places_of(part):
        at = torch.from_numpy(positions).to(labels.device)
        own = None if groups is None else together([(len(at), groups[at.cpu()])])
        metrics = with_intervals(Answers([answer[at] for answer in each], labels[at], own))
        found.append(
            {"kind": kind, "name": name, "space": part.space, "samples": len(at), "metrics": metrics}
        )
    return found


def places_of(part: Pooled) -> list[Place]:
    """Each test set, where there are several, and each site that the data names; it may be in several."""
    inside: dict[tuple[str, str], list[Numbers]] = {}
    first = 0
    for one in part.tests:
        here = np.arange(first, first + len(one.labels))
        first += len(here)
        if len(part.tests) > 1:
            inside.setdefault(("test set", one.test.name), []).append(here)
        sites = np.array(one.test.sites or ())
        for site in dict.fromkeys(sites.tolist()):
            inside.setdefault(("site", site), []).append(here[sites == site])
    return [Place(kind, name, np.concatenate(parts)) for (kind, name), parts in inside.items()]


def measured_again(evaluation: Evaluation) -> dict[str, Any]:
    """`measured` for an evaluation that an earlier version wrote, from the predictions that it kept."""
    found: dict[str, Any] = {"metrics": {}, "by_class": {}}
    for test in evaluation.tests:
        probabilities = torch.from_numpy(test.probabilities.astype(np.float32))
        labels = torch.from_numpy(test.labels.astype(np.int64))
        results: dict[str, Mapping[str, Any]] = {
            "metrics": with_intervals(Answers([probabilities], labels)),
            "by_class": by_class(probabilities, labels),
        }
        for kind, metrics in results.items():
            for name, value in metrics.items():
                found[kind].setdefault(name, {})[test.space] = value
    return found
