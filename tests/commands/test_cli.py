"""The command line as users see it: what it prints, what it writes, and how it answers bad input."""

import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import typing
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedmt
from fedmt.commands import cli
from fedmt.methods import FedMT
from fedmt.runs.checkpoints import load_checkpoint
from fedmt.runs.folder import RunFolder

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
    """The config and every file that it names, with a dozen 8 x 8 pictures."""
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
    """Runs `fedmt ARGUMENTS` in this process: (exit status, standard output, standard error)."""
    # `main` replaces this function for the rest of the process.
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
    """Runs `check` and `run` on the folder's config. Both must fail with the same message."""

    def refused(*arguments: str) -> str:
        config, out = folder / "federation.toml", folder / "run"
        messages = []
        for command in (["check", config], ["run", config, "--out", out]):
            status, printed, message = invoke(*command, *arguments)
            assert status == 2, (printed, message)
            assert "Traceback" not in printed + message and message.startswith("fedmt: ")
            messages.append(message)
        assert messages[0] == messages[1]
        assert not out.exists()  # bad input leaves no files behind
        return messages[0]

    return refused


def environment() -> dict[str, str]:
    source = str(Path(fedmt.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def change(path: Path, old: str, new: str) -> int:
    """Replaces the single occurrence of `old` in a file, and returns its line number."""
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
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)  # colors split the option names
    assert all(option in plain for option in ("--out", "--resume", "--set"))


@pytest.mark.slow
def test_as_a_module():
    command = [sys.executable, "-m", "fedmt", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"fedmt {fedmt.__version__}\n", "")


def rows_of(out: str) -> dict[str, list[str]]:
    """The cells of each row of a printed table, keyed by the first cell."""
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


CENTERS = "Centers train on 4 images per step at a learning rate of 0.02 in round 1."
REFERENCE = (
    "The reference center trains on 10 images per step (with repeats, because it has 6) at a learning rate of"
)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("", [CENTERS, f"{REFERENCE} 0.02 in the warm-up and in round 1."]),
        (
            "training.reference_rate=0.5 training.reference_batch_size=3",
            [
                CENTERS,
                "The reference center trains on 3 images per step at a learning rate of 0.02 in the warm-up, "
                "and on 3 images per step at a learning rate of 0.01 in round 1.",
            ],
        ),
        ("training.reference_epochs=0", [CENTERS, f"{REFERENCE} 0.02 in the warm-up."]),
        ("training.reference_epochs=0 training.warmup_epochs=0", [CENTERS]),
        (
            "training.batch_size=5 training.warmup_epochs=0",  # delhi has 4 images
            [
                "Centers train on 5 images per step (with repeats, at a center that has fewer) at a learning "
                "rate of 0.02 in round 1.",
                f"{REFERENCE} 0.02 in round 1.",
            ],
        ),
        (
            "method.name=semifl privacy.epsilon=5 privacy.delta=0.01",
            [
                CENTERS.replace("per step", "per step on average"),
                f"{REFERENCE} 0.02 in the warm-up and in round 1.",
            ],
        ),
        (
            "method.name=semifl privacy.epsilon=5 privacy.delta=0.01 training.batch_size=5",
            [
                "Centers train on up to 5 images per step on average at a learning rate of 0.02 in round 1.",
                f"{REFERENCE} 0.02 in the warm-up and in round 1.",
            ],
        ),
        (
            "method.name=fedtrans method.fine_tune_rate=0.3",
            [CENTERS, f"{REFERENCE} 0.3 after the last round."],
        ),
        ("method.name=fedrep", [CENTERS, f"{REFERENCE} 0.02 in round 1."]),
        ("method.name=single", [f"{REFERENCE} 0.02 in the warm-up and in round 1."]),
    ],
)
def test_check_says_what_the_steps_will_be(invoke, folder, settings, said):
    change(folder / "federation.toml", "xi = 0.4\n", "")
    changes = [word for item in settings.split() for word in ("--set", item)]
    status, out, err = invoke("check", folder / "federation.toml", *changes)
    assert status == 0, err
    words = " ".join(out.split())
    assert words.partition("Nothing was trained. ")[2].partition(" Next:")[0] == " ".join(said)


