"""One run, from a config to a finished run folder: the loop that ties the engine to the disk."""

from __future__ import annotations

import platform
import time
import tomllib
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

import fedmt
from fedmt.config import (
    Config,
    build_attack,
    build_federation,
    build_guard,
    build_method,
    build_strategy,
    build_summing,
    build_transforms,
    dump_config,
    freeze,
    starting_model,
    with_held_out,
)
from fedmt.core.errors import FedmtError
from fedmt.data.center import Federation
from fedmt.engines.budget import privacy_notes
from fedmt.engines.device import pick_device
from fedmt.engines.local import LocalEngine
from fedmt.engines.site import Record
from fedmt.engines.state import State
from fedmt.engines.summing import precision_notes
from fedmt.metrics import HEADLINE, enter
from fedmt.models.calibrating import calibrate
from fedmt.models.description import describe, with_calibration
from fedmt.runs.evaluation import evaluate, read_evaluation
from fedmt.runs.folder import RunFolder
from fedmt.tracking import Tracking, tracking


class Observer(Protocol):
    """An observer of a run: a progress display, a test, a notebook. Each call may raise `Stopped`."""

    def started(self, engine: LocalEngine, done: int, notes: tuple[str, ...]) -> None: ...
    def center(self, round: int, name: str) -> None: ...
    def round(self, record: Record) -> None: ...


class Silent:
    """An observer that does nothing."""

    def started(self, engine: LocalEngine, done: int, notes: tuple[str, ...]) -> None:
        pass

    def center(self, round: int, name: str) -> None:
        pass

    def round(self, record: Record) -> None:
        pass


class Stopped(BaseException):
    """The user asked to stop. Every finished round is saved. Like KeyboardInterrupt, it is not an
    `Exception`."""


def run(
    config: Config, out: str | Path, resume: bool = False, observer: Observer | None = None
) -> dict[str, Any]:
    """Runs `config` in the folder `out` and returns its summary.

    With `resume`, a run that was stopped or killed continues from its last finished round and ends with the
    same weights; a finished one is unchanged.
    """
    device = pick_device(config.device)
    if not resume:
        RunFolder(Path(out)).refuse_if_taken()
    # The data is read before the folder is made, so that bad data leaves nothing behind.
    federation, notes = build_federation(config)
    engine = build_engine(config, federation, device)
    notes = (*notes, *_notes(engine, federation))
    return run_engine(config, engine, out, resume, observer or Silent(), notes)


def run_arrays(
    config: Config,
    federation: Federation,
    out: str | Path,
    resume: bool = False,
    observer: Observer | None = None,
    network: nn.Module | None = None,
) -> dict[str, Any]:
    """Like `run`, for a federation that is already in memory and that the config describes.

    network: the user's own module, if the config says that one is given.
    """
    device = pick_device(config.device)
    if not resume:
        RunFolder(Path(out)).refuse_if_taken()
    federation, held = with_held_out(federation, config)
    engine = build_engine(config, federation, device, network)
    notes = (*federation.notes, *held, *_notes(engine, federation))
    return run_engine(config, engine, out, resume, observer or Silent(), notes, network)


def _notes(engine: LocalEngine, federation: Federation) -> tuple[str, ...]:
    """What privacy and secure aggregation mean for this federation."""
    by_samples = engine.method.training.weights == "samples"
    return (
        *privacy_notes(engine.method, federation.centers),
        *precision_notes(engine.summing, federation, by_samples),
    )


def run_engine(
    config: Config,
    engine: LocalEngine,
    out: str | Path,
    resume: bool,
    observer: Observer,
    notes: tuple[str, ...],
    network: nn.Module | None = None,
) -> dict[str, Any]:
    """Runs an engine in the folder `out` and returns the summary. network: as in `run_arrays`."""
    enter(config.metrics, "metrics")  # repeated here, because a config may have come from another process
    engine.on_center = observer.center
    text = dump_config(config)
    folder = RunFolder.resume(out, text) if resume else RunFolder.create(out, text)
    spec, encoded = config.model, engine.federation.encoded
    model = describe(engine.federation, engine.method, spec.backbone, spec.max_pool, spec.head)
    settings = tomllib.loads(text)
    with folder.locked(), tracking(config.tracking, folder.path, settings) as trackers:
        folder.keep_data(engine.federation.contents())
        if encoded is not None:
            folder.keep_frozen(encoded.network.state_dict())
        state = folder.load()
        # A summary counts only if its weights exist. Without them, the run trains again.
        complete = state is not None and state.round >= engine.method.training.rounds
        finished = folder.summary() if complete else None
        # A finished run is not calibrated again, so its description keeps the temperature.
        fitted = (finished or {}).get("calibration")
        folder.write_model((with_calibration(model, fitted) if fitted else model).to_json())
        state = _train(config, folder, engine, state, observer, trackers, notes)
        evaluation = read_evaluation(folder.evaluation_file)
        if finished is None or evaluation is None or evaluation.round != state.round:
            evaluation = evaluate(engine, state)
            evaluation.write(folder.evaluation_file)
        if finished is not None:
            return finished  # who trained it, and where, is kept as it was written
        summary = summarize(config, folder.metrics(), engine.device)
        summary |= evaluation.measured or {}
        if engine.federation.held_out is not None:
            summary["calibration"] = calibrate(folder, model, engine.federation, engine.device, network)
        folder.write_summary(summary)
    return summary


