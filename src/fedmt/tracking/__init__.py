"""What a run reports to other trackers: TensorBoard, MLflow (docs/guides/tracking.md).

The run folder's metrics.jsonl is authoritative. When a run starts or resumes, a tracker gets every round in
the folder, and then each new one. It therefore holds each round once, however often the run was killed, and a
tracker that is switched on late gets the earlier rounds. The libraries are optional and are imported only if
a config uses them.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from fedmt.core.errors import FedmtError
from fedmt.metrics.measuring import recorded
from fedmt.tracking.spec import TrackingSpec

DATA_TABLES = ("spaces", "correspondences", "reference", "centers", "tests")
"""Keys of a config that describe the data and are not hyperparameters."""

MLFLOW_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
"""Environment variables, unless the user has set them. By default, MLflow reports its use to its makers, and
blocks a run for minutes if its server is down."""


class Tracker(Protocol):
    """One tracker, open for one run."""

    def log(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Takes rounds. Those it already has are skipped."""

    def close(self, status: str) -> None:
        """status: 'FINISHED', 'FAILED' or 'KILLED' (stopped by the user)."""


class Tracking:
    """The trackers of a run, none by default. Their errors result in a note and do not end the training."""

    def __init__(self, trackers: dict[str, Tracker]) -> None:
        # For each: the rounds it does not have yet, and whether its user was told.
        self._trackers = trackers
        self._waiting: dict[str, list[Mapping[str, Any]]] = {name: [] for name in trackers}
        self._told: set[str] = set()

    def log(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Sends rounds to every tracker. A tracker that fails gets them again with the next round."""
        for name, tracker in self._trackers.items():
            waiting = self._waiting[name]
            waiting += records
            try:
                tracker.log(waiting)
                waiting.clear()
            except Exception as error:  # of a library, a network, a disk
                if name not in self._told:
                    _note(
                        f"{name} did not accept round {waiting[-1]['round']} ({_short(error)}). Training "
                        "continues."
                    )
                    self._told.add(name)

    def close(self, status: str) -> None:
        for name, tracker in self._trackers.items():
            if self._waiting[name]:
                self.log([])
            if self._waiting[name]:
                _note(f"{name} lacks {len(self._waiting[name])} rounds; --resume sends them.")
            try:
                tracker.close(status)
            except Exception as error:
                _note(f"{name} could not be closed ({_short(error)}).")


@contextmanager
def tracking(spec: TrackingSpec | None, folder: Path, config: Mapping[str, Any]) -> Iterator[Tracking]:
    """Opens the trackers that a config's table [tracking] names, and tells them how the run ended.

    folder: that of the run. config: resolved, as nested dictionaries. A tracker that cannot be opened is an
    error, because nothing has been trained yet.
    """
    trackers: dict[str, Tracker] = {}
    if spec is not None and spec.tensorboard:
        from fedmt.tracking.tensorboard import TensorBoard

        trackers["TensorBoard"] = _open("tensorboard", TensorBoard, folder, config)
    if spec is not None and spec.mlflow is not None:
        for name, value in MLFLOW_SETTINGS.items():
            os.environ.setdefault(name, value)
        from fedmt.tracking.mlflow import Mlflow

        trackers["MLflow"] = _open("mlflow", Mlflow, folder, config, spec.mlflow, spec.experiment)
    found = Tracking(trackers)
    try:
        yield found
    except Exception:
        found.close("FAILED")
        raise
    except BaseException:  # the user's wish
        found.close("KILLED")
        raise
    found.close("FINISHED")


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """A round's figures of the whole federation, by names that both trackers accept."""
    found = {
        f"{name}/{plain(space)}": value
        for name, spaces in recorded(record).items()
        for space, value in spaces.items()
    }
    for name, spaces in recorded(record.get("mean_matrix", {})).items():
        found |= {f"mean_matrix/{name}/{plain(space)}": value for space, value in spaces.items()}
    for test, metrics in record.get("tests", {}).items():
        found |= {f"tests/{plain(test)}/{name}": value for name, value in metrics.items()}
    if record.get("reference_loss") is not None:
        found["loss/reference"] = record["reference_loss"]
    found |= {f"loss/centers_{plain(name)}": value for name, value in record.get("losses", {}).items()}
    for name in ("confident_share", "pseudo_label_accuracy", "correspondence_error", "learning_rate"):
        if record.get(name) is not None:
            found[name] = record[name]
    return found | {f"seconds/{plain(part)}": value for part, value in record["seconds"].items()}


def hyperparameters(config: Mapping[str, Any]) -> dict[str, str | float | bool]:
    """The settings by dotted key, without the tables that describe data. Lists are text."""
    found: dict[str, str | float | bool] = {}

    def walk(value: Any, key: str) -> None:
        if isinstance(value, dict):
            for inner, one in value.items():
                walk(one, f"{key}.{plain(inner)}" if key else plain(inner))
        else:
            found[key] = value if isinstance(value, str | int | float | bool) else str(value)

    walk({k: v for k, v in config.items() if k not in DATA_TABLES}, "")
    return found


def plain(name: str) -> str:
    """Letters, digits, `_`, `.` and `-`, which both TensorBoard and MLflow accept in a name."""
    return re.sub(r"[^\w.-]+", "_", name).strip("_")


def _open(key: str, kind: type[Any], *arguments: Any) -> Any:
    try:
        return kind(*arguments)
    except FedmtError:
        raise
    except Exception as error:  # of a library, a network, a disk
        raise FedmtError(
            f"tracking.{key}: the tracker cannot be opened ({_short(error)}). Fix this, or remove "
            f"tracking.{key}. Then continue with --resume."
        ) from None


def _short(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _note(text: str) -> None:
    warnings.warn(text, stacklevel=3)
