"""How fast does each backbone train in a whole FedMT round, compared with its ceiling at the same size?

The default recipe (two views, batch 50, one local epoch unless the default changes) runs on random samples:

    resnet18, resnet9, resnet18_cifar    10 centers x 4000 at 32 px
    resnet50                             10 centers x 1000 at 224 px
    mobilenet_v2                          6 centers x 900 at 128 px
    mlp                                  10 centers x 4000 vectors of 256 features
    timm (mobilenetv3_small_100)          6 centers x 900 at 128 px, if timm can be imported

Each network runs in a separate process, which measures, in this order:

    start-up   from the start of the process to the end of round 1, minus the seconds of a later round
    fast       whole rounds of the fast engine, in views trained per second, including the reference center's
    step       only the local training of the step-by-step engine, on a few samples, which favors it
    ceiling    only forward and backward in bfloat16, as one CUDA graph, on a large batch
    same       the same with the update, on as many views as a step of the federation has, in one stream

    python benchmarks/backbones.py [--network resnet50 ...] [--rounds 3] [--out FILE] [--search]
    python benchmarks/backbones.py --tiny        on a CPU, only to test this script

--search lets cuDNN search for its fastest algorithms for the ceilings, as `gpu_round.py` does. --plain uses
torch's own layers instead of fedmt's kernels (`fedmt.backbones.fused`). The ceilings always use torch's
layers.

Measured on one NVIDIA H200, Python 3.12.3, torch 2.11.0: resnet18 and mobilenet_v2 on 2026-11-19 with 5 timed
rounds, --plain and the others on 2026-11-18 with 2 or 3:

    resnet18       0.93 s per round, 44.4% of a ceiling of 242,857, start-up 6.4 s; --plain 1.01 s
    resnet9        1.01 s per round; --plain 1.31 s
    resnet18_cifar 2.05 s per round
    mobilenet_v2   0.95 s per round, 64% of the ceiling (21,835), start-up 5.0 s
    resnet50       6.76 s per round, 73.9% of the ceiling (4,806), start-up 10.9 s; --plain 7.68 s, 65.1%

Before fedmt had its kernels (2026-11-16), MobileNetV2 took 1.12 s per round and 29.6 s to start. Step by
step, with nine of 16 cores busy elsewhere, MobileNetV2 was 2.6 times slower, and ResNet18 9.4 times.
"""

from __future__ import annotations

import time

BEGIN = time.perf_counter()

import argparse
import datetime
import json
import math
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from graphed import graphed
from torch import Tensor, nn

from fedmt import Center, Correspondence, Federation, LabelSpace
from fedmt.backbones import Classifier, build, fused
from fedmt.engines.graphs import fleet
from fedmt.engines.graphs.worker import first_steps
from fedmt.engines.local import LocalEngine
from fedmt.engines.site import Job
from fedmt.inputs import Images, Vectors
from fedmt.methods import FedMT, Training

FINE, COARSE = 20, 5


@dataclass(frozen=True)
class Setting:
    """large: the batch size of the ceiling. few: the number of samples for the step-by-step engine."""

    backbone: str
    shape: tuple[int, ...]
    centers: int
    samples: int
    reference: int
    tests: int
    large: int
    few: int

    @property
    def tiny(self) -> Setting:
        shape = (8,) if len(self.shape) == 1 else (3, 32, 32)
        return replace(self, shape=shape, centers=2, samples=16, reference=20, tests=8, large=8, few=16)


SETTINGS = {
    "resnet18": Setting("resnet18", (3, 32, 32), 10, 4000, 2500, 10_000, 3000, 1000),
    "resnet9": Setting("resnet9", (3, 32, 32), 10, 4000, 2500, 10_000, 3000, 1000),
    "resnet18_cifar": Setting("resnet18_cifar", (3, 32, 32), 10, 4000, 2500, 10_000, 3000, 1000),
    "mobilenet_v2": Setting("mobilenet_v2", (3, 128, 128), 6, 900, 300, 900, 512, 300),
    "resnet50": Setting("resnet50", (3, 224, 224), 10, 1000, 500, 1000, 256, 300),
    "mlp": Setting("mlp", (256,), 10, 4000, 1000, 4000, 16_384, 1000),
    "timm": Setting("timm:mobilenetv3_small_100", (3, 128, 128), 6, 900, 300, 900, 512, 300),
}


