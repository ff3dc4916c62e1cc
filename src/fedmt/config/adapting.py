"""Defaults that adapt to what a config trains: the values of keys that neither it nor its preset sets.

docs/priors.md says what was measured.
"""

from __future__ import annotations

from typing import Any

PRETRAINED = {"learning_rate": 0.03, "reference_rate": 0.1}
"""With a weight file to start from. A pretrained network is fine-tuned at a lower rate. And its features are
good enough to guess from after the warm-up, so the few images of the reference center need less weight."""


def adapted(raw: dict[str, Any]) -> dict[str, Any]:
    """A config as nested dictionaries, with these defaults below its own values."""
    model, training = raw.get("model", {}), raw.get("training", {})
    if not isinstance(model, dict) or not isinstance(training, dict) or not model.get("weights"):
        return raw  # where it is no table, validation will say so
    return {**raw, "training": {**PRETRAINED, **training}}
