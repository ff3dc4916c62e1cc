"""Safetensors: the weights that predicting needs, with the model's description and card in the metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fedmt.core.errors import FedmtError
from fedmt.engines.state import State
from fedmt.metrics.measuring import recorded
from fedmt.models import Model
from fedmt.models.export.card import model_card
from fedmt.models.loaded import METADATA
from fedmt.models.predictor import FROZEN
from fedmt.runs.checkpoints import dump_state
from fedmt.runs.files import write_atomically
from fedmt.runs.folder import RunFolder


def export_safetensors(model: Model, run: str | Path, path: str | Path) -> Path:
    """Writes the file, which `fedmt.load` reads like a run folder, and the card as JSON next to it. Returns
    the card's path. `run`: where the metrics are recorded."""
    run, path = Path(run), Path(path)
    if run.is_file():
        raise FedmtError(f"{run} is already such a file. Copy it.")
    beside = path.with_suffix(".card.json")
    card = model_card(model, recorded_metrics(run, model.round))
    # Only the mean of the centers' priors goes into the file.
    about, kept = model.description, model.state.kept
    shares = {name: prior.shares for name, prior in about.known_priors(kept).items()}
    about = replace(about, priors=shares, estimates=about.known_estimates(kept)[0])
    metadata = {METADATA: json.dumps(about.to_json()), "fedmt.card": json.dumps(card)}
    write_atomically(path, dump_state(slim(model.state), metadata))
    write_atomically(beside, (json.dumps(card, indent=2) + "\n").encode())
    return beside


def slim(state: State) -> State:
    """The state without what only training needs: momentum, control variates."""
    kept = {name: _only(own, ("correspondence", "weights:")) for name, own in state.kept.items()}
    return State(state.round, state.weights, _only(state.server, ("shared:", f"{FROZEN}:")), kept)


def _only(tensors: Mapping[str, Tensor], wanted: tuple[str, ...]) -> dict[str, Tensor]:
    return {k: v for k, v in tensors.items() if k.startswith(wanted)}


def recorded_metrics(run: Path, round: int) -> dict[str, dict[str, float]] | None:
    """What the run measured in that round, by label space and metric; an exported file has no metrics.

    If a space was tested through the mean matrix, it is that result, because this is how the model answers.
    """
    if not run.is_dir():
        return None
    try:
        folder = RunFolder(run)
        folder.enter_metrics()  # a metric that is not found here is left out of the card
        records: list[dict[str, Any]] = folder.metrics()
    except FedmtError:
        return None
    for record in records:
        if record["round"] == round:
            found: dict[str, dict[str, float]] = {}
            for part in (record, record.get("mean_matrix", {})):
                for metric, spaces in recorded(part).items():
                    for space, value in spaces.items():
                        found.setdefault(space, {})[metric] = value
            return found
    return None
