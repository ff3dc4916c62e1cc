"""A user's own network, passed in Python as an `nn.Module`. It computes logits, or features to which a head
is added.

A config names it as `given:ClassName`. Only the user has the module, so such a run is loaded and resumed in
Python, with the module passed again.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedmt.core.errors import FedmtError
from fedmt.core.seeding import seeded
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
    """Whether to add a head: as the user says, or else if the outputs are not one per class.

    Raises an error if the module cannot be trained. It is tried on a copy, because even a forward pass may
    change a module: its modes, its buffers, the weights of lazy layers.
    """
    state: dict[str, Any] = network.state_dict()
    odd = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if odd:
        raise FedmtError(
            f"model: '{odd[0]}' of {type(network).__name__} is not a tensor, so no mean over centers can be "
            "taken. Leave get_extra_state out of the module."
        )
    broken = [name for name, value in state.items() if _not_finite(value)]
    if broken:
        raise FedmtError(
            f"model: '{broken[0]}' of {type(network).__name__} has NaN or infinite values, so a mean over "
            "centers would have them too. Register a mask, which is never trained, with persistent=False."
        )
    tried = copied(network)
    with seeded(0):
        width = _width(tried, classes, input)
        _width(tried, classes, input, training=True)  # some return further outputs only then
    return width != classes if head is None else head


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
    own = copied(network)
    width = _width(own, classes, input)
    if head or (head is None and width != classes):
        return WithHead(own, width, classes)
    if width != classes:
        raise FedmtError(
            f"model: {type(network).__name__} returns {width} scores for each {input.word}, expected "
            f"{classes}, one for each wanted class. If they are features, leave out head=False: a head is "
            "then added."
        )
    return own


def copied(network: nn.Module) -> nn.Module:
    """A copy that no later change of the user's own module reaches."""
    try:
        return copy.deepcopy(network)
    except Exception as error:  # the user's own module may hold anything
        raise FedmtError(
            f"model: {type(network).__name__} cannot be copied, and training changes only a copy: "
            f"{_said(error)}. Leave open files and other tensors with gradients out of the module."
        ) from error


def _width(network: nn.Module, classes: int, input: Input, training: bool = False) -> int:
    """The number of values that the module returns per sample, tried on two blank samples."""
    kind, mode = type(network).__name__, " in training mode" if training else ""
    samples = input.plain(input.blank(2))
    shape = tuple(samples.shape)
    try:
        device = next((p.device for p in network.parameters()), torch.device("cpu"))
        with torch.no_grad():
            found = network.train(training)(samples.to(device))
    except Exception as error:  # the user's own module may raise anything
        raise FedmtError(
            f"model: {kind} cannot take {input.word}s of shape {shape} and dtype float32{mode}: "
            f"{_said(error)}"
        ) from error
    if not isinstance(found, Tensor) or found.dim() != 2 or len(found) != 2 or not found.is_floating_point():
        got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"type {type(found).__name__}"
        raise FedmtError(
            f"model: {kind} returns an output of {got} for {input.word}s of shape {shape}{mode}; expected "
            f"logits (2, {classes}), or features (2, D)."
        )
    return int(found.shape[1])


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def _not_finite(value: Tensor) -> bool:
    """Whether a tensor with values has some that are NaN or infinite."""
    empty = is_lazy(value) or value.is_meta
    return not empty and value.is_floating_point() and not bool(value.isfinite().all())
