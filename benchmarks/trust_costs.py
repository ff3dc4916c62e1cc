"""What does each protection cost per round? Seconds, CPU seconds and bytes, with it and without it.

    python benchmarks/trust_costs.py [--rounds 2] [--only "secure aggregation" …]

The three hospitals of examples/hospitals train a ResNet-18 (11.2 M parameters) on 20 images each, so that
nearly all of a round is overhead. Each line is a separate, real federation with a SuperLink and three
SuperNodes. All but the first have TLS, keys and signatures. The audit log is always on. A proxy between each
SuperNode and the SuperLink counts the bytes of its connections, including heartbeats and polling.
Differential privacy changes the training but not what is sent, so it is measured in a simulation with a small
CNN and 4 centers of 200 images.

Measured 2026-11-16 on 2 cores of an Intel Xeon with nothing else running; Python 3.11.7, torch 2.13.0,
flwr 1.41.0, one thread, 2 rounds. In this order: 15.4, 15.5, 15.9, 16.2, 15.8, 17.5 s; 21.2, 23.3, 24.3,
24.1, 23.0, 23.3 CPU seconds; 44.79 MB sent without protection, 44.85 with any. Differential privacy: 0.44 s
of training per center and round, 0.09 s without.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import flwr
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "hospitals"))

from demo import CENTERS
from flower_costs import Proxy, cpu_seconds
from make_data import make_data

import fedmt
from fedmt.config import load_config
from fedmt.engines.flower.keys import make_keys
from fedmt.engines.flower.processes import Deployment, write_app
from fedmt.runs.folder import RunFolder
from fedmt.training.run import run

SUMS = "secure_aggregation = true"
WAYS = {
    # by name: whether there are keys, whether the coordinator sees only sums, and the guard
    "nothing: plain text, any name, no guard": (False, False, "none"),
    "TLS, keys, signatures": (True, False, "none"),
    "clipping (the default guard)": (True, False, "clip"),
    "geometric median": (True, False, "geometric_median"),
    "median": (True, False, "median"),
    "secure aggregation, no guard": (True, True, "none"),
}
PRIVATE = """
device = "cpu"
[training]
rounds = 2
local_epochs = 1
batch_size = 20
reference_epochs = 1
warmup_epochs = 1
batch_norm = "static-reference"
[method]
name = "fedmt"
prior = "uniform"
[model]
backbone = "small_cnn"
[benchmark]
data = {{ source = "fashion_mnist" }}
wanted = "garment"
spaces = {{ department = 4 }}
per_class = 3
samples = 200
test_samples = 10
{privacy}
"""


def measure(
    folder: Path, database: Path, keyed: bool, sums: bool, guard: str, rounds: int
) -> dict[str, float]:
    """Means per round of one federation. The bytes are those of one center."""
    make_data(folder, 20)
    federation = folder / "coordinator" / "federation.toml"
    text = federation.read_text().replace(SUMS, f"secure_aggregation = {str(sums).lower()}")
    for old, new in (
        ('backbone = "small_cnn"', 'backbone = "resnet18"'),
        ("rounds = 4", f"rounds = {rounds}"),
        ("local_epochs = 2", "local_epochs = 1"),
        ("warmup_epochs = 100", "warmup_epochs = 0"),
        ("[deployment]\n", f'[aggregation]\nguard = "{guard}"\n\n[deployment]\n'),
        ("min_centers = 2", "min_centers = 3"),
    ):
        assert old in text
        text = text.replace(old, new)
    fingerprints = make_keys(folder / "keys", ["127.0.0.1"], CENTERS) if keyed else {}
    for name in CENTERS:
        center = folder / name.lower() / "center.toml"
        own = center.read_text()
        if keyed:
            text = text.replace(f'name = "{name}"\n', f'name = "{name}"\nkey = "{fingerprints[name]}"\n')
        else:
            own = own.replace(f'key = "../keys/{name}"', "")
        if sums:
            own += "\n[peers]\n" + "".join(f'{p} = "{k}"\n' for p, k in fingerprints.items() if p != name)
        center.write_text(own)
    federation.write_text(
        text if keyed else text.replace("[deployment]\n", "[deployment]\ninsecure = true\n")
    )
    out = folder / "run"
    with Deployment(folder, folder / "keys" if keyed else None, database=database) as machines:
        machines.start_superlink()
        proxies = []
        for name in CENTERS:
            if keyed:
                machines.register(name)
            proxies.append(Proxy(machines.port))
            machines.start_supernode(name, folder / name.lower() / "center.toml", port=proxies[-1].port)
        started = machines.start_run(write_app(folder / "app"), federation, out)
        seen: list[tuple[int, int, float]] = []
        while started.running:
            if len(seen) < (len(RunFolder(out).metrics()) if out.exists() else 0):
                counted = sum(p.sent for p in proxies), sum(p.received for p in proxies)
                seen.append((*counted, cpu_seconds(machines)))
            time.sleep(0.1)
        if not (out / "summary.json").exists():
            raise SystemExit(started.output())
    seconds = [m["seconds"]["total"] for m in RunFolder(out).metrics()][1:]
    (sent, received, spent), last = seen[0], seen[-1]
    done = len(seen) - 1
    return {
        "seconds": statistics.mean(seconds),
        "CPU": (last[2] - spent) / done,
        "sent": (last[0] - sent) / done / len(CENTERS),
        "received": (last[1] - received) / done / len(CENTERS),
    }


def private(folder: Path) -> dict[str, float]:
    """Seconds of a center's training per round, without and with privacy."""
    found = {}
    for name, table in (("off", ""), ("on", "[privacy]\nepsilon = 8.0\ndelta = 1e-5\n")):
        config = folder / f"{name}.toml"
        config.write_text(PRIVATE.format(privacy=table))
        run(load_config(config), folder / name)
        rounds = RunFolder(folder / name).metrics()[1:]
        found[name] = statistics.mean(m["seconds"]["train"] for m in rounds) / 4
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="What each protection costs per round.")
    parser.add_argument("--rounds", type=int, default=2, help="of each federation")
    parser.add_argument("--only", nargs="*", default=[], help="measure lines that contain one of these words")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"fedmt {fedmt.__version__}, flwr {flwr.__version__}, torch {torch.__version__}, Python "
        f"{platform.python_version()}, {os.cpu_count()} cores\n\n"
        "| | seconds | CPU seconds, all processes | MB sent by a center | MB received by a center |\n"
        "| --- | ---: | ---: | ---: | ---: |"
    )
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    for label, way in WAYS.items():
        if given.only and not any(word in label for word in given.only):
            continue
        with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory(dir=shared) as fast:
            found = measure(Path(scratch), Path(fast) / "superlink.db", *way, given.rounds)
        sizes = f"{found['sent'] / 1e6:.3f} | {found['received'] / 1e6:.3f}"
        print(f"| {label} | {found['seconds']:.1f} | {found['CPU']:.1f} | {sizes} |", flush=True)
    if not given.only or any(word in "differential privacy" for word in given.only):
        with tempfile.TemporaryDirectory() as scratch:
            trained = private(Path(scratch))
        print(
            f"\nDifferential privacy: {trained['on']:.2f} s of training per center and round, "
            f"{trained['off']:.2f} s without ({trained['on'] / trained['off']:.1f} times)."
        )
    print(f"Load of the machine (1, 5, 15 minutes): {os.getloadavg()}")


if __name__ == "__main__":
    main()
