"""Networks for vectors: a linear one, and one with two hidden layers."""

from __future__ import annotations

from torch import Tensor, nn

from fedmt.backbones.base import Backbone

WIDTH = 256
"""Of a hidden layer."""


class Linear(nn.Module):
    """One linear layer: [B, features] to logits [B, classes]. Softmax regression."""

    def __init__(self, classes: int, features: int) -> None:
        super().__init__()
        self.fc = nn.Linear(features, classes)

    def forward(self, vectors: Tensor) -> Tensor:
        logits: Tensor = self.fc(vectors)
        return logits


class MLP(nn.Module):
    """Two hidden layers of 256 with batch normalization and ReLU: [B, features] to logits [B, classes]."""

    def __init__(self, classes: int, features: int) -> None:
        super().__init__()
        self.features = nn.Sequential(_layer(features, WIDTH), _layer(WIDTH, WIDTH))
        self.fc = nn.Linear(WIDTH, classes)

    def forward(self, vectors: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.features(vectors))
        return logits


def _layer(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), nn.ReLU(inplace=True)
    )


BACKBONES = {
    "linear": Backbone(Linear, head="fc", input="vectors"),
    "mlp": Backbone(MLP, head="fc", input="vectors"),
}