def test_check_asks_the_method_how_the_reference_center_trains(invoke, folder, monkeypatch):
    """A method of one's own may choose any batch and rate, and an option may have the name of FedTrans's."""

    def work(self, reference, round, rng):
        return self.supervised_work(reference, 1, 2, 0.5 if round else 0.25, rng)

    monkeypatch.setattr(FedMT, "reference_work", work)
    monkeypatch.setattr(FedMT, "fine_tune_rate", 0.7, raising=False)
    _, out, _ = invoke("check", folder / "federation.toml")
    assert (
        "The reference center trains on 2 images per step at a learning rate of 0.25 in the warm-up, and on "
        "2 images per step at a learning rate of 0.5 in round 1."
    ) in " ".join(out.split())


def test_check_of_centers_on_other_machines(invoke, folder):
    """`check` checks the coordinator's file with the local data. `run` would need all data, and fails."""
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
    """Rich reads `[…]` as markup by default, so a name would vanish or end in a traceback."""
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
        "data.json",
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
    }  # a default, written out
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
            # M is known at berlin and cairo. essen needs none, delhi has none, and faro's is unknown.
            assert ("correspondence_error" in center) == (name in ("berlin", "cairo"))
    assert any("losses" in record for record in records)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["accuracy"] == records[-1]["accuracy"] and summary["rounds"] == 2
    assert summary.keys() >= {"method", "seconds", "seed", "device", "versions"}
    for name in ("round-000001", "round-000002"):
        load_checkpoint(run / "checkpoints" / f"{name}.safetensors")
    # The resolved config gives the same run on its own, from another folder.
    monkeypatch.chdir("/")
    status, _, err = invoke("run", run / "config.toml", "--out", folder / "again")
    assert status == 0, err
    one, two = RunFolder(run).load(), RunFolder(folder / "again").load()
    assert one is not None and two is not None
    assert all(torch.equal(one.weights[k], two.weights[k]) for k in one.weights)
    assert (folder / "again" / "config.toml").read_bytes() == (run / "config.toml").read_bytes()


def test_report_and_card_say_where_each_correspondence_came_from(invoke, folder):
    config, run = folder / "federation.toml", folder / "run"
    assert invoke("run", config, "--out", run, "--set", "training.rounds=1")[0] == 0
    origins = {
        "berlin": "given",
        "cairo": "given",
        "delhi": "not needed (no labels)",
        "essen": "not needed (wanted labels)",
        "faro": "estimated by em",
    }
    short = (
        "given at 'berlin', 'cairo'; not needed (no labels) at 'delhi'; "
        "not needed (wanted labels) at 'essen'; estimated by em at 'faro'"
    )
    assert invoke("report", run, "--out", folder / "page.html")[0] == 0
    page = (folder / "page.html").read_text().split('id="data">')[1].split("</script>")[0]
    (shown,) = json.loads(page)["runs"]
    assert shown["method"] == f"fedmt, M {short}"
    assert {c["name"]: c["correspondence"] for c in shown["centers"]} == {"aachen": None, **origins}
    assert invoke("export", run, "--safetensors", folder / "m.safetensors")[0] == 0
    card = json.loads((folder / "m.card.json").read_text())
    assert card["model"]["method"]["correspondence"] == short
    assert {c["name"]: c["correspondence"] for c in card["data"]["centers"]} == origins
    answered = {name: space["answered_by"] for name, space in card["label_spaces"].items()}
    assert answered["triage"].endswith("through a given correspondence")
    assert answered["look"].endswith(
        "a partly estimated correspondence, the mean of those of 2 centers (1 given, 1 estimated)"
    )


