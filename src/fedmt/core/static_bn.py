"""Static batch normalization (SemiFL): statistics of unaugmented samples, measured when they are needed.

While training, a layer normalizes by the statistics of its batch and stores none, because running averages
over augmented views of one center would not fit another's samples. Before pseudo-labeling and testing, each
center runs its unaugmented samples through the model once, and the statistics are pooled. The statistics
leave a center together with the weights, so this is optional (`training.batch_norm`).
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
    """Whether training leaves the layers' running statistics unchanged (static) or updates them
    (ordinary)."""
    for layer in layers(model).values():
        # With this flag off, a layer in training mode uses its batch and changes no buffer. In evaluation
        # mode, it still uses its buffers.
        layer.track_running_stats = not static


@torch.no_grad()
def measure(
    model: nn.Module,
    batches: Iterable[Tensor],
    forward: Callable[[Tensor], object] | None = None,
    replay: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor] | None = None,
) -> Statistics:
    """Statistics of the model's layers over batches [B, ...], as the network sees them.

    Each batch is normalized by its own statistics, and these are pooled, weighted by batch size. `forward`
    runs the model if a plain call is not enough (autocast), and `replay` calls a function of a batch. The
    model is left in evaluation mode.
    """
    forward = forward or model
    found = layers(model)
    if not found:
        model.eval()
        return {}
    before = {name: (layer.momentum, layer.track_running_stats) for name, layer in found.items()}
    model.eval()  # dropout stays off, because only the batch-norm layers learn here
    for layer in found.values():
        layer.train()
        layer.track_running_stats = True
        layer.momentum = 1.0  # a batch leaves behind only its own statistics

    def learned(batch: Tensor) -> Tensor:
        # The sample is passed twice, because torch rejects a single sample if there is nothing else to
        # average over. Two equal samples have the same statistics.
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
            layer.num_batches_tracked.zero_()  # this counts training batches, and these were not
    return pooled


def _buffers(found: dict[str, _BatchNorm]) -> Statistics:
    """The layers' own statistics, as the last batch left them."""
    buffers = {}
    for name, layer in found.items():
        assert layer.running_mean is not None and layer.running_var is not None
        buffers[f"{name}.running_mean"] = layer.running_mean
        buffers[f"{name}.running_var"] = layer.running_var
    return buffers


def pool(parts: Iterable[tuple[float, Statistics]]) -> Statistics:
    """The pooled statistics of several sets of samples, from the weight (number of samples) and statistics of
    each set.

        mean = sum w_c mean_c / W,        var = sum w_c (var_c + mean_c^2) / W - mean^2

    This is a running mean in float64, so memory does not grow with the number of centers. All layers are one
    vector, because a GPU takes as long for one layer's few numbers as for all of them.
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
