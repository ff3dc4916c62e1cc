"""A user's own network, passed in Python as an `nn.Module`. It computes logits, or features to which a head
is added.

A config names it as `given:ClassName`. Only the user has the module, so such a run is loaded and resumed in
Python, with the module passed again.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fedmt.core.errors import FedmtError
from fedmt.inputs import Input

PREFIX = "given:"


class WithHead(nn.Module):
    """`head(features(x))`: a linear layer of `classes` outputs on a network of `width` features."""

    def __init__(self, features: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.features = features
        self.head = nn.Linear(width, classes)

    def forward(self, samples: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(samples))
        return logits


def given_name(network: nn.Module) -> str:
    """What a config and a saved model call the module."""
    return f"{PREFIX}{type(network).__name__}"


def needs_head(network: nn.Module, classes: int, input: Input, head: bool | None) -> bool:
    """Whether to add a head: as the user says, or else if the outputs are not one per class."""
    return _width(network, classes, input) != classes if head is None else head


def build_given(
    name: str, network: nn.Module | None, classes: int, input: Input, head: bool | None
) -> nn.Module:
    """A copy of the module, so that training does not change the user's own, with a head if it needs one."""
    if network is None:
        kind = name.removeprefix(PREFIX)
        raise FedmtError(
            f"model.backbone: the network of this run is an nn.Module, '{kind}', that was given in Python. "
            "Give it again: fedmt.load(path, model=module), or fedmt.train(..., model=module, out=path, "
            "resume=True) to continue."
        )
    if not name.startswith(PREFIX):
        raise FedmtError(
            f"model: the network of this run is '{name}', which fedmt builds; leave `model` out."
        )
    width = _width(network, classes, input)
    own = copy.deepcopy(network)
    if head or (head is None and width != classes):
        return WithHead(own, width, classes)
    if width != classes:
        raise FedmtError(
            f"model: {type(network).__name__} returns {width} scores for each {input.word}, expected "
            f"{classes}, one for each wanted class. If they are features, leave out head=False: a head is "
            "then added."
        )
    return own


def _width(network: nn.Module, classes: int, input: Input) -> int:
    """The number of values that the module returns per sample, tried on two blank samples."""
    kind, training = type(network).__name__, network.training
    samples = input.plain(input.blank(2))
    shape = tuple(samples.shape)
    try:
        device = next((p.device for p in network.parameters()), torch.device("cpu"))
        with torch.no_grad():
            found = network.eval()(samples.to(device))
    except Exception as error:  # the user's own module may raise anything
        said = (str(error).strip().splitlines() or [""])[0]
        raise FedmtError(
            f"model: {kind} cannot take {input.word}s of shape {shape} and dtype float32: "
            f"{type(error).__name__}: {said}"
        ) from error
    finally:
        network.train(training)
    if not isinstance(found, Tensor) or found.dim() != 2 or len(found) != 2 or not found.is_floating_point():
        got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"type {type(found).__name__}"
        raise FedmtError(
            f"model: {kind} returns an output of {got} for {input.word}s of shape {shape}; expected logits "
            f"(2, {classes}), or features (2, D)."
        )
    return int(found.shape[1])
