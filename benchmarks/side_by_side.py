"""Do several runs at once use a GPU better than one run after another?

Each process runs whole FedMT rounds (10 centers x 4000 samples, 2 local epochs, otherwise as `gpu_round.py`),
with 1, 2 and 4 processes at a time. The figure is the total number of images per second. Measure it once
without and once with NVIDIA's multi-process service, which lets the kernels of several processes run at the
same time (start it with `nvidia-cuda-mps-control -d`, and end it with `echo quit | nvidia-cuda-mps-control`).

    python benchmarks/side_by_side.py [--processes 1 2 4] [--batch 50]

Measured 2026-11-16 on one NVIDIA H200, Python 3.12.3, torch 2.11.0, with the multi-process service
(`--processes 1 2 3`): 126,501, 124,140 and 123,016 images per second. So several runs gain nothing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from typing import Any

from random_federation import engine, images_a_round, random_federation

EPOCHS = 2


def work(rank: int, counts: list[int], batch: int, barrier: Any, queue: Any) -> None:
    federation = random_federation()
    running = engine(federation, batch, graphs=True, epochs=EPOCHS, seed=rank)
    state, _ = running.start()
    state, _ = running.round(state)
    for count in counts:
        barrier.wait()
        if rank < count:
            begin = time.time()
            state, _ = running.round(state)
            queue.put((count, begin, time.time(), images_a_round(federation, batch, EPOCHS)))
        barrier.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--batch", type=int, default=50)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    most = max(options.processes)
    barrier, queue = context.Barrier(most), context.Queue()
    arguments = (options.processes, options.batch, barrier, queue)
    children = [context.Process(target=work, args=(rank, *arguments)) for rank in range(most)]
    for child in children:
        child.start()
    alone = None
    for count in options.processes:
        found = [queue.get(timeout=300) for _ in range(count)]
        seconds = max(f[2] for f in found) - min(f[1] for f in found)
        rate = sum(f[3] for f in found) / seconds
        alone = alone or rate
        print(f"{count} at once: {rate:,.0f} images/s together ({rate / alone:.2f} x one)", flush=True)
    for child in children:
        child.join()


if __name__ == "__main__":
    main()
