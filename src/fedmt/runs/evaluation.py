"""What a run's last model says of the test data, and who took part: the part of a report that needs data.

A finished run leaves it as `evaluation.npz` in its folder, so that a report can be made where the data is
not. It holds no image: test labels, probabilities (float16), class names, the centers' sizes and label
spaces, each known correspondence and each estimate.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedmt.engines.local import LocalEngine
from fedmt.engines.state import State
from fedmt.runs.folder import write_atomically
from fedmt.runs.scores import Numbers

FORMAT = 1
KINDS = ("truth", "estimate")


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions in one label space. predicted: of the full precision, where float16 may make ties."""

    space: str
    labels: Numbers
    predicted: Numbers
    probabilities: Numbers


@dataclass(frozen=True, eq=False)
class Member:
    """A center as a report shows it. truth, estimate: its M and M-hat [J, K], where there are any."""

    name: str
    samples: int | None
    space: str | None
    reference: bool = False
    truth: Numbers | None = None
    estimate: Numbers | None = None


@dataclass(frozen=True, eq=False)
class Evaluation:
    """spaces: class names by label space, the wanted one first."""

    round: int
    spaces: Mapping[str, Sequence[str]]
    members: Sequence[Member]
    tests: Sequence[Predicted]

    @property
    def wanted(self) -> str:
        return next(iter(self.spaces))

    def write(self, path: Path) -> None:
        arrays: dict[str, Numbers] = {}
        members = []
        for number, member in enumerate(self.members):
            for kind in KINDS:
                matrix = getattr(member, kind)
                if matrix is not None:
                    arrays[f"{kind}/{number}"] = matrix.astype(np.float32)
            members.append([member.name, member.samples, member.space, member.reference])
        for number, test in enumerate(self.tests):
            arrays[f"labels/{number}"] = test.labels.astype(np.uint16)
            arrays[f"predicted/{number}"] = test.predicted.astype(np.uint16)
            arrays[f"probabilities/{number}"] = test.probabilities.astype(np.float16)
        facts = {
            "format": FORMAT,
            "round": self.round,
            "spaces": [[name, list(classes)] for name, classes in self.spaces.items()],
            "members": members,
            "tests": [t.space for t in self.tests],
        }
        arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]  # names are ours, not options
        write_atomically(path, buffer.getvalue())


def read_evaluation(path: Path) -> Evaluation | None:
    """None where there is no such file, or not one that can be read: a report goes without."""
    try:
        with np.load(path, allow_pickle=False) as file:
            facts: dict[str, Any] = json.loads(file["facts"].tobytes())
            if facts["format"] != FORMAT:
                return None
            return Evaluation(
                facts["round"],
                dict(facts["spaces"]),
                [
                    Member(*m, *(file[k] if (k := f"{kind}/{i}") in file else None for kind in KINDS))
                    for i, m in enumerate(facts["members"])
                ],
                [
                    Predicted(space, file[f"labels/{i}"], file[f"predicted/{i}"], file[f"probabilities/{i}"])
                    for i, space in enumerate(facts["tests"])
                ],
            )
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        return None


def evaluate(engine: LocalEngine, state: State) -> Evaluation:
    """The state's predictions on the engine's test data. Several test sets in one space count as one."""
    federation = engine.federation
    by_space: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for test, probabilities in engine.predictions(state):
        assert test.space is not None and test.labels is not None
        by_space.setdefault(test.space.name, []).append((test.labels.cpu(), probabilities.float().cpu()))
    tests = []
    for space, parts in by_space.items():
        scores = np.concatenate([p.numpy() for _, p in parts])
        labels = np.concatenate([t.numpy() for t, _ in parts])
        tests.append(Predicted(space, labels, scores.argmax(1), scores.astype(np.float16)))
    members = [Member(federation.reference.name, len(federation.reference), federation.wanted.name, True)]
    for center in federation.roster.members:
        known, estimate = center.correspondence, state.kept.get(center.name, {}).get("correspondence")
        members.append(
            Member(
                center.name,
                center.size,
                center.space.name if center.space is not None else None,
                False,
                known.matrix.cpu().numpy() if known is not None else None,
                estimate.float().cpu().numpy() if estimate is not None else None,
            )
        )
    spaces = {space.name: space.classes for space in federation.spaces}
    spaces |= {t.space.name: t.space.classes for t in federation.tests if t.space is not None}
    return Evaluation(state.round, spaces, members, tests)
