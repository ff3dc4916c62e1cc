"""What a method passes to an engine: the work of a center in a round, and how a model answers in a space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

Tensors = Mapping[str, Tensor]

ViewFunction = Callable[[Tensor, Tensors], Tensor]
"""Takes (stored samples [S, ...] of S steps, the inputs of these steps) and returns views [S, V, ...], as a
network sees them.

Views of many steps are made at once, because many small operations cost more than a few large ones.
"""

LossFunction = Callable[[Tensor, Tensors, Tensors], dict[str, Tensor]]
"""Takes (logits [V, K] of one step's views, the step's inputs, the round's tables) and returns named scalars.

'loss' is minimized. The others are only recorded.
"""


@dataclass(frozen=True, eq=False)
class LocalWork:
    """The steps of one center in one round.

    steps: tensors whose first dimension is the step; 'index' [S, ...] says which samples to gather.
    tables: tensors that stay the same for the whole round.
    space: the label space whose head answers, if a model has several; None is the wanted one.
    trainable: the center's own tensors that are trained with the model. The loss finds them in `tables`.
    samplewise: names of the tables that have a row for each of the center's samples and are only used for
        lookups. An engine may pass longer ones to the loss.
    sizes: int64 [S'], if the work is private. An entry of `steps` is then a single record, of which `index`
        holds only copies, and `sizes` states how many of them make up each of S' steps.
    """

    views: ViewFunction
    loss: LossFunction
    steps: Tensors
    tables: Tensors
    learning_rate: float
    space: str | None = None
    trainable: Tensors = field(default_factory=dict)
    samplewise: tuple[str, ...] = ()
    sizes: Tensor | None = None

    def __len__(self) -> int:
        return len(self.steps["index"])


@dataclass(frozen=True, eq=False)
class CenterRound:
    """What a center found out and will do in one round.

    work: None if the center abstains; `reason` then says why.
    keep: what the center remembers from this round (M-hat), to be handed to it again in the next.
    pseudo_labels, confident: int64 and bool [N], to be evaluated if a benchmark knows the truth.
    facts: further numbers for the record.
    """

    work: LocalWork | None
    keep: Tensors = field(default_factory=dict)
    pseudo_labels: Tensor | None = None
    confident: Tensor | None = None
    facts: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Answer:
    """One way to predict in a label space other than the wanted one: whose model, and through which matrix.

    of: the 'reference' center's model (the one that predicts in the wanted space), the 'shared' model that
        the centers made together, or the model of one 'center'; the last two with their head for the space.
        matrix: [J, K], if the model's answer is in the wanted space.
    """

    of: Literal["reference", "shared", "center"] = "reference"
    center: str = ""
    matrix: Tensor | None = None


def shifted(logits: Tensor, tables: Tensors) -> Tensor:
    """The logits [V, K] for the prior of the place that the samples come from, if it is not uniform."""
    return logits + tables["log_prior"] if "log_prior" in tables else logits
