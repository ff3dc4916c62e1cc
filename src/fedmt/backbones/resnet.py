"""ResNet18 and ResNet50 (He et al., 2015), with torchvision's parameter and buffer names.

The names are the contract: a state dict of torchvision's ResNet fits these networks key by key
(`weights.load_weights`). ResNet50 is the "v1.5" that torchvision ships: a bottleneck block's stride
sits in its 3x3 convolution.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from fedmt.backbones.base import Backbone
from fedmt.backbones.fused import ConvNorm, convolve, normalize
from fedmt.inputs import Input


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias (a BatchNorm follows) that keeps height and width at stride 1."""
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int) -> ConvNorm | None:
    """The 1x1 projection a block needs when its output is not shaped like its input."""
    if stride == 1 and inputs == outputs:
        return None
    return ConvNorm(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: [N, inputs, H, W] to [N, width, H/stride, W/stride]."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = normalize(self.bn1, self.conv1(x), self.relu)
        shortcut: Tensor = x if self.downsample is None else self.downsample(x)
        return normalize(self.bn2, self.conv2(out), self.relu, shortcut)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 and a shortcut: [N, inputs, H, W] to [N, 4 width, H/stride, W/stride]."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = _conv(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = normalize(self.bn1, self.conv1(x), self.relu)
        out = normalize(self.bn2, self.conv2(out), self.relu)
        shortcut: Tensor = x if self.downsample is None else self.downsample(x)
        return normalize(self.bn3, self.conv3(out), self.relu, shortcut)


class ResNet(nn.Module):
    """Images [N, channels, H, W] to logits [N, classes].

    depths: number of blocks in each of the four stages.
    max_pool: False leaves out the 3x3 pooling of the stem, which at 32x32 would leave too few pixels.
    small_stem: the first layer is 3x3 without stride instead of 7x7 with stride 2.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        classes: int,
        channels: int,
        max_pool: bool,
        small_stem: bool = False,
    ) -> None:
        super().__init__()
        self.conv1 = _conv(channels, 64, 3) if small_stem else _conv(channels, 64, 7, stride=2)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if max_pool else nn.Identity()
        self.layer1 = _stage(block, 64, 64, depths[0], stride=1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, depths[1], stride=2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, depths[2], stride=2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, depths[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512 * block.expansion, classes)
        for module in self.modules():
            # fan_out keeps the gradients' variance; BatchNorm and Linear start as torch's defaults.
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(normalize(self.bn1, convolve(self.conv1, x), self.relu))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


def _stage(
    block: type[BasicBlock] | type[Bottleneck], inputs: int, width: int, depth: int, stride: int
) -> nn.Sequential:
    """`depth` blocks; the first one changes the width and halves the image."""
    blocks = [block(inputs, width, stride)]
    blocks += [block(width * block.expansion, width, 1) for _ in range(depth - 1)]
    return nn.Sequential(*blocks)


def resnet18(classes: int, channels: int = 3, max_pool: bool = True) -> ResNet:
    """ResNet18; its head is `fc`. 11.23 M parameters at 100 classes."""
    return ResNet(BasicBlock, (2, 2, 2, 2), classes, channels, max_pool)


def resnet18_cifar(classes: int, channels: int = 3) -> ResNet:
    """ResNet18 as it is usually built for images of 32 pixels.

    Its stem keeps all pixels, so every later layer sees an image of twice the width and height, and a step
    takes several times as long. The paper's network at 32 pixels is `resnet18`.
    """
    return ResNet(BasicBlock, (2, 2, 2, 2), classes, channels, max_pool=False, small_stem=True)


def resnet50(classes: int, channels: int = 3, max_pool: bool = True) -> ResNet:
    """ResNet50 v1.5; its head is `fc`. 25.56 M parameters at 1000 classes."""
    return ResNet(Bottleneck, (3, 4, 6, 3), classes, channels, max_pool)


SKIP_MAX_POOL_BELOW = 64
"""Images smaller than this keep their resolution after the stem, as in the paper's 32x32 runs."""


def pools_by_default(input: Input) -> bool:
    """Whether the stem has its max-pool, if the config does not set it."""
    return min(input.shape[1:]) >= SKIP_MAX_POOL_BELOW


BACKBONES = {
    "resnet18": Backbone(resnet18, head="fc", pools=True),
    "resnet18_cifar": Backbone(resnet18_cifar, head="fc"),
    "resnet50": Backbone(resnet50, head="fc", pools=True),
}
