"""The command line as a user meets it: what it prints, what it leaves behind, and each bad input."""

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedmt
from fedmt import cli
from fedmt.runs.folder import RunFolder, load_checkpoint

CONFIG = """\
wanted = "diagnosis"

[method]
xi = 0.4

[training]
rounds = 2
local_epochs = 1
batch_size = 4
reference_epochs = 1
warmup_epochs = 2
learning_rate = 0.02

[model]
backbone = "small_cnn"

[spaces]
diagnosis = ["melanoma", "nevus", "keratosis"]
triage = ["malignant", "benign", "other"]
look = ["dark", "rough"]

[correspondences]
triage = "triage.csv"

[reference]
name = "aachen"
source = "folder"
path = "aachen"

[[centers]]
name = "berlin"
source = "manifest"
path = "berlin.csv"
space = "triage"

[[centers]]
name = "cairo"
source = "npz"
path = "cairo.npz"
space = "look"
correspondence = { melanoma = "dark", nevus = { dark = 0.75, rough = 0.25 }, keratosis = "rough" }

[[centers]]
name = "delhi"
source = "folder"
path = "delhi"

[[centers]]
name = "essen"
source = "npz"
path = "essen.npz"
space = "diagnosis"

[[centers]]
name = "faro"
source = "npz"
path = "cairo.npz"
space = "look"

[[tests]]
source = "folder"
path = "aachen"

[[tests]]
source = "manifest"
path = "berlin.csv"
space = "triage"
"""

TRIAGE = "triage,melanoma,nevus,keratosis\nmalignant,1,0,0\nbenign,0,1,1\nother,0,0,0\n"

Fedmt = Callable[..., tuple[int, str, str]]


def picture(path: Path, rng: np.random.Generator) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The config and every file it names, a dozen pictures of 8 x 8."""
    rng = np.random.default_rng(0)
    for name in ("melanoma", "nevus", "keratosis"):
        for i in range(2):
            picture(tmp_path / "aachen" / name / f"{i}.png", rng)
    rows = [("image", "label")]
    for i in range(6):
        picture(tmp_path / "scans" / f"{i}.png", rng)
        rows.append((f"scans/{i}.png", ("benign", "malignant")[i % 2]))
    with (tmp_path / "berlin.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    images = rng.integers(0, 256, (6, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "cairo.npz", images=images, labels=np.array(["dark", "rough"] * 3))
    for i in range(4):
        picture(tmp_path / "delhi" / f"{i}.png", rng)
    np.savez(tmp_path / "essen.npz", images=images, labels=np.array(["melanoma", "nevus"] * 3))
    (tmp_path / "triage.csv").write_text(TRIAGE)
    (tmp_path / "federation.toml").write_text(CONFIG)
    return tmp_path


@pytest.fixture
def invoke(monkeypatch, capsys) -> Fedmt:
    """`fedmt ARGUMENTS` in this process: (exit status, standard output, standard error)."""
    # `main` replaces it for the rest of the process.
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def invoke(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedmt", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return invoke


@pytest.fixture
def refused(invoke, folder) -> Callable[..., str]:
    """Runs `check` and `run` on the folder's config, both to be refused in the same words."""

    def refused(*arguments: str) -> str:
        config, out = folder / "federation.toml", folder / "run"
        messages = []
        for command in (["check", config], ["run", config, "--out", out]):
            status, printed, message = invoke(*command, *arguments)
            assert status == 2, (printed, message)
            assert "Traceback" not in printed + message and message.startswith("fedmt: ")
            messages.append(message)
        assert messages[0] == messages[1]
        assert not out.exists()  # bad input leaves nothing behind
        return messages[0]

    return refused


