"""What does each center cost, apart from its samples? Compares 1,000 centers of 40 samples with 10 of 4,000.

Both use 40,000 samples, ResNet18 at 32 x 32, the default views, a batch of 50 and one local epoch. A round
has 1,000 steps with 1,000 centers and 800 steps with 10. The extra time of the round with 1,000 centers is
what each center costs besides its steps: a plan, initial weights, and an update to be measured and averaged.
Memory is the peak that torch has allocated and, for the host, the peak resident memory of the process.

    python benchmarks/many_centers.py [--json FILE]          on a GPU, about a minute
    python benchmarks/many_centers.py --held-share 0.05      updates beyond 5% of free memory leave the GPU
    python benchmarks/many_centers.py --tiny [--profile]     on a CPU: 4 centers of 100 against 40 of 10

Measured 2026-11-16 on one NVIDIA H200, Python 3.12.3, torch 2.11.0: 12.05 s per round and 49.4 GB on the
device with 1,000 centers, 0.93 s and 3.7 GB with 10, or 11.2 ms per additional center. Of the 12.05 s, plans
and pseudo-labels take 3.5, averaging 3.1, training 2.8, statistics 1.4 and the test 0.7.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import platform
import pstats
import resource
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from random_federation import random_federation

from fedmt.aggregation import shelf
from fedmt.backbones import Classifier
from fedmt.backbones.resnet import resnet18
from fedmt.backbones.small_cnn import SmallCNN
from fedmt.data.center import Federation
from fedmt.engines.local import LocalEngine
from fedmt.inputs.images import per_channel
from fedmt.methods import FedMT, Training

warnings.simplefilter("error")  # a benchmark that falls back to the step-by-step engine measures nothing


def engine(federation: Federation, device: torch.device, tiny: bool) -> LocalEngine:
    training = Training(
        local_epochs=1, batch_size=10 if tiny else 50, reference_epochs=1, warmup_epochs=0, learning_rate=0.03
    )
    torch.manual_seed(0)
    network = SmallCNN(100, 3) if tiny else resnet18(100, 3, max_pool=False)
    model = Classifier(network, per_channel([0.5] * 3), per_channel([0.25] * 3))
    return LocalEngine(federation, FedMT(training, xi=0.0), model, 0, device, graphs=True)


def measure(centers: int, samples: int, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    gc.collect()
    federation = random_federation(centers, samples, 500 if options.tiny else 10_000)
    running = engine(federation, device, options.tiny)
    state, _ = running.start()
    state, _ = running.round(state)  # the round that captures the graphs
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    profile = cProfile.Profile() if options.profile else None
    times = []
    record: dict[str, Any] = {}
    for _ in range(options.rounds):
        begin = time.perf_counter()
        if profile is not None:
            profile.enable()
        state, record = running.round(state)
        if profile is not None:
            profile.disable()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    return {
        "seconds": statistics.median(times),
        "phases": record["seconds"],
        "device_gb": torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else 0.0,
        "host_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--held-share", type=float, default=shelf.DEVICE_SHARE)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    shelf.DEVICE_SHARE = options.held_share
    device = torch.device("cuda" if torch.cuda.is_available() and not options.tiny else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor()
    print(f"{name}, torch {torch.__version__}, Python {platform.python_version()}", flush=True)
    cases = ((4, 100), (40, 10)) if options.tiny else ((10, 4000), (1000, 40))
    found: dict[int, dict[str, Any]] = {}
    for centers, samples in cases:
        result = found[centers] = measure(centers, samples, device, options)
        print(
            f"{centers:,} centers of {samples:,}: {result['seconds']:.2f} s per round, "
            f"{result['device_gb']:.1f} GB on the device, {result['host_gb']:.1f} GB on the host; "
            + ", ".join(f"{k} {v:.3f}" for k, v in result["phases"].items()),
            flush=True,
        )
        if options.json:
            options.json.write_text(json.dumps(found, indent=1))
    few, many = (found[centers] for centers, _ in cases)
    more = (many["seconds"] - few["seconds"]) / (cases[1][0] - cases[0][0])
    print(f"{many['seconds'] / few['seconds']:.2f} times as long; {1000 * more:.1f} ms per additional center")


if __name__ == "__main__":
    main()
