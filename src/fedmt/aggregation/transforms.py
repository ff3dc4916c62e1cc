"""Changes of an update on its way from a center to the mean, such as clipping, noise and masking.

A `Transform` has two hooks. One runs at the center before it sends, the other at the coordinating site after
it received and before the strategy's accumulator. The same objects are used in every engine.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from fedmt.aggregation.base import Weights
from fedmt.core.section import Section


class Transform:
    """The base class changes nothing; a transform overrides one hook or both.

    Both get an update and return another with the same names, shapes and types. An update holds everything
    that a center sends: changes of weights, and under `control:` what SCAFFOLD sends with them.

    rng: random numbers determined by the run's seed, the round and the center, so that a run can be repeated.
    The
        coordinator knows the seed, so noise that is meant to hide something from it must come from elsewhere.
    """

    def before_sending(self, update: Weights, round: int, center: str, rng: np.random.Generator) -> Weights:
        """At the center. The given tensors may be changed in place."""
        return update

    def after_receiving(self, update: Weights, round: int, center: str, rng: np.random.Generator) -> Weights:
        """At the coordinating site."""
        return update


class TransformSpec(Section):
    """A table of the config that describes a transform. To add one, enter it in the schema."""

    @abstractmethod
    def transform(self) -> Transform:
        """The transform that the table describes."""


Transforms = Sequence[Transform]
"""In the order in which a center applies them. The last one is undone first."""


def before_sending(
    transforms: Transforms, update: Weights, round: int, center: str, rng: np.random.Generator
) -> Weights:
    """What a center sends: its update after all transforms in their order."""
    for transform in transforms:
        update = transform.before_sending(_in_order(update), round, center, rng)
    return update


def after_receiving(
    transforms: Transforms, update: Weights, round: int, center: str, rng: np.random.Generator
) -> Weights:
    """What is averaged: a received update after all transforms in reverse order."""
    for transform in reversed(transforms):
        update = transform.after_receiving(_in_order(update), round, center, rng)
    return update


def _in_order(update: Weights) -> Weights:
    """Sorted by name, in plain memory layout, so that a sum over it is bit-identical in every engine."""
    return {key: update[key].contiguous() for key in sorted(update)}
