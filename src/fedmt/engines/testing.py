"""What a model answers in every label space that has a test set, and how good the answers are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedmt.data.center import Center, Federation
from fedmt.data.groups import together
from fedmt.methods.work import Answer
from fedmt.metrics import HEADLINE
from fedmt.metrics.measuring import Answers, values

Scores = Callable[[Tensor, str, Sequence[Answer]], list[Tensor]]
"""Takes (stored samples, a label space's name, answers in it) and returns each answer's scores [N, J]."""


@dataclass(frozen=True, eq=False)
class Tested:
    """The answers to one test set, each with probabilities [N, J].

    each: in the wanted space, the answer of the reference center's model. In another space, one answer per
    center, through its own matrix or with its own head. mean_matrix: the answer through the mean of the
    matrices, if there are any.
    """

    test: Center
    space: str
    labels: Tensor
    each: Sequence[Tensor]
    mean_matrix: Tensor | None = None

    @property
    def probabilities(self) -> Tensor:
        """The one answer [N, J] that the model gives: the mean of all answers. With matrices, it is the
        answer through the mean matrix."""
        return torch.stack(list(self.each)).mean(0)


@dataclass(frozen=True, eq=False)
class Pooled:
    """All test sets of one label space as one."""

    space: str
    tests: Sequence[Tested]

    @property
    def answers(self) -> Answers:
        each = [torch.cat(parts) for parts in zip(*(t.each for t in self.tests), strict=True)]
        return Answers(each, self.labels, self.groups)

    @property
    def mean_matrix(self) -> Answers | None:
        parts = [t.mean_matrix for t in self.tests if t.mean_matrix is not None]
        return Answers([torch.cat(parts)], self.labels, self.groups) if parts else None

    @property
    def probabilities(self) -> Tensor:
        return torch.cat([t.probabilities for t in self.tests])

    @property
    def labels(self) -> Tensor:
        return torch.cat([t.labels for t in self.tests])

    @property
    def groups(self) -> Tensor | None:
        """Which samples belong together, int64 [N] from 0 on; None if no two do."""
        return together([(len(t.test), t.test.groups) for t in self.tests])


def answered(federation: Federation, answers: Mapping[str, Sequence[Answer]], scores: Scores) -> list[Tested]:
    """The test sets that somebody can predict, with the predictions."""
    found = []
    for test in federation.tests:
        if test.space is None or test.labels is None:
            continue
        own, space = test.space == federation.wanted, test.space.name
        ways: Sequence[Answer] = [Answer()] if own else answers.get(space, [])
        if not ways:
            continue
        each = scores(test.values, space, ways)
        matrices = [a.matrix for a in ways if a.matrix is not None]
        mean = None
        if matrices:
            mean = scores(test.values, space, [Answer(matrix=torch.stack(matrices).mean(0))])[0]
        found.append(Tested(test, space, test.labels, each, mean))
    return found


def pooled(tests: Sequence[Tested]) -> list[Pooled]:
    """By label space, in the order of the test sets."""
    spaces = dict.fromkeys(t.space for t in tests)
    return [Pooled(space, [t for t in tests if t.space == space]) for space in spaces]


def measured(tests: Sequence[Tested], last: bool) -> dict[str, Any]:
    """A round's metrics in the form of its record. last: whether it is the last round, which has all metrics.

    `{metric: {space: value}}`, with several test sets of a space combined; `mean_matrix`, the same for the
    answer through the mean matrix; and `tests`, `{test: {metric: value}}`, if a space has several.
    """
    asked: dict[tuple[str, str], Answers] = {}
    for part in pooled(tests):
        asked["pooled", part.space] = part.answers
        if part.mean_matrix is not None:
            asked["mean_matrix", part.space] = part.mean_matrix
        if len(part.tests) > 1:
            asked |= {("tests", t.test.name): Answers(t.each, t.labels) for t in part.tests}
    record: dict[str, Any] = {HEADLINE: {}}
    for (kind, name), found in values(asked, last).items():
        if kind == "tests":
            record.setdefault("tests", {})[name] = found
            continue
        place = record if kind == "pooled" else record.setdefault("mean_matrix", {})
        for metric, value in found.items():
            place.setdefault(metric, {})[name] = value
    return record
