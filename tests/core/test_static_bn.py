"""Static batch normalization: what is measured, how it is pooled, and what training leaves unchanged."""

from __future__ import annotations

import copy
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedmt.core.static_bn import layers, measure, pool, set_static

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**32)


def small_model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        OrderedDict(
            first=nn.Conv2d(2, 3, 3),
            norm=nn.BatchNorm2d(3),
            act=nn.ReLU(),
            second=nn.Conv2d(3, 4, 3),
            deep=nn.BatchNorm2d(4, affine=False, momentum=0.3),
            flat=nn.AdaptiveAvgPool2d(1),
        )
    )


def test_a_single_image_where_a_map_is_one_pixel():
    """Torch itself rejects this case, but a center may have one image."""
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(3))
    one = images(0, 1)
    found = measure(model, [one])
    torch.testing.assert_close(found["2.running_mean"], model[:2](one).detach().flatten())
    assert float(found["2.running_var"].abs().max()) < 1e-6


def images(seed: int, count: int = 6) -> Tensor:
    return torch.rand(count, 2, 7, 8, generator=torch.Generator().manual_seed(seed))


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """A layer's input [B, C, H, W]: the mean and the unbiased variance of each channel, in float64."""
    values = x.detach().double().transpose(0, 1).flatten(1)
    return values.mean(1), values.var(1, unbiased=True)


def expected_moments(model: nn.Sequential, batch: Tensor) -> dict[str, Tensor]:
    """A forward pass by hand in which each layer normalizes by its own batch."""
    found, x = {}, batch
    for name, layer in model.named_children():
        if isinstance(layer, nn.BatchNorm2d):
            mean, var = moments(x)
            found[f"{name}.running_mean"], found[f"{name}.running_var"] = mean.float(), var.float()
            size = x.numel() / x.shape[1]
            x = (x - mean.float()[:, None, None]) / (var.float() * (size - 1) / size + layer.eps).sqrt()[
                :, None, None
            ]
            if layer.affine:
                x = x * layer.weight[:, None, None] + layer.bias[:, None, None]
        else:
            x = layer(x)
    return {k: v.detach() for k, v in found.items()}


def test_layers_are_those_that_hold_statistics() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Sequential(nn.BatchNorm2d(2)), nn.Linear(2, 2))
    model.append(nn.BatchNorm2d(2, track_running_stats=False)).append(nn.InstanceNorm2d(2)).append(
        nn.GroupNorm(1, 2)
    )
    assert list(layers(model)) == ["0", "1.0"]


@pytest.mark.parametrize("affine_seed", [0, 1])
def test_one_batch_is_measured_exactly(affine_seed: int) -> None:
    model = small_model()
    torch.manual_seed(affine_seed)
    nn.init.uniform_(model.norm.weight, 0.5, 2)
    nn.init.uniform_(model.norm.bias, -1, 1)
    batch = images(affine_seed)
    expected = expected_moments(model, batch)
    # Stale statistics from earlier use must have no effect.
    model.norm.running_mean.fill_(100)
    model.deep.running_var.fill_(9)
    found = measure(model, [batch])
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-5)


def test_several_batches_are_averaged_in_any_order() -> None:
    batches = [images(s) for s in range(4)]
    model = small_model()
    found = measure(model, batches)
    each = [expected_moments(model, b) for b in batches]
    for key in [k for k in found if k.endswith("running_mean")]:
        means = torch.stack([e[key] for e in each])
        spread = key.removesuffix("mean") + "var"
        variances = torch.stack([e[spread] for e in each])
        torch.testing.assert_close(found[key], means.mean(0), rtol=1e-4, atol=1e-5)
        total = (variances + means.square()).mean(0) - means.mean(0).square()
        torch.testing.assert_close(found[spread], total, rtol=1e-4, atol=1e-5)
    again = measure(model, iter(batches[::-1]))
    for key, value in found.items():
        torch.testing.assert_close(value, again[key], rtol=1e-5, atol=1e-6)


