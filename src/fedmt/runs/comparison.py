"""Runs compared on their test predictions: the paired difference in every metric, and a verdict in words.

Runs can be compared if they were tested on the same samples: the label spaces and the test labels must be
identical. A label space that only one of them answers in is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmt.core.errors import FedmtError, listed
from fedmt.metrics import METRICS
from fedmt.metrics.comparing import Difference, Verdict, counted, differences, verdict
from fedmt.runs.evaluation import Evaluation, Predicted


@dataclass(frozen=True)
class Comparison:
    """Two sides, each with one run or several seeds of it. first, second: what they are called.

    wanted: the wanted label space. samples: the number of test samples by label space. differences: by label
    space and metric, the first side minus the second. noun: what one of the test samples is called.
    groups: the number of groups by label space, where test samples belong together.
    """

    first: str
    second: str
    wanted: str
    samples: Mapping[str, int]
    differences: Mapping[str, Mapping[str, Difference]]
    noun: str = "test sample"
    groups: Mapping[str, int] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """Judged on balanced accuracy in the wanted space."""
        found, space = self.differences[self.wanted], self.wanted
        return verdict(found, self.samples[space], self.first, self.second, self.noun, self.groups.get(space))

    def tested_on(self, space: str) -> str:
        """The test samples in a label space, in words."""
        return counted(self.samples[space], self.noun, self.groups.get(space))

    def __repr__(self) -> str:
        """The verdict, and every difference in words."""
        lines = [self.verdict.sentence]
        for space, metrics in self.differences.items():
            lines.append(f"{space}, {self.tested_on(space)}:")
            lines += [f"  {METRICS[name].title}: {found.words()}" for name, found in metrics.items()]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """differences: `{metric: {space: {"first", "second", "value", "low", "high"}}}`."""
        by_metric: dict[str, dict[str, Any]] = {}
        for space, metrics in self.differences.items():
            for name, found in metrics.items():
                numbers = {k: v for k, v in found.to_json().items() if k != "metric"}
                by_metric.setdefault(name, {})[space] = numbers
        judged = self.verdict
        return {
            "first": self.first,
            "second": self.second,
            "verdict": judged.word,
            "sentence": judged.sentence,
            "wanted": self.wanted,
            "samples": dict(self.samples),
            **({"groups": dict(self.groups)} if self.groups else {}),
            "differences": by_metric,
        }


def compare(
    first: Mapping[str, Evaluation],
    second: Mapping[str, Evaluation],
    names: tuple[str, str] | None = None,
    noun: str = "test sample",
    metrics: Sequence[str] | None = None,
    wanted_only: bool = False,
) -> Comparison:
    """first, second: the evaluations by the run's name; several are seeds of one method, which are averaged.

    names: what the sides are called; by default their runs. noun: what one of the test samples is called.
    metrics: by default all; a verdict needs balanced accuracy. wanted_only: only in the wanted space.
    """
    first_name, second_name = names or (" and ".join(first), " and ".join(second))
    everyone = [*first.items(), *second.items()]
    _refuse_others(everyone)
    wanted = everyone[0][1].wanted
    tested = [{t.space: t for t in evaluation.tests} for _, evaluation in everyone]
    shared = [space for space in tested[0] if all(space in tests for tests in tested)]
    shared = [wanted] if wanted_only else shared
    found, samples, together = {}, {}, {}
    for space in shared:
        labels = torch.from_numpy(tested[0][space].labels.astype(np.int64))
        sides = [probabilities(tests[space]) for tests in tested]
        # A run of an earlier version does not know which of the same samples belong together.
        groups = next((g for tests in tested if (g := tests[space].together) is not None), None)
        found[space] = differences(sides[: len(first)], sides[len(first) :], labels, metrics, groups)
        samples[space] = len(labels)
        if groups is not None:
            together[space] = int(groups.max()) + 1
    return Comparison(first_name, second_name, wanted, samples, found, noun, together)


def _refuse_others(everyone: Sequence[tuple[str, Evaluation]]) -> None:
    """Raises an error that says how two runs differ, if they were not tested on the same samples."""
    name, one = everyone[0]
    problems = []
    for other_name, other in everyone[1:]:
        found = _differing(one, other)
        if found:
            problems.append(f"{name} and {other_name} differ in {'; in '.join(found)}.")
    if problems:
        raise FedmtError(
            "These runs cannot be compared, because they were not tested on the same samples. "
            + " ".join(problems)
            + " Compare runs of the same federation, with the same [[tests]] and the same wanted space."
        )
    for run, evaluation in everyone:
        if evaluation.wanted not in {t.space for t in evaluation.tests}:
            raise FedmtError(
                f"{run} was not tested in the wanted label space '{evaluation.wanted}', so it cannot be "
                "compared. Add [[tests]] with labeled samples to its config, and run it again."
            )


def _differing(one: Evaluation, other: Evaluation) -> list[str]:
    """How two evaluations differ in what must be the same, each as a part of a sentence."""
    if one.wanted != other.wanted:
        return [f"the wanted label space ('{one.wanted}' and '{other.wanted}')"]
    found = []
    others = {t.space: t for t in other.tests}
    for space, classes in one.spaces.items():
        theirs = other.spaces.get(space)
        if theirs is not None and list(classes) != list(theirs):
            said = f"{len(classes)} ({listed(classes, 4)}) and {len(theirs)} ({listed(theirs, 4)})"
            found.append(f"the classes of '{space}': {said}")
    for test in one.tests:
        same = others.get(test.space)
        if same is None:
            continue
        if len(test.labels) != len(same.labels):
            sizes = f"{len(test.labels):,} and {len(same.labels):,}"
            found.append(f"the number of test samples in '{test.space}' ({sizes})")
        elif (test.labels != same.labels).any():
            count = int((test.labels != same.labels).sum())
            found.append(f"the test labels in '{test.space}' ({count:,} of {len(test.labels):,})")
    return found


def probabilities(test: Predicted) -> Tensor:
    """[N, J] in float32, with the most probable class that the model gave at full precision.

    Earlier versions kept probabilities as float16, which may make ties; the predicted class is then raised
    above the others by the smallest step that float32 knows.
    """
    found = torch.from_numpy(test.probabilities.astype(np.float32))
    predicted = torch.from_numpy(test.predicted.astype(np.int64))[:, None]
    highest = found.max(1, keepdim=True).values
    raised = torch.nextafter(highest, torch.full_like(highest, torch.inf))
    own = found.gather(1, predicted)
    return found.scatter(1, predicted, torch.where(found.argmax(1, keepdim=True) == predicted, own, raised))