def _train(
    config: Config,
    folder: RunFolder,
    engine: LocalEngine,
    state: State | None,
    observer: Observer,
    trackers: Tracking,
    notes: tuple[str, ...],
) -> State:
    """Runs the rounds from the last saved `state`, if there is one, to the end. Returns the last state."""
    if state is None and folder.metrics():
        notes = (*notes, f"{folder.path}: no checkpoint is left, so the run begins again at round 0.")
    folder.rewind(state.round if state is not None else -1)
    trackers.log(folder.metrics())
    rounds = engine.method.training.rounds
    observer.started(engine, state.round if state is not None else 0, notes)
    if state is None:
        begin = time.perf_counter()
        state, record = engine.start()
        _write_round(folder, state, record, begin)
        folder.save(state, config.keep_checkpoints)
        trackers.log([record])
        observer.round(record)
    try:
        while state.round < rounds:
            begin = time.perf_counter()
            after, record = engine.round(state)
            _write_round(folder, after, record, begin)
            state = after  # finished: its metrics are written
            if state.round % config.checkpoint_every == 0 or state.round == rounds:
                folder.save(state, config.keep_checkpoints)
            trackers.log([record])
            observer.round(record)
    except (Stopped, KeyboardInterrupt):
        folder.save(state, config.keep_checkpoints)  # the last finished round may not have been due
        raise
    return state


def build_engine(
    config: Config, federation: Federation, device: torch.device, network: nn.Module | None = None
) -> LocalEngine:
    """The engine at the run's starting weights; with a frozen backbone, on the features of all samples.

    network: as in `run_arrays`.
    """
    federation = freeze(config, federation, device)
    return LocalEngine(
        federation,
        build_method(config),
        starting_model(config, federation, network),
        config.seed,
        device,
        precision=config.precision,
        strategy=build_strategy(config),
        guard=build_guard(config),
        summing=build_summing(config, len(federation.roster.members)),
        attack=build_attack(config),
        transforms=build_transforms(config),
        graphs=config.graphs,
        compile=config.compile,
        prefetch=config.prefetch,
    )


def _write_round(folder: RunFolder, state: State, record: Record, begin: float) -> None:
    """Writes the metrics of a round, if its weights are finite."""
    record["seconds"]["total"] = round(time.perf_counter() - begin, 4)
    broken = [k for k, v in state.weights.items() if not bool(v.isfinite().all())]
    if broken:
        sizes = {name: c["update_norm"] for name, c in record["centers"].items() if "update_norm" in c}
        largest = max(sizes, key=lambda name: sizes[name], default="")
        whose = (
            f" The largest update, of norm {sizes[largest]:.3g}, was that of '{largest}'." if sizes else ""
        )
        raise FedmtError(
            f"Round {state.round}: training diverged, and the model's weights are no longer numbers.{whose} "
            "Start a new run, in another folder, with a lower training.learning_rate or training.clip."
        )
    folder.append_metrics(record)


def summarize(config: Config, metrics: list[Record], device: torch.device) -> dict[str, Any]:
    """The headline is that of the last round. The best of any round is also included and marked as such."""
    if not metrics:
        raise FedmtError(
            "The run is finished, but its metrics.jsonl is empty. Start a new run in another --out."
        )
    last = metrics[-1]
    best: dict[str, float] = {}
    for record in metrics:
        for space, value in record[HEADLINE].items():
            best[space] = max(value, best.get(space, 0.0))
    return {
        "method": config.method["name"],
        "rounds": last["round"],
        HEADLINE: last[HEADLINE],
        f"best_{HEADLINE}_of_any_round": best,
        "seconds": round(sum(r["seconds"]["total"] for r in metrics), 1),
        "seed": config.seed,
        "device": str(device),
        "threads": torch.get_num_threads(),
        "versions": {
            "fedmt": fedmt.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
