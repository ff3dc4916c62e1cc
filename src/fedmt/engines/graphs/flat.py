"""A model whose parameters, gradients and momentum are stored in a few long vectors, for steps without the
host.

It performs the step of `sgd.sgd_step` in a form that can be captured: the rate is on the device, and the
memory that a step uses never moves. In bfloat16 the weights that autocast would cast again in every step have
twins in that type, which the network uses; the update writes both. A step then casts no weights, its
gradients take half the memory, and the update passes over memory once. For a small batch, this accounts for
most of the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedmt.aggregation import Weights
from fedmt.backbones.heads import Heads
from fedmt.core.kernels import usable
from fedmt.engines.eager.sgd import sgd_step
from fedmt.engines.graphs import triton_sgd
from fedmt.methods.training import Training

_CAST_WHOLE = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, Heads)
"""Layers whose parameters are all cast by autocast before anything else happens to them."""

ALIGNED = 16
"""Twins begin at multiples of this many numbers (32 bytes). At other addresses, cuDNN and cuBLAS have slow
kernels."""

Place = tuple[torch.Size, tuple[int, ...], int]


class FlatModel:
    """Rebinds the model's parameters to views of its vectors.

    weights: float32 [n], the first `len(twins)` of which the network sees as `twins`.
    gradient: two vectors, one for the weights with twins and one for the others. anchor, correction, total:
    the strategy's
        terms, each made when it is first needed.
    """

    def __init__(self, model: nn.Module, half: bool) -> None:
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not trained or any(p.dtype != torch.float32 for p in trained.values()):
            raise ValueError("its parameters are not all float32")
        if len(list(model.named_parameters(remove_duplicate=False))) > len(list(model.parameters())):
            raise ValueError("it uses one parameter under several names")
        cast = _cast_parameters(model) if half else set()
        self.names = sorted(
            trained, key=lambda name: id(trained[name]) not in cast
        )  # a stable sort: twins come first
        self.places: dict[str, Place] = {}
        size = twins = 0
        for name in self.names:
            parameter = trained[name]
            dense = parameter.dim() == 4 and parameter.is_contiguous(memory_format=torch.channels_last)
            if not dense and not parameter.is_contiguous():
                parameter.data = parameter.data.contiguous()
            size += -size % (ALIGNED if id(parameter) in cast else 1)
            self.places[name] = (parameter.shape, parameter.stride(), size)
            size += parameter.numel()
            if id(parameter) in cast:
                # Up to a multiple, or the update would load its last numbers, and with them all, one by one.
                twins = size = size + -size % ALIGNED
        size += -size % ALIGNED
        device = next(iter(trained.values())).device
        self.weights = torch.zeros(size, device=device)
        self.velocity = torch.zeros_like(self.weights)
        self.twins = torch.empty(twins, device=device, dtype=torch.bfloat16)
        self.gradient = (torch.zeros_like(self.twins), torch.zeros(size - twins, device=device))
        self.anchor: Tensor | None = None
        self.correction: Tensor | None = None
        self.total: Tensor | None = None
        self.parameters: list[nn.Parameter] = []
        self._gradients: list[Tensor] = []
        for name in self.names:
            parameter, place = trained[name], self.places[name]
            shape, stride, offset = place
            view = self.weights.as_strided(*place)
            view.copy_(parameter.data)
            parameter.grad = None
            if offset < twins:
                _rebind(model, parameter, nn.Parameter(self.twins.as_strided(*place)))
                self._gradients.append(self.gradient[0].as_strided(*place))
            else:
                parameter.data = view
                self._gradients.append(self.gradient[1].as_strided(shape, stride, offset - twins))
        found = dict(model.named_parameters())
        self.parameters = [found[name] for name in self.names]
        self.refresh()

    def refresh(self) -> None:
        """Updates the twins after the weights were written from elsewhere."""
        self.twins.copy_(self.weights[: len(self.twins)])

    def packed(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Converts weights by name to one vector in this order."""
        flat = torch.zeros_like(self.weights)
        self.put(flat, weights)
        return flat

    def put(self, flat: Tensor, weights: Mapping[str, Tensor]) -> None:
        """Writes weights by name to their places in a vector."""
        names = [n for n in self.names if n in weights]
        places = [flat.as_strided(*self.places[n]) for n in names]
        if places:
            torch._foreach_copy_(places, [weights[n].to(flat.device) for n in names])

    def named(self, flat: Tensor) -> Weights:
        """The parts of a vector, by name."""
        return {name: flat.as_strided(*place) for name, place in self.places.items()}

    def take(self, gradients: Sequence[Tensor | None]) -> None:
        """Writes a step's gradients to their places, or zeros if there are none (another space's head)."""
        for place, g in zip(self._gradients, gradients, strict=True):
            if g is None:
                place.zero_()
        for half in (True, False):
            pairs = [
                (place, g)
                for place, g in zip(self._gradients, gradients, strict=True)
                if g is not None and (place.dtype == torch.bfloat16) == half
            ]
            if pairs:
                places, values = zip(*pairs, strict=True)
                torch._foreach_copy_(list(places), list(values))

    @torch.no_grad()
    def update(self, rate: Tensor, training: Training, proximal: float, correct: bool, measure: bool) -> None:
        """One step: see `sgd.sgd_step`.

        rate: float32 scalar on the device. proximal, correct, measure: the strategy's terms to apply.
        """
        cut = len(self.twins)
        terms = (
            self.anchor if proximal > 0 else None,
            self.correction if correct else None,
            self.total if measure else None,
        )
        norms = torch.stack([torch.linalg.vector_norm(g, dtype=torch.float32) for g in self.gradient])
        step = triton_sgd.update if usable(self.weights.device) else update
        for part, gradient in zip((slice(0, cut), slice(cut, None)), self.gradient, strict=True):
            if len(gradient):
                step(
                    self.weights[part],
                    self.velocity[part],
                    gradient,
                    self.twins if gradient.dtype == torch.bfloat16 else None,
                    norms,
                    rate,
                    training,
                    proximal,
                    *(None if v is None else v[part] for v in terms),
                )


def update(
    weights: Tensor,
    velocity: Tensor,
    gradient: Tensor,
    twins: Tensor | None,
    norms: Tensor,
    rate: Tensor,
    training: Training,
    proximal: float,
    anchor: Tensor | None,
    correction: Tensor | None,
    total: Tensor | None,
) -> None:
    """`sgd_step` on parts of the vectors, which it overwrites; the clipped gradient is added to `total`.

    norms: the norms of the parts of the gradient. The root of their sum of squares is clipped.
    """
    step = sgd_step(
        weights,
        velocity,
        gradient.float(),
        rate,
        training.momentum,
        training.nesterov,
        training.weight_decay,
        training.clip,
        torch.linalg.vector_norm(norms),
        correction,
        proximal,
        anchor,
    )
    weights.copy_(step.weights)
    velocity.copy_(step.velocity)
    if total is not None:
        total.add_(step.clipped)
    if twins is not None:
        twins.copy_(weights)


def _cast_parameters(model: nn.Module) -> set[int]:
    """The parameters of layers that autocast casts and that belong to no other layer."""
    cast: set[int] = set()
    other: set[int] = set()
    for module in model.modules():
        own = {id(p) for p in module._parameters.values() if p is not None and p.requires_grad}
        if type(module) in _CAST_WHOLE:
            cast |= own
        else:
            other |= own
    return cast - other


def _rebind(model: nn.Module, old: nn.Parameter, new: nn.Parameter) -> None:
    """Replaces a parameter by another, wherever the model uses it."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is old:
                module._parameters[name] = new
