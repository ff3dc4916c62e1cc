"""ResNet9, a network for small images that trains quickly (Page, "How to train your ResNet", 2018).

It has 8 convolutions where ResNet18 has 20, and shrinks the image by pooling right after a convolution. So a
training step has fewer and larger kernels, and its batch norms pass over a third of the values. At 32 pixels,
a round takes half as long as with `resnet18_cifar` (docs/development/performance-diary.md).
"""

from __future__ import annotations

from torch import Tensor, nn

from fedmt.backbones.base import Backbone
from fedmt.backbones.fused import convolve, normalize, pool
from fedmt.backbones.resnet import BasicBlock

SCALE = 0.125
"""The features are multiplied by this. They are maxima, so the first logits would be large without it."""


class Shrink(nn.Module):
    """A 3x3 convolution that ends with half the height and width: [N, inputs, H, W] to [N, width, H/2, W/2].

    The maximum is taken before the batch norm, which then has a quarter of the values to pass over.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, width, 3, padding=1, bias=False)
        self.pool = nn.MaxPool2d(2)
        self.bn = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return normalize(self.bn, pool(self.pool, self.conv(x)), self.relu)


class ResNet9(nn.Module):
    """Images [N, channels, H, W] of at least 8 x 8 pixels to logits [N, classes]."""

    def __init__(self, classes: int, channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(Shrink(64, 128), BasicBlock(128, 128, stride=1))
        self.layer2 = Shrink(128, 256)
        self.layer3 = nn.Sequential(Shrink(256, 512), BasicBlock(512, 512, stride=1))
        self.fc = nn.Linear(512, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = normalize(self.bn1, convolve(self.conv1, x), self.relu)
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.fc(SCALE * x.amax((2, 3)))
        return logits


BACKBONES = {"resnet9": Backbone(ResNet9, head="fc")}