def environment() -> dict[str, str]:
    source = str(Path(fedmt.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def start(*arguments: object, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedmt", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        **options,
    )


def change(path: Path, old: str, new: str) -> int:
    """Replaces the one `old` in a file; returns the line where it stood."""
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} must stand once in {path}"
    path.write_text(text.replace(old, new))
    return text[: text.index(old)].count("\n") + 1


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# -- what it prints ------------------------------------------------------------------------------------


def test_version_and_help(invoke):
    assert invoke("--version") == (0, f"fedmt {fedmt.__version__}\n", "")
    status, out, _ = invoke("--help")
    assert status == 0 and all(command in out for command in ("run", "check", "quickstart"))
    status, out, _ = invoke("run", "--help")
    assert status == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)  # colours cut the option names in two
    assert all(option in plain for option in ("--out", "--resume", "--set"))


def test_as_a_module():
    process = start("--version")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, f"fedmt {fedmt.__version__}\n", "")


def rows_of(out: str) -> dict[str, list[str]]:
    """The cells of each row of a printed table, by the first cell."""
    rows = [[c.strip() for c in line.strip("│┃").split("│")] for line in out.splitlines() if "│" in line]
    return {row[0]: row[1:] for row in rows}


def test_check_shows_the_federation(invoke, folder):
    status, out, err = invoke("check", folder / "federation.toml")
    assert (status, err) == (0, "")
    assert "'diagnosis' (3 classes)" in out and "Nothing was trained" in out
    assert rows_of(out) == {
        "aachen": ["6", "diagnosis (3)", "none", "reference center"],
        "berlin": ["6", "triage (3)", "1: 'other'", "known, partition"],
        "cairo": ["6", "look (2)", "none", "known, overlapping"],
        "delhi": ["4", "no labels", "-", "-"],
        "essen": ["6", "diagnosis (3)", "1: 'keratosis'", "identity"],
        "faro": ["6", "look (2)", "none", "unknown; to be estimated"],
        "test 1": ["6", "diagnosis (3)", "none", "test"],
        "test 2": ["6", "triage (3)", "1: 'other'", "test"],
    }
    assert "small_cnn" in out and "2 rounds" in out and "1 x 8 x 8" in out
    assert not (Path.cwd() / "runs").exists()


def test_check_of_centers_on_other_machines(invoke, folder):
    """The coordinator's file is checked with what is here; `run`, which would need all of it, is refused."""
    config = folder / "federation.toml"
    old = 'source = "manifest"\npath = "berlin.csv"'
    config.write_text(config.read_text().replace(old, 'source = "remote"', 1))
    status, out, err = invoke("check", config)
    assert status == 0, err
    assert re.search(r"berlin .* elsewhere .* triage \(3\)", out)
    status, _, err = invoke("run", config, "--out", folder / "out")
    assert status == 2 and "center 'berlin': its data stay on its own machine" in err


def test_check_takes_overrides_and_says_what_is_missing(invoke, folder):
    status, out, _ = invoke(
        "check", folder / "federation.toml", "--set", "tests=[]", "--set", "training.rounds=7"
    )
    assert status == 0 and "7 rounds" in out
    assert "no [[tests]], so no accuracy" in out


def test_names_with_brackets_are_shown_as_they_are(invoke, folder):
    """Rich takes `[…]` for markup unless told otherwise: a name would vanish, or end in a traceback."""
    change(folder / "federation.toml", 'name = "berlin"', 'name = "[bold]berlin [/x]"')
    change(folder / "federation.toml", 'name = "cairo"', 'name = "cairo [2]"')
    status, out, err = invoke("check", folder / "federation.toml")
    assert status == 0, err
    assert {"[bold]berlin [/x]", "cairo [2]"} <= rows_of(out).keys()
    status, out, err = invoke("run", folder / "federation.toml", "--out", folder / "run [red]")
    assert status == 0, err
    assert str(folder / "run [red]") in out


# -- a run ---------------------------------------------------------------------------------------------


