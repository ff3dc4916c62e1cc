"""A metric that is added to the registry appears everywhere, without any other change."""

import json

import pytest

from fedmt.commands.sweeps.expansion import Sweep, expand
from fedmt.commands.sweeps.experiment import read_experiment
from fedmt.commands.sweeps.results import Heading, Results, read_finished
from fedmt.config import load_config
from fedmt.core.errors import FedmtError
from fedmt.metrics import METRICS, Metric, enter
from fedmt.models.export.safetensors import recorded_metrics
from fedmt.reports.content import content
from fedmt.reports.report import Source
from fedmt.tracking import scalars
from fedmt.training.run import run

BASE = """
[method]
correspondence = "estimated"
[training]
rounds = 1
local_epochs = 1
batch_size = 10
reference_epochs = 1
warmup_epochs = 1
[model]
backbone = "small_cnn"
[benchmark]
data = { source = "fashion_mnist" }
wanted = "garment"
spaces = { department = 2 }
per_class = 1
samples = 20
test_samples = 50
"""
SWEEP = """
title = "By a toy"
config = "base.toml"
show = ["toy"]
[[columns]]
label = "FedMT (E)"
[[rows]]
label = "one"
"""


@pytest.fixture
def toy(monkeypatch):
    """The mean probability of the true class, over all samples and over each class."""
    metric = Metric(
        "toy",
        "Toy",
        lambda p, y: p.gather(1, y[:, None]).mean(),
        by_class=lambda p, y: p.mean(0),
        unit="share",
    )
    monkeypatch.setitem(METRICS, "toy", metric)
    return metric


def test_a_new_metric_is_everywhere(toy, tmp_path):
    (tmp_path / "base.toml").write_text(BASE)
    summary = run(load_config(tmp_path / "base.toml"), tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        assert set(record["toy"]) == set(record["accuracy"]) and 0 < record["toy"]["garment"] < 1
    last = records[-1]
    assert set(last["mean_matrix"]["toy"]) == {"department"}
    found = summary["metrics"]["toy"]["garment"]
    assert found["value"] == last["toy"]["garment"] and found["low"] < found["value"] < found["high"]
    assert len(summary["by_class"]["toy"]["garment"]["value"]) == 10
    data = content("t", "", [Source(tmp_path / "run").reported("run")])
    assert data["metrics"][-1] == {"name": "toy", "title": "Toy", "unit": "share", "better": "higher"}
    assert {"toy"} <= set(data["runs"][0]["metrics"]) & set(data["runs"][0]["by_class"])
    assert "toy" in data["runs"][0]["curves"]["metrics"]
    assert scalars(last)["toy/garment"] == last["toy"]["garment"]
    assert scalars(last)["mean_matrix/toy/department"] == last["mean_matrix"]["toy"]["department"]
    assert recorded_metrics(tmp_path / "run", 1)["garment"]["toy"] == last["toy"]["garment"]
    (tmp_path / "sweep.toml").write_text(SWEEP)
    experiment = read_experiment(tmp_path / "sweep.toml")
    cells = expand(experiment, Sweep(seeds=1))
    finished = {cells[0].runs[0].key: read_finished(tmp_path / "run")}
    results = Results(experiment, cells, finished, {}, Heading("full", 1, "fedmt"), tmp_path)
    text = results.markdown()
    assert "## toy, %" in text and f"| one | {100 * last['toy']['garment']:.1f} |" in text


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('show = ["balanced_acuracy"]', r"sweep.toml, line 4: show: .*Did you mean 'balanced_accuracy'"),
        ('show = ["sensitivity"]', "per class only"),
        ("", "'show' is missing"),
    ],
)
def test_a_sweep_s_metric_is_checked_before_anything_runs(tmp_path, line, told):
    (tmp_path / "base.toml").write_text(BASE)
    (tmp_path / "sweep.toml").write_text(SWEEP.replace('show = ["toy"]', line))
    with pytest.raises(FedmtError, match=told):
        read_experiment(tmp_path / "sweep.toml")


def test_a_config_names_a_metric_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "fedmt_test_metric.py").write_text(
        "from fedmt.metrics import Metric\nSURE = Metric('sure', 'Sureness', lambda p, y: p.amax(1).mean())\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(METRICS, "_entries", dict(METRICS._entries))
    path = tmp_path / "config.toml"
    path.write_text('metrics = ["fedmt_test_metric:SURE"]\n' + BASE)
    run(load_config(path), tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert 0.1 <= summary["metrics"]["sure"]["garment"]["value"] <= 1
    del METRICS["sure"]
    data = content("a", "", [Source(tmp_path / "run").reported("run")])
    assert "sure" in [metric["name"] for metric in data["metrics"]]
    path.write_text('metrics = ["fedmt_test_metric:Metric"]\n' + BASE)
    with pytest.raises(FedmtError, match=r"line 1: metrics: metric .*'Metric' is not a fedmt.metrics.Metric"):
        load_config(path)


def test_a_name_that_is_taken_is_refused(tmp_path, monkeypatch):
    (tmp_path / "fedmt_test_taken.py").write_text(
        "from fedmt.metrics import Metric\nMINE = Metric('accuracy', 'Mine', lambda p, y: p.amax(1).mean())\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FedmtError, match=r"has the name 'accuracy', which another metric already has"):
        enter(["fedmt_test_taken:MINE"], "metrics")
    for name in ("round", "mean_matrix", "not a name"):
        with pytest.raises(FedmtError, match=f"Metric '{name}': its name must be an identifier"):
            Metric(name, "Toy")