def test_a_small_last_batch_counts_by_its_size() -> None:
    """One bright image after 63 dark ones must not count as much as all of them."""
    norm = torch.nn.BatchNorm2d(1)
    dark, bright = torch.zeros(63, 1, 2, 2), torch.ones(1, 1, 2, 2)
    found = measure(torch.nn.Sequential(norm), [dark, bright])
    assert float(found["0.running_mean"]) == pytest.approx(1 / 64)
    assert float(found["0.running_var"]) == pytest.approx(1 / 64 - 1 / 64**2)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_measuring_leaves_the_model_as_it_should(static: bool, training: bool) -> None:
    model = small_model()
    set_static(model, static)
    model.train(training)
    before = {k: v.clone() for k, v in model.named_parameters()}
    found = measure(model, [images(0), images(1)])
    assert not any(m.training for m in model.modules())
    assert (model.norm.momentum, model.deep.momentum) == (0.1, 0.3)
    assert model.norm.track_running_stats is not static
    assert all(torch.equal(before[k], v) and v.grad is None for k, v in model.named_parameters())
    # The result is a copy: later training does not change it.
    kept = {k: v.clone() for k, v in found.items()}
    set_static(model, False)
    model.train()(images(2) + 5)
    assert all(torch.equal(kept[k], v) for k, v in found.items())
    assert not any(v.requires_grad for v in found.values())


def test_a_measured_model_normalizes_that_batch() -> None:
    layer = nn.Sequential(nn.BatchNorm2d(2, affine=False))
    batch = images(3) * 4 + 2
    measure(layer, [batch])
    mean, var = moments(layer(batch))
    torch.testing.assert_close(mean, torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-5)
    torch.testing.assert_close(var, torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-4)


def test_a_model_without_batch_norm_has_no_statistics() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Dropout()).train()
    assert measure(model, [images(0)]) == {}
    assert not any(m.training for m in model.modules())  # as for every measured model


# -- pooling ----------------------------------------------------------------------------------------------


@quick
@given(seeds, st.integers(1, 5), st.sampled_from([0.0, 1.0, 30.0]))
def test_pooled_statistics_are_those_of_all_samples_together(seed: int, parts: int, offset: float) -> None:
    """The law of total variance, with centers of different sizes and means."""
    rng = np.random.default_rng(seed)
    data = [
        rng.normal(offset * rng.standard_normal(), rng.uniform(0.1, 3), (rng.integers(1, 30), 3))
        for _ in range(parts)
    ]
    statistics = [
        (
            float(len(x)),
            {
                "a.running_mean": torch.from_numpy(x.mean(0)).float(),
                "a.running_var": torch.from_numpy(x.var(0)).float(),
            },
        )
        for x in data
    ]
    found = pool(iter(statistics))
    together = np.concatenate(data)
    scale = 1 + np.abs(together).max()
    assert found.keys() == {"a.running_mean", "a.running_var"}
    assert all(v.dtype == torch.float32 for v in found.values())
    np.testing.assert_allclose(found["a.running_mean"].numpy(), together.mean(0), atol=1e-6 * scale)
    # The inputs are float32, so the square of the mean has a relative error of 1e-7.
    np.testing.assert_allclose(
        found["a.running_var"].numpy(), together.var(0), rtol=1e-5, atol=2e-6 * scale**2
    )
    order = rng.permutation(parts)
    again = pool([statistics[i] for i in order])
    for key, value in found.items():
        torch.testing.assert_close(again[key], value, rtol=1e-6, atol=1e-7 * scale**2)


