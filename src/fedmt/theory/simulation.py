"""A small world in which every term of the bounds is exact, a classifier fitted in it, and the comparison."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedmt.core.errors import FedmtError
from fedmt.core.labels import project
from fedmt.theory.bounds import (
    bound_estimated,
    bound_known,
    coarse_bound,
    distributions,
    empirical_loss,
    inverse_correspondence,
    sample_sizes,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class World:
    """A joint distribution of finitely many features and both labels: x ~ features, y ~ f(x), y~ ~ M[:, y].

    features: P(x), [V]; fine: f, [V, K]; matrix: M, [J, K]. The label depends on x through y alone, so
    f~ = M f always. f = S f~ need not hold: `gap` says by how much it fails.
    """

    features: Tensor
    fine: Tensor
    matrix: Tensor

    def __post_init__(self) -> None:
        for name, dims, dim in (("features", 1, 0), ("fine", 2, 1), ("matrix", 2, 0)):
            object.__setattr__(self, name, distributions(name, getattr(self, name), dims, dim=dim))
        if self.fine.shape != (len(self.features), self.matrix.shape[1]):
            raise FedmtError(
                f"fine: {tuple(self.fine.shape)}, expected {(len(self.features), self.matrix.shape[1])}."
            )

    @property
    def coarse(self) -> Tensor:
        """f~ = M f, [V, J]."""
        return project(self.fine, self.matrix)

    @property
    def inverse(self) -> Tensor:
        """S, [K, J], with this world's prior P(y)."""
        return inverse_correspondence(self.matrix, self.features @ self.fine)

    @property
    def gap(self) -> float:
        """`max_x ||f(x) - S f~(x)||_2`: 0 where the paper's second assumption holds."""
        return float((self.fine - project(self.coarse, self.inverse)).norm(dim=1).max())

    def error(self, g: Tensor) -> float:
        """`E ||g(x) - f(x)||_2`, exactly, of a table g [V, K]."""
        return float(self.features @ (g - self.fine).norm(dim=1))

    def coarse_error(self, g: Tensor) -> float:
        """`E ||M g(x) - f~(x)||_2`, exactly, of a table g [V, K]."""
        return float(self.features @ (project(g, self.matrix) - self.coarse).norm(dim=1))


def example_world() -> World:
    """K = 6, J = 5, six features; f = S f~ and f~ = M f both hold exactly.

    Together they give f = S M f, so f(x) is a mixture of P(y | block) over the blocks into which M falls
    apart, here classes {0, 1}, {2, 3}, {4, 5}: x reveals nothing about y except its block.
    """
    block = _table(
        [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.5, 0.4, 0.1], [0.1, 0.5, 0.4], [0.4, 0.1, 0.5]]
    )
    within = torch.block_diag(_table([[0.6, 0.4]]), _table([[0.5, 0.5]]), _table([[0.7, 0.3]]))
    matrix = torch.block_diag(
        _table([[0.8, 0.3], [0.2, 0.7]]), _table([[1.0, 1.0]]), _table([[0.9, 0.4], [0.1, 0.6]])
    )
    return World(_table([[3, 2, 1, 3, 2, 1]])[0] / 12, block @ within, matrix)


@dataclass(frozen=True)
class Row:
    """The results of one draw: errors E ||g - f||_2 (exact), empirical losses and bounds, with S known and
    with S-hat.

    constant: the C of `bound_estimated`. bound_simplex: `bound_known` with the diameter sqrt(2).
    inverse_error: ||S-hat - S||_2. coarse_error, coarse_bound: E ||M g - f~||_2 and sqrt(K) E ||g - f||_2,
    S known.
    """

    n: int
    m: int
    seed: int
    constant: float
    error: float
    empirical: float
    bound: float
    bound_simplex: float
    error_estimated: float
    empirical_estimated: float
    bound_estimated: float
    inverse_error: float
    coarse_error: float
    coarse_bound: float


def simulate(
    world: World, n: int, sizes: Sequence[int], seeds: Sequence[int] = range(10), constant: float = 5.0
) -> list[Row]:
    """A row for each m of `sizes` and each seed: draw, fit, measure, bound.

    The fit counts through S, a label y~ as the distribution S[:, y~] of its wanted class:

        g(x) = (sum over y_i at x of e_{y_i} + sum over y~_i at x of S e_{y~_i}) / number of samples at x

    (uniform where there is none): least squares, and without bias where f = S f~. S-hat is counted from the
    pairs (y, y~) of the m samples, as the paper's lemma has it. The empirical loss is taken over n and m
    fresh draws of x, since the bound needs a g that does not depend on them.

    constant: 5 is measured, not derived: in 500 draws of the example world (m from 10 to 10,000),
    ||S-hat - S||_2 stayed below 4.8 sqrt(log m / m). Another world has another.
    """
    return [_row(world, n, m, seed, constant) for m in sizes for seed in seeds]


