"""A run that is killed and resumed ends with weights that are bit-identical to an uninterrupted run's."""

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import fedmt
from fedmt.config import load_config
from fedmt.core.errors import FedmtError
from fedmt.runs import files
from fedmt.runs import folder as folder_module
from fedmt.runs.folder import RunFolder
from fedmt.training.run import Stopped, run

pytestmark = pytest.mark.slow

CONFIG = """
seed = 3
[method]
name = "fedmt"
correspondence = "estimated"
xi = 0.5
[training]
rounds = 4
local_epochs = 1
batch_size = 10
reference_epochs = 1
reference_batch_size = 10
warmup_epochs = 5
learning_rate = 0.05
[augmentation]
operations = ["rotate", "shear_x"]
[model]
backbone = "small_cnn"
[benchmark]
data = { source = "fashion_mnist" }
wanted = "garment"
spaces = { department = 2, layer = 1 }
per_class = 2
samples = 30
test_samples = 100
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, RunFolder]:
    """The config, and the folder of the uninterrupted run."""
    path = tmp_path_factory.mktemp("whole")
    config = path / "federation.toml"
    config.write_text(CONFIG)
    run(load_config(config), path / "run")
    return config, RunFolder(path / "run")


def assert_same(found: RunFolder, expected: RunFolder) -> None:
    one, two = found.load(), expected.load()
    assert one is not None and two is not None and one.round == two.round == 4
    for before, after in ((one.weights, two.weights), (one.server, two.server)):
        assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
    for name in two.kept:
        assert torch.equal(one.kept[name]["correspondence"], two.kept[name]["correspondence"])
    plain = [
        [{k: v for k, v in record.items() if k != "seconds"} for record in f.metrics()]
        for f in (found, expected)
    ]
    assert plain[0] == plain[1]
    assert found.config_file.read_text() == expected.config_file.read_text()
    assert not list(found.path.rglob("*.tmp"))
    assert json.loads(found.summary_file.read_text())["accuracy"] == plain[1][-1]["accuracy"]


def test_sigkill_at_several_points(whole, tmp_path, start):
    """Kills the run once the config, the first metrics, the first checkpoint and a later round exist."""
    config, expected = whole
    out = tmp_path / "run"
    points = [
        lambda: (out / "config.toml").exists(),
        lambda: (out / "metrics.jsonl").exists(),
        lambda: any((out / "checkpoints").glob("round-000001*")),
        lambda: len((out / "metrics.jsonl").read_text().splitlines()) >= 4,
    ]
    kills = 0
    for reached in points:
        process = start("run", config, "--out", out, "--resume")
        limit = time.monotonic() + 120
        while process.poll() is None and not reached():
            assert time.monotonic() < limit, "the run did not get there"
            time.sleep(0.002)
        kills += process.poll() is None
        process.kill()
        process.communicate()
    assert kills >= 3  # on a fast machine, the run may finish before the last kill
    process = start("run", config, "--out", out, "--resume")
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 0, said
    assert_same(RunFolder(out), expected)


class Killed(BaseException):
    """Not an Exception, because nothing may catch it, just as nothing catches a SIGKILL."""


def test_a_kill_at_every_write(whole, tmp_path, monkeypatch):
    """Dies before and after every file operation of the run, then resumes."""
    config, expected = whole
    settings = load_config(config)
    real_flush, real_replace = files.flush, Path.replace
    calls = {"count": 0, "die_at": 10**9}

    def counted(operation, *arguments):
        calls["count"] += 1
        if calls["count"] == calls["die_at"]:
            raise Killed
        result = operation(*arguments)
        calls["count"] += 1
        if calls["count"] == calls["die_at"]:
            raise Killed
        return result

    for module in (files, folder_module):
        monkeypatch.setattr(module, "flush", lambda file: counted(real_flush, file))
    monkeypatch.setattr(Path, "replace", lambda self, target: counted(real_replace, self, target))
    out = tmp_path / "run"
    deaths = 0
    # With a prime step, each death hits a different operation, while the run still makes progress.
    for die_at in (1, 2, 3, 4, 5, 7, 9, 11, 12, 13, 14):
        calls.update(count=0, die_at=die_at)
        try:
            run(settings, out, resume=True)
        except Killed:
            deaths += 1
    assert deaths >= 8
    calls["die_at"] = 10**9
    run(settings, out, resume=True)
    assert_same(RunFolder(out), expected)


def test_stopping_and_resuming(whole, tmp_path):
    """Ctrl-C raises `Stopped` at a center, and what was finished is kept."""
    config, expected = whole

    class Impatient:
        def started(self, *_):
            pass

        def center(self, round, name):
            if (round, name) == (3, "center-2"):
                raise Stopped

        def round(self, record):
            pass

    with pytest.raises(Stopped):
        run(load_config(config), tmp_path / "run", observer=Impatient())
    assert [r["round"] for r in RunFolder(tmp_path / "run").metrics()] == [0, 1, 2]
    run(load_config(config), tmp_path / "run", resume=True)
    assert_same(RunFolder(tmp_path / "run"), expected)


def test_checkpoints_every_few_rounds(whole, tmp_path):
    config, expected = whole
    settings = load_config(config, ["checkpoint_every=3"])

    class Impatient:
        def started(self, *_):
            pass

        def center(self, round, name):
            if round == 3:
                raise Stopped

        def round(self, record):
            pass

    with pytest.raises(Stopped):
        run(settings, tmp_path / "run", observer=Impatient())
    # Round 2 was not due for a checkpoint, but a user who stops the run loses nothing.
    assert RunFolder(tmp_path / "run").load().round == 2
    assert [r["round"] for r in RunFolder(tmp_path / "run").metrics()] == [0, 1, 2]
    run(settings, tmp_path / "run", resume=True)
    one, two = RunFolder(tmp_path / "run").load(), expected.load()
    assert all(torch.equal(one.weights[k], two.weights[k]) for k in two.weights)
    assert [r["round"] for r in RunFolder(tmp_path / "run").metrics()] == [0, 1, 2, 3, 4]


def test_stopping_while_a_round_is_written(whole, tmp_path, monkeypatch):
    """A second Ctrl-C may come at any time. There must be no checkpoint without the line of its round."""
    config, expected = whole
    append = RunFolder.append_metrics

    def cut(self, record):
        if record["round"] == 4:
            raise Stopped
        append(self, record)

    monkeypatch.setattr(RunFolder, "append_metrics", cut)
    with pytest.raises(Stopped):
        run(load_config(config), tmp_path / "run")
    assert RunFolder(tmp_path / "run").load().round == 3
    monkeypatch.undo()
    run(load_config(config), tmp_path / "run", resume=True)
    assert_same(RunFolder(tmp_path / "run"), expected)


def test_a_run_goes_on_with_the_data_it_began_with_alone(tmp_path):
    """A correspondence in a separate file, an image or a label may change without the config."""
    rng = np.random.default_rng(0)

    def archive(name, labels):
        np.savez(tmp_path / name, images=rng.integers(0, 256, (6, 8, 8), dtype=np.uint8), labels=labels)

    archive("own.npz", ["melanoma", "nevus"] * 3)
    archive("far.npz", ["bad", "good"] * 3)
    matrix = tmp_path / "urgency.csv"
    matrix.write_text(",melanoma,nevus\nbad,1,0\ngood,0,1\n")
    (tmp_path / "federation.toml").write_text(
        """
