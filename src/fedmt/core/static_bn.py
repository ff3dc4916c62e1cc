"""Static batch normalisation (SemiFL): statistics of un-augmented samples, taken when they are needed.

While training, a layer normalises by the statistics of its batch and keeps none: running averages
over augmented views of one center would not fit another's samples. Before pseudo-labelling and
testing, each center runs its un-augmented samples through the model once, and the statistics are
pooled. They leave a center next to the weights, so this is a choice (`training.batch_norm`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Statistics = dict[str, Tensor]
"""`<layer>.running_mean` and `<layer>.running_var` of every batch-norm layer."""


def layers(model: nn.Module) -> dict[str, _BatchNorm]:
    """The batch-norm layers that hold statistics, by name."""
    return {
        n: m for n, m in model.named_modules() if isinstance(m, _BatchNorm) and m.running_mean is not None
    }


def set_static(model: nn.Module, static: bool) -> None:
    """Whether training leaves the layers' running statistics alone (static) or updates them (ordinary)."""
    for layer in layers(model).values():
        # With this flag off a layer in training mode uses its batch and touches no buffer, while in
        # evaluation mode it still uses the buffers it has.
        layer.track_running_stats = not static


@torch.no_grad()
def measure(
    model: nn.Module,
    batches: Iterable[Tensor],
    forward: Callable[[Tensor], object] | None = None,
    replay: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor] | None = None,
) -> Statistics:
    """Statistics of the model's layers over batches [B, ...], as the network sees them.

    Each batch is normalised by its own statistics, and these are pooled by the batches' sizes. `forward`
    runs the model where plain calling will not do (autocast), and `replay` calls a function of a batch. The
    model is left in evaluation mode.
    """
    forward = forward or model
    found = layers(model)
    if not found:
        model.eval()
        return {}
    before = {name: (layer.momentum, layer.track_running_stats) for name, layer in found.items()}
    model.eval()  # dropout stays off: only the batch-norm layers learn here
    for layer in found.values():
        layer.train()
        layer.track_running_stats = True
        layer.momentum = 1.0  # what a batch leaves behind is its own statistics

    def learned(batch: Tensor) -> Tensor:
        # Twice, since torch refuses a single sample where nothing else is left to average over; two
        # that are equal have its statistics.
        forward(batch if len(batch) > 1 else torch.cat([batch, batch]))
        return torch.cat(list(_buffers(found).values()))

    def each() -> Iterator[tuple[float, Statistics]]:
        sizes = {name: len(buffer) for name, buffer in _buffers(found).items()}
        for batch in batches:
            own = learned(batch) if replay is None else replay(learned, batch)
            yield float(len(batch)), dict(zip(sizes, own.split(list(sizes.values())), strict=True))

    pooled = pool(each())
    model.eval()
    for name, layer in found.items():
        layer.momentum, layer.track_running_stats = before[name]
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked.zero_()  # a count of training batches, which these were not
    return pooled


def _buffers(found: dict[str, _BatchNorm]) -> Statistics:
    """The layers' own, as the last batch has left them."""
    buffers = {}
    for name, layer in found.items():
        assert layer.running_mean is not None and layer.running_var is not None
        buffers[f"{name}.running_mean"] = layer.running_mean
        buffers[f"{name}.running_var"] = layer.running_var
    return buffers


def pool(parts: Iterable[tuple[float, Statistics]]) -> Statistics:
    """The statistics of several sets of samples together, from each one's weight (samples) and own.

        mean = sum w_c mean_c / W,        var = sum w_c (var_c + mean_c^2) / W - mean^2

    A running mean, so that memory does not grow with the number of centers; in float64. All layers as one
    vector, since a GPU takes as long for one layer's few numbers as for all.
    """
    total = 0.0
    names: list[str] = []
    sizes: list[int] = []
    mean = second = torch.empty(0)
    for weight, statistics in parts:
        if not statistics:
            continue
        total += weight
        if not names:
            names = [k.removesuffix("mean") for k in statistics if k.endswith("running_mean")]
            sizes = [len(statistics[f"{n}mean"]) for n in names]
        own = torch.cat([statistics[f"{n}mean"] for n in names]).double()
        square = torch.cat([statistics[f"{n}var"] for n in names]).double() + own.square()
        if len(mean) == 0:
            mean, second = own, square
        else:
            mean = mean + (own - mean) * (weight / total)
            second = second + (square - second) * (weight / total)
    if not names:
        return {}
    variance = (second - mean.square()).clamp_min(0).float()
    pooled = {}
    for name, m, v in zip(names, mean.float().split(sizes), variance.split(sizes), strict=True):
        pooled[f"{name}mean"], pooled[f"{name}var"] = m.clone(), v.clone()
    return pooled