def federation(setting: Setting) -> Federation:
    """Random samples, because the speed does not depend on their content."""
    fine = LabelSpace("fine", [f"fine {i}" for i in range(FINE)])
    coarse = LabelSpace("coarse", [f"coarse {i}" for i in range(COARSE)])
    m = Correspondence(torch.eye(COARSE).repeat_interleave(FINE // COARSE, 1).tolist(), fine, coarse)
    generator = torch.Generator().manual_seed(0)
    vectors = len(setting.shape) == 1
    input: Any = Vectors(setting.shape) if vectors else Images(setting.shape)

    def values(count: int) -> Tensor:
        shape = (count, *setting.shape)
        if vectors:
            return torch.randn(shape, generator=generator)
        # The same 64 images are repeated, because drawing gigabytes of pixels would take longer than a round.
        some = torch.randint(256, (64, *setting.shape), dtype=torch.uint8, generator=generator)
        return some[torch.arange(count) % 64]

    def center(name: str, count: int, space: LabelSpace, *more: Any) -> Center:
        labels = torch.arange(count) % len(space)
        return Center(name, values(count), space, labels, *more, input=input)

    return Federation(
        fine,
        center("reference", setting.reference, fine),
        tuple(center(f"center-{i:02}", setting.samples, coarse, m) for i in range(setting.centers)),
        (center("test", setting.tests, fine),),
    )


def network(setting: Setting, own: Federation) -> nn.Module:
    torch.manual_seed(0)
    return Classifier(
        build(setting.backbone, FINE, own.input), *own.input.statistics(own.reference.values[:64])
    )


def engine(setting: Setting, own: Federation, device: torch.device, graphs: bool, tiny: bool) -> LocalEngine:
    small = {"batch_size": 8, "reference_batch_size": 10} if tiny else {}
    training = Training(warmup_epochs=1, **small)
    method = FedMT(training, own.input.views())
    return LocalEngine(own, method, network(setting, own), 0, device, graphs=graphs)


def views_per_step(running: LocalEngine, job: Job) -> int:
    work = first_steps(job, 1).work
    steps = {k: v.to(running.device) for k, v in work.steps.items()}
    return work.views(job.center.values[steps["index"]], steps).shape[1]


class Counted:
    """Counts the views in the steps of a round. each: the views of one step, by phase."""

    def __init__(self, running: LocalEngine) -> None:
        self.views, self.each = 0, dict[str, int]()
        self._plain, self._running = running._trained, running
        running._trained = self  # type: ignore[method-assign, assignment]

    def __call__(self, jobs: Any, phase: str = "train") -> Iterator[Any]:
        for job, done in self._plain(jobs, phase):
            if phase not in self.each:
                self.each[phase] = views_per_step(self._running, job)
            self.views += self.each[phase] * len(job.work)
            yield job, done


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def fast(setting: Setting, device: torch.device, rounds: int, tiny: bool) -> dict[str, Any]:
    """Measures the fast engine from the start of the process."""
    marks = {"imports": time.perf_counter() - BEGIN}

    def timed(name: str, function: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        found = function()
        wait(device)
        marks[name] = time.perf_counter() - begin
        return found

    timed("device", lambda: torch.zeros(1, device=device))
    own = timed("made-up samples", lambda: federation(setting))
    running = timed("engine", lambda: engine(setting, own, device, True, tiny))
    state, first = timed("round 0", running.start)
    state, second = timed("round 1", lambda: running.round(state))
    counted = Counted(running)
    times, phases = [], []
    for _ in range(rounds):
        counted.views = 0
        begin = time.perf_counter()
        state, record = running.round(state)
        wait(device)
        times.append(time.perf_counter() - begin)
        phases.append(record["seconds"])
    assert running._fleet is not None
    middle = statistics.median(times)
    found = {
        "marks": marks,
        # The time to generate the samples is not part of a run.
        "startup": sum(marks.values()) - marks["made-up samples"] - middle,
        "round": middle,
        "views": counted.views,
        "rate": counted.views / middle,
        "views_per_step": counted.each["train"],
        "workers": len(running._fleet._workers),
        "fell_back": running._fleet.eager,
        "phases": {k: statistics.mean(p[k] for p in phases) for k in phases[0]},
        "phases_0": first["seconds"],
        "phases_1": second["seconds"],
    }
    if device.type == "cuda":
        found["gigabytes"] = torch.cuda.max_memory_reserved(device) / 2**30
    return found


def by_step(setting: Setting, device: torch.device, tiny: bool) -> float:
    """Views per second of the step-by-step engine's local training."""
    few = replace(setting, centers=1, samples=setting.few, reference=setting.few, tests=8)
    running = engine(few, federation(few), device, False, tiny)
    counted = Counted(running)
    state, _ = running.start()
    running.round(state)
    _, record = running.round(state)
    steps = -(-setting.few // running.method.training.batch_size)
    return counted.each["train"] * steps / record["seconds"]["train"]


def ceiling(setting: Setting, device: torch.device, batch: int, update: bool) -> float:
    """Views per second of a bare step, which is captured as a graph on a GPU."""
    own = federation(replace(setting, centers=0, samples=1, reference=8, tests=1))
    model = network(setting, own).to(device).train()
    layout = own.input.memory_format
    model.to(memory_format=layout)  # type: ignore[call-overload]
    samples = torch.rand(batch, *setting.shape, device=device).contiguous(memory_format=layout)
    target = torch.randint(FINE, (batch,), device=device)
    parameters = list(model.parameters())
    velocity = [torch.zeros_like(p) for p in parameters]

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(samples)
        gradients = torch.autograd.grad(F.cross_entropy(logits.float(), target), parameters)
        if update:
            with torch.no_grad():
                torch._foreach_mul_(velocity, 0.9)
                torch._foreach_add_(velocity, gradients)
                torch._foreach_add_(parameters, velocity, alpha=-1e-4)

    replay = graphed(step) if device.type == "cuda" else step
    rates: list[float] = []
    begin = time.perf_counter()
    while len(rates) < 4 or time.perf_counter() - begin < (2 if device.type == "cuda" else 0):
        wait(device)
        start = time.perf_counter()
        for _ in range(10 if device.type == "cuda" else 1):
            replay()
        wait(device)
        rates.append((10 if device.type == "cuda" else 1) * batch / (time.perf_counter() - start))
    return statistics.median(rates[1:])


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measures one network in this process."""
    setting = SETTINGS[name].tiny if options.tiny else SETTINGS[name]
    device = torch.device("cpu" if options.tiny else "cuda")
    if options.workers:
        fleet.WORKERS, fleet.FILLED = options.workers, 1 << 62
    fused.enabled = not options.plain
    found = fast(setting, device, options.rounds, options.tiny)
    if not options.no_step:
        found["step_rate"] = by_step(setting, device, options.tiny)
        found["x step"] = found["rate"] / found["step_rate"]
    torch.backends.cudnn.benchmark = options.search
    fused.enabled = False
    for key, batch, update in (
        ("ceiling", setting.large, False),
        ("same", found["views_per_step"], True),
    ):
        found[f"{key}_rate"] = ceiling(setting, device, batch, update)
        found[f"of {key}"] = found["rate"] / found[f"{key}_rate"]
    return found


def line(name: str, found: dict[str, Any]) -> str:
    phases = ", ".join(f"{k} {v:.3f}" for k, v in found["phases"].items())
    marks = ", ".join(f"{k} {v:.1f}" for k, v in found["marks"].items())
    by_step = f"{found['x step']:5.1f} x step by step; " if "x step" in found else ""
    return (
        f"{name:13} {found['round']:7.3f} s per round, {found['rate']:9,.0f} views/s: "
        f"{found['of ceiling']:6.1%} of the ceiling ({found['ceiling_rate']:,.0f}), {found['of same']:6.1%} "
        f"of a bare step of {found['views_per_step']}; {by_step}start-up {found['startup']:.1f} s; "
        f"{found['workers']} workers, {found.get('gigabytes', math.nan):.1f} GB"
        + (f"\n    FELL BACK: {found['fell_back']}" if found["fell_back"] else "")
        + f"\n    a round: {phases}\n    start:   {marks}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, help="number of workers, instead of the engine's choice")
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--no-step", action="store_true")
    parser.add_argument("--plain", action="store_true", help="torch's own layers, not fedmt's kernels")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        (name,) = options.network
        options.child.write_text(json.dumps(measure(name, options)))
        return
    chip = "CPU" if options.tiny else torch.cuda.get_device_name()
    about = {
        "machine": chip,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "rounds": options.rounds,
        "search": options.search,
    }
    print(", ".join(f"{k} {v}" for k, v in about.items()), flush=True)
    results: dict[str, Any] = {"about": about, "networks": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.network:
            part = Path(folder) / f"{name}.json"
            given = [a for a in ("search", "no_step", "plain", "tiny") if getattr(options, a)]
            flags = [f"--{a.replace('_', '-')}" for a in given]
            if options.workers:
                flags += ["--workers", str(options.workers)]
            command = [sys.executable, __file__, "--network", name, "--rounds", str(options.rounds)]
            done = subprocess.run([*command, *flags, "--child", str(part)], capture_output=True, text=True)
            if done.returncode != 0:
                said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
                print(f"{name:13} failed: {said}", flush=True)
                results["networks"][name] = {"failed": done.stderr[-2000:]}
            else:
                found = results["networks"][name] = json.loads(part.read_text())
                print(line(name, found), flush=True)
            if options.out:
                options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
