"""A small network for small images on small machines: strided convolutions, so that two cores suffice."""

from __future__ import annotations

from torch import Tensor, nn

from fedmt.backbones.base import Backbone
from fedmt.backbones.fused import ConvNorm


class SmallCNN(nn.Module):
    """Four convolutions (16, 48, 48, 96 channels; 28x28 -> 14 -> 7 -> 7 -> 4), mean, linear.

    Strides instead of pooling: the first layers, which hold most of the cost at full resolution,
    run at a quarter of it. Input [B, channels, H, W] (about 28x28), output logits [B, classes].
    """

    def __init__(self, classes: int, channels: int = 1) -> None:
        super().__init__()
        self.features = nn.Sequential(
            _block(channels, 16, kernel=5, stride=2),
            _block(16, 48, kernel=3, stride=2),
            _block(48, 48, kernel=3, stride=1),
            _block(48, 96, kernel=3, stride=2),
        )
        self.fc = nn.Linear(96, classes)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.features(images)
        logits: Tensor = self.fc(features.mean((2, 3)))
        return logits


def _block(inputs: int, outputs: int, kernel: int, stride: int) -> ConvNorm:
    return ConvNorm(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


BACKBONES = {"small_cnn": Backbone(SmallCNN, head="fc")}