def _row(world: World, n: int, m: int, seed: int, constant: float) -> Row:
    n, m = sample_sizes(n, m)
    wanted, generator = world.matrix.shape[1], torch.Generator().manual_seed(seed)
    reference, center = _draw(world, n, generator), _draw(world, m, generator)
    fresh_s, fresh_c = _draw(world, n, generator)[0], _draw(world, m, generator)[0]
    # A label that was never seen is never used in the fit. The uniform column keeps S-hat a valid table.
    inverse_hat = _shares(_count_pairs(center[2], center[1], world.matrix.shape)).T
    found = []
    for inverse in (world.inverse, inverse_hat):
        votes = _count_pairs(reference[0], reference[1], world.fine.shape)
        g = _shares(votes.index_add(0, center[0], inverse.T[center[2]]))
        loss = empirical_loss(g[fresh_s], world.fine[fresh_s], g[fresh_c], world.coarse[fresh_c], inverse)
        found.append((g, world.error(g), loss))
    (g, error, loss), (_, error_hat, loss_hat) = found
    return Row(
        n=n,
        m=m,
        seed=seed,
        constant=constant,
        error=error,
        empirical=loss,
        bound=bound_known(loss, n, m, wanted),
        bound_simplex=bound_known(loss, n, m, wanted, diameter=math.sqrt(2)),
        error_estimated=error_hat,
        empirical_estimated=loss_hat,
        bound_estimated=bound_estimated(loss_hat, n, m, wanted, constant),
        inverse_error=float(torch.linalg.matrix_norm(inverse_hat - world.inverse, 2)),
        coarse_error=world.coarse_error(g),
        coarse_bound=coarse_bound(error, classes=wanted),
    )


def plot_simulation(rows: Sequence[Row]) -> Figure:
    """The measured errors and the bounds against m, log-log; lines: means over seeds, bands: all of them."""
    from matplotlib.figure import Figure

    if not rows:
        raise FedmtError("rows: none to draw; `simulate` makes them.")
    sizes = sorted({row.m for row in rows})
    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    # Okabe and Ito's colors. The line styles distinguish the curves without them.
    curves = (
        (left, "bound_estimated", rf"bound, $M$ estimated ($C = {rows[0].constant:g}$)", "#CC79A7", ":"),
        (left, "bound", r"bound, $M$ known ($\sqrt{K}$, as printed)", "#D55E00", "-"),
        (left, "bound_simplex", r"bound, $M$ known ($\sqrt{2}$, the simplex)", "#E69F00", "-."),
        (left, "error_estimated", r"measured, $M$ estimated", "#009E73", "--"),
        (left, "error", r"measured, $M$ known", "#0072B2", "-"),
        (right, "coarse_bound", r"bound: $\sqrt{K}$ times the measured error on the left", "#D55E00", "-"),
        (right, "coarse_error", "measured", "#0072B2", "-"),
    )
    for axes, name, label, color, style in curves:
        groups = [[getattr(row, name) for row in rows if row.m == m] for m in sizes]
        means, low, high = ([pick(g) for g in groups] for pick in (statistics.mean, min, max))
        axes.plot(sizes, means, style, color=color, label=label, marker="o", markersize=3)
        axes.fill_between(sizes, low, high, color=color, alpha=0.15, linewidth=0)
    for axes, title in (
        (left, r"Wanted space: $E\,\|g - f\|_2$"),
        (right, r"Center's space: $E\,\|Mg - \tilde f\|_2$"),
    ):
        axes.set(xscale="log", yscale="log", xlabel="m, samples labeled in the center's space", title=title)
        axes.legend(fontsize=8, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    left.set_ylabel(f"error; n = {', '.join(map(str, sorted({row.n for row in rows})))}")
    return figure


def _draw(world: World, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """x, y and y~ of `count` samples, int64 each."""
    joint = world.features[:, None, None] * world.fine[:, :, None] * world.matrix.T
    if not count:
        none = torch.zeros(0, dtype=torch.int64)
        return none, none, none
    cell = torch.multinomial(joint.flatten(), count, replacement=True, generator=generator)
    x, y, label = torch.unravel_index(cell, joint.shape)
    return x, y, label


def _count_pairs(rows: Tensor, columns: Tensor, shape: Sequence[int]) -> Tensor:
    """How often each (row, column) pair occurs in the two lists, float64 [rows, columns]."""
    cells = torch.bincount(rows * shape[1] + columns, minlength=shape[0] * shape[1])
    return cells.view(shape[0], shape[1]).double()


def _shares(mass: Tensor) -> Tensor:
    """Rows of non-negative mass divided by their sums. Empty rows become uniform."""
    total = mass.sum(1, keepdim=True)
    return torch.where(total > 0, mass / torch.where(total > 0, total, 1.0), 1 / mass.shape[1])


def _table(values: list[list[float]]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
