"""What share of a GPU's speed does a whole FedMT round keep?

The setting is the paper's: 10 centers x 4000 samples, 5 local epochs, three views, ResNet18 at 32x32; a
reference center with 2500 samples, 5 epochs, two views, batch 250; 10,000 test images. A round includes
everything: pseudo-labels, local training, averaging, the reference center, batch-norm statistics and the
test. The same run also measures:

    ceiling   only forward and backward of the same network as one CUDA graph, batch 3000, random data, after
              a search for cuDNN's fastest algorithms
    eager     only the local training of the same engine step by step (`graphs = false`), on 1000 samples

    python benchmarks/gpu_round.py [--batches 10 25 50 100] [--json FILE]

Measured 2026-11-15 on one NVIDIA H200, Python 3.12.3, torch 2.11.0 (CUDA 13.0), with one timed round each
after a first round that captures the graphs (`--rounds 1`), and with CUDA_DEVICE_MAX_CONNECTIONS=32, which
fedmt sets. The ceiling is 255,997 images/s:

    batch    images/s    of the ceiling    x eager
       10      66,871             26.1%       25.6     goal 20 x: met
       50     133,417             52.1%       13.0     goal 50%: met
      100     156,042             61.0%        9.2     goal 60%: met

Eager is limited by the host and varies most. At batch 10, three runs gave 2,611, 3,045 and 3,386 images/s, so
the ratios are 25.6, 21.9 and (with 8 connections, 63,650 images/s) 18.8.
docs/development/performance-diary.md lists all runs.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from graphed import graphed
from random_federation import engine, images_a_round, random_federation

from fedmt.backbones import Classifier
from fedmt.backbones.resnet import resnet18
from fedmt.inputs.images import per_channel


def ceiling(batch: int = 3000) -> float:
    """Images per second of forward and backward as a CUDA graph."""
    device = torch.device("cuda")
    torch.backends.cudnn.benchmark = True
    model = Classifier(resnet18(100, 3, max_pool=False), per_channel([0.5] * 3), per_channel([0.25] * 3)).to(
        device
    )
    model = model.to(memory_format=torch.channels_last).train()
    images = torch.rand(batch, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
    target = torch.randint(100, (batch,), device=device)
    parameters = list(model.parameters())

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(images)
        torch.autograd.grad(F.cross_entropy(logits.float(), target), parameters)

    replay = graphed(step)
    rates = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(20):
            replay()
        torch.cuda.synchronize()
        rates.append(20 * batch / (time.perf_counter() - begin))
    torch.backends.cudnn.benchmark = False
    return statistics.median(rates[1:])


def eager(batch: int) -> float:
    """Images per second of the step-by-step engine's local training."""
    running = engine(random_federation(centers=1, samples=1000), batch, graphs=False, epochs=1)
    state, _ = running.start()
    running.round(state)
    _, record = running.round(state)
    return 1000 * 3 / record["seconds"]["train"]


def fast(batch: int, rounds: int) -> tuple[float, dict[str, float], float]:
    """Images per second of whole rounds, seconds by phase, and seconds of the first (capturing) round."""
    federation = random_federation()
    running = engine(federation, batch, graphs=True)
    state, _ = running.start()
    begin = time.perf_counter()
    state, _ = running.round(state)
    first = time.perf_counter() - begin
    times, phases = [], []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        state, record = running.round(state)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
        phases.append(record["seconds"])
    middle = statistics.median(times)
    mean = {k: statistics.mean(p[k] for p in phases) for k in phases[0]}
    mean["rest"] = statistics.mean(times) - sum(mean.values())
    return images_a_round(federation, batch) / middle, mean, first


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, nargs="+", default=[10, 25, 50, 100])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--no-eager", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    top = ceiling()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {platform.python_version()}")
    print(f"ceiling {top:,.0f} images/s")
    results = {"ceiling": top, "batches": {}}
    for batch in options.batches:
        rate, phases, first = fast(batch, options.rounds)
        slow = float("nan") if options.no_eager else eager(batch)
        torch.cuda.empty_cache()
        print(
            f"batch {batch:3}: {rate:9,.0f} images/s, {rate / top:5.1%} of the ceiling, "
            f"{rate / slow:5.1f} x eager ({slow:,.0f}); first round {first:.1f} s; "
            + ", ".join(f"{k} {v:.3f}" for k, v in phases.items()),
            flush=True,
        )
        results["batches"][batch] = {"rate": rate, "eager": slow, "phases": phases, "first": first}
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
