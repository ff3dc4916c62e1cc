"""`fedmt report`: makes a page from run folders. It only reads them."""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmt.config import Config, build_federation, load_config
from fedmt.core.errors import FedmtError
from fedmt.core.labels import LabelSpace
from fedmt.data.center import Center, Federation
from fedmt.data.member import Member
from fedmt.engines.device import pick_device
from fedmt.engines.local import LocalEngine
from fedmt.engines.state import State
from fedmt.reports.content import content, render
from fedmt.reports.provenance import NOTICE, origin_of
from fedmt.reports.reported import ReportedRun
from fedmt.runs.evaluation import Evaluation, Predicted, evaluate, read_evaluation
from fedmt.runs.files import write_atomically, writing
from fedmt.runs.folder import RunFolder, existing_run
from fedmt.training.run import build_engine

MISTAKES = 12
"""Number of images shown in each label space with `--with-images`."""


def report(
    folders: Sequence[Path],
    out: Path,
    title: str | None = None,
    with_images: bool = False,
    intro: str = "",
    labels: Sequence[str] | None = None,
    notice: str = NOTICE,
    command: str = "",
) -> Path:
    """Writes the page of one run or the comparison of several. labels: by default the folders' names.

    notice: what the page says about its use. command: that it was asked for with; the page states it.
    Returns the folder of the run that the page opens on, the best.
    """
    if out.is_dir():
        raise FedmtError(f"--out {out} is a folder. Name a file in it, such as {out / 'report.html'}.")
    given = len(folders)
    folders = [*folders, *_baselines(folders)] if labels is None else folders
    names = labels or distinct(folders)
    runs = [Source(path).reported(name, with_images) for path, name in zip(folders, names, strict=True)]
    for path, run in zip(folders, runs, strict=True):
        if not run.metrics:
            raise FedmtError(
                f"{path}: no round has finished yet. Report it after the first round, or use `fedmt watch`."
            )
    title = title or (names[0] if given == 1 else f"Comparison of {given} runs")
    data = content(title, intro, runs, notice, datetime.date.today(), command)
    page = render(data)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, page.encode())
    best: int = data["answer"]["best"]
    return folders[best]


def _baselines(folders: Sequence[Path]) -> list[Path]:
    """The baselines that `fedmt run --baseline` trained for these runs. Those that are gone or already given
    are left out."""
    given = {path.resolve() for path in folders}
    found: dict[Path, Path] = {}
    for folder in folders:
        name = ((RunFolder(folder).summary() or {}).get("comparison") or {}).get("baseline")
        place = folder.resolve().parent / str(name)
        if name and place not in given and RunFolder(place).summary() is not None:
            found[place] = folder.with_name(str(name)) if folder.name else place
    return list(found.values())