def test_a_run_from_end_to_end(invoke, folder, monkeypatch):
    monkeypatch.chdir(folder)
    status, out, err = invoke("run", "federation.toml", "--set", "method.correspondence=estimated")
    assert (status, err) == (0, "")
    lines = [line for line in out.splitlines() if line.startswith("round ")]
    assert [line.split()[1] for line in lines] == ["0/2", "1/2", "2/2"]  # plain lines: no terminal here
    assert "\x1b" not in out and "Run folder: runs/federation" in out
    run = folder / "runs" / "federation"
    assert sorted(contents(run).keys() - {"lock"}) == [
        "checkpoints/round-000001.safetensors",
        "checkpoints/round-000002.safetensors",
        "config.toml",
        "evaluation.npz",
        "metrics.jsonl",
        "model.json",
        "summary.json",
    ]
    resolved = tomllib.loads((run / "config.toml").read_text())
    assert resolved["method"]["correspondence"] == "estimated" and resolved["method"]["xi"] == 0.4
    assert resolved["aggregation"] == {
        "name": "fedavgm",
        "rate": 1.0,
        "momentum": 0.5,
    }  # a default, spelled out
    assert resolved["reference"]["path"] == str(folder / "aachen")
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [r["round"] for r in records] == [0, 1, 2]
    for record in records:
        assert record.keys() >= {
            "round", "accuracy", "learning_rate", "reference_loss", "centers", "seconds",
        }  # fmt: skip
        assert "diagnosis" in record["accuracy"] and all(0 <= a <= 1 for a in record["accuracy"].values())
        seconds = record["seconds"]
        assert seconds.keys() >= {"reference", "statistics", "test", "total"}
        assert sum(v for k, v in seconds.items() if k != "total") <= seconds["total"] + 0.01
    for record in records[1:]:
        assert record.keys() >= {"confident_share", "correspondence_error"}
        assert "triage" in record["accuracy"]
        assert record["seconds"].keys() >= {"pseudo_labels", "aggregate"}
        assert set(record["centers"]) == {"berlin", "cairo", "delhi", "essen", "faro"}
        for name, center in record["centers"].items():
            assert 0 <= center["confident_share"] <= 1
            assert ("losses" in center) != ("abstained" in center)
            # M is known at berlin and cairo; essen needs none, delhi has none, that of faro is unknown.
            assert ("correspondence_error" in center) == (name in ("berlin", "cairo"))
    assert any("losses" in record for record in records)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["accuracy"] == records[-1]["accuracy"] and summary["rounds"] == 2
    assert summary.keys() >= {"method", "seconds", "seed", "device", "versions"}
    for name in ("round-000001", "round-000002"):
        load_checkpoint(run / "checkpoints" / f"{name}.safetensors")
    # The resolved config runs by itself, from another folder, to the same run.
    monkeypatch.chdir("/")
    status, _, err = invoke("run", run / "config.toml", "--out", folder / "again")
    assert status == 0, err
    one, two = RunFolder(run).load(), RunFolder(folder / "again").load()
    assert one is not None and two is not None
    assert all(torch.equal(one.weights[k], two.weights[k]) for k in one.weights)
    assert (folder / "again" / "config.toml").read_bytes() == (run / "config.toml").read_bytes()


def test_a_diverging_run_ends_in_a_sentence(invoke, folder):
    """Weights or losses beyond all numbers must not end in a traceback of the JSON writer."""
    arguments = ("--set", "training.learning_rate=1e30", "--set", "training.clip=0")
    status, out, err = invoke("run", folder / "federation.toml", "--out", folder / "run", *arguments)
    assert "Traceback" not in out + err
    assert status == 2 and "training.learning_rate" in err


