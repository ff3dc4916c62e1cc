"""The real TensorBoard and MLflow: what a run reports to them, once each, however often it is killed."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fedmt.config import dump_config, load_config
from fedmt.core.errors import FedmtError
from fedmt.runs.folder import RunFolder
from fedmt.tracking import MLFLOW_SETTINGS, hyperparameters, scalars
from fedmt.training import run as run_module
from fedmt.training.run import Silent, Stopped, run

os.environ.update(MLFLOW_SETTINGS)  # as a run does before it imports MLflow
# It is only looked up, because MLflow takes seconds to import, and every worker imports this file.
MISSING = [name for name in ("tensorboard", "mlflow") if find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: the extras {', '.join(MISSING)}"),
]

CONFIG = """
seed = 3
checkpoint_every = {every}
[method]
xi = 0.1
correspondence = "estimated"
[training]
rounds = {rounds}
local_epochs = 1
batch_size = 10
reference_epochs = 1
reference_batch_size = 10
warmup_epochs = 1
[model]
backbone = "small_cnn"
[benchmark]
data = {{ source = "fashion_mnist" }}
wanted = "garment"
spaces = {{ department = 1, layer = 1 }}
per_class = 1
samples = 20
test_samples = 50
[tracking]
tensorboard = true
mlflow = "{database}"
experiment = "garments"
"""

Write = Callable[..., Path]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's folder, shared by all tests, since it takes seconds to make."""
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture
def write(tmp_path: Path, database: Path) -> Write:
    def write(rounds: int = 2, every: int = 1, text: str = CONFIG) -> Path:
        path = tmp_path / "garments.toml"
        path.write_text(text.format(rounds=rounds, every=every, database=database))
        return path

    return write


