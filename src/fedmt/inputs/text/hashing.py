"""Converts texts to hashed words in the same way as scikit-learn's `HashingVectorizer`.

Hashing needs no vocabulary, so no center has to learn another's words. A stored sample is int32 [n-grams,
length]: row n holds the (n + 1)-grams, each at the position of its first word. An entry is the bucket plus
one. It is negative if the hash is negative, and 0 if there is no n-gram. Words are kept separate, so that
some of them can be dropped before they are added up (views.py).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmt.core.errors import FedmtError


def vectorizer(features: int, ngrams: int) -> Any:
    """The `HashingVectorizer` whose vectors a network sees. All other options have their defaults."""
    try:
        from sklearn.feature_extraction.text import HashingVectorizer
    except ImportError:
        raise FedmtError(
            "Hashing text needs scikit-learn; install the extra: pip install 'fedmt[text]'."
        ) from None
    return HashingVectorizer(n_features=features, ngram_range=(1, ngrams))


@dataclass(frozen=True, eq=False)
class Hashed:
    """samples: int32 [N, n-grams, length]. words: int64 [N], the number of words of each text before it was
    cut."""

    samples: Tensor
    words: Tensor


def hash_texts(texts: Sequence[str], shape: tuple[int, int], features: int) -> Hashed:
    """Texts as stored samples of `shape` (n-grams, length). Only the first `length` words of a longer text
    are used."""
    ngrams, length = shape
    own = vectorizer(features, ngrams)
    clean, split = own.build_preprocessor(), own.build_tokenizer()
    # An accent may be stored as a character of its own, which would split its word in two.
    words: list[list[str]] = [split(clean(unicodedata.normalize("NFC", text))) for text in texts]
    places: dict[str, int] = {}  # every n-gram once, because most occur often
    index = np.zeros((len(texts), ngrams, length), dtype=np.int64)
    for row, found in enumerate(words):
        kept = found[:length]
        for n in range(ngrams):
            for position in range(len(kept) - n):
                gram = " ".join(kept[position : position + n + 1])
                index[row, n, position] = places.setdefault(gram, len(places) + 1)
    hashes = np.concatenate([[0], _hashes(list(places), features)]).astype(np.int32)
    counts = torch.tensor([len(found) for found in words], dtype=torch.int64)
    return Hashed(torch.from_numpy(hashes[index]), counts)


def _hashes(grams: Sequence[str], features: int) -> Any:
    """The bucket plus one of each n-gram, with the sign of its hash."""
    from sklearn.feature_extraction import FeatureHasher

    if not grams:
        return np.zeros(0, dtype=np.int32)
    # This is what HashingVectorizer itself uses. One n-gram per row keeps them separate.
    found = FeatureHasher(features, input_type="string").transform([gram] for gram in grams)
    return (found.indices.astype(np.int64) + 1) * found.data.astype(np.int64)
