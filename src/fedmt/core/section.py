"""A table of a TOML file: the base class of every table of a config and of a center's own file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo

T = TypeVar("T")

TRAVELS, STAYS = "travels to the centers", "stays with the coordinator"
Travels = Annotated[T, TRAVELS]
Stays = Annotated[T, STAYS]
"""Every key of the config declares which of the two it does in a run between machines."""


class Section(BaseModel):
    """Makes a key that the table does not know an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def from_config_folder(path: Path, info: ValidationInfo) -> Path:
    """Makes relative paths of a config relative to its file, wherever the command runs."""
    base = (info.context or {}).get("folder")
    path = path.expanduser()
    return (Path(base) / path).resolve() if base is not None else path


ConfigPath = Annotated[Path, AfterValidator(from_config_folder)]