def test_a_diverging_center_is_left_out(invoke, folder, monkeypatch):
    """One center's NaN is recorded as such; the others' run goes on, and its metrics stay valid JSON."""
    from fedmt.methods import FedMT

    real = FedMT.center_loss

    def loss(self, logits, step, tables):
        found = real(self, logits, step, tables)
        # Only the unlabelled center has a one-row matrix.
        return {k: v * float("nan") for k, v in found.items()} if len(tables["matrix"]) == 1 else found

    monkeypatch.setattr(FedMT, "center_loss", loss)
    arguments = ("--set", "method.xi=0.0")  # everybody trains
    status, out, err = invoke("run", folder / "federation.toml", "--out", folder / "run", *arguments)
    assert status == 0, err
    assert "left out: delhi" in out
    for line in (folder / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_ctrl_c_stops_at_a_safe_point_and_says_how_to_go_on(invoke, folder):
    config, out = folder / "federation.toml", folder / "a run"  # a space: the command must be quoted
    overrides = ["--set", "training.rounds=40", "--set", 'augmentation.operations=["rotate"]']
    process = start("run", config, "--out", out, *overrides)
    metrics, limit = out / "metrics.jsonl", time.monotonic() + 60
    while not (metrics.exists() and len(metrics.read_text().splitlines()) >= 2):
        assert process.poll() is None and time.monotonic() < limit, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    printed, message = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in printed + message
    assert "Stopped" in printed
    (command,) = [line for line in printed.splitlines() if line.startswith("  fedmt run")]
    finished = len(metrics.read_text().splitlines())
    assert 2 <= finished < 41 and not list(out.rglob("*.tmp"))
    status, printed, message = invoke(*shlex.split(command)[1:])
    assert status == 0, message
    assert f"going on after round {finished - 1} of 40" in printed
    assert [r["round"] for r in RunFolder(out).metrics()] == list(range(41))


# -- bad input: data -----------------------------------------------------------------------------------


def test_a_label_outside_the_space(refused, folder):
    change(folder / "berlin.csv", "scans/3.png,malignant", "scans/3.png,malignat")
    message = refused()
    assert f"{folder / 'berlin.csv'}, line 5" in message
    assert "'malignat'" in message and "'triage'" in message and "Did you mean 'malignant'?" in message


def test_a_class_folder_outside_the_space(refused, folder):
    (folder / "aachen" / "nevus").rename(folder / "aachen" / "naevus")
    message = refused()
    assert str(folder / "aachen") in message and "'naevus'" in message and "'diagnosis'" in message


def test_a_wanted_class_missing_from_a_csv(refused, folder):
    (folder / "triage.csv").write_text("triage,melanoma,nevus\nmalignant,1,0\nbenign,0,1\nother,0,0\n")
    message = refused()
    assert f"{folder / 'triage.csv'}, line 1" in message and "'keratosis'" in message


def test_a_wanted_class_missing_from_an_inline_mapping(refused, folder):
    change(folder / "federation.toml", ', keratosis = "rough"', "")
    message = refused()
    assert "'cairo'" in message and "'keratosis'" in message


@pytest.mark.parametrize(
    ("cell", "said"), [("0.5", "sums to 0.5"), ("nan", "nan"), ("-1", "-1"), ("often", "'often'")]
)
def test_bad_entries_of_a_csv(refused, folder, cell, said):
    change(folder / "triage.csv", "malignant,1,0,0", f"malignant,{cell},0,0")
    message = refused()
    assert str(folder / "triage.csv") in message and "'melanoma'" in message and said in message


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ("{ dark = 0.75 }", "sums to 0.75"),
        ("{ dark = nan, rough = 0.5 }", "nan"),
        ("{ dark = 1.5, rough = -0.5 }", "-0.5"),
    ],
)
def test_bad_entries_of_an_inline_mapping(refused, folder, shares, said):
    change(folder / "federation.toml", "{ dark = 0.75, rough = 0.25 }", shares)
    message = refused()
    assert "'cairo'" in message and "'nevus'" in message and said in message


def test_a_label_that_nothing_corresponds_to(refused, folder):
    change(folder / "berlin.csv", "scans/3.png,malignant", "scans/3.png,other")
    message = refused()
    assert "'berlin'" in message and "'other'" in message and "'diagnosis'" in message


def test_an_unreadable_image(refused, folder):
    (folder / "scans" / "2.png").write_bytes(b"not a picture at all")
    message = refused()
    assert f"{folder / 'berlin.csv'}, line 4" in message and str(folder / "scans" / "2.png") in message


