"""Defaults that adapt to what a config trains. They apply to keys that neither the config nor its preset
sets.

The measurements are in docs/guides/rare-classes.md.
"""

from __future__ import annotations

from typing import Any

from fedmt.config.schema import NAMED

PRETRAINED = {"learning_rate": 0.03}
"""With a weight file to start from: a pretrained network is fine-tuned at a lower learning rate."""
PRETRAINED_BY_METHOD = {"fedmt": {"reference_rate": 0.1}}
"""The features of a pretrained network are good enough for pseudo-labels after the warm-up, so the few
samples of the reference center need less weight in FedMT. Other methods learn the wanted classes from these
samples alone, at the full rate."""


PRIVATE = {"batch_norm": "static-reference"}
"""With [privacy]: the only statistics that do not depend on any center's records."""


def adapted(raw: dict[str, Any]) -> dict[str, Any]:
    """A config as nested dictionaries, with these defaults wherever it sets no value."""
    if "privacy" in raw and isinstance(raw.get("training", {}), dict):
        raw = {**raw, "training": {**PRIVATE, **raw.get("training", {})}}
    model, training, method = (raw.get(table, {}) for table in ("model", "training", "method"))
    if not all(isinstance(table, dict) for table in (model, training, method)) or not model.get("weights"):
        return raw  # validation reports what is not a table
    own = PRETRAINED_BY_METHOD.get(method.get("name", NAMED["method"][0]), {})
    return {**raw, "training": {**PRETRAINED, **own, **training}}
