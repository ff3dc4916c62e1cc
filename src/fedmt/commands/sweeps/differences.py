"""Paired differences between the columns of an experiment: the same test samples, seed by seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fedmt.commands.sweeps.expansion import Cell, Run
from fedmt.commands.sweeps.figures import spelled_out
from fedmt.commands.sweeps.results import Results
from fedmt.metrics import METRICS
from fedmt.metrics.comparing import Difference, differences, mean_difference
from fedmt.metrics.evidence import Compared
from fedmt.runs.comparison import probabilities
from fedmt.runs.evaluation import Evaluation, Predicted, read_evaluation
from fedmt.runs.folder import RunFolder


def all_differences(results: Results) -> dict[tuple[str, str, str], Difference]:
    """The differences of every finished cell from the baseline's column in its row, by row, column and
    metric."""
    base = results.experiment.file.baseline
    bases = {cell.row: cell for cell in results.cells if cell.column == base}
    return {
        (cell.row, cell.column, metric): found
        for cell in results.cells
        if cell.row in bases and cell.column != base
        for metric in results.experiment.file.show
        if cell.runs and _in_the_wanted_space(metric, cell.runs[0])
        if (found := paired_difference(cell, bases[cell.row], metric, results.runs_folder)) is not None
    }


def _in_the_wanted_space(metric: str, run: Run) -> bool:
    """Whether a metric can be compared. In another space, a table shows the mean over the answers of several
    centers, while a file keeps their mean probabilities. The difference of the latter would not match the
    figures in the table."""
    return spelled_out(metric, run.config) == spelled_out(metric.partition(".")[0], run.config)


def paired_difference(cell: Cell, base: Cell, metric: str, folder: Path) -> Difference | None:
    """The mean over seeds of one metric's difference, with its 95% interval; None if no pair is finished.

    cell, base: two columns of one row. folder: where their runs are.
    """
    pairs = [
        (found, other)
        for run, twin in zip(cell.runs, base.runs, strict=False)
        if (found := _predicted(run, metric, folder)) and (other := _predicted(twin, metric, folder))
    ]
    name = metric.partition(".")[0]
    if not pairs or name not in METRICS:
        return None
    first = pairs[0][0].labels
    if all(np.array_equal(test.labels, first) for pair in pairs for test in pair):
        # The test samples seem not to depend on the seed, so each is resampled together with everything
        # predicted for it.
        sides = [[probabilities(test) for test in side] for side in zip(*pairs, strict=True)]
        groups = pairs[0][0].together
        return differences(sides[0], sides[1], _labels(pairs[0][0]), [name], groups).get(name)
    # A run does not keep which samples it was tested on, so the seeds' samples count as different ones
    # (docs/reference/metrics.md).
    tests = [
        Compared([probabilities(one)], [probabilities(other)], _labels(one), one.together)
        for one, other in pairs
        if np.array_equal(one.labels, other.labels)
    ]
    return mean_difference(tests, name)


def _predicted(run: Run, metric: str, folder: Path) -> Predicted | None:
    """The predictions of a finished run's last model on the test samples, in the space of a metric."""
    evaluation: Evaluation | None = read_evaluation(RunFolder(folder / run.key).evaluation_file)
    space = spelled_out(metric, run.config).partition(".")[2]
    tests = evaluation.tests if evaluation is not None else ()
    return next((test for test in tests if test.space == space), None)


def _labels(test: Predicted) -> torch.Tensor:
    return torch.from_numpy(test.labels.astype(np.int64))
