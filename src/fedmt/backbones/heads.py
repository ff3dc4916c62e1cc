"""Several last layers on one network: a head for each label space (FedTrans, FedRep)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from fedmt.core.errors import FedmtError


class Heads(nn.Linear):
    """The network's own last layer for the wanted space, and one for each other space.

    It keeps its name, so that published weights still fit. `active` is the head that answers: 0 is the wanted
    space's.
    """

    def __init__(self, own: nn.Linear, sizes: Sequence[int]) -> None:
        super().__init__(own.in_features, own.out_features, bias=own.bias is not None)
        self.weight, self.bias = own.weight, own.bias
        self.others = nn.ModuleList(
            nn.Linear(own.in_features, size, bias=own.bias is not None) for size in sizes
        )
        self.active = 0

    def forward(self, features: Tensor) -> Tensor:
        if self.active == 0:
            return super().forward(features)
        logits: Tensor = self.others[self.active - 1](features)
        return logits


def add_heads(model: nn.Module, classes: int, sizes: Sequence[int]) -> None:
    """Adds a head for each of `sizes` to the model's last layer, which has `classes` outputs."""
    found = last_layer(model, classes)
    if found is None:
        raise FedmtError(
            f"model.backbone: found no last nn.Linear of {classes} outputs to which this method could add "
            "other heads. Use another backbone or method, or pass a module of features with head=True."
        )
    name, own = found
    put(model, name, Heads(own, sizes))


def last_layer(model: nn.Module, classes: int) -> tuple[str, nn.Linear] | None:
    """The layer that gives the logits, and its name: the last nn.Linear of `classes` outputs.

    timm's networks name it themselves. A network with two of them, such as a distilled one, has no last
    layer.
    """
    for module in model.modules():
        ask = getattr(module, "get_classifier", None)
        own = ask() if callable(ask) else None
        if isinstance(own, tuple):
            return None
        if isinstance(own, nn.Linear) and own.out_features == classes:
            return next(name for name, layer in model.named_modules() if layer is own), own
    found = [
        (name, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and layer.out_features == classes
    ]
    return found[-1] if found else None


def put(model: nn.Module, name: str, layer: nn.Module) -> None:
    """Replaces the layer of that name."""
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, layer)


def find_heads(model: nn.Module) -> tuple[str, Heads] | None:
    """The model's heads and their name, if it has any."""
    return next(((n, m) for n, m in model.named_modules() if isinstance(m, Heads)), None)


def head_keys(model: nn.Module) -> list[frozenset[str]]:
    """The names of each head's weights, by head. Empty for a model with a single last layer."""
    found = find_heads(model)
    if found is None:
        return []
    name, heads = found
    own = frozenset(f"{name}.{n}" for n, _ in heads.named_parameters(recurse=False))
    others = [
        frozenset(f"{name}.others.{i}.{n}" for n, _ in head.named_parameters())
        for i, head in enumerate(heads.others)
    ]
    return [own, *others]
