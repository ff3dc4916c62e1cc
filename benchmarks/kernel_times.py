"""Which kernels take the time of a round? One center trains alone, so that no two kernels overlap.

    python benchmarks/kernel_times.py resnet18 [--most 30]

The networks and their settings are those of `backbones.py`. Measured 2026-11-18 on one NVIDIA H200, torch
2.11.0, resnet18: a step takes 1.3 ms: 0.65 ms for convolutions, 0.30 for batch norms, 0.12 for the update.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace

import torch
from backbones import SETTINGS, engine, federation
from torch.profiler import ProfilerActivity, profile


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("network", choices=list(SETTINGS))
    parser.add_argument("--most", type=int, default=30, help="number of kernels to list")
    options = parser.parse_args()
    setting = replace(SETTINGS[options.network], centers=1, tests=500, reference=500)
    running = engine(setting, federation(setting), torch.device("cuda"), graphs=True, tiny=False)
    state, _ = running.start()
    state, _ = running.round(state)
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        _, record = running.round(state)
        torch.cuda.synchronize()
    time, count = Counter[str](), Counter[str]()
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            time[event.name] += event.device_time
            count[event.name] += 1
    print(f"{options.network}, {torch.cuda.get_device_name()}, torch {torch.__version__}")
    print("seconds by phase: " + ", ".join(f"{k} {v:.3f}" for k, v in record["seconds"].items()))
    print(f"all kernels: {sum(count.values())}, {sum(time.values()) / 1e6:.3f} s")
    for name, total in time.most_common(options.most):
        print(f"{total / 1e3:8.2f} ms {count[name]:6d} x {total / count[name]:7.2f} us  {name[:100]}")


if __name__ == "__main__":
    main()
