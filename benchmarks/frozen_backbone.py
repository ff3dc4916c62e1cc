"""How much faster is a round with a frozen backbone, and how many bytes does a center receive?

    python benchmarks/frozen_backbone.py --data data/fitzpatrick17k --weights mobilenet_v2.safetensors

The data are Fitzpatrick 17k, with 4 centers of 100 images and a reference center with a tenth of the set.
FedMT estimates M and trains MobileNetV2 at 96 pixels. Both runs share one process and alternate, because the
machine may be shared: one round of the whole network, then five rounds of the linear head. The figure is the
median ratio of the seconds per round over these turns. The bytes are those of the weights and of the plan
that are sent to a center in a round.

Measured 2026-11-16 on one thread of a shared Intel Xeon at 2.8 GHz (load 4 to 6), Python 3.11.7, torch
2.13.0, 765 images: a round takes 48 to 120 s for the whole network and 0.18 to 0.83 s for the head. The
ratios of the three turns are 259, 102 and 241, with median 241. The features took 4.7 s, once. Per round,
a center receives 9.10 MB of weights of the whole network, or 0.05 MB of the head and 0.05 MB of its plan. The
frozen network, 9.06 MB, is sent once.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from fedmt.config import Config, build_federation, freeze, parse_config
from fedmt.engines.flower import wire
from fedmt.engines.flower.plan import Plan
from fedmt.engines.local import LocalEngine
from fedmt.training.run import build_engine

TURNS = 3
"""Rounds of the whole network. The head gets five times as many."""

CPU = torch.device("cpu")


def config(options: argparse.Namespace, frozen: bool) -> Config:
    raw: dict[str, Any] = {
        "method": {"name": "fedmt", "correspondence": "estimated"},
        "training": {"rounds": 5 * TURNS, "warmup_epochs": 1},
        "images": {"size": options.size, "channels": 3},
        "model": {"backbone": "mobilenet_v2", "weights": str(options.weights), "freeze": frozen},
        "benchmark": {
            "data": {"source": "fitzpatrick17k", "path": str(options.data)},
            "wanted": "nine",
            "spaces": {"three": 4},
            "samples": 100,
            "reference_share": 0.1,
            "test_per_class": 20,
            "at_most": {"inflammatory": 500, "malignant epidermal": 500},
        },
    }
    return parse_config(raw)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with fitzpatrick17k.csv and images/")
    parser.add_argument("--weights", type=Path, required=True, help="weights of MobileNetV2 (torchvision's)")
    parser.add_argument("--size", type=int, default=96)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # the weight file's own head is not used
    whole, head = config(options, frozen=False), config(options, frozen=True)
    federation, _ = build_federation(whole)
    begin = time.perf_counter()
    features = freeze(head, federation, CPU)
    made = time.perf_counter() - begin
    engines = {"whole": build_engine(whole, federation, CPU), "head": build_engine(head, features, CPU)}
    states = {name: engine.start()[0] for name, engine in engines.items()}
    ratios = []

    def measured(name: str) -> float:
        begin = time.perf_counter()
        states[name], record = engines[name].round(states[name])
        taken = time.perf_counter() - begin
        print(f"{name:5} {taken:8.3f} s  {record['accuracy']['nine']:.1%}", flush=True)
        return taken

    for _ in range(TURNS):
        ratios.append(measured("whole") / statistics.median(measured("head") for _ in range(5)))
    count = sum(len(c) for c in (federation.reference, *federation.centers, federation.tests[0]))
    print(f"{count:,} images of {options.size} x {options.size}: features in {made:.1f} s, once")
    print(f"ratios of the seconds per round: {ratios}, median {statistics.median(ratios):.0f}")
    print(
        f"bytes of the weights to a center per round: {sent(engines['whole']):,}, {sent(engines['head']):,}"
    )
    plans = [len(json.dumps(Plan.of(c, f).to_json())) for c, f in ((whole, federation), (head, features))]
    print(f"bytes of the plan, which goes with them: {plans[0]:,}, {plans[1]:,}")
    assert features.encoded is not None
    print(f"the frozen network, sent once: {len(wire.to_bytes(features.encoded.network.state_dict())):,}")
    print(f"Python {platform.python_version()}, torch {torch.__version__}, {torch.get_num_threads()} threads")


def sent(engine: LocalEngine) -> int:
    return len(wire.to_bytes(engine.trainer.weights()))


if __name__ == "__main__":
    main()
