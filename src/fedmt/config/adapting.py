"""Defaults that adapt to what a config trains: the values of keys that neither it nor its preset sets.

docs/guides/rare-classes.md says what was measured.
"""

from __future__ import annotations

from typing import Any

from fedmt.config.schema import NAMED

PRETRAINED = {"learning_rate": 0.03}
"""With a weight file to start from: a pretrained network is fine-tuned at a lower rate."""
PRETRAINED_BY_METHOD = {"fedmt": {"reference_rate": 0.1}}
"""Its features are good enough to guess from after the warm-up, so the few samples of the reference center
need less weight in FedMT. Other methods learn the wanted classes from them alone, at the full rate."""


PRIVATE = {"batch_norm": "static-reference"}
"""With [privacy]: the only statistics that no center's records have a part in."""


def adapted(raw: dict[str, Any]) -> dict[str, Any]:
    """A config as nested dictionaries, with these defaults below its own values."""
    if "privacy" in raw and isinstance(raw.get("training", {}), dict):
        raw = {**raw, "training": {**PRIVATE, **raw.get("training", {})}}
    model, training, method = (raw.get(table, {}) for table in ("model", "training", "method"))
    if not all(isinstance(table, dict) for table in (model, training, method)) or not model.get("weights"):
        return raw  # validation reports what is not a table
    own = PRETRAINED_BY_METHOD.get(method.get("name", NAMED["method"][0]), {})
    return {**raw, "training": {**PRETRAINED, **own, **training}}
