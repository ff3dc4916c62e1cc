"""What do our own kernels (`fedmt.backbones.fused`) gain over torch's layers?

    python benchmarks/kernels.py --case check            errors against float64, in seconds
    python benchmarks/kernels.py --case layers           single layers, in microseconds
    python benchmarks/kernels.py --case stems            first layers of networks, in microseconds
    python benchmarks/kernels.py --case resnet18 ...     training steps of networks

A step is forward, backward and the copies of the gradients (`FlatModel.take`) in bfloat16 on random images,
captured as a CUDA graph. It is measured in one stream and in several, each with its own model. Plain and
fused layers are measured in separate processes, because the first use of a layer is measured as well: of a
step, of a step with half the images, and of a pass without gradients. Triton's cache is empty at the
beginning, so the first network compiles the kernels. `--keep-cache` uses the cache of the user instead.

Measured 2026-11-18 on one NVIDIA H200, torch 2.11.0, Triton 3.6.0 (`--case layers`): batch norms take 33 to
80% of the time of torch's layers, and depthwise convolutions 91 to 135%. The table is in
docs/development/performance-diary.md.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmt.backbones import fused
from fedmt.backbones.kernels import checking
from fedmt.backbones.mobilenet import mobilenet_v2
from fedmt.backbones.resnet import resnet18, resnet18_cifar, resnet50
from fedmt.backbones.resnet9 import ResNet9
from fedmt.core import static_bn
from fedmt.core.kernels import usable
from fedmt.engines.graphs.flat import FlatModel

LAST = torch.channels_last

CASES: dict[str, tuple[Callable[[], nn.Module], int, int, int]] = {
    "resnet18": (lambda: resnet18(100, max_pool=False), 32, 100, 10),
    "resnet18-500": (lambda: resnet18(100, max_pool=False), 32, 500, 10),
    "resnet9": (lambda: ResNet9(100), 32, 100, 10),
    "resnet18_cifar": (lambda: resnet18_cifar(100), 32, 100, 5),
    "resnet18_cifar-500": (lambda: resnet18_cifar(100), 32, 500, 5),
    "resnet50": (lambda: resnet50(100), 224, 32, 2),
    "mobilenet_v2": (lambda: mobilenet_v2(100), 128, 100, 6),
}
"""The network, its pixels, its batch size and the number of streams."""

NORMS = [(100, 64, 16, 16), (100, 128, 8, 8), (100, 256, 4, 4), (100, 512, 2, 2), (100, 64, 32, 32)]
NORMS += [(500, 64, 32, 32), (32, 256, 56, 56), (32, 2048, 7, 7), (100, 96, 64, 64), (100, 144, 32, 32)]
NORMS += [(100, 960, 4, 4)]
DEPTHWISE = [((100, 32, 64, 64), 1), ((100, 96, 64, 64), 2), ((100, 144, 32, 32), 1), ((100, 384, 8, 8), 1)]

STEMS = [((100, 3, 32, 32), 64, 3, 1), ((500, 3, 32, 32), 64, 3, 1), ((100, 3, 32, 32), 64, 7, 2)]
STEMS += [((100, 3, 128, 128), 32, 3, 2), ((100, 3, 128, 128), 64, 7, 2), ((32, 3, 224, 224), 64, 7, 2)]
"""The images, the output channels, the size of the filter and the stride."""


def seconds(replay: Callable[[], None], least: float = 0.3) -> float:
    """The time of one call, from at least `least` seconds of them, after some that are not counted."""
    count = 3
    while True:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            replay()
        torch.cuda.synchronize()
        took = time.perf_counter() - begin
        if took > least:
            return took / count
        count = max(2 * count, int(count * 1.2 * least / max(took, 1e-6)))


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """The step as a graph in its own stream, tried twice before."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()

    def replay() -> None:
        with torch.cuda.stream(stream):
            graph.replay()

    return replay


def kernels_of(step: Callable[[], None]) -> int:
    """The number of kernels and copies on the device. 0 if torch's profiler does not work here."""
    try:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            step()
            torch.cuda.synchronize()
        return sum(e.device_type == torch.autograd.DeviceType.CUDA for e in seen.events() or [])
    except Exception:
        return 0


