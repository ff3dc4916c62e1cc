"""MobileNetV2 (Sandler et al., 2018), with torchvision's parameter and buffer names.

A network for centers with little compute: 3.5 M parameters at 1000 classes. The module nesting
(`features.N.conv.M...`) looks arbitrary but is the contract: torchvision's state dicts fit it.
"""

from __future__ import annotations

from torch import Tensor, nn

from fedmt.backbones.base import Backbone
from fedmt.backbones.dropout import Dropout
from fedmt.backbones.fused import ConvNorm, convolve, normalize

# The paper's table 2: expansion, output channels, number of blocks, stride of the first block.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
FEATURES = 1280


def _conv_norm(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> ConvNorm:
    """Convolution, BatchNorm, ReLU6 as children 0, 1 and 2."""
    return ConvNorm(
        nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(inplace=True),
    )


class _Layers(nn.Sequential):
    """The layers of a block. The last two narrow it, and a residual is added to what they give."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        *filters, narrow, norm = self
        for layer in filters:
            x = layer(x)
        return normalize(norm, convolve(narrow, x), residual=residual)


class InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow: [N, inputs, H, W] to [N, outputs, H/stride, W/stride]."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        layers: list[nn.Module] = [] if expansion == 1 else [_conv_norm(inputs, hidden, 1)]
        layers += [
            _conv_norm(hidden, hidden, 3, stride, groups=hidden),
            # No activation after the narrowing: it would lose information there (the paper, section 3.2).
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        ]
        self.conv = _Layers(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x, x if self.residual else None)
        return out


class MobileNetV2(nn.Module):
    """Images [N, channels, H, W] to logits [N, classes]."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [_conv_norm(channels, 32, 3, stride=2)]
        inputs = 32
        for expansion, outputs, blocks, stride in STAGES:
            for block in range(blocks):
                layers.append(InvertedResidual(inputs, outputs, stride if block == 0 else 1, expansion))
                inputs = outputs
        layers.append(_conv_norm(inputs, FEATURES, 1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(Dropout(0.2), nn.Linear(FEATURES, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0.0, 0.01)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return logits


def mobilenet_v2(classes: int, channels: int = 3) -> MobileNetV2:
    """MobileNetV2 at width 1; its head is `classifier.1`."""
    return MobileNetV2(classes, channels)


BACKBONES = {"mobilenet_v2": Backbone(mobilenet_v2, head="classifier.1")}
