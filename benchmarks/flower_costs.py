"""What does a round over Flower cost in addition to the training, in bytes, seconds and memory?

    python benchmarks/flower_costs.py --centers 3 [--wire bfloat16] [--batch-norm static] [--fresh]
    python benchmarks/flower_costs.py --centers 10 --time-only

The network is ResNet-18 (11.2 M parameters), and each center has a handful of images, so that nearly all of a
round is overhead. A proxy between each SuperNode and the SuperLink counts all bytes of its connections,
including HTTP, heartbeats and polling. Overhead is the time of a round minus the local engine's time for the
same round. Peak memory is the largest high-water mark (VmHWM) among the processes of each kind, sampled while
the processes run. With --fresh, every message starts a new process (`resident = 0` in center.toml).
With --time-only, there are no proxies and no sampling, which with ten centers take a quarter of a core.

Measured 2026-11-16 on 2 cores of an Intel Xeon at 2.8 GHz, 23 GiB; Python 3.11.7,
torch 2.13.0, flwr 1.41.0, one thread. Weights take 44.74 MB. Per round, a center receives 44.76 MB and sends
44.79 MB (bfloat16: 22.43 and 22.45).

With --time-only and nothing else running: 3 centers, 3 rounds: 8.8 to 11.1 s per round, 6.3 s of overhead,
13.5 CPU seconds; with --fresh 14.8 to 17.5 s, 13.6 s of overhead, 27.3 CPU seconds. 10 centers, 2 rounds:
30.6 and 31.7 s, 22.2 s of overhead, 52.1 CPU seconds. On 2026-11-15, 10 centers with one process per message,
at load 5 to 16: 102 s, of which 92 s were overhead, and 142 CPU seconds. Peaks: ServerApp 1.2 to 1.4 GiB,
SuperLink 0.8 and 1.0 GiB, a resident process 0.8 GiB, SuperNode 0.35 GiB, a relay 13 MiB.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path

import flwr
import torch

import fedmt
from fedmt.config import load_config
from fedmt.engines.flower.processes import HOST, Deployment, family, free_port, residents, write_app
from fedmt.runs.folder import RunFolder
from fedmt.training.run import run

CONFIG = """
device = "cpu"
precision = "float32"
[training]
rounds = {rounds}
local_epochs = 1
batch_size = 4
reference_epochs = 1
reference_batch_size = 4
warmup_epochs = 0
batch_norm = "{batch_norm}"
[method]
name = "fedmt"
xi = 0.0
[model]
backbone = "resnet18"
[benchmark]
data = {{ source = "fashion_mnist" }}
wanted = "garment"
spaces = {{ department = {centers} }}
per_class = 1
samples = 10
test_samples = 10
[deployment]
insecure = true
min_centers = {centers}
wait = 600
timeout = 300
wire = "{wire}"
"""


class Proxy:
    """Counts the bytes that pass between one node and the SuperLink, in each direction."""

    def __init__(self, target: int) -> None:
        self.target, self.port = target, free_port()
        self.sent = self.received = 0  # from the node's point of view
        self._lock = threading.Lock()
        self._listening = socket.create_server((HOST, self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            node, _ = self._listening.accept()
            link = socket.create_connection((HOST, self.target))
            threading.Thread(target=self._pass, args=(node, link, True), daemon=True).start()
            threading.Thread(target=self._pass, args=(link, node, False), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        try:
            while data := source.recv(1 << 20):
                target.sendall(data)
                with self._lock:
                    if up:
                        self.sent += len(data)
                    else:
                        self.received += len(data)
        except OSError:
            pass
        finally:
            for side in (source, target):
                with contextlib.suppress(OSError):
                    side.shutdown(socket.SHUT_RDWR)


class Memory:
    """The largest high-water mark among the processes of each kind, in MiB."""

    def __init__(self, deployment: Deployment) -> None:
        self.peak: dict[str, float] = {}
        self._deployment = deployment

    def sample(self) -> None:
        for pid in processes(self._deployment):
            try:
                words = [Path(w).name for w in Path(f"/proc/{pid}/cmdline").read_text().split("\0")]
                kind = next(w for w in words if w.startswith(("flower-", "flwr", "clientapp", "fedmt.")))
                status = Path(f"/proc/{pid}/status").read_text()
                mark = int(status.partition("VmHWM:")[2].split()[0]) / 1024
            except (OSError, StopIteration, IndexError, ValueError):
                continue
            self.peak[kind] = max(mark, self.peak.get(kind, 0.0))


def processes(deployment: Deployment) -> set[int]:
    """All processes that were started, including the residents, whose parents have ended."""
    started = [started.process.pid for started in deployment.started] + residents(deployment.folder)
    return {pid for one in started for pid in family(one)}


def cpu_seconds(deployment: Deployment) -> float:
    """CPU time of all processes that were started and of their ended children, without other load."""
    ticks = 0
    for pid in processes(deployment):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(field) for field in fields[11:15])  # utime, stime, and those of ended children
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(
    centers: int,
    rounds: int,
    wire: str,
    batch_norm: str,
    fresh: bool,
    time_only: bool,
    folder: Path,
    in_memory: Path,
) -> dict[str, object]:
    federation = folder / "federation.toml"
    federation.write_text(CONFIG.format(centers=centers, rounds=rounds, wire=wire, batch_norm=batch_norm))
    torch.set_num_threads(1)
    run(load_config(federation), folder / "local")
    local = [m["seconds"]["total"] for m in RunFolder(folder / "local").metrics()][1:]
    app, out = write_app(folder / "app"), folder / "run"
    with Deployment(folder, database=in_memory / "superlink.db") as deployment:
        deployment.start_superlink()
        proxies = []
        width = len(str(centers))
        for number in range(1, centers + 1):
            name = f"center-{number:0{width}d}"
            text = f'name = "{name}"\nstate = "state-{number}"\nfederation = "{federation}"\ndevice = "cpu"\n'
            (folder / f"{name}.toml").write_text(text + ("resident = 0\n" if fresh else ""))
            if not time_only:
                proxies.append(Proxy(deployment.port))
            port = deployment.port if time_only else proxies[-1].port
            deployment.start_supernode(name, folder / f"{name}.toml", port=port)
        memory = Memory(deployment)
        started = deployment.start_run(app, federation, out)
        counts: list[list[tuple[int, int]]] = []
        spent: list[float] = []
        while started.running:
            done = len(RunFolder(out).metrics()) if out.exists() else 0
            while len(counts) < done:
                counts.append([(p.sent, p.received) for p in proxies])
                spent.append(cpu_seconds(deployment))
            if not time_only:
                memory.sample()
            time.sleep(1 if time_only else 0.2)
        if not (out / "summary.json").exists():
            raise SystemExit(started.output())
    total = [m["seconds"]["total"] for m in RunFolder(out).metrics()][1:]
    state = RunFolder(out).load()
    assert state is not None
    weights = sum(v.nbytes for v in state.weights.values())
    # This is the time from the end of round 0 to the end of the last round.
    first, last = counts[0], counts[-1]
    up = [(b[0] - a[0]) / rounds for a, b in zip(first, last, strict=True)]
    down = [(b[1] - a[1]) / rounds for a, b in zip(first, last, strict=True)]
    counted = not time_only and {
        "received MB per center and round": round(statistics.mean(down) / 1e6, 2),
        "sent MB per center and round": round(statistics.mean(up) / 1e6, 2),
        "received / weights": round(statistics.mean(down) / weights, 4),
        "sent / weights": round(statistics.mean(up) / weights, 4),
        "peak memory MiB": {k: round(v) for k, v in sorted(memory.peak.items())},
    }
    return {
        "centers": centers,
        "processes of the centers": "fresh" if fresh else "resident",
        "wire": wire,
        "batch_norm": batch_norm,
        "weights MB": round(weights / 1e6, 2),
        **(counted or {}),
        "seconds per round": [round(s, 1) for s in total],
        "local engine, seconds per round": [round(s, 2) for s in local],
        "overhead, seconds per round (median)": round(statistics.median(total) - statistics.median(local), 1),
        "CPU seconds per round, all processes": round((spent[-1] - spent[0]) / rounds, 1),
        "load of the machine (1, 5, 15 minutes)": os.getloadavg(),
        "versions": {
            "fedmt": fedmt.__version__,
            "flwr": flwr.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measures what a round over Flower adds to the training.")
    parser.add_argument("--centers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--wire", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--batch-norm", choices=("static", "static-reference"), default="static-reference")
    parser.add_argument("--fresh", action="store_true", help="start a new process for every message")
    parser.add_argument("--time-only", action="store_true", help="count no bytes and sample no memory")
    given = parser.parse_args()
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory(dir=shared) as fast:
        folder, in_memory = Path(scratch), Path(fast)
        how = (given.centers, given.rounds, given.wire, given.batch_norm, given.fresh, given.time_only)
        found = measure(*how, folder, in_memory)
    print(json.dumps(found, indent=2))
