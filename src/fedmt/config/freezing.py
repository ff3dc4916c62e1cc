"""Passes a federation through its frozen backbone: every sample becomes the vector of its features."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedmt.backbones import Classifier
from fedmt.backbones.frozen import encode, encoder
from fedmt.config.building import normalization_of
from fedmt.config.schema import Config
from fedmt.core.digests import digest_of
from fedmt.core.errors import FedmtError
from fedmt.core.seeding import seeded
from fedmt.data.center import Center, Encoded, Federation
from fedmt.inputs import Input, Vectors


def freeze(
    config: Config, federation: Federation, device: torch.device, reference_only: bool = False
) -> Federation:
    """The federation of features if the config freezes the backbone, else the unchanged federation.

    If the input's options name a cache folder, the features are stored there, so that several runs on the
    same samples and network compute them once.
    reference_only: leaves out the other centers and the tests, to check a config quickly.
    """
    if config.model.freeze is None or federation.encoded is not None:
        return federation
    network = frozen_network(config, federation)
    cache: Path | None = getattr(config.options, "cache", None)
    label = f"{digest_of(network.state_dict())} on {device.type}"
    known: dict[int, Tensor] = {}  # tests in several spaces share their samples

    def through(center: Center) -> Center:
        key, samples = id(center.values), center.values
        if key not in known:
            file = None if cache is None else cache / f"features-{digest_of({label: samples})}.npy"
            found = None if file is None else _read(file)
            if found is None:
                found = encode(network, federation.input, samples, device, f"Center '{center.name}'")
                if file is not None:
                    _write(file, found)
            known[key] = found
        return features_of(center, known[key])

    held = federation.held_out
    centers = () if reference_only else federation.centers
    return replace(
        federation,
        reference=through(federation.reference),
        centers=tuple(map(through, centers)),
        tests=() if reference_only else tuple(map(through, federation.tests)),
        held_out=None if held is None else through(held),
        elsewhere=(*federation.elsewhere, *(federation.centers if reference_only else ())),
        encoded=Encoded(federation, network),
    )


def frozen_network(config: Config, federation: Federation) -> Classifier:
    """The backbone below its last layer, at its starting weights. These come from the seed or from
    the file."""
    spec = config.model
    with seeded(config.seed):
        return encoder(
            spec.backbone,
            len(federation.wanted),
            federation.input,
            spec.max_pool,
            spec.weights,
            normalization_of(config, federation),
        )


def features_of(center: Center, features: Tensor, input: Input | None = None) -> Center:
    """A center with features [N, D] instead of its samples. input: the federation's description of the
    features."""
    return replace(center, values=features, input=input or Vectors((features.shape[1],)))


def _read(path: Path) -> Tensor | None:
    """Features that another run has computed. None if there are none, or if they cannot be read."""
    try:
        return torch.from_numpy(np.load(path, allow_pickle=False))
    except (OSError, ValueError, EOFError):
        return None


def _write(path: Path, features: Tensor) -> None:
    """Writes the whole file or nothing, because several runs may write it at once."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".partial", delete=False) as file:
            temporary = Path(file.name)
            np.save(file, features.numpy())
        temporary.replace(path)
    except OSError as error:
        raise FedmtError(
            f"{path.parent}: the features cannot be written ({error.strerror or error}). Free some space or "
            "set another cache folder."
        ) from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