class Training:
    """A network as a worker trains it."""

    def __init__(self, build: Callable[[], nn.Module], pixels: int, batch: int) -> None:
        torch.manual_seed(0)
        self.model = build().cuda().to(memory_format=LAST).train()  # type: ignore[call-overload]
        static_bn.set_static(self.model, True)
        self.flat = FlatModel(self.model, half=True)
        self.images = torch.randn(batch, 3, pixels, pixels, device="cuda").contiguous(memory_format=LAST)
        self.target = torch.randint(100, (batch,), device="cuda")

    def step(self, count: int | None = None) -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = self.model(self.images[:count])
        loss = F.cross_entropy(logits.float(), self.target[:count])
        self.flat.take(torch.autograd.grad(loss, self.flat.parameters))

    @torch.no_grad()
    def predict(self) -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            self.model.eval()(self.images)
        self.model.train()


def timed(function: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def measure(case: str) -> dict[str, float]:
    """One network in this process, with the layers that `fused.enabled` says."""
    build, pixels, batch, streams = CASES[case]
    some = torch.zeros(64, 64, device="cuda", dtype=torch.bfloat16)
    timed(lambda: some @ some)  # the device and cuBLAS, which every network needs
    first = Training(build, pixels, batch)
    ready = 0.0
    if fused.enabled:
        ready = timed(lambda: [fused._trusted(family, some) for family in get_args(checking.Family)])
    found = {"kernels ready": ready, "first step": timed(first.step)}
    found["half the images"] = timed(lambda: first.step(batch // 2))
    found["first pass"] = timed(first.predict)
    first.step()
    found["kernels"] = kernels_of(first.step)
    replays = [captured(first.step)]
    found["one stream"] = batch / seconds(replays[0], 1.0)
    replays += [captured(Training(build, pixels, batch).step) for _ in range(streams - 1)]
    found["streams"] = streams * batch / seconds(lambda: [r() for r in replays] and None, 1.0)
    found["gigabytes"] = torch.cuda.max_memory_reserved() / 2**30
    return found


def child(case: str, enabled: bool, environment: dict[str, str]) -> dict[str, float] | None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [sys.executable, __file__, "--case", case, "--child", str(out)]
        if not enabled:
            command.append("--plain")
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            print(f"    failed: {done.stderr.strip()[-1500:]}", flush=True)
            return None
        for line in done.stderr.splitlines():
            if "Warning" in line:
                print(f"    {line}", flush=True)
        found: dict[str, float] = json.loads(out.read_text())
        return found


def networks(case: str, environment: dict[str, str]) -> None:
    _, pixels, batch, streams = CASES[case]
    print(f"{case}: {pixels} pixels, batch {batch}, 1 and {streams} streams", flush=True)
    found = {}
    for name in ("plain", "fused"):
        one = child(case, name == "fused", environment)
        if one is None:
            continue
        found[name] = one
        print(
            f"    {name}: {one['one stream']:9,.0f} and {one['streams']:9,.0f} images/s, "
            f"{one['kernels']:.0f} kernels, {one['gigabytes']:.1f} GB; first use: "
            f"kernels {one['kernels ready']:.1f}, step {one['first step']:.1f}, half the images "
            f"{one['half the images']:.1f}, pass {one['first pass']:.1f} s",
            flush=True,
        )
    if len(found) == 2:
        ratios = (found["fused"][k] / found["plain"][k] for k in ("one stream", "streams"))
        print("    fused is {:.2f} and {:.2f} times as fast".format(*ratios), flush=True)


def check() -> None:
    """Errors on this device. An error of bfloat16 is below 0.01, one of float32 below 0.0001."""
    device = torch.device("cuda")
    print(f"Triton usable: {usable(device)}", flush=True)
    for kind in (torch.bfloat16, torch.float32):
        for family in get_args(checking.Family):
            begin = time.perf_counter()
            errors = checking.errors(family, device, kind)
            worst = max(errors, key=lambda key: errors[key])
            took = time.perf_counter() - begin
            print(f"{family}, {kind}: {errors[worst]:.2g} ({worst}), {took:.1f} s", flush=True)
    for shape in NORMS:
        for residual in (False, True):
            print(
                f"{shape}, {'with' if residual else 'no'} sum: {large_error(shape, residual):.2g}", flush=True
            )


def large_error(shape: tuple[int, ...], residual: bool) -> float:
    """The largest error of a batch norm with ReLU at a real size, relative to the length of each tensor."""
    norm = nn.BatchNorm2d(shape[1], track_running_stats=False).cuda()
    nn.init.normal_(norm.weight, 1.0, 0.3)
    x, other, dy = (
        torch.randn(shape, device="cuda").to(torch.bfloat16, memory_format=LAST) for _ in range(3)
    )
    found = []
    for layer, kind in ((norm, torch.bfloat16), (copy.deepcopy(norm).double(), torch.float64)):
        given = [t.to(kind).requires_grad_() for t in ((x, other) if residual else (x,))]
        y = fused.normalize(layer, given[0], nn.ReLU(), given[1] if residual else None)
        own = torch.autograd.grad(y, [*given, layer.weight, layer.bias], dy.to(kind))
        found.append([t.double() for t in (y, *own)])
    return max(((a - b).norm() / b.norm()).item() for a, b in zip(*found, strict=True))


def layers() -> None:
    """Forward and backward of single layers, captured, in microseconds: plain, fused, and what passing over
    the memory at 4.8 TB/s would take."""
    for shape in NORMS:
        norm, relu = nn.BatchNorm2d(shape[1], track_running_stats=False).cuda(), nn.ReLU(inplace=True)
        for residual in (False, True):
            x, other, dy = images(shape), images(shape), images(shape).detach()

            def step(norm: Any = norm, x: Tensor = x, other: Tensor = other, dy: Tensor = dy) -> None:
                y = fused.normalize(norm, x, relu, other if residual else None)  # noqa: B023
                torch.autograd.grad(y, [x, *([other] if residual else []), *norm.parameters()], dy)  # noqa: B023

            # Forward reads x twice and writes y; backward reads dy and x twice and writes dx.
            report(f"norm {shape}{' with sum' if residual else ''}", step, x, 8 + 5 * residual)
    for shape, stride in DEPTHWISE:
        conv = nn.Conv2d(shape[1], shape[1], 3, stride, 1, groups=shape[1], bias=False).cuda().bfloat16()
        conv = conv.to(memory_format=LAST)  # type: ignore[call-overload]
        x = images(shape)
        dy = torch.randn_like(fused.convolve(conv, x)).detach()

        def step(conv: Any = conv, x: Tensor = x, dy: Tensor = dy) -> None:
            torch.autograd.grad(fused.convolve(conv, x), [x, conv.weight], dy)

        report(f"depthwise {shape} stride {stride}", step, x, 3 + 3 / stride**2)


def stems() -> None:
    """The first convolutions of networks, which need no gradient of the images. As in training, the images
    are in float32, and torch has to round them first."""
    for shape, outputs, size, stride in STEMS:
        conv = nn.Conv2d(shape[1], outputs, size, stride, size // 2, bias=False).cuda().bfloat16()
        conv = conv.to(memory_format=LAST)  # type: ignore[call-overload]
        x = torch.randn(shape, device="cuda").contiguous(memory_format=LAST)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            dy = torch.randn_like(fused.convolve(conv, x)).detach()

        def step(conv: Any = conv, x: Tensor = x, dy: Tensor = dy) -> None:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                y = fused.convolve(conv, x)
            torch.autograd.grad(y, conv.weight, dy)

        # Forward reads x, which has 4 bytes per number, and writes y; backward reads x and dy.
        passes = 2 * (dy.numel() + 2 * x.numel()) / x.numel()
        report(f"stem {shape} to {outputs}, {size}x{size} stride {stride}", step, x, passes)


def images(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, device="cuda").to(torch.bfloat16, memory_format=LAST).requires_grad_()


def report(name: str, step: Callable[[], None], x: Tensor, passes: float) -> None:
    times = []
    for enabled in (False, True):
        fused.enabled = enabled
        times.append(seconds(captured(step), 0.1) * 1e6)
    fused.enabled = True
    least = passes * 2 * x.numel() / 4.8e12 * 1e6
    print(f"{name:40} plain {times[0]:7.1f}, fused {times[1]:7.1f}, memory {least:6.1f} us", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    every = ["check", "layers", "stems", *CASES]
    parser.add_argument("--case", nargs="+", choices=every, default=every)
    parser.add_argument("--keep-cache", action="store_true")
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        fused.enabled = not options.plain
        options.child.write_text(json.dumps(measure(options.case[0])))
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    with tempfile.TemporaryDirectory() as cache:
        environment = dict(os.environ)
        if not options.keep_cache:
            environment["TRITON_CACHE_DIR"] = cache
        for case in options.case:
            begin = time.perf_counter()
            if case in CASES:
                networks(case, environment)
            else:
                {"check": check, "layers": layers, "stems": stems}[case]()
            print(f"    ({time.perf_counter() - begin:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