def test_a_run_without_tests_says_so(invoke, folder):
    run = folder / "run"
    status, out, err = invoke(
        "run", folder / "federation.toml", "--out", run, "--set", "tests=[]", "--set", "training.rounds=1"
    )
    assert (status, err) == (0, "")
    assert "no accuracy was measured, because there is no test set. Add [[tests]]" in out
    assert "label space" not in out  # no empty table is printed
    assert invoke("report", run, "--out", folder / "page.html")[0] == 0
    page = (folder / "page.html").read_text()
    assert "no accuracy was measured, because there is no test set. Add [[tests]]" in page
    assert '<th scope="col">accuracy</th>' not in page


def test_tests_that_the_model_cannot_answer_are_told_apart_from_none(invoke, folder):
    text = (folder / "federation.toml").read_text().split("[[tests]]")[0]
    text = text.replace("[method]\n", '[method]\nname = "semifl"\n')
    text = text.split('[[centers]]\nname = "cairo"')[0]  # no center with an M for 'look' is left
    (folder / "federation.toml").write_text(
        text + '[[tests]]\nsource = "npz"\npath = "cairo.npz"\nspace = "look"\n'
    )
    status, out, err = invoke("run", folder / "federation.toml", "--out", folder / "run")
    assert status == 0, err
    assert "because the model cannot answer in the label space of any test set. Add [[tests]]" in out


def test_a_diverging_run_ends_in_a_sentence(invoke, folder):
    """Infinite weights or losses must not end in a traceback of the JSON writer."""
    arguments = ("--set", "training.learning_rate=1e30", "--set", "training.clip=0")
    status, out, err = invoke("run", folder / "federation.toml", "--out", folder / "run", *arguments)
    assert "Traceback" not in out + err
    assert status == 2 and "training.learning_rate" in err