def test_a_truncated_image(refused, folder):
    path = folder / "aachen" / "nevus" / "1.png"
    path.write_bytes(path.read_bytes()[:70])
    message = refused()
    assert str(path) in message and "'nevus'" in message


def test_an_image_that_is_not_there(refused, folder):
    (folder / "scans" / "2.png").unlink()
    message = refused()
    assert f"{folder / 'berlin.csv'}, line 4" in message and "no such file" in message


@pytest.mark.parametrize("source", ["folder", "manifest", "npz"])
def test_an_empty_center(refused, folder, source):
    if source == "folder":
        for path in (folder / "delhi").iterdir():
            path.unlink()
        name = "delhi"
    elif source == "manifest":
        (folder / "berlin.csv").write_text("image,label\n")
        name = "berlin.csv"
    else:
        np.savez(
            folder / "essen.npz", images=np.zeros((0, 8, 8), np.uint8), labels=np.array([], dtype=np.str_)
        )
        name = "essen.npz"
    message = refused()
    assert str(folder / name) in message and "no images" in message


# -- bad input: the config, the machine, the run folder ------------------------------------------------


def test_an_unknown_key(refused, folder):
    line = change(folder / "federation.toml", "local_epochs", "local_epoch")
    message = refused()
    assert f"{folder / 'federation.toml'}, line {line}: unknown key 'training.local_epoch'" in message
    assert "Did you mean 'local_epochs'?" in message


def test_an_unknown_method_option(refused, folder):
    line = change(folder / "federation.toml", "xi = 0.4", "lambda1 = 0.4")
    message = refused()
    assert f"line {line}: unknown key 'method.lambda1'" in message and "'lambda_1'" in message


def test_no_config(invoke, tmp_path):
    status, _, message = invoke("run", tmp_path / "none.toml")
    assert status == 2 and str(tmp_path / "none.toml") in message and "Traceback" not in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="here CUDA is not missing")
def test_no_cuda(refused):
    message = refused("--set", "device=cuda")
    assert "'cuda'" in message and "no CUDA device" in message and "cpu" in message


def test_an_unknown_backbone(refused):
    assert "Did you mean 'resnet18'?" in refused("--set", "model.backbone=resnet_18")


def test_another_run_is_in_the_folder(invoke, folder):
    config, out = folder / "federation.toml", folder / "run"
    assert invoke("run", config, "--out", out)[0] == 0
    before = contents(out)
    status, printed, message = invoke("run", config, "--out", out)
    assert status == 2 and "Traceback" not in printed + message
    assert str(out) in message and "--resume" in message and "--out" in message
    status, printed, message = invoke("run", config, "--out", out, "--resume", "--set", "seed=5")
    assert status == 2 and "Traceback" not in printed + message
    assert str(out) in message and "seed (0 there, 5 here)" in message
    assert contents(out) == before


def test_a_stranger_s_folder_is_left_alone(invoke, folder):
    (folder / "papers").mkdir()
    (folder / "papers" / "thesis.tex").write_text("x")
    for more in ([], ["--resume"]):
        status, _, message = invoke("run", folder / "federation.toml", "--out", folder / "papers", *more)
        assert status == 2 and str(folder / "papers") in message
    assert contents(folder / "papers") == {"thesis.tex": b"x"}


