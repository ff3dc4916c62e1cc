"""`Result`: the outcome of a run, finished or not, as an object over its folder."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor, nn

from fedmt.config import (
    array_files,
    build_federation,
    data_tables,
    dump_config,
    load_config,
    parse_config,
    resolved,
)
from fedmt.core.errors import FedmtError
from fedmt.core.labels import Correspondence, LabelSpace
from fedmt.core.registry import importing_only
from fedmt.data.center import Federation
from fedmt.data.sources.arrays import dump_arrays
from fedmt.methods import called
from fedmt.metrics import HEADLINE, METRICS
from fedmt.metrics.measuring import recorded
from fedmt.models import Model, load
from fedmt.models.loaded import Top
from fedmt.reports.report import report
from fedmt.runs.comparison import Comparison, compare
from fedmt.runs.evaluation import Evaluation, read_evaluation
from fedmt.runs.files import write_atomically, writing
from fedmt.runs.folder import RunFolder, existing_run

ARRAYS = "arrays"
"""The folder in a run folder that stores the arrays, if they are kept."""


class History(list[dict[str, Any]]):
    """One record per round, the warm-up first."""

    def to_pandas(self) -> Any:
        """A DataFrame with one row per round; `accuracy.wanted` is the accuracy in the space 'wanted'."""
        try:
            import pandas
        except ImportError:
            raise FedmtError(
                "A DataFrame needs pandas; install the extra: pip install 'fedmt[tables]'."
            ) from None
        return pandas.json_normalize(list(self)).set_index("round")


class Result:
    """The result of `fedmt.train`, or of the run in any folder that `fedmt run` wrote.

    >>> Result("runs/first")  # doctest: +SKIP
    Result(fedmt, round 20 of 20: accuracy 81.2% in 'wanted', 90.4% in 'triage')
    """

    def __init__(
        self,
        path: str | Path,
        *,
        network: nn.Module | None = None,
        allow: Collection[str] | None = (),
    ) -> None:
        """path: a run folder. network: the module that it was trained with, if it was your own.
        allow: as in `fedmt.load`.
        """
        self.path = Path(path).resolve()
        self._folder: RunFolder = existing_run(Path(path))
        self._network = network
        self._federation: Federation | None = None
        self._allow = allow
        self._temporary = False  # whether its folder is deleted with it
        with importing_only(allow):
            self._folder.enter_metrics()

    def __repr__(self) -> str:
        method, last = self.model.description.method["name"], self.history[-1]
        known = METRICS[HEADLINE]
        said = ", ".join(f"{known.format(v)} in '{space}'" for space, v in last[HEADLINE].items())
        tested = f"accuracy {said}" if said else "not tested"
        return f"Result({method}, round {last['round']} of {self.model.description.rounds}: {tested})"

    def __getstate__(self) -> dict[str, Any]:
        if self._temporary:
            raise FedmtError(
                "This result has a temporary folder, which is deleted with it, so it cannot be pickled or "
                "copied. Pass out=... to fedmt.train, or save the result and open it with fedmt.Result(path)."
            )
        return self.__dict__

    # -- what was measured ------------------------------------------------------------------------

    @cached_property
    def history(self) -> History:
        """One record per round, the warm-up first; `history.to_pandas()` is the same as a DataFrame."""
        found = History(self._folder.metrics())
        if not found:
            raise FedmtError(f"{self.path}: no round has finished yet.")
        return found

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """Every metric of the last round, by label space: `metrics["accuracy"]["wanted"]`."""
        return {name: dict(spaces) for name, spaces in recorded(self.history[-1]).items()}

    @property
    def intervals(self) -> dict[str, dict[str, tuple[float, float]]]:
        """The 95% intervals of these metrics, if there are enough test samples."""
        measured = (self._evaluation.measured or {}).get("metrics", {})
        return {
            name: {s: (v["low"], v["high"]) for s, v in spaces.items() if "low" in v}
            for name, spaces in measured.items()
        }

    @property
    def metrics_by_test(self) -> dict[str, dict[str, float]]:
        """Every metric by the name of the test set, if a label space has several of them."""
        found: dict[str, dict[str, float]] = (self._evaluation.measured or {}).get("tests", {})
        return found

    @property
    def correspondences(self) -> dict[str, Correspondence]:
        """For each center, the given M or the estimated M-hat. Centers without labels have none.

        A center that labels in the wanted space has the identity.
        """
        evaluation = self._evaluation
        wanted = LabelSpace(evaluation.wanted, evaluation.spaces[evaluation.wanted])
        found = {}
        for member in evaluation.members:
            estimate = evaluation.estimates.get(member.name)
            if member.name == evaluation.reference or member.space is None:
                continue
            if estimate is not None:
                matrix = torch.from_numpy(estimate)
                found[member.name] = Correspondence(matrix, wanted, member.space, member.name)
            elif member.correspondence is not None:
                found[member.name] = member.correspondence
        return found

    @cached_property
    def _evaluation(self) -> Evaluation:
        found = read_evaluation(self._folder.evaluation_file)
        if found is None:
            raise FedmtError(
                f"{self.path}: the run is not finished, so its model has not been evaluated yet."
            )
        return found

    def compare(self, other: Result) -> Comparison:
        """The difference of every metric, this result minus the other, on the same test samples.

        Each has a 95% interval by a paired bootstrap.
        """
        if not isinstance(other, Result):
            raise FedmtError(f"compare: an object of type {type(other).__name__}; expected a fedmt.Result.")
        own, theirs = self._label(other)
        sides = {own: self._evaluation}, {theirs: other._evaluation}
        return compare(*sides, noun=f"test {self.model.input.word}")

    def _label(self, other: Result) -> tuple[str, str]:
        """What the two are called: by their methods, or by their folders if the methods are the same."""
        names = [called(r.model.description.method["name"]) for r in (self, other)]
        if names[0] == names[1]:
            names = [f"{name}, {r.path.name}" for name, r in zip(names, (self, other), strict=True)]
        if names[0] == names[1]:
            names = [f"{name} ({number})" for number, name in enumerate(names, 1)]
        return names[0], names[1]

    # -- the model --------------------------------------------------------------------------------

    @cached_property
    def model(self) -> Model:
        """The trained model, as returned by `fedmt.load`."""
        return load(self.path, model=self._network, allow=self._allow)

    @overload
    def predict(
        self,
        x: Any,
        space: str | None = ...,
        top: None = ...,
        center: str | None = ...,
        prior: Any = ...,
    ) -> Tensor: ...
    @overload
    def predict(
        self, x: Any, space: str | None = ..., *, top: int, center: str | None = ..., prior: Any = ...
    ) -> list[Top]: ...
    def predict(
        self,
        x: Any,
        space: str | None = None,
        top: int | None = None,
        center: str | None = None,
        prior: Any = None,
    ) -> Tensor | list[Top]:
        """Like `Model.predict`: probabilities [N, J] in `space`; by default, in the wanted one."""
        if top is None:
            return self.model.predict(x, space, center=center, prior=prior)
        return self.model.predict(x, space, top=top, center=center, prior=prior)

    # -- what is written --------------------------------------------------------------------------

    def report(self, path: str | Path, baseline: Result | None = None, title: str | None = None) -> Path:
        """Writes the report, one HTML page. With a baseline, it compares both runs."""
        if baseline is None:
            report([self.path], Path(path), title or called(self.model.description.method["name"]))
        else:
            report([self.path, baseline.path], Path(path), title, labels=self._label(baseline))
        return Path(path)

    def save(self, path: str | Path, arrays: bool = True) -> Path:
        """Copies the run to a new folder that works with every command.

        arrays: include the samples and labels, which `fedmt run ... --resume` needs. Without them, the folder
        holds no samples, and only `fedmt.train(..., resume=True)` can continue it.
        """
        target = Path(path).resolve()
        RunFolder(target).refuse_if_taken()
        part = target.with_name(f".{target.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        with writing(target):
            try:
                shutil.copytree(self.path, part, ignore=shutil.ignore_patterns("lock", "*.tmp", ARRAYS))
                self._save_arrays(part, target, arrays)
                if target.exists():
                    target.rmdir()  # empty, as was seen above
                part.rename(target)
            finally:
                shutil.rmtree(part, ignore_errors=True)
        return Path(path)

    def _save_arrays(self, part: Path, target: Path, keep: bool) -> None:
        """The arrays, if the run used any, and the config that names their files."""
        config = load_config(self._folder.config_file)
        if config.reference is None or config.reference.source != "arrays":
            return
        federation = self._federation
        if federation is None and config.reference.path is not None:
            federation, _ = build_federation(config.model_copy(update={"calibration": None}))
        if federation is None:
            return  # the arrays are gone, and the config names no files
        if keep:
            (part / ARRAYS).mkdir()
            for _, place, name in array_files(federation):
                write_atomically(part / ARRAYS / name, dump_arrays(place))
        plain = {**resolved(config), **data_tables(federation, target / ARRAYS if keep else None)}
        write_atomically(part / "config.toml", dump_config(parse_config(plain)).encode())