def test_a_diverging_center_is_left_out(invoke, folder, monkeypatch):
    """One center's NaN is recorded. The run continues with the others, and its metrics stay valid JSON."""
    from fedmt.methods import FedMT

    real = FedMT.center_loss

    def loss(self, logits, step, tables):
        found = real(self, logits, step, tables)
        # Only the unlabeled center has a matrix with one row.
        return {k: v * float("nan") for k, v in found.items()} if len(tables["matrix"]) == 1 else found

    monkeypatch.setattr(FedMT, "center_loss", loss)
    arguments = ("--set", "method.xi=0.0")  # all centers train
    status, out, err = invoke("run", folder / "federation.toml", "--out", folder / "run", *arguments)
    assert status == 0, err
    assert "left out: delhi" in out
    for line in (folder / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@pytest.mark.slow
def test_ctrl_c_stops_at_a_safe_point_and_says_how_to_go_on(invoke, folder, start):
    config, out = folder / "federation.toml", folder / "a run"  # a space: the command must be quoted
    overrides = ["--set", "training.rounds=20", "--set", 'augmentation.operations=["rotate"]']
    process = start("run", config, "--out", out, *overrides, env=environment())
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
    assert 2 <= finished < 21 and not list(out.rglob("*.tmp"))
    status, printed, message = invoke(*shlex.split(command)[1:])
    assert status == 0, message
    assert f"continuing after round {finished - 1} of 20" in printed
    assert [r["round"] for r in RunFolder(out).metrics()] == list(range(21))


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
    """If it is no longer TOML, there is still a message, not a traceback."""
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
    # Cloned, because a loaded tensor may be a view of the file, which is damaged in place below.
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
from fedmt.commands import cli
from fedmt.runs.folder import RunFolder
real = RunFolder.save
def save(self, state, *more):
    if state.round == 2:  # from now on no file may grow beyond a few kilobytes
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    real(self, state, *more)
RunFolder.save = save
cli.main()
"""


@pytest.mark.slow
def test_a_full_disk(invoke, folder, warm):
    """A real write fails in the third checkpoint (with EFBIG, because a test cannot fill the disk)."""
    config, out = folder / "federation.toml", folder / "run"
    arguments = ["run", str(config), "--out", str(out), "--set", "training.rounds=3"]
    done = subprocess.run(
        [warm / "python-c", LIMITED, *arguments],
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


@pytest.mark.slow
def test_metrics_on_a_full_disk(folder, invoke, warm):
    """A line that did not fit completely must not damage the lines before it."""
    config, out = folder / "federation.toml", folder / "run"
    arguments = ["run", str(config), "--out", str(out), "--set", "training.rounds=3"]
    limited = LIMITED.replace("RunFolder.save", "RunFolder.append_metrics").replace("def save", "def limit")
    limited = limited.replace("state.round == 2", 'state["round"] == 2').replace("= save", "= limit")
    limited = limited.replace("20_000", "self.metrics_file.stat().st_size + 50")
    done = subprocess.run(
        [warm / "python-c", limited, *arguments],
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


# -- a new user's mistakes -----------------------------------------------------------------------------

COMMANDS = (
    "init", "run", "check", "report", "compare", "watch", "quickstart", "sweep", "reproduce", "predict",
    "export",
)  # fmt: skip


def plain(text: str) -> str:
    """The text without colors, panels and the line breaks that come from a panel's width."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", "", text).split())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_explains_every_argument_and_option(invoke, command):
    """Typer 0.20 on click 8.5 shows arguments without their text, so constraints.txt avoids this pair."""
    status, out, _ = invoke(command, "--help")
    text = plain(out)
    assert status == 0 and "Example: fedmt " + command in text
    parameters = {c.callback.__name__: c for c in cli.app.registered_commands}
    function = parameters.get(command) or parameters[f"{command}_command"]
    explained = 0
    for annotation in typing.get_type_hints(function.callback, include_extras=True).values():
        for info in getattr(annotation, "__metadata__", ()):
            assert info.help and plain(info.help) in text, (command, info.help)
            explained += 1
    assert explained


def test_the_first_page_says_where_to_begin(invoke):
    for arguments in ((), ("--help",)):
        _, out, err = invoke(*arguments)
        text = plain(out + err)
        assert "Start with `fedmt quickstart`" in text and all(c in text for c in COMMANDS)


@pytest.mark.parametrize(
    "command", ["run", "check", "report", "compare", "watch", "sweep", "predict", "export"]
)
def test_a_command_with_nothing_shows_its_help(invoke, command):
    status, out, err = invoke(command)
    assert status == 2 and f"Example: fedmt {command}" in plain(out + err)


@pytest.fixture
def desk(folder: Path, tiny_run, monkeypatch) -> Path:
    """The folder of a new user: a federation, a run, an empty folder, and a file."""
    shutil.copytree(tiny_run("fedmt"), folder / "runs" / "first")
    (folder / "empty").mkdir()
    (folder / "file").write_text("x\n")
    (folder / "latin.toml").write_bytes(b'wanted = "d\xe9partement"\n')
    monkeypatch.chdir(folder)
    return folder


TRIAGE_ONLY = 'tests=[{source="manifest",path="berlin.csv",space="triage"}]'
"""A setting without spaces: the only test set is not labeled in the wanted space."""


@pytest.mark.parametrize(
    ("line", "following"),
    [
        ("check federation.toml --set seed=1", "run federation.toml --set seed=1 --baseline single"),
        ("check federation.toml --set tests=[]", "run federation.toml --set 'tests=[]'"),
        (f"check federation.toml --set {TRIAGE_ONLY}", f"run federation.toml --set '{TRIAGE_ONLY}'"),
        ("report runs/first", "predict runs/first SAMPLES"),
        ("predict runs/first scans/0.png", "export runs/first --onnx model.onnx"),
        ("export runs/first --safetensors m.safetensors", "predict m.safetensors SAMPLES"),
    ],
)
def test_a_command_ends_by_naming_the_next_one(invoke, desk, line, following):
    status, out, err = invoke(*line.split())
    assert status == 0, err
    assert (out if "Next:" in out else err).splitlines()[-1] == f"Next: fedmt {following}"


MISTAKES = [
    # no argument, where one is required
    ("init --out new.toml", "where is the data? Give the folder"),
    ("reproduce", "`fedmt reproduce --list` lists them"),
    ("predict runs/first", "Missing argument 'INPUT…'"),
    ("export runs/first", "what should be written? Give --onnx FILE, --safetensors FILE"),
    # a typo in a command, an option, a key or a value
    ("chek federation.toml", "No such command 'chek'. Did you mean 'check'? Known: init, run,"),
    ("zzz", "No such command 'zzz'. Known: init, run, check"),
    ("run federation.toml --ressume", "--resume"),
    ("predict runs/first scans --spce triage", "--space"),
    (
        "check federation.toml --set training.round=3",
        "--set training.round: unknown key 'training.round'. Did you mean 'rounds'?",
    ),
    (
        "check federation.toml --set trainig.rounds=3",
        "--set trainig.rounds: unknown key 'trainig'. Did you mean 'training'?",
    ),
    (
        "check federation.toml --set training.rounds=many",
        "--set training.rounds: input should be a valid integer",
    ),
    ("check federation.toml --set training.rounds", "expected key=value, as in --set training.rounds=20"),
    ("check federation.toml --set method.name=fedmtt", "no method 'fedmtt'. Did you mean 'fedmt'?"),
    ("check federation.toml --set device=gpu", "use 'auto', 'cpu', 'cuda'"),
    ("predict runs/first scans --space garmet", "Did you mean 'garment'? This model answers in"),
    ("predict runs/first scans --top 0", "Invalid value for '--top'"),
    ("reproduce strategis", "Did you mean 'strategies'?"),
    ("reproduce strategies --scale tny", "Did you mean 'tiny'?"),
    (
        "reproduce strategies --scale tiny --set trainig.rounds=3",
        "unknown key 'trainig'. Did you mean 'training'?",
    ),
    (
        "check runs/first/config.toml --set benchmark.spaces.departmen=1",
        "Did you mean 'department'? Known: 'garment', 'department', 'layer'",
    ),
    ("run federation.toml --method fedmtt", "--method fedmtt: no method 'fedmtt'. Did you mean 'fedmt'?"),
    ("run federation.toml --baseline sngle", "--baseline sngle: no method 'sngle'. Did you mean 'single'?"),
    ("run federation.toml --baseline fedmt", "--baseline fedmt: the run itself uses this method"),
    ("run federation.toml --baseline single --set tests=[]", "nothing to compare the two runs on"),
    (
        f"run federation.toml --baseline single --set {TRIAGE_ONLY}",
        "no test samples labeled in the wanted space 'diagnosis'. All [[tests]] are labeled in 'triage'. Add",
    ),
    ("run federation.toml --method single --set method.xi=0.3", "unknown key 'method.xi'"),
    ("run federation.toml --rounds 0", "Invalid value for '--rounds'"),
    ("compare runs/first", "runs/first is the only run. Give at least one more"),
    ("compare runs/first runs/frist", "Did you mean 'runs/first'?"),
    ("compare runs/first runs/first", "runs/first is given more than once"),
    ("compare runs/first --baseline runs/first --metric sensitivity", "given more than once"),
    ("sweep zzz.toml", "zzz.toml: this file does not exist"),
    ("sweep federation.toml", "is one federation, not an experiment: `fedmt run federation.toml` runs it"),
    # a path that does not exist
    ("check federatoin.toml", "this file does not exist. Did you mean 'federation.toml'?"),
    ("run nowhere/x.toml", "this file does not exist. `fedmt init` writes a first one"),
    ("report runs/frist", "there is no such run folder. Did you mean 'runs/first'?"),
    ("watch first", "Did you mean 'runs/first'?"),
    ("predict zzz scans", "there is no such run folder. Give a folder that `fedmt run` wrote"),
    ("predict runs/first zzz.png", "zzz.png: there is no such file or folder"),
    ("export runs/frist --onnx m.onnx", "Did you mean 'runs/first'?"),
    (
        "reproduce zzz.toml",
        "zzz.toml: this file does not exist. That folder contains 'experiment.toml', 'federation.toml'",
    ),
    ("init zzz --out new.toml", "zzz does not exist. Give the folder"),
    # a folder instead of a file
    ("check empty", "empty is a folder. Name the TOML file, which `fedmt init` writes"),
    (
        "run runs/first --out new",
        "runs/first is a folder. Name the TOML file, such as runs/first/config.toml",
    ),
    ("report runs/first --out empty", "empty is a folder. Name a file in it, such as empty/report.html"),
    ("predict runs/first scans --out empty", "empty is a folder. Name a file in it"),
    ("predict runs/first scans --out .", ". is a folder. Name a file in it"),
    ("export runs/first --onnx .", ". is a folder. Name a file in it"),
    ("export runs/first --safetensors empty", "empty is a folder. Name a file in it"),
    ("export runs/first --onnx empty", "empty is a folder. Name a file in it"),
    ("init . --out empty", "empty is a folder. Name a file in it, such as empty/federation.toml"),
    ("reproduce ./empty", "empty is a folder. Name the TOML file"),
    # a file instead of a folder
    ("run federation.toml --out file", "file is a file. Choose another folder with --out"),
    ("run federation.toml --out file/run", "because file is a file. Choose another place"),
    ("report file", "file is a file, not a run folder. Give a folder that `fedmt run` wrote"),
    ("watch runs/first/config.toml", "is a file, not a run folder; give the folder it is in, runs/first"),
    ("report runs/first --out file/r.html", "because file is a file. Choose another place"),
    ("predict runs/first/config.toml scans", "give the folder it is in, runs/first"),
    ("export file --onnx m.onnx", "neither a run folder, such as runs/federation, nor a safetensors file"),
    ("quickstart --out file", "because file is a file. Choose another place"),
    ("reproduce strategies --scale tiny --out file", "because file is a file. Choose another place"),
    ("init file --out new.toml", "file is not a folder. Give the folder"),
    # an empty folder
    ("report empty", "empty is not a run folder (it has no config.toml). Give a folder that"),
    ("report runs", "There are runs in it: 'runs/first'"),
    ("watch empty", "is not a run folder"),
    ("predict empty scans", "is not a run folder"),
    ("predict runs/first empty", "no images in this folder; expected files ending in .jpg"),
    ("export empty --onnx m.onnx", "is not a run folder"),
    ("init empty --out new.toml", "nothing in it looks like a center. Expected folders of images"),
    # a file of another kind
    ("check file", "file: not valid TOML"),
    ("check latin.toml", "latin.toml: this is not a TOML file"),
    ("check scans/0.png", "scans/0.png: this is not a TOML file"),
    (
        "reproduce federation.toml",
        "is one federation, not an experiment: `fedmt run federation.toml` runs it",
    ),
    ("run experiment.toml", "is an experiment, not a federation: `fedmt sweep experiment.toml` runs it"),
    (
        "run federation.toml --out runs/first",
        "already holds a run. Continue it with --resume, or choose another",
    ),
]  # fmt: skip


@pytest.mark.parametrize("line, said", MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_named_with_what_to_do(invoke, desk, line, said):
    (desk / "experiment.toml").write_text("rows = []\ncolumns = []\n")

    def files() -> dict[str, bytes]:
        return {k: v for k, v in contents(desk).items() if not k.endswith("lock")}

    before = files()
    status, out, err = invoke(*line.split())
    assert status == 2 and "Traceback" not in out + err
    assert said in plain(err)
    assert files() == before  # nothing is created or changed except a run folder's lock


def test_a_file_that_may_not_be_read_ends_in_a_sentence(invoke, desk, monkeypatch):
    """The system may refuse anything. Here, a folder lacks permissions, as if it belonged to another user."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(desk / "runs"))

    monkeypatch.setattr("fedmt.config.load_config", refuse)
    status, out, err = invoke("check", "federation.toml")
    assert (status, out, err) == (2, "", f"fedmt: {desk / 'runs'}: Permission denied.\n")


@pytest.mark.slow
def test_a_reader_that_has_had_enough(desk, start):
    """`fedmt predict … | head -1` ends without a traceback."""
    process = start("predict", "runs/first", *["scans"] * 300, cwd=desk, env=environment())
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline().startswith("image,")
    process.stdout.close()
    err = process.stderr.read()
    process.wait(timeout=60)
    assert "Traceback" not in err and "Broken" not in err
