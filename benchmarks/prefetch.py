"""How much of its speed does a round keep when the images stay in host memory?

The same rounds run twice in one process, in alternation: with all images on the device, and with
`prefetch = true`. In the second case, threads gather the images of each chunk of steps into pinned memory in
advance. The images are in a memory-mapped file, as in the decoded cache. The result is the ratio of the
median rounds. Goal: 90%.

    python benchmarks/prefetch.py [--case small large] [--json FILE]     on a GPU, about a minute
    python benchmarks/prefetch.py --tiny                                 on a CPU, to see that it runs

small: ResNet18, 32 x 32, 10 centers of 4,000 images, the default views and batch of 50, one local epoch.
large: ResNet50, 224 x 224, 10 centers of 300 images, batch 16, one local epoch.

Measured 2026-11-16 on one NVIDIA H200, Python 3.12.3, torch 2.11.0 (`--rounds 2`):

    small   93.4%   66,261 and 70,916 views per second
    large   98.6%    2,356 and  2,390
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedmt import Center, Correspondence, Federation, LabelSpace
from fedmt.backbones import Classifier
from fedmt.backbones.resnet import resnet18, resnet50
from fedmt.backbones.small_cnn import SmallCNN
from fedmt.engines.local import LocalEngine
from fedmt.inputs.images import per_channel
from fedmt.methods import FedMT, Training

warnings.simplefilter("error")  # a benchmark that falls back to the step-by-step engine measures nothing


@dataclass(frozen=True)
class Case:
    network: str
    size: int
    images: int
    batch: int
    centers: int = 10


CASES = {
    "small": Case("resnet18", 32, 4000, 50),
    "large": Case("resnet50", 224, 300, 16),
    "tiny": Case("small_cnn", 32, 40, 10, 4),
}


def federation_of(case: Case, folder: Path) -> Federation:
    """Random images, all of which are parts of one memory-mapped file."""
    fine, coarse = LabelSpace("fine", [f"{i}" for i in range(100)]), LabelSpace("coarse", ["a", "b"])
    m = Correspondence(torch.eye(2).repeat_interleave(50, 1).tolist(), fine, coarse)
    count = (case.centers + 1) * case.images
    shape = (count, 3, case.size, case.size)
    rng = np.random.default_rng(0)
    file = np.lib.format.open_memmap(folder / "images.npy", "w+", np.uint8, shape)
    for start in range(0, count, 1000):
        part = file[start : start + 1000]
        part[:] = rng.integers(0, 256, part.shape, dtype=np.uint8)
    file.flush()
    every = torch.from_numpy(np.load(folder / "images.npy", mmap_mode="c")).split(case.images)
    generator = torch.Generator().manual_seed(0)

    def labels(classes: int) -> torch.Tensor:
        return torch.randint(classes, (case.images,), generator=generator)

    centers = tuple(Center(f"center-{i:02}", part, coarse, labels(2), m) for i, part in enumerate(every[1:]))
    few = min(case.images, 500)
    tests = (Center("test", every[0][:few], fine, labels(100)[:few]),)
    return Federation(fine, Center("reference", every[0], fine, labels(100)), centers, tests)


def engine(case: Case, federation: Federation, device: torch.device, prefetch: bool) -> LocalEngine:
    training = Training(
        local_epochs=1, batch_size=case.batch, reference_epochs=1, reference_batch_size=case.batch,
        warmup_epochs=1, learning_rate=0.03,
    )  # fmt: skip
    torch.manual_seed(0)
    if case.network == "small_cnn":
        network: torch.nn.Module = SmallCNN(100, 3)
    else:
        small = case.network == "resnet18"
        network = (resnet18 if small else resnet50)(100, 3, max_pool=not small)
    model = Classifier(network, per_channel([0.5] * 3), per_channel([0.25] * 3))
    method = FedMT(training, xi=0.0)
    return LocalEngine(federation, method, model, 0, device, graphs=True, prefetch=prefetch)


def measure(case: Case, device: torch.device, rounds: int, folder: Path) -> dict[str, Any]:
    federation = federation_of(case, folder)
    engines = {name: engine(case, federation, device, name == "host") for name in ("device", "host")}
    states = {}
    for name, running in engines.items():
        states[name], _ = running.start()
        states[name], _ = running.round(states[name])  # the round that captures the graphs
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    phases: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for name, running in engines.items():
            begin = time.perf_counter()
            states[name], record = running.round(states[name])
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - begin)
            phases[name] = record["seconds"]
    middle = {name: statistics.median(times) for name, times in seconds.items()}
    views = 2 * case.centers * -(-case.images // case.batch) * case.batch
    return {
        "ratio": middle["device"] / middle["host"],
        "seconds": seconds,
        "images_per_second": {name: views / value for name, value in middle.items()},
        "phases": phases,
        "equal": all(torch.equal(v, states["host"].weights[k]) for k, v in states["device"].weights.items()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", nargs="+", choices=["small", "large"], default=["small", "large"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() and not options.tiny else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor()
    print(f"{name}, torch {torch.__version__}, Python {platform.python_version()}", flush=True)
    found: dict[str, Any] = {}
    for label in ["tiny"] if options.tiny else options.case:
        with tempfile.TemporaryDirectory() as folder:
            found[label] = result = measure(CASES[label], device, options.rounds, Path(folder))
        gc.collect()
        speed = result["images_per_second"]
        print(
            f"{label}: {result['ratio']:.1%} of the speed of images on the device ({speed['host']:,.0f} and "
            f"{speed['device']:,.0f} views per second)"
            + ("" if device.type == "cuda" else f"; weights equal: {result['equal']}"),
            flush=True,
        )
        if options.json:
            options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