def tensorboard_steps(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself reads from the run: (round, value) by name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def mlflow_run(folder: Path) -> Any:
    from mlflow import MlflowClient

    kept = json.loads((folder / "mlflow.json").read_text())
    client = MlflowClient(tracking_uri=kept["tracking_uri"])
    return client, client.get_run(kept["run_id"])


def mlflow_steps(folder: Path) -> dict[str, list[tuple[int, float]]]:
    client, found = mlflow_run(folder)
    names = found.data.metrics
    return {
        n: [(m.step, m.value) for m in client.get_metric_history(found.info.run_id, n)]
        for n in names
        if n != "round"
    }


def assert_each_round_once(folder: Path) -> None:
    """Asserts that both trackers have the figures of metrics.jsonl, each round once, and no others."""
    expected: dict[str, list[tuple[int, float]]] = {}
    for record in RunFolder(folder).metrics():
        for name, value in scalars(record).items():
            expected.setdefault(name, []).append((record["round"], value))
    # Rounds that were computed twice are equal except for the time they took.
    for found in (tensorboard_steps(folder), mlflow_steps(folder)):
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            steps = sorted(found[name])
            assert [s for s, _ in steps] == [s for s, _ in values], name
            if not name.startswith("seconds"):
                assert [v for _, v in steps] == pytest.approx([v for _, v in values], rel=1e-6), name


def test_every_figure_of_every_round(write, tmp_path):
    out = tmp_path / "first"
    run(load_config(write()), out)
    assert_each_round_once(out)
    assert not (tmp_path / "mlruns").exists() and not Path("mlruns").exists()
    names = mlflow_steps(out).keys()
    assert names >= {
        "accuracy/garment", "accuracy/department", "accuracy/layer",
        "mean_matrix/accuracy/department", "balanced_accuracy/garment", "auroc/layer", "log_loss/garment",
        "loss/reference", "loss/centers_loss", "confident_share", "pseudo_label_accuracy",
        "correspondence_error", "seconds/total",
    }  # fmt: skip


def test_the_config_is_there_as_hyperparameters(write, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    out = tmp_path / "first"
    run(load_config(write()), out)
    client, found = mlflow_run(out)
    assert found.info.run_name == "first" and found.info.status == "FINISHED"
    assert client.get_experiment(found.info.experiment_id).name == "garments"
    assert found.data.params["training.rounds"] == "2" and found.data.params["method.xi"] == "0.1"
    assert found.data.params["benchmark.spaces.department"] == "1"
    events = EventAccumulator(str(out / "tensorboard")).Reload()
    data = HParamsPluginData.FromString(
        events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    )
    given = data.session_start_info.hparams
    assert given["training.rounds"].number_value == 2 and given["method.name"].string_value == "fedmt"
    shown = HParamsPluginData.FromString(
        events.SummaryMetadata("_hparams_/experiment").plugin_data.content
    ).experiment.metric_infos
    assert [m.name.tag for m in shown] == ["accuracy/garment"]
    (text,) = events.Tensors("config/text_summary")
    assert b"correspondence = " in text.tensor_proto.string_val[0]


def test_data_tables_are_no_hyperparameters():
    found = hyperparameters(
        {
            "seed": 1,
            "spaces": {"a": ["b"]},
            "centers": [{"name": "x"}],
            "training": {"milestones (x)": [1, 2]},
        }
    )
    assert found == {"seed": 1, "training.milestones_x": "[1, 2]"}


def test_who_is_told_of_a_run_is_no_part_of_it(write, tmp_path):
    """So a tracker can be added to a resumed run, and an address with a password is not stored."""
    with_trackers = load_config(write())
    without = load_config(write(text=CONFIG[: CONFIG.index("[tracking]")]))
    assert dump_config(with_trackers) == dump_config(without)
    out = tmp_path / "late"
    run(without, out)
    assert not (out / "tensorboard").exists() and not (out / "mlflow.json").exists()
    run(with_trackers, out, resume=True)
    assert_each_round_once(out)


class StopAfter(Silent):
    def __init__(self, last: int) -> None:
        self.last = last

    def round(self, record):
        if record["round"] == self.last:
            raise Stopped


def test_a_stopped_run_goes_on_under_the_same_id(write, tmp_path):
    config, out = load_config(write(rounds=3)), tmp_path / "run"
    with pytest.raises(Stopped):
        run(config, out, observer=StopAfter(1))
    before = mlflow_run(out)[1].info
    assert before.status == "KILLED"
    run(config, out, resume=True)
    after = mlflow_run(out)[1].info
    assert (after.run_id, after.status) == (before.run_id, "FINISHED")
    assert_each_round_once(out)


def test_a_killed_run_leaves_no_round_twice(write, tmp_path, start):
    """SIGKILL comes after a round that was reported but not saved. Resuming computes it again."""
    path, out = write(rounds=6, every=4), tmp_path / "run"
    process = start("run", path, "--out", out)
    metrics, limit = out / "metrics.jsonl", time.monotonic() + 120
    while not (metrics.exists() and len(metrics.read_text().splitlines()) >= 4):
        assert process.poll() is None and time.monotonic() < limit
        time.sleep(0.005)
    process.kill()
    process.communicate()
    told = len(mlflow_steps(out)["seconds/total"])
    saved = RunFolder(out).load()
    assert saved is not None and saved.round == 0 and told >= 2
    # With the process's own number of threads (conftest.py), because another number rounds differently.
    run(load_config(path), out, resume=True)
    assert_each_round_once(out)


def test_a_failed_run_is_marked(write, tmp_path, monkeypatch):
    def broken(*_: object) -> None:
        raise FedmtError("no")

    monkeypatch.setattr(run_module, "evaluate", broken)
    with pytest.raises(FedmtError, match="no"):
        run(load_config(write(rounds=1)), tmp_path / "run")
    assert mlflow_run(tmp_path / "run")[1].info.status == "FAILED"


def test_a_run_that_was_deleted_there_begins_a_new_one(write, tmp_path):
    config, out = load_config(write(rounds=1)), tmp_path / "run"
    run(config, out)
    client, found = mlflow_run(out)
    client.delete_run(found.info.run_id)
    run(config, out, resume=True)
    assert mlflow_run(out)[1].info.run_id != found.info.run_id
    assert_each_round_once(out)


def test_a_tracker_that_fails_costs_no_training(write, tmp_path, monkeypatch):
    """The rounds that it did not accept are sent with a later one."""
    from mlflow import MlflowClient

    real, calls = MlflowClient.log_batch, []

    def log_batch(self, run_id, metrics=(), **more):
        if metrics:
            calls.append(metrics[0].step)
            if len(calls) in (2, 3):
                raise ConnectionError("the server is away")
        return real(self, run_id, metrics=metrics, **more)

    monkeypatch.setattr(MlflowClient, "log_batch", log_batch)
    with pytest.warns(
        UserWarning, match=r"MLflow did not accept round 1 .*the server is away.*Training continues"
    ):
        run(load_config(write(rounds=3)), tmp_path / "run")
    assert calls == [0, 1, 1, 1, 2, 3]
    assert_each_round_once(tmp_path / "run")


# -- rejected before anything is trained ---------------------------------------------------------------


@pytest.mark.parametrize("package, key", [("tensorboard", "tensorboard"), ("alembic", "mlflow")])
def test_a_missing_extra(command, write, tmp_path, monkeypatch, package, key):
    from fedmt.tracking import spec

    real = spec.find_spec
    monkeypatch.setattr(spec, "find_spec", lambda name: None if name == package else real(name))
    for arguments in (("check", write()), ("run", write(), "--out", tmp_path / "run")):
        status, _, err = command(*arguments)
        assert status == 2 and f"pip install 'fedmt[{key}]'" in err
        assert f"tracking.{key}: {package} is not installed" in err and "garments.toml, line" in err
    assert not (tmp_path / "run").exists()


def test_a_server_that_is_not_there(command, write, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    address = "tracking.mlflow=http://127.0.0.1:9"
    status, out, err = command("run", write(), "--out", tmp_path / "run", "--set", address)
    assert status == 2 and "round" not in out
    assert (
        "tracking.mlflow: the tracker cannot be opened" in err
        and "127.0.0.1" in err
        and "remove tracking.mlflow" in err
    )


def test_mistakes_in_the_table(command, write, tmp_path):
    status, _, err = command("check", write(), "--set", "tracking.tensorbord=true")
    assert status == 2 and "unknown key 'tracking.tensorbord'. Did you mean 'tensorboard'?" in err
    status, _, err = command("check", write(), "--set", 'tracking.mlflow=""')
    assert status == 2 and "tracking.mlflow" in err
    (tmp_path / "taken").write_text("a file")
    status, _, err = command("run", write(), "--out", tmp_path / "run", "--set", "tracking.mlflow=taken")
    assert (
        status == 2
        and "tracking.mlflow: the tracker cannot be opened" in err
        and str(tmp_path / "taken") in err
    )


def test_the_libraries_are_imported_only_where_asked_for(warm):
    code = (
        "import sys, fedmt.commands.cli, fedmt.training.run; "
        "print([m for m in sys.modules if m.split('.')[0] in ('mlflow', 'tensorboard', 'sqlalchemy')])"
    )
    assert subprocess.check_output([warm / "python-c", code], text=True).strip() == "[]"


def test_mlflow_does_not_report_its_use(write, tmp_path, warm):
    """In a separate process, with the environment of a user who has set nothing."""
    code = (
        "import sys; from fedmt.config import load_config; from fedmt.training.run import run; "
        "run(load_config(sys.argv[1]), sys.argv[2]); "
        "from mlflow.telemetry.client import get_telemetry_client; print(get_telemetry_client())"
    )
    known = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "PYTEST_", "CI"))}
    arguments = [warm / "python-c", code, str(write(rounds=1)), str(tmp_path / "run")]
    assert subprocess.check_output(arguments, text=True, env=known).strip() == "None"


def test_an_experiments_runs_share_a_folder(command, tmp_path):
    """Worker processes open the same new database at once."""
    out = tmp_path / "out"
    experiment = tmp_path / "two.toml"
    (tmp_path / "garments.toml").write_text(CONFIG.format(rounds=1, every=1, database="new"))
    experiment.write_text(
        'title = "Two"\nconfig = "garments.toml"\nshow = ["accuracy"]\n'
        '[[columns]]\nlabel = "a"\n[[rows]]\nlabel = "b"\n'
    )
    status, printed, err = command("reproduce", experiment, "--seeds", 2, "--jobs", 2, "--out", out)
    assert status == 0, printed + err
    folders = [p for p in (out / "runs").iterdir() if p.is_dir()]
    assert len(folders) == 2
    for folder in folders:
        assert_each_round_once(folder)
    client, found = mlflow_run(folders[0])
    runs = client.search_runs([found.info.experiment_id])
    assert {r.info.run_name for r in runs} == {f.name for f in folders}
