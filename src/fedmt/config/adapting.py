"""Defaults that adapt to what a config trains. They apply to keys that neither the config nor its preset
sets.

docs/guides/rare-classes.md explains them, and docs/results/appendix/priors.md has the measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmt.config.schema import NAMED, find_input, sees_vectors
from fedmt.core.errors import FedmtError
from fedmt.inputs import DEFAULT_INPUT, Input
from fedmt.methods import METHODS

PRETRAINED = {"learning_rate": 0.01}
"""With a weight file to start from: a pretrained network is fine-tuned at a lower learning rate. At 0.03, the
warm-up already destroys the features of MobileNetV2. Networks that were not measured take no larger steps."""
PRETRAINED_RESNET = {"learning_rate": 0.03}
"""A ResNet with a weight file takes larger steps, which are better for it."""
FROZEN = {"learning_rate": 0.003}
"""With a frozen backbone: a linear head on features needs small steps."""
STEADY = {"smallest_reference_batch": 50}
"""If there are no features yet: images, from random weights. The reference center trains at the full rate, so
it takes fewer and steadier steps, which do not undo what the model learned from the centers."""
FEATURES_BY_METHOD: dict[str, dict[str, Any]] = {"fedmt": {"reference_rate": 0.1}, "fedtrans": STEADY}
"""If there are features from the start, because the network is pretrained or sees vectors. In FedMT, guesses
are good enough after the warm-up, so the few samples of the reference center need less weight. Other methods
learn the wanted classes from these samples alone, at the full rate. FedTrans, which does so only once, at the
end, needs steady steps here too."""
UNKNOWN = {"reference_rate": 0.3}
"""The same in FedMT if no center's correspondence is known: guesses are worse if M is estimated too, so the
reference center needs more weight. A linear head on a frozen backbone loses by it, and is left out."""
PRIVATE = {"batch_norm": "static-reference"}
"""With [privacy]: the only statistics that do not depend on any center's records."""


def adapted(raw: dict[str, Any]) -> dict[str, Any]:
    """A config as nested dictionaries, with these defaults wherever it sets no value."""
    own, training = adapted_defaults(raw), raw.get("training", {})
    return {**raw, "training": {**own, **training}} if own and isinstance(training, dict) else raw


def adapted_defaults(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of [training] that follow from the rest of a config."""
    model, method = (raw.get(table, {}) for table in ("model", "method"))
    if not (isinstance(model, dict) and isinstance(method, dict)):
        return {}  # validation reports what is not a table
    own: dict[str, Any] = dict(PRIVATE) if "privacy" in raw else {}
    if model.get("weights"):
        own |= PRETRAINED_RESNET if "resnet" in _backbone(raw, model).lower() else PRETRAINED
    linear = bool(model.get("freeze")) and model.get("head", "linear") == "linear"
    if linear:
        own |= FROZEN
    name = str(method.get("name", NAMED["method"][0]))  # validation reports what is not a name
    if _has_features(raw, model):
        own |= FEATURES_BY_METHOD.get(name, {})
        if name == "fedmt" and not linear and _all_estimated(raw, method):
            own |= UNKNOWN
    elif name not in METHODS or METHODS[name].schedule.centers_train:
        own |= STEADY
    return own


def _has_features(raw: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    if model.get("weights") or model.get("freeze"):
        return True
    kind = _input(raw)
    return kind is not None and sees_vectors(kind)


def _all_estimated(raw: Mapping[str, Any], method: Mapping[str, Any]) -> bool:
    """Whether M is estimated at every center that labels in other classes, and there is such a center."""
    if method.get("correspondence") == "estimated":
        return True
    centers, wanted = raw.get("centers"), raw.get("wanted")
    if raw.get("correspondences") or not isinstance(centers, list):
        return False
    others = [c for c in centers if isinstance(c, dict) and c.get("space") not in (None, wanted)]
    return bool(others) and not any("correspondence" in center for center in others)


def _backbone(raw: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """The network's name, which is that of the input's default if the config names none."""
    kind = _input(raw)
    return str(model.get("backbone", "" if kind is None else kind.backbone))


def _input(raw: Mapping[str, Any]) -> type[Input] | None:
    try:
        return find_input(raw.get("input", DEFAULT_INPUT.name))
    except FedmtError:  # validation reports an unknown input
        return None