def test_a_run_s_config_that_somebody_edited(invoke, folder):
    """Into something that is no TOML: still a message, not a traceback."""
    config, out = folder / "federation.toml", folder / "run"
    assert invoke("run", config, "--out", out)[0] == 0
    (out / "config.toml").write_text("seed = \n")
    status, printed, message = invoke("run", config, "--out", out, "--resume")
    assert status == 2 and "Traceback" not in printed + message
    assert str(out / "config.toml") in message


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_corrupt_checkpoint(invoke, folder, damage):
    config, out = folder / "federation.toml", folder / "run"
    assert invoke("run", config, "--out", out)[0] == 0
    loaded = RunFolder(out).load()
    assert loaded is not None
    # Cloned: a loaded tensor may be a view of the file, which is damaged in place below.
    whole = {k: v.clone() for k, v in loaded.weights.items()}
    last = out / "checkpoints" / "round-000002.safetensors"
    data = bytearray(last.read_bytes())
    data[-5] ^= 1
    last.write_bytes(data[:-100] if damage == "truncated" else data)
    before = contents(out)
    status, printed, message = invoke("run", config, "--out", out, "--resume")
    assert status == 2 and "Traceback" not in printed + message
    assert str(last) in message and "round-000001.safetensors, is intact" in message and "delete" in message
    assert contents(out) == before
    last.unlink()
    status, printed, message = invoke("run", config, "--out", out, "--resume")
    assert status == 0, message
    again = RunFolder(out).load()
    assert again is not None and again.round == 2
    assert all(torch.equal(whole[k], again.weights[k]) for k in whole)
    assert [r["round"] for r in RunFolder(out).metrics()] == [0, 1, 2]


LIMITED = """
import resource, sys
from fedmt import cli
from fedmt.runs.folder import RunFolder
real = RunFolder.save
def save(self, state):
    if state.round == 2:  # from now on no file may grow beyond a few kilobytes
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    real(self, state)
RunFolder.save = save
cli.main()
"""


def test_a_full_disk(invoke, folder):
    """A real write that fails (EFBIG, since a test cannot fill the disk) in the third checkpoint."""
    config, out = folder / "federation.toml", folder / "run"
    arguments = ["run", str(config), "--out", str(out), "--set", "training.rounds=3"]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *arguments],
        capture_output=True, text=True, env=environment(), timeout=60,
    )  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stdout + done.stderr
    assert "round-000002.safetensors" in done.stderr and "disk is full" in done.stderr
    assert "--resume" in done.stderr
    assert not list(out.rglob("*.tmp"))
    assert [r["round"] for r in RunFolder(out).metrics()] == [0, 1, 2]
    assert sorted(p.name for p in (out / "checkpoints").iterdir()) == [
        "round-000000.safetensors",
        "round-000001.safetensors",
    ]
    state = RunFolder(out).load()
    assert state is not None and state.round == 1
    status, _, message = invoke(*arguments, "--resume")
    assert status == 0, message
    assert [r["round"] for r in RunFolder(out).metrics()] == [0, 1, 2, 3]


def test_metrics_on_a_full_disk(folder, invoke):
    """The line that did not fit whole must not spoil those before it."""
    config, out = folder / "federation.toml", folder / "run"
    arguments = ["run", str(config), "--out", str(out), "--set", "training.rounds=3"]
    limited = LIMITED.replace("RunFolder.save", "RunFolder.append_metrics").replace("def save", "def limit")
    limited = limited.replace("state.round == 2", 'state["round"] == 2').replace("= save", "= limit")
    limited = limited.replace("20_000", "self.metrics_file.stat().st_size + 50")
    done = subprocess.run(
        [sys.executable, "-c", limited, *arguments],
        capture_output=True, text=True, env=environment(), timeout=60,
    )  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stdout + done.stderr, done.stderr
    assert "metrics.jsonl" in done.stderr and "disk is full" in done.stderr
    assert [r["round"] for r in RunFolder(out).metrics()] == [0, 1]
    status, _, message = invoke(*arguments, "--resume")
    assert status == 0, message
    assert [r["round"] for r in RunFolder(out).metrics()] == [0, 1, 2, 3]


def test_a_run_folder_that_cannot_be_made(invoke, folder):
    (folder / "file").write_text("x")
    for out in (folder / "file", folder / "file" / "run"):
        for more in ([], ["--resume"]):
            status, printed, message = invoke("run", folder / "federation.toml", "--out", out, *more)
            assert status == 2 and "Traceback" not in printed + message
            assert str(folder / "file") in message
    assert (folder / "file").read_text() == "x"
