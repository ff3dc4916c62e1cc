"""Texts as a network sees them: hashed words added up, with some of them dropped in a strong view.

Every view is a function of a sample's own row and its own uniform numbers. Sums of +1 and -1 are exact, so
every device and every order of adding gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedmt.core.errors import share
from fedmt.inputs.base import Input, Views

FEATURES, LENGTH = 4096, 128
"""The defaults of the table [text]."""


def dense(samples: Tensor, features: int) -> Tensor:
    """Stored samples int32 [B, n-grams, length] to float32 [B, features]: counts by bucket, with L2
    norm 1."""
    entries = samples.flatten(1)
    # If there is no n-gram, the sign is 0, and adding it to the first bucket changes nothing.
    buckets = (entries.abs() - 1).clamp_min(0).to(torch.int64)
    # `shape[0]`, because `len` would fix the batch size of an exported graph.
    empty = samples.new_zeros((samples.shape[0], features), dtype=torch.float32)
    counts = empty.scatter_add(1, buckets, entries.sign().to(torch.float32))
    # Counts are whole numbers, so a norm below 1 is 0. It belongs to a text without words, which stays 0.
    return counts / counts.square().sum(1, keepdim=True).sqrt().clamp_min(1)


def drop_words(samples: Tensor, uniforms: Tensor, probability: float) -> Tensor:
    """Samples [B, n-grams, length] without the words whose uniform number [B, length] is below `probability`.

    An n-gram is dropped with any of its words. A text that would lose all its words stays unchanged.
    """
    stays = uniforms >= probability
    some = (stays & (samples[:, 0] != 0)).any(1, keepdim=True)
    stays = stays | ~some
    whole = [stays]
    for n in range(1, samples.shape[1]):
        # An n-gram that would extend past the end does not exist, so what rolls over from the front does not
        # count.
        whole.append(whole[-1] & stays.roll(-n, 1))
    return samples * torch.stack(whole, 1)


@dataclass(frozen=True)
class TokenDropout(Views):
    """The views of text."""

    dropout: float = 0.15
    """Probability that a strong view drops a word."""
    weak_dropout: float = 0.0
    """Probability that a weak view drops a word."""

    def __post_init__(self) -> None:
        share("augmentation.dropout", self.dropout)
        share("augmentation.weak_dropout", self.weak_dropout)

    def on(self, input: Input) -> Views:
        return Sized(self.dropout, self.weak_dropout, input.seen_shape[0], input.shape[1])

    @property
    def weak_numbers(self) -> int:
        """One number per word, if words are dropped."""
        return self.size[1] if self.weak_dropout else 0

    @property
    def strong_numbers(self) -> int:
        """One number per word, if words are dropped."""
        return self.size[1] if self.dropout else 0

    @property
    def size(self) -> tuple[int, int]:
        """The number of buckets and of words, as set in [text]."""
        return FEATURES, LENGTH

    def weak(self, samples: Tensor, uniforms: Tensor) -> Tensor:
        return self._seen(samples, uniforms, self.weak_dropout)

    def strong(self, views: Tensor, samples: Tensor, uniforms: Tensor) -> Tensor:
        return self._seen(samples, uniforms, self.dropout)

    def _seen(self, samples: Tensor, uniforms: Tensor, probability: float) -> Tensor:
        left = drop_words(samples, uniforms, probability) if probability else samples
        return dense(left, self.size[0])


@dataclass(frozen=True)
class Sized(TokenDropout):
    """The same for texts with a different number of buckets and words than the default."""

    features: int = FEATURES
    length: int = LENGTH

    @property
    def size(self) -> tuple[int, int]:
        return self.features, self.length
