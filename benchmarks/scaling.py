"""Does a round take longer, or more memory, if the same samples are spread over more centers?

In all, 40,000 samples are spread over 10, 20, 40, 80 and 160 centers, with local batch 50. Everything else is
as in `gpu_round.py`. Goals: at most 1.5 times the time of 10 centers, and constant peak memory.

    python benchmarks/scaling.py [--json FILE]

Measured 2026-11-15 on one NVIDIA H200, Python 3.12.3, torch 2.11.0 (CUDA 13.0), `--rounds 1`. Peak is the
memory that torch had reserved:

    centers    seconds per round    x 10 centers    peak GB
         10               4.53            1.00        8.1
         20               4.57            1.01        9.1
         40               4.72            1.04       10.7
         80               4.89            1.08       10.2
        160               5.54            1.22       10.3     (10 centers took 4.54 s in that run)

The time is within the goal. Memory is constant from 40 centers on, but not from 10. See
docs/development/performance-diary.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import time
from pathlib import Path

import torch
from random_federation import engine, random_federation


def measure(centers: int, rounds: int, batch: int) -> tuple[float, float, dict[str, float]]:
    """Seconds per round, peak gigabytes allocated, and seconds by phase."""
    gc.collect()
    torch.cuda.empty_cache()
    federation = random_federation(centers, 40_000 // centers)
    running = engine(federation, batch, graphs=True)
    state, _ = running.start()
    state, _ = running.round(state)
    torch.cuda.reset_peak_memory_stats()
    times, record = [], {}
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        state, record = running.round(state)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times), torch.cuda.max_memory_reserved() / 1e9, record["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--centers", type=int, nargs="+", default=[10, 20, 40, 80, 160])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {platform.python_version()}")
    first, results = None, {}
    for centers in options.centers:
        seconds, memory, phases = measure(centers, options.rounds, options.batch)
        first = first or seconds
        print(
            f"{centers:4} centers: {seconds:.2f} s per round ({seconds / first:.2f} x), "
            f"peak {memory:.1f} GB; " + ", ".join(f"{k} {v:.3f}" for k, v in phases.items()),
            flush=True,
        )
        results[centers] = {"seconds": seconds, "memory": memory, "phases": phases}
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
