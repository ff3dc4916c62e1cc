"""ResNet9 has the shapes of the published network, and its maximum comes before the batch norm."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedmt.backbones.resnet9 import SCALE, ResNet9


def test_the_layers_are_those_of_the_published_network() -> None:
    with torch.device("meta"):
        model = ResNet9(10)
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    widths = [(c.in_channels, c.out_channels) for c in convolutions]
    small, large = (128, 128), (512, 512)
    assert widths == [(3, 64), (64, 128), small, small, (128, 256), (256, 512), large, large]
    assert all(c.kernel_size == (3, 3) and c.stride == (1, 1) and c.bias is None for c in convolutions)
    # Page's network has 6,573,120 parameters with 10 classes and no bias in its last layer.
    assert sum(p.numel() for p in model.parameters()) == 6_573_120 + 10


@pytest.mark.parametrize("size", [8, 28, 32, 64])
@pytest.mark.parametrize("channels", [1, 3])
def test_forward_gives_logits_for_images_of_any_size(size: int, channels: int) -> None:
    model = ResNet9(7, channels).eval()
    with torch.no_grad():
        logits = model(torch.randn(2, channels, size, size))
    assert logits.shape == (2, 7)
    assert logits.isfinite().all()


def test_an_image_of_32_pixels_becomes_4_pixels_of_512_channels() -> None:
    model = ResNet9(7)
    shapes: dict[str, torch.Size] = {}
    for name in ("conv1", "layer1", "layer2", "layer3"):
        model.get_submodule(name).register_forward_hook(
            lambda _module, _args, out, name=name: shapes.__setitem__(name, out.shape[1:])
        )
    model(torch.randn(2, 3, 32, 32))
    assert shapes == {
        "conv1": (64, 32, 32),
        "layer1": (128, 16, 16),
        "layer2": (256, 8, 8),
        "layer3": (512, 4, 4),
    }


def test_logits_are_a_linear_function_of_the_largest_features() -> None:
    model = ResNet9(5).eval()
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        features = model.layer3(model.layer2(model.layer1(model.relu(model.bn1(model.conv1(images))))))
        expected = SCALE * features.flatten(2).max(2).values @ model.fc.weight.T + model.fc.bias
        assert torch.allclose(model(images), expected, atol=1e-5)


def test_pooling_comes_before_the_batch_norm() -> None:
    layer = ResNet9(5).layer2
    x = torch.randn(4, 128, 8, 8)
    pooled = nn.functional.max_pool2d(layer.conv(x), 2)
    expected = nn.functional.batch_norm(pooled, None, None, training=True).relu()
    assert torch.allclose(layer.train()(x), expected, atol=1e-5)
