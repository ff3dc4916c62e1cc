"""Hashed text equals scikit-learn's HashingVectorizer, and each view is a function of its row alone."""

import unicodedata

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.utils import murmurhash3_32

from fedmt.core.errors import FedmtError
from fedmt.inputs import from_json, to_json
from fedmt.inputs.text import Text, TextSpec
from fedmt.inputs.text.views import TokenDropout, dense, drop_words

WORDS = [
    "How",
    "far",
    "is",
    "it",
    "from",
    "Denver",
    "to",
    "Aspen",
    "I",
    "a",
    "Ärzte",
    "naïve",
    "x1",
    "?",
    "don't",
]
texts = st.lists(
    st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=6)), max_size=20).map(" ".join),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(texts, st.integers(1, 3), st.sampled_from([2, 7, 64, 4096]))
def test_plain_is_the_hashing_vectorizer(given: list[str], ngrams: int, features: int) -> None:
    input = Text((ngrams, 64), features)
    expected = HashingVectorizer(n_features=features, ngram_range=(1, ngrams), dtype=np.float64)
    seen = input.plain(input.hashed(given).samples)
    assert seen.dtype == torch.float32 and seen.shape == (len(given), features)
    composed = [unicodedata.normalize("NFC", text) for text in given]
    np.testing.assert_allclose(seen.numpy(), expected.transform(composed).toarray(), atol=1e-7)


def test_accents_composed_and_decomposed_are_one() -> None:
    """Texts from PDF files often have decomposed accents."""
    word = "n\u00e4vus"
    composed, decomposed = Text((1, 4), 512).hashed([word, unicodedata.normalize("NFD", word)]).samples
    assert torch.equal(composed, decomposed)


def test_a_long_text_is_cut() -> None:
    input = Text((2, 3), 512)
    found = input.hashed(["one two three four five", "one two three", "?"])
    assert found.words.tolist() == [5, 3, 0]
    assert torch.equal(found.samples[0], found.samples[1])
    assert not found.samples[2].any() and not input.plain(found.samples)[2].any()


def test_the_signature_tells_how_to_hash() -> None:
    """Makes the input of an exported model from its own description, without this package."""
    input = Text((2, 4), 100)
    entries = np.zeros((2, 4), dtype=np.int64)
    words = ["where", "is", "my", "card"]
    for i, gram in [(0, words[0]), (1, words[1]), (2, words[2]), (3, words[3])]:
        entries[0, i] = hashed(gram)
    for i in range(3):
        entries[1, i] = hashed(f"{words[i]} {words[i + 1]}")
    assert input.hashed(["Where is my card?"]).samples[0].tolist() == entries.tolist()
    said = input.signature()
    assert said["shape"] == ["batch", 2, 4] and said["type"] == "int32"
    assert (
        "modulo 100" in said["entry"]
        and "HashingVectorizer(n_features=100, ngram_range=(1, 2))" in said["inside"]
    )


def hashed(gram: str) -> int:
    h = murmurhash3_32(gram.encode(), seed=0)
    return (abs(h) % 100 + 1) * (-1 if h < 0 else 1)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(["alpha", "beta", "gamma", "delta"]), min_size=1, max_size=8),
    st.integers(0, 2**20),
)
def test_dropping_words_before_hashing(words: list[str], seed: int) -> None:
    """Compared with dropping the words themselves: an n-gram stays if all of its words stay."""
    input = Text((3, 8), 4096)
    samples = input.hashed([" ".join(words)]).samples
    uniforms = torch.rand(1, 8, generator=torch.Generator().manual_seed(seed))
    stays = (uniforms[0] >= 0.5).tolist()
    if not any(stays[: len(words)]):
        stays = [True] * 8
    left = drop_words(samples, uniforms, 0.5)
    for n in range(3):
        for i in range(8):
            whole = i + n < len(words) and all(stays[i : i + n + 1])
            assert left[0, n, i] == (samples[0, n, i] if whole else 0)


def test_views_do_not_look_at_other_rows_and_mind_the_table() -> None:
    input = Text((2, 8), 64)
    samples = input.hashed(["where is my card", "please block it now", "hello world"]).samples
    views = TokenDropout(dropout=0.5, weak_dropout=0.2).on(input)
    assert (views.weak_numbers, views.strong_numbers) == (8, 8)
    uniforms = torch.rand(3, 8, generator=torch.Generator().manual_seed(3))
    weak, strong = views.weak(samples, uniforms), views.strong(samples, samples, uniforms)
    assert weak.shape == strong.shape == (3, 64)
    assert not torch.equal(strong, input.plain(samples))
    for i in range(3):
        assert torch.equal(views.weak(samples[i : i + 1], uniforms[i : i + 1])[0], weak[i])
        assert torch.equal(strong[i], dense(drop_words(samples[[i]], uniforms[[i]], 0.5), 64)[0])
    off = TokenDropout(dropout=0.0).on(input)
    assert (off.weak_numbers, off.strong_numbers) == (0, 0)
    assert torch.equal(off.strong(samples, samples, uniforms[:, :0]), input.plain(samples))
    with pytest.raises(FedmtError, match=r"augmentation.dropout: 1.0 given, expected .* less than 1"):
        TokenDropout(dropout=1.0)


def test_what_an_input_of_text_is() -> None:
    input = TextSpec(features=64, length=8, ngrams=1).input()
    assert from_json(to_json(input)) == input == Text((1, 8), 64)
    assert input.reading(None).input() == input
    assert input.seen_shape == (64,) and input.network_arguments == {"features": 64}
    mean, std = input.identity_statistics
    assert not mean.any() and (std == 1).all()
    # No bucket is scaled differently from another, however rare its words are.
    samples = input.hashed(["my card", "my phone", "my card"]).samples
    assert [t.shape for t in input.statistics(samples)] == [(1, 1), (1, 1)]
    example = input.example(5, torch.Generator().manual_seed(0))
    assert Text.of(example, "here") == Text((1, 8)) and example.abs().max() <= 64
    with pytest.raises(FedmtError, match=r"here: hashed texts must be int32 \[N, n-grams, length\], got"):
        Text.of(torch.zeros(3, 8), "here")
    assert "in 32 buckets" in input.mismatch(Text((1, 8), 32))


def test_strings_to_batches() -> None:
    input = Text((1, 4), 64)
    (many,) = input.batches(["where is it", "my card"])
    assert torch.equal(next(input.batches("my card"))[0], many[1])
    assert torch.equal(next(input.batches(np.array(["where is it", "my card"]))), many)
    assert torch.equal(next(input.batches(many)), many)
    with pytest.raises(
        FedmtError, match=r"texts\[1\]: no word in it; expected at least one word of two letters"
    ):
        list(input.batches(["my card", " ?"]))
    with pytest.raises(FedmtError, match=r"texts\[1\]: an object of type int; expected a string"):
        list(input.batches(["my card", 3]))
    with pytest.raises(FedmtError, match=r"texts of shape \(2, 1, 5\); expected \(N"):
        list(input.batches(torch.zeros(2, 1, 5, dtype=torch.int32)))
