"""The coordinating site, Flower's ServerApp: it runs a federation's config and writes a run folder.

    flwr run app hospitals --run-config 'federation="/…/federation.toml" out="/…/runs/first"'

A run in the folder is resumed from its last finished round, so after a kill the same command starts it again.
"""

from __future__ import annotations

import logging
import secrets
import sys
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from fedmt.config import (
    Config,
    DeploymentSpec,
    build_federation,
    build_guard,
    build_method,
    build_strategy,
    build_summing,
    build_transforms,
    center_keys,
    freeze,
    load_config,
    starting_model,
)
from fedmt.core.errors import FedmtError
from fedmt.core.escaping import escaped
from fedmt.engines.device import pick_device
from fedmt.engines.flower.coordinator import FlowerEngine
from fedmt.engines.flower.plan import Plan
from fedmt.engines.flower.summed import SummedFlowerEngine
from fedmt.engines.flower.trail import Trail
from fedmt.engines.local import LocalEngine
from fedmt.engines.site import Record
from fedmt.runs.files import write_atomically
from fedmt.training.progress import round_line
from fedmt.training.run import run_engine

log = logging.getLogger("flwr")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the federation and logs what happens. A user's mistake ends with its message."""
    given = {key: str(context.run_config.get(key) or "") for key in ("federation", "out")}
    missing = [key for key, value in given.items() if not value]
    if missing:
        raise FedmtError(f'--run-config: set {" and ".join(missing)}, as in out="/data/runs/first".')
    try:
        for key, value in given.items():
            if not Path(value).is_absolute():
                raise FedmtError(
                    f"--run-config: {key} = '{value}' is not an absolute path. Give one on the coordinator's "
                    "machine, because the SuperLink may run in any folder."
                )
        coordinate(grid, load_config(Path(given["federation"])), Path(given["out"]))
    except FedmtError as error:
        # Flower logs it with a traceback. Where it came from is no news, because it is a mistake in a file.
        sys.tracebacklimit = 0
        raise FedmtError(str(error)) from None


def coordinate(grid: Grid, config: Config, out: Path) -> None:
    federation, notes = build_federation(config, at_hand=False)
    # In Flower's simulation, all nodes are this machine, and none has a key.
    simulated = isinstance(grid, InMemoryGrid)
    keys = {} if simulated else center_keys(config, [m.name for m in federation.roster.members])
    device = pick_device(config.device)
    federation = freeze(config, federation, device)
    kind = SummedFlowerEngine if config.sums_only else FlowerEngine
    engine = kind(
        federation,
        build_method(config),
        starting_model(config, federation),
        config.seed,
        device,
        precision=config.precision,
        strategy=build_strategy(config),
        guard=build_guard(config),
        summing=build_summing(config, len(federation.roster.members)),
        graphs=config.graphs,
        transforms=build_transforms(config),
        grid=grid,
        plan=Plan.of(config, federation),
        deployment=config.deployment or DeploymentSpec.model_validate({}),
        history=config.keep_checkpoints * config.checkpoint_every,
        keys=keys,
        trail=Trail(out),
    )
    observer = Log(out)
    try:
        run_engine(config, engine, out, True, observer, notes)
    except FedmtError as error:
        if observer.opened:  # otherwise the folder belongs to another run, or there is none
            engine.trail.write("stopped", why=escaped(error))
        raise
    engine.trail.write("finished", rounds=observer.rounds)


class Log:
    """An observer that calls the roll when the run folder is open and then logs one line per round."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.rounds = 0
        self.opened = False

    def started(self, engine: LocalEngine, done: int, notes: tuple[str, ...]) -> None:
        assert isinstance(engine, FlowerEngine)
        self.opened = True
        self.rounds = engine.method.training.rounds
        for note in notes:
            log.info("Note: %s", note)
        if done:
            log.info("Continuing after round %s of %s.", done, self.rounds)
        if done < self.rounds:
            engine.connect(run_name(self.out))

    def center(self, round: int, name: str) -> None:
        pass

    def round(self, record: Record) -> None:
        log.info("%s", round_line(record, self.rounds))


def run_name(out: Path) -> str:
    """The name under which the centers remember the run. It is made once and kept in its folder."""
    path = out / "run"
    if not path.exists():
        write_atomically(path, secrets.token_hex(16).encode())
    return path.read_text().strip()
