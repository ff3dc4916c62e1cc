"""Draws docs/figures/theory.png: the measured error against the paper's bound, in the example world.

python scripts/theory_figure.py
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean

from fedmt.theory import example_world, plot_simulation, simulate

OUT = Path(__file__).parent.parent / "docs" / "figures" / "theory.png"
SIZES = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)


def main() -> None:
    rows = simulate(example_world(), n=50, sizes=SIZES, seeds=range(20))
    OUT.parent.mkdir(parents=True, exist_ok=True)
    plot_simulation(rows).savefig(OUT, dpi=150)
    print(OUT)
    for m in SIZES:
        here = [row for row in rows if row.m == m]
        held = sum(
            row.error <= min(row.bound, row.bound_simplex)
            and row.error_estimated <= row.bound_estimated
            and row.coarse_error <= row.coarse_bound
            for row in here
        )
        error, bound = mean(row.error for row in here), mean(row.bound for row in here)
        print(
            f"m = {m}: error {error:.4f}, bound {bound:.4f} ({bound / error:.1f} times), "
            f"all bounds held in {held} of {len(here)}"
        )


if __name__ == "__main__":
    main()
