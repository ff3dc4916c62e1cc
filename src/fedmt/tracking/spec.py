"""What a config may say about trackers: the table [tracking]."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from fedmt.core.errors import FedmtError
from fedmt.core.section import Section, from_config_folder

NEEDS = {"tensorboard": ("tensorboard",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}
"""The packages of each tracker's extra. The last two are for MLflow in a folder."""


def is_uri(where: str) -> bool:
    """Whether it is an address that MLflow understands, and not a folder."""
    return "://" in where or where.split(":")[0] == "databricks"


def _folder_or_uri(where: str, info: ValidationInfo) -> str:
    return where if is_uri(where) else str(from_config_folder(Path(where), info))


class TrackingSpec(Section):
    """Trackers that a run reports to."""

    tensorboard: bool = False
    """Whether to write TensorBoard event files into the run folder."""
    mlflow: Annotated[str, Field(min_length=1), AfterValidator(_folder_or_uri)] | None = None
    """Address of an MLflow server, or a folder, to log to."""
    experiment: Annotated[str, Field(min_length=1)] = "fedmt"
    """MLflow's name for runs that belong together."""

    @model_validator(mode="after")
    def _is_installed(self) -> TrackingSpec:
        """Rejects a missing extra before anything is read or trained."""
        asked = {"tensorboard": self.tensorboard, "mlflow": self.mlflow is not None}
        for key, packages in NEEDS.items():
            missing = [name for name in packages if find_spec(name) is None]
            if asked[key] and missing:
                raise FedmtError(
                    f"tracking.{key}: {', '.join(missing)} is not installed. Install it with: "
                    f"pip install 'fedmt[{key}]'"
                )
        return self
