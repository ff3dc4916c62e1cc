"""Where is the time spent before and during the first round?

Runs one of the settings of `backbones.py` for two rounds in this process and prints when each part was
finished: imports, the device, the engine, each trial of new work (including the first use of its kernels),
each capture, the checks, and the phases of every round.

    python benchmarks/startup.py [--network mobilenet_v2] [--tiny]
"""

from __future__ import annotations

import time

BEGIN = time.perf_counter()

import argparse
import logging
from collections.abc import Callable
from typing import Any

import torch
from backbones import SETTINGS, engine, federation, wait


class SinceTheStart(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{time.perf_counter() - BEGIN:8.2f}   | {record.getMessage()}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", choices=list(SETTINGS), default="mobilenet_v2")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    setting = SETTINGS[options.network].tiny if options.tiny else SETTINGS[options.network]
    device = torch.device("cpu" if options.tiny else "cuda")
    handler = logging.StreamHandler()
    handler.setFormatter(SinceTheStart())
    log = logging.getLogger("fedmt")
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)

    def timed(name: str, function: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        found = function()
        wait(device)
        now = time.perf_counter()
        phases = found[1]["seconds"] if isinstance(found, tuple) else {}
        inside = ": " + ", ".join(f"{k} {v:.2f}" for k, v in phases.items()) if phases else ""
        print(f"{now - BEGIN:8.2f} s {now - begin:7.2f} s  {name}{inside}", flush=True)
        return found

    print(f"{time.perf_counter() - BEGIN:8.2f} s           imports", flush=True)
    timed("device", lambda: torch.zeros(1, device=device))
    own = timed("random samples, not part of a run", lambda: federation(setting))
    running = timed("engine", lambda: engine(setting, own, device, True, options.tiny))
    state, _ = timed("round 0", running.start)
    for number in (1, 2, 3):
        state, _ = timed(f"round {number}", lambda before=state: running.round(before))


if __name__ == "__main__":
    main()
