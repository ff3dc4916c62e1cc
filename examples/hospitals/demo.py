"""Runs the whole deployment on this machine, with TLS and node authentication: `make demo-deployment`.

It creates the hospitals' folders and throwaway keys, binds each hospital's name to its key, and gives the
hospitals each other's fingerprints. It starts a SuperLink, nginx in front of it (if it is installed) and
three SuperNodes on loopback. It trains with secure aggregation, prints the table, and ends everything that it
started. docs/guides/deployment.md has the same commands for real machines.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from make_data import SAMPLES, make_data
from rich.console import Console
from rich.table import Table

from fedmt.engines.flower.keys import make_keys
from fedmt.engines.flower.processes import Deployment
from fedmt.runs.folder import RunFolder

HERE = Path(__file__).parent.resolve()
CENTERS = ("Berlin", "Lyon", "Oslo")


def demo(out: Path, rounds: int | None = None, samples: int = SAMPLES, patience: float = 900.0) -> bool:
    """Returns whether the run finished. rounds: a number other than the config's."""
    out = out.resolve()
    if (out / "coordinator").exists():
        shutil.rmtree(out)
    make_data(out, samples)
    federation = out / "coordinator" / "federation.toml"
    if rounds is not None:
        federation.write_text(federation.read_text().replace("rounds = 4", f"rounds = {rounds}"))
    fingerprints = make_keys(out / "keys", ["127.0.0.1"], CENTERS)
    text = federation.read_text()
    for name, key in fingerprints.items():
        text = text.replace(f'name = "{name}"\n', f'name = "{name}"\nkey = "{key}"\n')
    federation.write_text(text)
    for name in CENTERS:
        # In production, the hospitals exchange their fingerprints: the coordinator must not choose them.
        peers = "".join(f'{peer} = "{key}"\n' for peer, key in fingerprints.items() if peer != name)
        with (out / name.lower() / "center.toml").open("a") as file:
            file.write(f"\n[peers]\n{peers}")
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    folder = out / "coordinator" / "run"
    with Deployment(out, out / "keys") as machines:
        console.print(f"SuperLink on 127.0.0.1:{machines.port}, with TLS and node authentication.")
        machines.start_superlink()
        if shutil.which("nginx", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin"):
            machines.start_proxy(HERE.parent / "deployment" / "nginx.conf")
            console.print(f"nginx on 127.0.0.1:{machines.proxy}: the hospitals reach /v1/fleet/ and no more.")
        else:
            console.print("Without a proxy: nginx is not installed.")
        for name in CENTERS:
            machines.register(name)
            machines.start_supernode(name, out / name.lower() / "center.toml")
        console.print(f"SuperNodes: {', '.join(CENTERS)}. Logs in {out}.", soft_wrap=True)
        run = machines.start_run(HERE / "app", federation, folder)
        deadline = time.monotonic() + patience
        shown = 0
        while run.running and time.monotonic() < deadline:
            time.sleep(0.5)
            lines = RunFolder(folder).metrics() if folder.exists() else []
            for record in lines[shown:]:
                console.print(f"round {record['round']}: {record['seconds']['total']:.1f} s")
            shown = len(lines)
        said = run.output()
    if not (folder / "summary.json").exists():
        console.print(said, markup=False, soft_wrap=True)
        return False
    metrics = RunFolder(folder).metrics()
    table = Table(title="Test accuracy")
    spaces = list(metrics[-1]["accuracy"])
    for column in ("round", *spaces, "left out", "seconds"):
        table.add_column(column, justify="right")
    for record in metrics:
        out_of_it = [name for name, c in record["centers"].items() if "left_out" in c]
        accuracy = (f"{record['accuracy'][s]:.1%}" if s in record["accuracy"] else "-" for s in spaces)
        seconds = f"{record['seconds']['total']:.1f}"
        table.add_row(str(record["round"]), *accuracy, ", ".join(out_of_it) or "-", seconds)
    console.print(table)
    console.print(f"Run folder: {folder}\nEverything that was started has ended.", soft_wrap=True)
    return json.loads((folder / "summary.json").read_text())["rounds"] == metrics[-1]["round"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Three hospitals and a coordinator on this machine.")
    parser.add_argument("--out", type=Path, default=Path("deployment"), help="folder, replaced if it exists")
    parser.add_argument("--rounds", type=int, help="number of rounds (default: 4, from the config)")
    parser.add_argument("--samples", type=int, default=SAMPLES, help=f"images per center (default {SAMPLES})")
    given = parser.parse_args()
    sys.exit(0 if demo(given.out, given.rounds, given.samples) else 1)
