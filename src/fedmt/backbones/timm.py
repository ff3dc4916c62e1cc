"""The networks of timm, as `timm:NAME`, with timm's parameter names (extra `timm`).

They are built at random weights, and nothing is downloaded: published weights come from a local file
(`model.weights`).
"""

from __future__ import annotations

from typing import Any

from torch import nn

from fedmt.backbones.base import Backbone
from fedmt.core.errors import FedmtError, nearest
from fedmt.inputs import Input

PREFIX = "timm:"


def backbone(name: str, input: Input, key: str = "model.backbone") -> Backbone:
    """What is known about timm's network with this name, which begins with `timm:`."""
    timm, own = _timm(name, key), name.removeprefix(PREFIX)
    # Not what timm would download from a hub or read from a folder: those names have their own prefix.
    if not timm.is_model(own):
        raise FedmtError(
            f"{key}: timm {timm.__version__} has no network '{own}'.{nearest(own, timm.list_models())} "
            "Its names are those of timm.list_models(), such as 'timm:resnet18'."
        )
    try:
        about = timm.get_pretrained_cfg(own)
    except RuntimeError as error:  # the part of the name after a dot, which names published weights
        raise FedmtError(f"{key}: '{name}': {error} Leave out what follows the dot.") from None
    # A network whose positions are numbered is built for one size of image.
    sized = {"img_size": tuple(input.shape[1:])} if about is not None and about.fixed_input_size else {}

    def build(classes: int, channels: int) -> nn.Module:
        try:
            network: nn.Module = timm.create_model(
                own, pretrained=False, num_classes=classes, in_chans=channels, **sized
            )
        except Exception as error:  # a different error for each network
            said = f"{type(error).__name__}: {error}"
            raise FedmtError(
                f"{key}: timm cannot build '{own}' for {input.word}s of shape {tuple(input.shape)} ({said})."
            ) from None
        return network

    if about is None:
        return Backbone(build)
    head = about.classifier if isinstance(about.classifier, str) else None
    return Backbone(build, head=head, published=(tuple(about.mean), tuple(about.std)))


def _timm(name: str, key: str) -> Any:
    try:
        import timm
    except ModuleNotFoundError as error:
        if error.name not in ("timm", "torchvision", "huggingface_hub"):
            raise FedmtError(f"{key}: '{name}': importing timm failed: {error}.") from None
        raise FedmtError(
            f"{key}: '{name}' needs {error.name}; install the extra: pip install 'fedmt[timm]'."
        ) from None
    except Exception as error:  # torchvision rejects a torch version that it was not built for
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise FedmtError(
            f"{key}: '{name}': importing timm failed: {first} Install versions of torch, torchvision and "
            "timm that fit each other."
        ) from None
    return timm
