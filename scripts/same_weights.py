"""Do two versions of the source train the same weights? Compares this tree with another commit.

    python scripts/same_weights.py REF [--only NAME …] [--device cuda]

The other commit is checked out into a temporary folder. Both trees then run the same short configurations
through their own command line (for Flower, through the in-process grid of their own tests), and the SHA-256
hashes of the final weights are compared. Run it for a change of structure, with both trees on one machine:
the bits depend on the CPU type and on the number of threads, so both trees get one thread. Exit status 0
means that all are equal.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

CONFIG = """
seed = 3
device = "{device}"
{top}
[method]
{method}
[aggregation]
{aggregation}
[training]
rounds = 3
batch_size = 10
reference_epochs = 1
reference_batch_size = 10
warmup_epochs = 3
{training}
[augmentation]
flip = false
[model]
backbone = "{backbone}"
[benchmark]
data = {{ source = "fashion_mnist" }}
wanted = "garment"
spaces = {{ department = 2, layer = 1, garment = 1 }}
per_class = 4
samples = 60
test_samples = 60
[deployment]
wait = 1
timeout = 60
"""

FEDMT = 'name = "fedmt"\n'
# Each part is text for one place in CONFIG. `how` is 'run', 'resume' (killed after round 1) or 'flower'.
CASES: dict[str, dict[str, str]] = {
    "fedmt-given": {"method": FEDMT},
    "fedmt-estimated": {"method": FEDMT + 'correspondence = "estimated"'},
    "fedmt-paper": {
        "top": 'preset = "paper"',
        "method": FEDMT + "xi = 0.3",
        "training": "local_epochs = 1\nlearning_rate = 0.1",
    },
    "fedmt-average": {"method": FEDMT + 'correspondence = "estimated"\naverage = true\nprojection = "all"'},
    "fedmt-learnable": {
        "method": FEDMT
        + 'correspondence = "estimated"\nestimator = "learnable"\nprojection = "all"\nsmoothing = 0.0'
    },
    "fedmt-uniform": {"method": FEDMT + 'correspondence = "estimated"\nprior = "uniform"'},
    "single": {"method": 'name = "single"'},
    "fedtrans": {"method": 'name = "fedtrans"\nfine_tune_epochs = 3'},
    "fedrep": {"method": 'name = "fedrep"'},
    "semifl": {
        "method": 'name = "semifl"\nxi = 0.3',
        "training": 'supervised_views = "weak+strong"\nparticipation = 0.75',
    },
    "scaffold": {"method": FEDMT, "aggregation": 'name = "scaffold"', "training": 'weights = "samples"'},
    "fedbn": {
        "method": FEDMT,
        "aggregation": 'name = "fedbn"',
        "training": 'batch_norm = "running"\nsupervised_views = "weak"',
    },
    "fedyogi": {"method": FEDMT, "aggregation": 'name = "fedyogi"', "training": "dropouts = 0.3"},
    "fedprox-resnet": {
        "method": FEDMT,
        "aggregation": 'name = "fedprox"',
        "backbone": "resnet18",
        "training": 'batch_norm = "static-reference"',
    },
    "resumed": {"method": FEDMT + 'correspondence = "estimated"', "how": "resume"},
    "captured": {"method": FEDMT, "top": "graphs = true"},
    "captured-scaffold": {
        "method": FEDMT + 'correspondence = "estimated"',
        "top": "graphs = true",
        "aggregation": 'name = "scaffold"',
    },
    "captured-learnable": {
        "method": FEDMT
        + 'correspondence = "estimated"\nestimator = "learnable"\nprojection = "all"\nsmoothing = 0.0',
        "top": "graphs = true",
        "aggregation": 'name = "fedprox"',
    },
    "flower": {"method": FEDMT, "how": "flower"},
    "flower-fedrep": {"method": 'name = "fedrep"', "how": "flower"},
}

FLOWER = """
import importlib.util, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
tree, config, out = map(Path, sys.argv[1:])
spec = importlib.util.spec_from_file_location("grid", tree / "tests/engines/test_flower_in_process.py")
tests = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tests)
tests.roll_module.POLL = 0.01
for name in ("_run_id", "_node_id", "_task_id"):
    setattr(tests.TaskIdentity, name, 1)
centers = {}
for number in range(1, 5):
    file = out.parent / f"{out.name}-center-{number}.toml"
    file.write_text(
        f'name = "center-{number}"\\nstate = "{out.name}-state-{number}"\\nfederation = "{config}"\\n'
        'device = "cpu"\\nshare_correspondence = true\\n'
    )
    centers[number] = file
tests.coordinate(tests.InProcessGrid(centers), tests.load_config(config), out)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ref", help="the commit to compare with")
    parser.add_argument("--only", nargs="*", choices=list(CASES), default=list(CASES), metavar="NAME")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "other"
        git("worktree", "add", "--detach", str(other), chosen.ref)
        try:
            return compare(Path(folder), other, chosen.only, chosen.device)
        finally:
            git("worktree", "remove", "--force", str(other))


def compare(folder: Path, other: Path, names: list[str], device: str) -> int:
    different = []
    with ThreadPoolExecutor(2) as pool:
        for name in names:
            config = folder / f"{name}.toml"
            case = {k: v for k, v in CASES[name].items() if k != "how"}
            blank = {"top": "", "method": "", "aggregation": "", "training": "", "backbone": "small_cnn"}
            config.write_text(CONFIG.format(**{**blank, **case, "device": device}))
            how = CASES[name].get("how", "run")
            here, there = pool.map(
                lambda tree, name=name, config=config, how=how: digest(
                    train(tree, config, folder / f"{name}-{'here' if tree == ROOT else 'there'}", how)
                ),
                (ROOT, other),
            )
            equal = here == there
            print(f"{name:<18} {'equal' if equal else 'DIFFERENT'}  {here[:16]}  {there[:16]}", flush=True)
            if not equal:
                different.append(name)
    print(
        f"{len(names) - len(different)} of {len(names)} equal." + (f" Not: {different}" if different else "")
    )
    return 1 if different else 0


def train(tree: Path, config: Path, out: Path, how: str) -> Path:
    """Runs a config with a tree's own source, and returns the run folder."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    if how == "flower":
        # Names now follow from keys, so a run without keys must set `insecure`, which older trees reject.
        schema = tree / "src" / "fedmt" / "config" / "schema.py"
        if schema.exists() and "insecure: bool" in schema.read_text():
            given, config = config.read_text(), out.with_suffix(".toml")
            config.write_text(given.replace("[deployment]\n", "[deployment]\ninsecure = true\n"))
        command = [sys.executable, "-c", FLOWER, str(tree), str(config), str(out)]
    else:
        command = [sys.executable, "-m", "fedmt", "run", str(config), "--out", str(out)]
    if how == "resume":
        kill_after_round_1(command, environment, out)
        command.append("--resume")
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{tree}: {config.name} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return out


def kill_after_round_1(command: list[str], environment: dict[str, str], out: Path) -> None:
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (out / "checkpoints" / "round-000001.safetensors").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if not out.exists():
        raise SystemExit(f"{out.name}: the run ended before its first round.")


def digest(run: Path) -> str:
    """The hash of the model's weights in the last checkpoint."""
    from safetensors.torch import load_file

    files = sorted((run / "checkpoints").glob("round-*.safetensors"))
    if not files:
        raise SystemExit(f"{run}: it has no checkpoint.")
    found = hashlib.sha256(files[-1].name.encode())
    for name, tensor in sorted(load_file(files[-1]).items()):
        if not name.startswith("weights/"):
            continue
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


def git(*arguments: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
