"""Networks for vectors: a linear one, and one with two hidden layers."""

from __future__ import annotations

from torch import Tensor, nn

from fedmt.backbones.base import Backbone
from fedmt.backbones.dropout import Dropout

WIDTH = 256
"""Width of a hidden layer."""

DROPPED = 0.1
"""Share of the features that dropout leaves out after each hidden layer."""


class Linear(nn.Module):
    """One linear layer: [B, features] to logits [B, classes]. Softmax regression."""

    def __init__(self, classes: int, features: int) -> None:
        super().__init__()
        self.fc = nn.Linear(features, classes)

    def forward(self, vectors: Tensor) -> Tensor:
        logits: Tensor = self.fc(vectors)
        return logits


class MLP(nn.Module):
    """Two hidden layers of 256 with batch normalization, ReLU and dropout.

    Input [B, features], output logits [B, classes].
    """

    def __init__(self, classes: int, features: int) -> None:
        super().__init__()
        self.features = nn.Sequential(_layer(features, WIDTH), _layer(WIDTH, WIDTH))
        self.fc = nn.Linear(WIDTH, classes)

    def forward(self, vectors: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.features(vectors))
        return logits


def _layer(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), nn.ReLU(), Dropout(DROPPED)
    )


BACKBONES = {
    "linear": Backbone(Linear, head="fc", input="vectors"),
    "mlp": Backbone(MLP, head="fc", input="vectors"),
}
