"""A run as the report reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedmt.runs.evaluation import Evaluation


@dataclass(frozen=True)
class Origin:
    """Where a run came from. config: the path of its config. written: the day on which its last file was
    written.

    digests: those of the data of each center and test set, as in `data.json`.
    """

    config: str = ""
    written: str = ""
    digests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ReportedRun:
    """One run as the report shows it.

    config: resolved, as TOML (`text`) and read (`settings`). summary: None for a run that is not finished.
    notes: what is missing on the page and why. mistakes: by label space, each a dictionary with an image.
    origin: where the run came from.
    """

    label: str
    metrics: Sequence[Mapping[str, Any]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    summary: Mapping[str, Any] | None = None
    evaluation: Evaluation | None = None
    notes: Sequence[str] = ()
    mistakes: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)