def test_measured_and_pooled_is_the_concatenation() -> None:
    """One layer, and batches of one size at two centers, of which the second has twice as many."""
    model = nn.Sequential(nn.BatchNorm2d(2))
    a, b, c = (images(s, 40) * (s + 1) - s for s in range(3))
    one, two, three = (measure(model, [x]) for x in (a, b, c))
    found = pool([(40.0, one), (40.0, two), (40.0, three)])
    mean, var = moments(torch.cat([a, b, c]))
    torch.testing.assert_close(found["0.running_mean"].double(), mean, rtol=1e-5, atol=1e-6)
    # A layer records the unbiased variance, which is n / (n - 1) of the batch's own. Here n is 40 * 7 * 8.
    torch.testing.assert_close(found["0.running_var"].double(), var, rtol=1 / 1000, atol=0)
    doubled = pool([(80.0, one), (40.0, three)])
    mean, var = moments(torch.cat([a, a, c]))
    torch.testing.assert_close(doubled["0.running_mean"].double(), mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(doubled["0.running_var"].double(), var, rtol=1 / 1000, atol=0)


def test_pooling_keeps_layers_apart_and_inputs_unchanged() -> None:
    model = small_model()
    one, two = measure(model, [images(0)]), measure(model, [images(1) * 3])
    before = copy.deepcopy((one, two))
    found = pool([(3.0, one), (1.0, two)])
    assert found.keys() == one.keys()
    for name in ("norm", "deep"):
        m1, m2 = one[f"{name}.running_mean"].double(), two[f"{name}.running_mean"].double()
        v1, v2 = one[f"{name}.running_var"].double(), two[f"{name}.running_var"].double()
        mean = (3 * m1 + m2) / 4
        var = (3 * (v1 + (m1 - mean) ** 2) + v2 + (m2 - mean) ** 2) / 4
        torch.testing.assert_close(found[f"{name}.running_mean"].double(), mean, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(found[f"{name}.running_var"].double(), var, rtol=1e-5, atol=1e-7)
    for was, now in zip(before, (one, two), strict=True):
        assert all(torch.equal(was[k], now[k]) for k in was)
    model.load_state_dict(found, strict=False)
    assert torch.equal(model.deep.running_var, found["deep.running_var"])


def test_pooling_one_part_or_nothing() -> None:
    one = measure(small_model(), [images(0)])
    for key, value in pool([(7.0, one)]).items():
        torch.testing.assert_close(value, one[key], rtol=1e-6, atol=1e-7)
    assert pool([]) == {}
    assert pool([(1.0, {}), (2.0, {})]) == {}


def test_a_variance_is_never_negative() -> None:
    # In a constant channel far from 0, the squared mean and the second moment cancel.
    statistics = {"a.running_mean": torch.tensor([1e4 + 0.1]), "a.running_var": torch.tensor([0.0])}
    found = pool([(float(w), statistics) for w in (1, 3, 7)])
    assert 0 <= found["a.running_var"].item() < 1e-6


# -- training ---------------------------------------------------------------------------------------------


def test_static_training_uses_the_batch_and_touches_no_buffer() -> None:
    model, ordinary = small_model(), small_model()
    set_static(model, static=True)
    model.norm.running_mean.fill_(5)
    before = {k: v.clone() for k, v in model.named_buffers()}
    batch = images(0)
    out = model.train()(batch)
    out.square().sum().backward()
    assert all(torch.equal(before[k], v) for k, v in model.named_buffers())
    torch.testing.assert_close(out, ordinary.train()(batch))
    # Ordinary training does update them, so the check above is able to fail.
    assert not torch.equal(ordinary.norm.running_mean, torch.zeros(3))


def test_evaluation_uses_the_statistics_either_way() -> None:
    model, ordinary = small_model(), small_model()
    set_static(model, static=True)
    for m in (model, ordinary):
        m.norm.running_mean.fill_(0.3)
        m.deep.running_var.fill_(4)
        m.eval()
    batch = images(1)
    torch.testing.assert_close(model(batch), ordinary(batch))
    # One image alone gives the same result as in a batch, because no batch statistics are used.
    torch.testing.assert_close(model(batch[:1]), model(batch)[:1])


def test_ordinary_training_can_be_switched_back_on() -> None:
    model = small_model()
    set_static(model, static=True)
    set_static(model, static=False)
    model.train()(images(0))
    assert model.norm.num_batches_tracked == 1
    mean, _ = moments(model.first(images(0)))
    torch.testing.assert_close(model.norm.running_mean, 0.1 * mean.float(), rtol=1e-4, atol=1e-6)
