"""`fedmt run --baseline` and `fedmt compare`: from two runs to a verdict, in words and as JSON."""

import json
import math
import shutil
import sys
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from fedmt.commands import cli
from fedmt.commands.comparing import _cell
from fedmt.commands.running import baseline_folder
from fedmt.commands.sweeps.results import _signed
from fedmt.config.building import build_method
from fedmt.config.dumping import dump_config
from fedmt.config.variants import load_variant
from fedmt.core.errors import FedmtError
from fedmt.metrics import METRICS
from fedmt.metrics.comparing import Difference
from fedmt.runs.folder import RunFolder

CONFIG = """
[method]
correspondence = "estimated"
xi = 0.0
[aggregation]
name = "fedavg"
[training]
rounds = 5
local_epochs = 1
batch_size = 10
reference_epochs = 1
warmup_epochs = 1
[model]
backbone = "small_cnn"
[benchmark]
data = { source = "fashion_mnist" }
wanted = "garment"
spaces = { department = 1 }
per_class = 2
samples = 20
test_samples = 60
"""

Fedmt = Callable[..., tuple[int, str, str]]


@pytest.fixture
def invoke(monkeypatch, capsys, tmp_path) -> Fedmt:
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "federation.toml").write_text(CONFIG)

    def invoke(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedmt", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return invoke


def first_line(page: Path) -> str:
    text = page.read_text()
    begin = text.index('id="data">') + len('id="data">')
    return json.loads(text[begin : text.index("</script>", begin)])["words"][0]


def test_a_run_with_its_baseline_from_training_to_the_report(invoke, tmp_path):
    line = ("run", "federation.toml", "--baseline", "single", "--rounds", "1", "--seed", "3")
    status, out, err = invoke(*line, "--device", "cpu")
    assert (status, err) == (0, "")
    assert "Note: --baseline single: left out method.correspondence, method.xi, [aggregation], which" in out
    assert "Run folder: runs/federation, baseline: runs/federation-single" in out
    assert out.splitlines()[-1] == "Next: fedmt report runs/federation"
    run, single = (RunFolder(tmp_path / "runs" / n) for n in ("federation", "federation-single"))
    settings = [tomllib.loads(r.config_file.read_text()) for r in (run, single)]
    assert [s["method"]["name"] for s in settings] == ["fedmt", "single"]
    assert all((s["seed"], s["training"]["rounds"], s["device"]) == (3, 1, "cpu") for s in settings)
    assert settings[0]["method"]["xi"] == 0.0 and settings[0]["aggregation"]["name"] == "fedavg"
    found = run.summary()["comparison"]
    assert found["baseline"] == "federation-single" and "comparison" not in single.summary()
    balanced = found["differences"]["balanced_accuracy"]["garment"]
    for key, folder in (("first", run), ("second", single)):
        measured = folder.summary()["metrics"]["balanced_accuracy"]["garment"]["value"]
        assert balanced[key] == pytest.approx(measured, abs=1e-6)
    assert balanced["low"] <= balanced["value"] <= balanced["high"]
    assert found["sentence"] in out and "60 test images" in found["sentence"] and "FedMT" in found["sentence"]

    status, out, _ = invoke("report", "runs/federation")
    best = "federation" if balanced["value"] > 0 else "federation-single"
    assert status == 0 and out.splitlines()[-1] == f"Next: fedmt predict runs/{best} SAMPLES"
    line_of_both = first_line(tmp_path / "report.html")
    assert f"{abs(100 * balanced['value']):.1f} points" in line_of_both and "60 test images" in line_of_both
    assert "federation-single" in (tmp_path / "report.html").read_text()

    # In a second run, both are kept, and standard output contains only the JSON.
    before = run.summary_file.read_bytes()
    status, out, err = invoke(*line, "--device", "cpu", "--resume", "--json")
    shown = json.loads(out)
    assert status == 0 and "all 1 rounds are already done" in err and "Next:" not in out + err
    assert shown["summary"] == run.summary() and shown["baseline"]["run"] == "runs/federation-single"
    assert run.summary_file.read_bytes() == before
    status, _, err = invoke(*line)
    assert status == 2 and "runs/federation already holds a run" in err
    # If only one of two runs that were trained together is left, it is still reported, with what is known.
    shutil.rmtree(single.path)
    invoke("report", "runs/federation")
    alone = first_line(tmp_path / "report.html")
    assert alone == line_of_both.replace("federation (FedMT)", "FedMT").replace("federation-single", "Single")

    status, out, err = invoke(
        "run", "federation.toml", "--method", "single", "--rounds", "1", "--out", "alone"
    )
    assert status == 0 and "--method single: left out method.correspondence" in out


@pytest.fixture
def pair(tiny_run, invoke, tmp_path) -> tuple[str, str]:
    for name in ("fedmt", "single"):
        shutil.copytree(tiny_run(name), tmp_path / name)
    return "single", "fedmt"


def test_compare_prints_every_metric_and_a_verdict(pair, invoke):
    status, out, err = invoke("compare", *pair)
    assert (status, err) == (0, "")
    for name in (m.title for m in METRICS.values() if m.function is not None):
        assert name in out
    assert "test images can show" in out or "is better than single" in out or "do not use it" in out
    assert out.splitlines()[-1] == "Next: fedmt report fedmt single"
    status, out, _ = invoke("compare", "fedmt", "--baseline", "single", "--metric", "auroc")
    assert status == 0 and "AUROC" in out and "Brier" not in out


def test_a_difference_without_an_interval_says_so():
    """As that of a test set whose samples are all of one patient."""
    unknown = Difference("accuracy", 0.5, 0.4, 0.1, math.nan, math.nan)
    assert _cell(unknown) == "+10.0 (no interval)" and _signed(unknown, True) == "+10.0 (no interval)"


def test_compare_for_programs(pair, invoke):
    _, out, err = invoke("compare", *pair, "--json")
    there = json.loads(out)
    assert there["baseline"] == "single" and list(there["runs"]) == ["fedmt"] and err == ""
    record = there["runs"]["fedmt"]
    assert list(record["differences"]) == [n for n, m in METRICS.items() if m.function is not None]
    back = json.loads(invoke("compare", "fedmt", "single", "--json", "--metric", "auroc")[1])["runs"][
        "single"
    ]
    assert list(back["differences"]) == ["auroc"]
    for space, one in record["differences"]["auroc"].items():
        other = back["differences"]["auroc"][space]
        assert one["value"] == pytest.approx(-other["value"])
        assert one["low"] == pytest.approx(-other["high"], abs=1e-6)
    turned = {"better": "worse", "worse": "better", "no difference": "no difference"}
    assert back["verdict"] == turned[record["verdict"]]


def test_another_method_keeps_the_options_that_it_has(tmp_path):
    path = tmp_path / "federation.toml"
    path.write_text(CONFIG)
    config, notes = load_variant(path, None, "semifl")
    assert config.method == {"name": "semifl", "xi": 0.0} and config.aggregation["name"] == "fedavg"
    assert notes == ["--method semifl: left out method.correspondence, which the config sets for 'fedmt'."]
    same, notes = load_variant(path, ["method.xi=0.5"], "fedmt")
    assert same.method["xi"] == 0.5 and same.method["correspondence"] == "estimated" and not notes
    # Settings of the method by --set do not apply to the baseline, but a mistake in them is still an error.
    assert load_variant(path, ["method.estimator=counting"], None, "single")[0].method == {"name": "single"}
    with pytest.raises(FedmtError, match=r"unknown key 'method.estimator'"):
        load_variant(path, ["method.estimator=counting"], "single")
    assert baseline_folder(Path("runs/a"), "my.module:Own") == Path("runs/a-my.module-Own")


def test_another_method_leaves_out_values_that_it_does_not_accept(tmp_path):
    path = tmp_path / "federation.toml"
    path.write_text(CONFIG.replace("xi = 0.0", 'prior = "uniform"'))
    config, notes = load_variant(path, None, None, "semifl")
    assert config.method == {"name": "semifl"}
    assert len(notes) == 1 and "left out method.correspondence, method.prior, which" in notes[0]
    path.write_text(CONFIG.replace("xi = 0.0", 'prior = "ignored"'))
    assert load_variant(path, None, "semifl")[0].method["prior"] == "ignored"
    path.write_text(CONFIG.replace("xi = 0.0", "xi = 'high'"))  # no method accepts it
    with pytest.raises(FedmtError, match=r"method.xi: input should be a valid number"):
        load_variant(path, None, "semifl")


@pytest.mark.parametrize("method", ["single", "fedtrans", "semifl"])
def test_the_saved_config_of_a_run_has_the_same_baseline_as_the_original(tmp_path, method):
    """A saved config spells out the defaults that follow from its method. The baseline has its own."""
    path, saved = tmp_path / "federation.toml", tmp_path / "config.toml"
    path.write_text(CONFIG.replace("xi = 0.0\n", ""))  # the default of xi differs between FedMT and SemiFL
    saved.write_text(dump_config(load_variant(path)[0]))
    assert "smallest_reference_batch = 50" in saved.read_text() and "xi = 0.95" in saved.read_text()
    configs = [load_variant(p, baseline=method)[0] for p in (path, saved)]
    assert configs[0].training == configs[1].training
    assert build_method(configs[0]) == build_method(configs[1])
    assert len(load_variant(saved, baseline=method)[1]) == 1  # what was chosen, in one note
    assert "method.estimator" not in load_variant(saved, baseline=method)[1][0]
    assert configs[1].training.smallest_reference_batch == (10 if method == "single" else 50)
    # A value that is not the default was chosen, and so was one that --set gives.
    for size in (25, 50):
        chosen = load_variant(saved, [f"training.smallest_reference_batch={size}"], None, method)[0]
        assert chosen.training.smallest_reference_batch == size


def test_a_config_that_sets_every_adapting_option_is_not_taken_for_a_saved_one(tmp_path):
    path = tmp_path / "federation.toml"
    own = """learning_rate = 0.02
reference_rate = 1.0
smallest_reference_batch = 50
batch_norm = "static"
"""
    path.write_text(CONFIG.replace("[model]", f"{own}[model]"))
    assert load_variant(path, baseline="single")[0].training.smallest_reference_batch == 50


@pytest.mark.parametrize("preset", ["", 'preset = "paper"\n'])
def test_what_a_config_sets_applies_to_its_baseline(tmp_path, preset):
    """Even a value that would be the default of the run's method, but not that of the baseline or preset."""
    path, saved = tmp_path / "federation.toml", tmp_path / "config.toml"
    own = "learning_rate = 0.1\nsmallest_reference_batch = 50\n"
    path.write_text(preset + CONFIG.replace("[training]\n", f"[training]\n{own}"))
    found = [load_variant(path, baseline="single")[0].training]
    if preset:  # without one, a saved config does not tell which values were chosen
        saved.write_text(dump_config(load_variant(path)[0]))
        found.append(load_variant(saved, baseline="single")[0].training)
    else:
        path.write_text(CONFIG)
        found.append(load_variant(path, ["training.smallest_reference_batch=50"], None, "single")[0].training)
    for training in found:
        assert (training.learning_rate, training.smallest_reference_batch) == (0.1, 50)
