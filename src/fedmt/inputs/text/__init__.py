"""Text: the room of everything that knows what a word is.

hashing.py  texts to hashed words, as scikit-learn's HashingVectorizer hashes them
views.py    hashed words to vectors; words dropped in a strong view
asking.py   what a trained model is asked about: strings, CSVs, text files
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedmt.core.errors import FedmtError
from fedmt.core.section import Section
from fedmt.inputs.base import Batch, Input, Item, Views
from fedmt.inputs.text import asking
from fedmt.inputs.text.hashing import Hashed, hash_texts
from fedmt.inputs.text.views import FEATURES, LENGTH, TokenDropout, dense

DEVIATION = 0.125
"""The factor that gives a network's input an L2 norm of 8, not 1. With 1, a linear network learned too slowly
at the default learning rate. Between 4 and 16, there was little difference (TREC, held-out questions)."""


class TextSpec(Section):
    """How text is read."""

    features: Annotated[int, Field(ge=2, le=2**20)] = FEATURES
    """Number of buckets that words are hashed into, which is the width of what a network sees. Raise it for a
    large vocabulary."""
    length: Annotated[int, Field(ge=1, le=4096)] = LENGTH
    """Number of words that are read from each text; the rest is ignored."""
    ngrams: Annotated[int, Field(ge=1, le=3)] = 1
    """1 for single words, 2 for pairs of neighboring words too, 3 for triples too."""

    def input(self) -> Text:
        return Text((self.ngrams, self.length), self.features)


@dataclass(frozen=True)
class Text(Input):
    """Stored as hashed words, int32 [N, n-grams, length] (hashing.py); networks see float32 [N, features]."""

    name: ClassVar[str] = "text"
    word: ClassVar[str] = "text"
    views: ClassVar[type[Views]] = TokenDropout
    options: ClassVar[type[Section]] = TextSpec
    dtype: ClassVar[torch.dtype] = torch.int32
    backbone: ClassVar[str] = "mlp"
    seen_as: ClassVar[str | None] = "vectors"

    shape: tuple[int, int]
    features: int = FEATURES

    @classmethod
    def of(cls, samples: Tensor, where: str) -> Text:
        if samples.dtype != torch.int32 or samples.dim() != 3:
            raise FedmtError(
                f"{where}: hashed texts must be int32 [N, n-grams, length], got {samples.dtype} "
                f"{tuple(samples.shape)}."
            )
        return cls((samples.shape[1], samples.shape[2]))

    @classmethod
    def stored(cls, given: Any, where: str) -> Tensor:
        """Strings, hashed with the defaults of the table [text]."""
        try:
            parts = list(asking.batches(given, TextSpec().input().hashed))
        except FedmtError as error:
            raise FedmtError(f"{where}: {error}") from None
        if not parts:
            raise FedmtError(f"{where}: it contains no texts; expected a list of strings.")
        return torch.cat(parts)

    def hashed(self, texts: Sequence[str]) -> Hashed:
        """Texts in the stored form, and the number of words in each."""
        return hash_texts(texts, self.shape, self.features)

    def mismatch(self, other: Input) -> str:
        if not isinstance(other, Text):
            return super().mismatch(other)
        return (
            f"texts of shape {other.shape} in {other.features} buckets, but the reference center has "
            f"{self.shape} in {self.features}; hash all of them with one table [text]"
        )

    @property
    def seen_shape(self) -> tuple[int, ...]:
        return (self.features,)

    @property
    def extent(self) -> int:
        return self.features

    def reading(self, cache: Path) -> TextSpec:
        ngrams, length = self.shape
        return TextSpec(features=self.features, length=length, ngrams=ngrams)

    def plain(self, samples: Tensor) -> Tensor:
        return dense(samples, self.features)

    def statistics(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """The same for every bucket, because rare words would be blown up by their own deviations."""
        return torch.zeros(1, 1), torch.full((1, 1), DEVIATION)

    @property
    def network_arguments(self) -> Mapping[str, int]:
        return {"features": self.features}

    def preview(self, sample: Tensor) -> Mapping[str, str]:
        """The words themselves are not stored. If a test has them, the report shows those instead."""
        return {"text": f"{int((sample[0] != 0).sum())} hashed words"}

    def signature(self) -> dict[str, Any]:
        ngrams, length = self.shape
        return {
            "type": "int32",
            "shape": ["batch", ngrams, length],
            "words": (
                f"the first {length} matches of the regular expression (?u)\\b\\w\\w+\\b in the text in "
                "Unicode NFC and lowercase (Python's re, unicodedata.normalize and str.lower)"
            ),
            "ngrams": f"1 to {ngrams} neighboring words, joined by one space",
            "layout": (
                "row n, column i: the entry of the (n+1)-gram that begins at word i, both counted from 0; 0 "
                "where there is none"
            ),
            "entry": (
                f"h = MurmurHash3 (x86, 32 bits, seed 0) of the n-gram in UTF-8, as a signed integer; "
                f"abs(h) modulo {self.features}, plus 1, negative where h < 0"
            ),
            "inside": (
                "the model adds the entries up, to L2 norm 1, as scikit-learn's "
                f"HashingVectorizer(n_features={self.features}, ngram_range=(1, {ngrams})) does"
            ),
        }

    def example(self, count: int, generator: torch.Generator) -> Tensor:
        buckets = torch.randint(-self.features, self.features + 1, (count, *self.shape), generator=generator)
        return buckets.to(torch.int32)

    def batches(self, given: Any) -> Iterator[Tensor]:
        return super().batches(given) if asking.is_stored(given) else asking.batches(given, self.hashed)

    def find(self, paths: Sequence[Path], column: str | None, notes: list[str]) -> list[Item]:
        return asking.find_texts(paths, column, notes)

    def read(self, items: Sequence[Item]) -> Iterator[Batch]:
        return asking.read_texts(items, self.hashed)
