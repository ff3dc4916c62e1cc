"""Noise from the operating system is normal, and never the same twice."""

import torch
from scipy import stats

from fedmt.privacy import secret
from fedmt.privacy.secret import secret_generator, secret_normal


def test_it_is_standard_normal():
    found = secret_normal(200_000)
    assert found.dtype == torch.float32 and found.shape == (200_000,)
    # With truly normal noise, this test fails once in a million runs.
    assert stats.kstest(found.double().numpy(), "norm").pvalue > 1e-6
    pairs = found.double().view(2, -1)
    assert abs(float((pairs[0] * pairs[1]).mean())) < 0.02


def test_it_comes_in_parts_and_never_twice(monkeypatch):
    monkeypatch.setattr(secret, "AT_ONCE", 7)
    first, second = secret_normal(20), secret_normal(20)
    assert first.shape == (20,) and not torch.equal(first, second)
    assert len(first.unique()) == 20
    assert secret_normal(0).shape == (0,)
    assert secret_generator().random() != secret_generator().random()
