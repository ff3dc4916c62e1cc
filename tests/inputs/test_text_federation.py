"""Texts through every command: check, run, resume, report, predict and export, and between machines."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import fedmt
from fedmt.config import build_federation, load_config
from fedmt.core.errors import FedmtError
from fedmt.reports.report import report
from fedmt.training.run import run

TOY = Path(__file__).parent / "fedmt_toy.py"
FINE = {"lost card": "card", "new card": "card", "book flight": "travel", "cancel flight": "travel"}
WORDS = {
    "lost card": "lost missing stolen vanished",
    "new card": "order another replacement fresh",
    "book flight": "reserve ticket airline seat",
    "cancel flight": "refund cancel annul revoke",
}
FILLERS = "please could you help me with this today the my an".split()  # noqa: SIM905

CONFIG = """
input = "text"
seed = 1
device = "cpu"
wanted = "fine"
{top}
[method]
{method}
[spaces]
fine = ["lost card", "new card", "book flight", "cancel flight"]
coarse = ["card", "travel"]
[correspondences.coarse]
"lost card" = "card"
"new card" = "card"
"book flight" = "travel"
"cancel flight" = "travel"
[text]
features = 128
length = 8
ngrams = 2
[training]
rounds = 2
batch_size = 16
warmup_epochs = 15
[reference]
source = "text"
path = "reference.csv"
label_column = "fine"
[[centers]]
name = "Bonn"
source = "text"
path = "Bonn.csv"
label_column = "coarse"
space = "coarse"
[[centers]]
name = "Kiel"
source = "text"
path = "Kiel.csv"
label_column = "fine"
space = "fine"
[[tests]]
source = "text"
path = "test.csv"
label_column = "fine"
"""


def write(path: Path, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "fine", "coarse"])
        for i in range(count):
            fine = list(FINE)[i % 4]
            own = rng.choice(WORDS[fine].split(), 2, replace=False)
            words = rng.permutation([*own, *rng.choice(FILLERS, 4, replace=False)])
            writer.writerow([" ".join(words).capitalize() + ".", fine, FINE[fine]])


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    shutil.copy(TOY, tmp_path)
    monkeypatch.chdir(tmp_path)
    for seed, (name, count) in enumerate([("reference", 40), ("Bonn", 80), ("Kiel", 40), ("test", 40)]):
        write(tmp_path / f"{name}.csv", count, seed)

    def make(top: str = "", method: str = 'name = "fedmt"') -> Path:
        path = tmp_path / "texts.toml"
        path.write_text(CONFIG.format(top=top, method=method))
        return path

    return make


ASKED = ["I have lost my card, it is missing", "Reserve a seat with the airline", "refund, please revoke"]


@pytest.mark.parametrize("top", ["", "graphs = true"])
def test_a_run_and_what_is_made_of_it(config, tmp_path: Path, command, top: str) -> None:
    path = config(top, 'name = "fedmt"\ncorrespondence = "estimated"')
    status, said, _ = command("check", path)
    assert status == 0 and "Texts 2 x 8;" in said
    assert command("run", path, "--out", tmp_path / "run")[0] == 0
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["accuracy"]["fine"] > 0.85
    assert command("run", path, "--out", tmp_path / "run", "--resume")[0] == 0
    model = fedmt.load(tmp_path / "run")
    assert [top[0][0] for top in model.predict(ASKED, top=1)] == ["lost card", "book flight", "cancel flight"]
    assert model.predict(ASKED, "coarse").argmax(1).tolist() == [0, 1, 1]
    # The words themselves are in no file of a run.
    for file in (p for p in (tmp_path / "run").rglob("*") if p.is_file()):
        assert b"airline" not in file.read_bytes(), file


def test_predict_reads_tables_and_lines(config, tmp_path: Path, command) -> None:
    assert command("run", config(), "--out", tmp_path / "run")[0] == 0
    lines = tmp_path / "asked.txt"
    lines.write_text("\n".join([*ASKED, "", "?"]) + "\n")
    status, said, told = command("predict", tmp_path / "run", lines, "--top", 1)
    rows = list(csv.DictReader(said.splitlines()))
    assert status == 0 and [row["text"] for row in rows] == [*ASKED, "?"]
    assert [row["class_1"] for row in rows] == ["lost card", "book flight", "cancel flight", ""]
    assert (
        rows[3]["error"]
        == f"{lines}, line 5: no word in it; expected at least one word of two letters or more."
    )
    assert "blank lines were skipped: 1." in told
    asked = tmp_path / "asked.csv"
    asked.write_text('question,number\n"{}",1\n"{}",2\n'.format(*ASKED[:2]))
    status, said, told = command("predict", tmp_path / "run", asked)
    assert status == 2 and "no column 'text'; the columns are 'question', 'number'. Name the one" in told
    assert "--column NAME" in told
    (tmp_path / "one.csv").write_text(f'question\n"{ASKED[0]}"\n')  # the only column needs no name
    assert command("predict", tmp_path / "run", tmp_path / "one.csv")[0] == 0
    status, _, told = command("predict", tmp_path / "run", "SAMPLES")  # copied from "Next: fedmt predict …"
    assert status == 2 and "SAMPLES is a placeholder for your own files. Name the texts to predict." in told
    status, said, _ = command("predict", tmp_path / "run", asked, "--column", "question", "--space", "coarse")
    assert status == 0 and [row["class_1"] for row in csv.DictReader(said.splitlines())] == ["card", "travel"]
    status, _, told = command("predict", tmp_path / "run", tmp_path)
    assert status == 2 and "a folder; expected a CSV with a column of texts" in told


def test_the_report_shows_the_words_of_mistakes(config, tmp_path: Path) -> None:
    path = config(method='name = "single"')
    run(load_config(path, ["training.warmup_epochs=0", "training.reference_epochs=1"]), tmp_path / "run")
    report([tmp_path / "run"], tmp_path / "report.html", with_images=True)
    page = (tmp_path / "report.html").read_text()
    texts = [row["text"] for row in csv.DictReader((tmp_path / "test.csv").open())]
    assert any(text in page for text in texts)
    report([tmp_path / "run"], tmp_path / "plain.html")
    assert not any(text in (tmp_path / "plain.html").read_text() for text in texts)


def test_exports_say_how_to_hash(config, tmp_path: Path, command) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    assert command("run", config(), "--out", tmp_path / "run")[0] == 0
    files = ("--onnx", tmp_path / "texts.onnx", "--safetensors", tmp_path / "texts.safetensors")
    status, _, told = command("export", tmp_path / "run", *files)
    assert status == 0, told
    model = fedmt.load(tmp_path / "run")
    session = onnxruntime.InferenceSession(str(tmp_path / "texts.onnx"))
    samples = model.input.hashed(ASKED).samples
    found = session.run(["probabilities_fine"], {"text": samples.numpy()})[0]
    np.testing.assert_allclose(found, model.predict(ASKED).numpy(), atol=1e-5)
    about = json.loads(session.get_modelmeta().custom_metadata_map["fedmt.input"])
    assert about["shape"] == ["batch", 2, 8] and "MurmurHash3" in about["entry"]
    assert torch.equal(fedmt.load(tmp_path / "texts.safetensors").predict(ASKED), model.predict(ASKED))
    card = json.loads((tmp_path / "texts.card.json").read_text())
    assert "modulo 128" in card["model"]["input"]["entry"]


def test_one_labeled_file_becomes_a_federation(config, tmp_path: Path) -> None:
    whole = config().read_text()
    columns = '{ fine = "fine", coarse = "coarse" }'
    start = whole.split("[spaces]")[0].replace('wanted = "fine"\n', "")
    tables = "[text]\nfeatures = 128\nlength = 4\n[benchmark]\n"
    data = f'data = {{ source = "text", path = "Bonn.csv", label_columns = {columns} }}\n'
    test = f'test = {{ source = "text", path = "test.csv", label_columns = {columns} }}\n'
    split = 'wanted = "fine"\nspaces = { coarse = 2, fine = 1 }\nper_class = 3\n'
    path = tmp_path / "benchmark.toml"
    path.write_text(start + tables + data + test + split)
    federation, notes = build_federation(load_config(path))
    assert [len(c) for c in federation.centers] == [22, 22, 22] and len(federation.reference) == 12
    assert federation.centers[0].correspondence.is_partition and federation.centers[0].snippets is None
    assert [t.space.name for t in federation.tests] == ["fine", "coarse"]
    texts = [row["text"] for row in csv.DictReader((tmp_path / "test.csv").open())]
    assert list(federation.tests[0].snippets) == texts == list(federation.tests[1].snippets)
    assert any("80 texts have more than 4 words" in note for note in notes)


def test_a_center_that_is_hashed_otherwise_does_not_fit(config) -> None:
    from dataclasses import replace

    federation, _ = build_federation(load_config(config()))
    other = replace(federation.centers[0], input=replace(federation.input, features=64))
    with pytest.raises(FedmtError, match=r"'Bonn' has texts of shape \(2, 8\) in 64 buckets, but the"):
        replace(federation, centers=(other,))


def test_an_empty_text_leaves_nothing_behind(config, tmp_path: Path, command) -> None:
    path = config()
    with (tmp_path / "Bonn.csv").open("a") as file:
        file.write('" ",lost card,card\n')
    status, _, told = command("run", path, "--out", tmp_path / "run")
    assert status == 2 and "center 'Bonn': " in told and "line 82: the column 'text' is empty" in told
    assert not (tmp_path / "run").exists()