def distinct(folders: Sequence[Path]) -> list[str]:
    """Short names that differ: the folder's own name, with as many parent folders as needed."""
    parts = [path.resolve().parts for path in folders]
    for length in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(p[-length:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    twice = next(str(f) for i, f in enumerate(folders) if parts[i] in parts[:i])
    raise FedmtError(f"{twice} is given more than once.")


class Source:
    """A run folder as a report reads it. The data is read only if the folder does not contain enough."""

    def __init__(self, path: Path) -> None:
        self.folder = existing_run(path)
        try:
            self.text = self.folder.config_file.read_text(encoding="utf-8")
            self.settings: Mapping[str, Any] = tomllib.loads(self.text)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise FedmtError(
                f"{self.folder.config_file}: the run's config cannot be read ({error})."
            ) from None
        self._engine: LocalEngine | None = None
        self._federation: Federation | None = None
        self._unknown_metric = self.folder.enter_metrics()

    def reported(self, label: str, with_images: bool = False) -> ReportedRun:
        """What the folder contains. The rest is computed from the last checkpoint and the data."""
        notes: list[str] = []
        metrics = self.folder.metrics()
        evaluation = self.written(metrics)
        if metrics and evaluation is None:
            evaluation = self.computed(notes)
        return self.assembled(label, metrics, evaluation, notes, with_images)

    def written(self, metrics: Sequence[Mapping[str, Any]]) -> Evaluation | None:
        """The evaluation that the run saved, if it belongs to its last round."""
        found = read_evaluation(self.folder.evaluation_file)
        return found if found is not None and metrics and found.round == metrics[-1]["round"] else None

    def assembled(
        self,
        label: str,
        metrics: Sequence[Mapping[str, Any]],
        evaluation: Evaluation | None,
        notes: list[str],
        with_images: bool = False,
    ) -> ReportedRun:
        if self._unknown_metric:
            notes.append(f"A metric of this run is not shown. {self._unknown_metric}")
        if metrics and evaluation is not None and evaluation.round != metrics[-1]["round"]:
            notes.append(f"Predictions and M-hat are those of round {evaluation.round}.")
        mistakes = self._mistakes(evaluation, notes) if with_images and evaluation is not None else {}
        return ReportedRun(
            label,
            metrics,
            self.settings,
            self.text,
            self.summary(),
            evaluation,
            notes,
            mistakes,
            origin_of(self.folder),
        )

    def summary(self) -> dict[str, Any] | None:
        """The summary of a finished run. None before."""
        return self.folder.summary()

    def engine(self) -> LocalEngine:
        """The run's engine with its data. Raises an error if the data is gone."""
        if self._engine is None:
            config = load_config(self.folder.config_file)
            device = pick_device("auto")
            # Only tested, never trained, so nothing is captured.
            self._engine = build_engine(
                config.model_copy(update={"graphs": False}), self.federation(config), device
            )
        return self._engine

    def federation(self, config: Config | None = None) -> Federation:
        """The run's data before a frozen backbone. Raises an error if they are gone."""
        if self._federation is None:
            self._federation, _ = build_federation(config or load_config(self.folder.config_file))
        return self._federation

    def computed(self, notes: list[str]) -> Evaluation | None:
        """Computed from the last checkpoint and the data."""
        state: State | None = None
        try:
            state = self.folder.load()
            if state is None:
                notes.append(
                    "No checkpoint is left, so M-hat and everything about single classes is missing."
                )
                return None
            return evaluate(self.engine(), state)
        except (FedmtError, RuntimeError, KeyError) as error:
            notes.append(
                "Intervals, confusion, precision and recall, calibration, and the centers' sizes are "
                "missing: the run folder does not hold them, and they could not be computed anew. "
                f"{_sentence(error)}"
            )
            return self._estimates(state) if state is not None else None

    def _estimates(self, state: State) -> Evaluation | None:
        """Only M-hat, from the checkpoint, with names as far as the config contains them."""
        found = {c: k["correspondence"] for c, k in state.kept.items() if "correspondence" in k}
        if not found:
            return None
        named = self.settings.get("spaces", {})
        homes = {c.get("name"): c.get("space") for c in self.settings.get("centers", [])}
        wanted = self.settings.get("wanted") or self.settings.get("benchmark", {}).get("wanted") or "wanted"
        spaces: dict[str, Sequence[str]] = {}
        members, estimates = [], {}
        for name, matrix in found.items():
            rows, columns = matrix.shape
            home = homes.get(name) or f"space of {rows} classes"
            for space, size in ((wanted, columns), (home, rows)):
                spaces.setdefault(space, named.get(space) or [f"class {i + 1}" for i in range(size)])
            members.append(Member(name, LabelSpace(home, spaces[home])))
            estimates[name] = matrix.float().numpy()
        return Evaluation(state.round, spaces, members, [], estimates)

    def _mistakes(self, evaluation: Evaluation, notes: list[str]) -> dict[str, list[dict[str, Any]]]:
        """The most confident mistakes with their images, which only the data has. Only test data is used."""
        try:
            tests = self.federation().tests
        except FedmtError as error:
            notes.append(f"No images: the test data could not be read. {_sentence(error)}")
            return {}
        found = {}
        for tested in evaluation.tests:
            own = [t for t in tests if t.space is not None and t.space.name == tested.space]
            every = [(test, i) for test in own for i in range(len(test))]
            if len(every) != len(tested.labels):
                notes.append(f"No images in '{tested.space}': the test data has changed since the run.")
                continue
            found[tested.space] = [
                {
                    "true": int(tested.labels[i]),
                    "predicted": int(tested.predicted[i]),
                    "confidence": round(float(tested.probabilities[i, tested.predicted[i]]), 3),
                    **_shown(*every[i]),
                    "number": i,
                }
                for i in confident_mistakes(tested)
            ]
        return found


def _shown(test: Center, position: int) -> Mapping[str, str]:
    """One test sample as a person sees it."""
    if test.snippets is not None:
        return {"text": test.snippets[position]}
    return test.input.preview(test.values[position].cpu())


def confident_mistakes(tested: Predicted, most: int = MISTAKES) -> list[int]:
    """Positions of wrong predictions, the most confident first."""
    wrong = np.flatnonzero(tested.predicted != tested.labels)
    confidence = tested.probabilities[wrong, tested.predicted[wrong]].astype(np.float64)
    return [int(i) for i in wrong[np.argsort(-confidence, kind="stable")[:most]]]


def _sentence(error: BaseException) -> str:
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return text if text.endswith(".") else f"{text}."
