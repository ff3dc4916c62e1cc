"""How many seconds does a run take to first reach a given accuracy on the test images?

    python benchmarks/time_to_accuracy.py experiments/base/cifar100.toml --reach 66.7 \\
        --set method.prior=uniform

The clock starts with this process and includes imports, data, captures, every round and every test. The run
continues to its end, so that the accuracy of the last round is known too. The time is read from the test
curve, but no setting is tuned on it.
"""

from __future__ import annotations

import time

BEGIN = time.perf_counter()

import argparse
import json
import tempfile
from pathlib import Path

from fedmt.config import load_config
from fedmt.engines.site import Record
from fedmt.training.run import Silent, run


class Stopwatch(Silent):
    """Remembers when the accuracy in the wanted space first reached `reach`, and prints every round."""

    def __init__(self, space: str | None, reach: float) -> None:
        self.space, self.reach = space, reach
        self.reached: tuple[float, int] | None = None

    def round(self, record: Record) -> None:
        seconds = time.perf_counter() - BEGIN
        accuracy = record["accuracy"][self.space or next(iter(record["accuracy"]))]
        print(f"{seconds:7.1f} s  round {record['round']:3d}  {100 * accuracy:.2f}%", flush=True)
        if self.reached is None and accuracy >= self.reach:
            self.reached = seconds, record["round"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the seconds from start-up to an accuracy.")
    parser.add_argument("config", type=Path)
    parser.add_argument("--reach", type=float, required=True, help="accuracy in percent")
    parser.add_argument("--space", help="label space (default: the wanted one)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, help="run folder (default: a temporary one)")
    options = parser.parse_args()
    watch = Stopwatch(options.space, options.reach / 100)
    with tempfile.TemporaryDirectory() as folder:
        # No checkpoint in each round: only a run that may be killed needs them.
        config = load_config(options.config, ["checkpoint_every=1000", *options.set])
        summary = run(config, options.out or Path(folder) / "run", observer=watch)
    seconds, round = watch.reached or (None, None)
    found = {"reach": options.reach, "seconds": seconds, "round": round, "end": time.perf_counter() - BEGIN}
    print(json.dumps({**found, "last": summary["accuracy"], "device": summary["device"]}))


if __name__ == "__main__":
    main()
