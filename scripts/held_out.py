"""Compares settings on held-out data, for the appendices of the results: one line of JSON per run.

    python scripts/held_out.py SETTINGS.toml --out results.jsonl --jobs 2

scripts/held_out_settings has those of some tables. SETTINGS.toml has a table for each federation and setting:

    [federations.skin]
    config = "experiments/base/skin.toml"
    hold_out = 2                            # the last two centers train nothing: their samples are the test
    set = { "images.size" = 64 }

    [settings."FedMT (T), rate 0.03"]
    set = { "training.learning_rate" = 0.03 }
    only = ["skin"]                         # by default, every federation
    seeds = [0, 1]                          # by default, seed 0

Without `hold_out`, the config itself must test on samples that are not test data, such as with
`benchmark.test_per_class`. Runs that the output file already has are not repeated.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import tomllib
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from fedmt.config import build_federation, override, parse_config
from fedmt.config.errors import Origin
from fedmt.data.center import Center, Federation
from fedmt.runs.folder import RunFolder
from fedmt.training.run import run_arrays

METRICS = ("balanced_accuracy", "auroc", "accuracy")


def without_last(federation: Federation, count: int) -> Federation:
    """The last centers' samples are the only test, labeled in the wanted space."""
    others, last = federation.centers[:-count], federation.centers[-count:]
    values = torch.cat([c.values for c in last])
    truth = torch.cat([c.truth for c in last if c.truth is not None])
    test = Center("test", values, federation.wanted, truth, input=federation.input)
    return replace(federation, centers=others, tests=(test,))


def make(job: dict[str, Any]) -> dict[str, Any]:
    """One run, in a temporary folder."""
    if job["threads"]:
        torch.set_num_threads(job["threads"])
    path = Path(job["config"])
    text = path.read_text(encoding="utf-8")
    raw = tomllib.loads(text)
    name = job["set"].get("method.name", raw.get("method", {}).get("name", "fedmt"))
    if name != raw.get("method", {}).get("name", "fedmt"):
        raw["method"] = {}  # the base's options belong to another method
    for key, value in job["set"].items():
        override(raw, f"{key}={value if isinstance(value, str) else json.dumps(value)}")
    config = parse_config(raw, Origin(path, text)).model_copy(update={"seed": job["seed"]})
    start = time.monotonic()
    federation, _ = build_federation(config)
    if job["hold_out"]:
        federation = without_last(federation, job["hold_out"])
    with tempfile.TemporaryDirectory() as folder:
        run_arrays(config, federation, Path(folder) / "run")
        records = RunFolder(Path(folder) / "run").metrics()
    last, wanted = records[-1], federation.wanted.name
    result = {metric: round(last[metric][wanted], 5) for metric in METRICS}
    for fact in ("correspondence_error", "prior_error", "confident_share", "pseudo_label_accuracy"):
        each = [c[fact] for c in last.get("centers", {}).values() if c.get(fact) is not None]
        if each:
            result[fact] = round(sum(each) / len(each), 4)
    every = max(1, len(records) // 10)
    curve = [round(100 * r["balanced_accuracy"][wanted], 1) for r in records[::-every]][::-1]
    found = {key: job[key] for key in ("federation", "setting", "seed")}
    seconds = round(time.monotonic() - start, 1)
    return {**found, "set": job["set"], **result, "curve": curve, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="Where the lines of JSON are added.")
    parser.add_argument("--jobs", type=int, default=1, help="Number of runs side by side.")
    parser.add_argument("--threads", type=int, default=1, help="Threads of each run; 0: torch's choice.")
    parser.add_argument(
        "--only", action="append", default=[], help="Only settings or federations with this text."
    )
    given = parser.parse_args()
    file = tomllib.loads(given.settings.read_text(encoding="utf-8"))
    lines = given.out.read_text(encoding="utf-8").splitlines() if given.out.exists() else []
    done = {(r["federation"], r["setting"], r["seed"]) for r in map(json.loads, lines)}
    jobs = []
    for label, setting in file["settings"].items():
        for name, federation in file["federations"].items():
            if name not in setting.get("only", file["federations"]):
                continue
            if given.only and not any(text in f"{label} {name}" for text in given.only):
                continue
            jobs += [
                {
                    "federation": name,
                    "setting": label,
                    "seed": seed,
                    "config": federation["config"],
                    "hold_out": federation.get("hold_out", 0),
                    "set": {**federation.get("set", {}), **setting.get("set", {})},
                    "threads": given.threads,
                }
                for seed in setting.get("seeds", [0])
                if (name, label, seed) not in done
            ]
    jobs.sort(key=lambda job: job["seed"])
    # A process that has used CUDA must not be copied, so the workers are started anew.
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
        under_way = {pool.submit(make, job): job for job in jobs}
        for future in as_completed(under_way):
            job = under_way[future]
            what = f"{job['federation']}, {job['setting']}, seed {job['seed']}"
            try:
                found = future.result()
            except Exception as error:
                print(f"{what} failed: {error}", flush=True)
                continue
            with given.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(found) + "\n")
            print(f"{what}: {100 * found['balanced_accuracy']:.1f}, {found['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
