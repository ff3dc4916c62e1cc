"""MLflow: one MLflow run for a run folder, on a server or in a folder of this machine.

The run's id is kept in RUN/mlflow.json, so that a resumed run continues under the same id.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

import fedmt
from fedmt.tracking import hyperparameters, scalars
from fedmt.tracking.spec import is_uri

try:
    import fcntl
except ImportError:  # pragma: no cover (not a POSIX system)
    fcntl = None  # type: ignore[assignment]

LONGEST_VALUE = 500
"""Maximum length of a parameter, which MLflow servers accept since 1.0."""

MOST_PARAMETERS = 100
"""Maximum number of parameters in one call."""

MARK = "round"
"""The metric whose last step shows which rounds exist. A round's metrics arrive in one call."""


class Mlflow:
    """where: a tracking URI, or a folder of this machine, which then holds a database mlflow.db."""

    def __init__(self, folder: Path, config: Mapping[str, Any], where: str, experiment: str) -> None:
        for name in ("mlflow", "alembic"):  # they log every step of creating a database
            logging.getLogger(name).setLevel(logging.WARNING)
        artifacts = None
        if is_uri(where):
            self._client = MlflowClient(tracking_uri=where)
        else:
            place = Path(where)
            place.mkdir(parents=True, exist_ok=True)
            artifacts = (place / "artifacts").as_uri()
            where = f"sqlite:///{place / 'mlflow.db'}"
            self._client = _open_database(place, where)
        note = folder / "mlflow.json"
        address = re.sub(r"//[^/@]*@", "//", where)  # without a password
        self.run_id = self._known(note, address)
        if self.run_id:
            self._client.update_run(self.run_id, status="RUNNING")
        else:
            number = self._experiment(experiment, artifacts)
            self.run_id = self._client.create_run(number, run_name=folder.name).info.run_id
            note.write_text(json.dumps({"tracking_uri": address, "run_id": self.run_id}) + "\n")
        self._describe(config)
        history = self._client.get_metric_history(self.run_id, MARK)
        self._last = max((m.step for m in history), default=-1)

    def _known(self, note: Path, address: str) -> str:
        """The id of this folder's run at `address`, or nothing if there is none or it was deleted there."""
        if not note.exists():
            return ""
        kept = json.loads(note.read_text())
        if kept["tracking_uri"] != address:
            return ""
        try:
            found = self._client.get_run(kept["run_id"])
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return ""
            raise
        return str(kept["run_id"]) if found.info.lifecycle_stage == "active" else ""

    def _experiment(self, name: str, artifacts: str | None) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name, artifact_location=artifacts))
            except MlflowException:  # another process was faster
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _describe(self, config: Mapping[str, Any]) -> None:
        """Writes the settings once. Anything that a kill left out is written when the run is resumed."""
        there = self._client.get_run(self.run_id).data.params
        settings = {k: str(v)[:LONGEST_VALUE] for k, v in hyperparameters(config).items() if str(v)}
        missing = [Param(k, v) for k, v in settings.items() if k not in there]
        tags = [RunTag("fedmt.version", fedmt.__version__)]
        for start in range(0, max(len(missing), 1), MOST_PARAMETERS):
            part = missing[start : start + MOST_PARAMETERS]
            self._client.log_batch(self.run_id, params=part, tags=tags)

    def log(self, records: Sequence[Mapping[str, Any]]) -> None:
        for record in records:
            step = int(record["round"])
            if step <= self._last:
                continue
            now = int(time.time() * 1000)
            values = {**scalars(record), MARK: float(step)}
            metrics = [Metric(name, value, now, step) for name, value in values.items()]
            self._client.log_batch(self.run_id, metrics=metrics)
            self._last = step

    def close(self, status: str) -> None:
        self._client.set_terminated(self.run_id, status)


def _open_database(place: Path, address: str) -> MlflowClient:
    """A client whose database exists. Two runs of an experiment that create it at the same time would damage
    it."""
    with (place / "lock").open("w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        client = MlflowClient(tracking_uri=address)
        client.search_experiments(max_results=1)  # the first question makes the tables
    return client