wanted = "diagnosis"
spaces = { diagnosis = ["melanoma", "nevus"], urgency = ["bad", "good"] }
correspondences = { urgency = "urgency.csv" }
reference = { source = "npz", path = "own.npz" }
centers = [{ name = "goa", source = "npz", path = "far.npz", space = "urgency" }]
tests = [{ source = "npz", path = "own.npz" }]
training = { rounds = 1, warmup_epochs = 1 }
model = { backbone = "small_cnn" }
"""
    )

    def go_on():
        return run(load_config(tmp_path / "federation.toml"), tmp_path / "run", resume=True)

    expected = go_on()
    assert go_on() == expected
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    matrix.write_text(",melanoma,nevus\nbad,0,1\ngood,1,0\n")
    with pytest.raises(FedmtError, match=r"began with other data .* of 'goa'.*another --out"):
        go_on()
    matrix.write_text(",melanoma,nevus\nbad,1,0\ngood,0,1\n")
    far = (tmp_path / "far.npz").read_bytes()
    archive("far.npz", ["bad", "good"] * 3)
    with pytest.raises(FedmtError, match=r"of 'goa'\."):
        go_on()
    (tmp_path / "far.npz").write_bytes(far)
    assert go_on() == expected
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before


def test_a_run_without_its_checkpoints_says_that_it_begins_again(whole, tmp_path, command):
    config, expected = whole
    shutil.copytree(expected.path, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    status, said, errors = command("run", config, "--out", tmp_path / "run", "--resume")
    assert status == 0 and "no checkpoint is left, so the run begins again at round 0" in said + errors
    assert_same(RunFolder(tmp_path / "run"), expected)


def test_nothing_to_go_on_with_is_said(whole, tmp_path, command):
    status, said, _ = command("run", whole[0], "--out", tmp_path / "rnu", "--resume")
    assert status == 0 and "rnu holds no run to continue" in said.replace("\n", " ")


def test_resuming_a_finished_run_changes_nothing(whole, monkeypatch):
    """It also keeps the version with which the run was made."""
    config, expected = whole
    before = expected.metrics_file.read_bytes(), expected.summary_file.read_bytes()
    summary = json.loads(before[1])
    monkeypatch.setattr(fedmt, "__version__", "9.9.9")
    assert run(load_config(config), expected.path, resume=True) == summary
    assert (expected.metrics_file.read_bytes(), expected.summary_file.read_bytes()) == before
    expected.summary_file.unlink()
    assert run(load_config(config), expected.path, resume=True)["accuracy"] == summary["accuracy"]
