"""What a backbone is: how its network is built, and what is known about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Backbone:
    """build: takes `classes`, the input's `network_arguments` (for images: `channels`), and `max_pool` if the
    network `pools`. Returns the network.

    head: the name of its last layer, which a weight file for other classes does not fit. pools: whether its
        stem has a max-pool that is skipped for small images. input: the name of the input it takes.
    published: mean and standard deviation, by channel, of what its published weights were trained on (none:
        those of ImageNet).
    """

    build: Callable[..., nn.Module]
    head: str | None = None
    pools: bool = False
    input: str = "images"
    published: tuple[Sequence[float], Sequence[float]] | None = None
