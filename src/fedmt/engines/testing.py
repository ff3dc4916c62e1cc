"""Accuracy and predictions in every label space that has a test set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from fedmt.data.center import Center, Federation
from fedmt.methods.base import Answer

Scores = Callable[[Tensor, str, Sequence[Answer]], list[Tensor]]
"""(stored samples, a label space's name, answers in it) to each answer's scores [N, J]."""


def accuracies(
    federation: Federation, answers: Mapping[str, Sequence[Answer]], scores: Scores
) -> dict[str, float]:
    """By label space. In the wanted one, the reference center's model answers.

    In another the mean over its answers (each center through its own matrix, or by its own head); and where
    they go through matrices, under '<space> (mean M)', through the mean of these.
    """
    counted: dict[str, tuple[float, int]] = {}

    def count(space: str, accuracy: float, samples: int) -> None:
        """Several test sets in one space count as one."""
        right, total = counted.get(space, (0.0, 0))
        counted[space] = (right + accuracy * samples, total + samples)

    for test, space, labels, ways in _answered(federation, answers):
        each = [_accuracy(s, labels) for s in scores(test.values, space, ways)]
        count(space, sum(each) / len(each), len(test))
        matrices = [a.matrix for a in ways if a.matrix is not None]
        if matrices:
            mean = Answer(matrix=torch.stack(matrices).mean(0))
            count(f"{space} (mean M)", _accuracy(scores(test.values, space, [mean])[0], labels), len(test))
    return {space: right / total for space, (right, total) in counted.items()}


def predictions(
    federation: Federation, answers: Mapping[str, Sequence[Answer]], scores: Scores
) -> list[tuple[Center, Tensor]]:
    """Each test set with the probabilities [N, J] in its space: where there are several answers, their mean.

    Through matrices that is the answer by the mean matrix.
    """
    found = []
    for test, space, _, ways in _answered(federation, answers):
        found.append((test, torch.stack(scores(test.values, space, ways)).mean(0)))
    return found


def _answered(
    federation: Federation, answers: Mapping[str, Sequence[Answer]]
) -> Iterator[tuple[Center, str, Tensor, Sequence[Answer]]]:
    """The test sets that somebody can predict: with the space's name, the labels, and who does."""
    for test in federation.tests:
        if test.space is None or test.labels is None:
            continue
        own = test.space == federation.wanted
        ways: Sequence[Answer] = [Answer()] if own else answers.get(test.space.name, [])
        if ways:
            yield test, test.space.name, test.labels, ways


def _accuracy(scores: Tensor, labels: Tensor) -> float:
    return (scores.argmax(1) == labels).float().mean().item()
