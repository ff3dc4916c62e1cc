"""The temperature of a finished run, fitted on the reference samples that it was not trained on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedmt.core.errors import FedmtError
from fedmt.data.center import Federation
from fedmt.models.description import Description, with_calibration
from fedmt.models.loaded import Model
from fedmt.models.priors import Prior
from fedmt.models.temperature import fit_temperature, judged
from fedmt.runs.folder import RunFolder


def calibrate(
    folder: RunFolder,
    description: Description,
    federation: Federation,
    device: torch.device,
    network: nn.Module | None = None,
) -> dict[str, Any]:
    """Fits and writes the temperature. Returns its effect on the calibration error, for the summary.

    The held-out samples come from the reference center, so the probabilities that are fitted and judged on
    them are for its class frequencies, whatever the network itself answers for. Those judged on the test
    samples in the wanted space, if there are any, are the model's default answers.

    The error on the samples used for fitting is slightly too optimistic. The error on the test samples is
    not. network: as in `Model`.
    """
    held, state = federation.held_out, folder.load()
    if held is None or held.labels is None or state is None:
        raise FedmtError(f"{folder.path}: nothing was held out for calibration, or no round has finished.")
    # The federation already has the features, so a frozen backbone is left out.
    model = Model(replace(description, frozen=None), state, device, network)
    logits = _log_probabilities(model, held.values)
    there = description.log_shift(Prior("reference", description.priors["reference"]))
    temperature = fit_temperature(logits, held.labels, there)
    found: dict[str, Any] = {
        "temperature": temperature,
        "held_out": judged(logits, held.labels, temperature, there),
    }
    tests = [t for t in federation.tests if t.space == federation.wanted and t.labels is not None]
    if tests:
        logits = torch.cat([_log_probabilities(model, t.values) for t in tests])
        labels = torch.cat([t.labels.cpu() for t in tests if t.labels is not None])
        found["test"] = judged(logits, labels, temperature)
    folder.write_model(with_calibration(description, found).to_json())
    return found


def _log_probabilities(model: Model, samples: Tensor) -> Tensor:
    """Equivalent to logits: they differ by a constant for each sample, which softmax ignores."""
    return model.predict(samples).double().clamp_min(1e-30).log()
