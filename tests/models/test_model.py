"""A run's model, loaded without its data, gives the tested answers in every label space."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedmt
from fedmt import FedmtError
from fedmt.commands.predicting import header, predict_files
from fedmt.config import build_federation, load_config
from fedmt.data.sources.fashion_mnist import read_fashion_mnist
from fedmt.inputs.base import Item
from fedmt.inputs.images import asking
from fedmt.inputs.images.asking import find_files, read_files
from fedmt.runs.folder import RunFolder
from fedmt.training.run import run


@pytest.fixture(scope="module")
def test_images() -> torch.Tensor:
    return read_fashion_mnist("test").images[:60:5]


@pytest.fixture
def pictures(tmp_path: Path, test_images: torch.Tensor) -> Path:
    """Twelve files, of which two are broken and some are in a subfolder."""
    folder = tmp_path / "pictures"
    (folder / "more").mkdir(parents=True)
    for i, image in enumerate(test_images[:10]):
        Image.fromarray(image[0].numpy()).save(folder / ("more" if i % 2 else ".") / f"{i}.png")
    (folder / "4.png").write_bytes(b"nonsense")
    (folder / "empty.jpg").write_bytes(b"")
    return folder


# -- loading and answering ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["fedmt", "fedmt-estimated", "single", "semifl", "fedrep", "fedrep-fedbn", "fedtrans"]
)
def test_it_answers_as_it_was_tested(tiny_run, name: str) -> None:
    """Reproduces the accuracies that the engine recorded, from the folder alone."""
    folder = tiny_run(name)
    model = fedmt.load(folder, "cpu")
    assert model.spaces == ("garment", "department", "layer") and model.finished
    federation, _ = build_federation(load_config(folder / "config.toml"))
    record = RunFolder(folder).metrics()[-1]
    recorded = record["accuracy"] | record.get("mean_matrix", {}).get("accuracy", {})
    if model.temperature is not None:  # it was tested without; projected classes may change their order
        model.description.calibration["temperature"] = 1.0
        model = fedmt.Model(model.description, model.state)
    for test in federation.tests:
        space = test.space.name
        if name.startswith("fedrep") and space == "department":
            each = [
                _accuracy(model.predict(test.images, space, center=c), test.labels)
                for c in ("center-1", "center-2")
            ]
            assert sum(each) / 2 == pytest.approx(recorded[space], abs=1e-6)
            continue
        found = _accuracy(model.predict(test.images, space), test.labels)
        assert found == pytest.approx(recorded[space], abs=1e-6), space


def _accuracy(probabilities: torch.Tensor, labels: torch.Tensor) -> float:
    return (probabilities.argmax(1) == labels).float().mean().item()


@pytest.mark.parametrize("name", ["fedmt-estimated", "fedrep", "fedrep-fedbn"])
def test_the_default_is_the_mean_over_the_centers(tiny_run, test_images, name: str) -> None:
    model = fedmt.load(tiny_run(name), "cpu")
    each = [model.predict(test_images, "department", center=c) for c in ("center-1", "center-2")]
    assert (each[0] - each[1]).abs().max() > 1e-3  # the centers differ, so their mean is different
    torch.testing.assert_close(model.predict(test_images, "department"), (each[0] + each[1]) / 2)


def test_probabilities_top_and_classes(tiny_run, test_images) -> None:
    model = fedmt.load(tiny_run("fedmt"), "cpu")
    assert model.classes() == model.classes("garment") and len(model.classes("layer")) == 4
    found = model.predict(test_images)
    assert found.shape == (12, 10) and torch.allclose(found.sum(1), torch.ones(12), atol=1e-5)
    top = model.predict(test_images, top=3)
    for row, ranked in zip(found, top, strict=True):
        values, index = row.sort(descending=True)
        assert [name for name, _ in ranked] == [model.classes()[i] for i in index[:3]]
        assert [value for _, value in ranked] == pytest.approx(values[:3].tolist())
    assert len(model.predict(test_images, "layer", top=99)[0]) == 4
    with pytest.raises(FedmtError, match="top: 0"):
        model.predict(test_images, top=0)
    assert "garment" in repr(model)


def test_every_kind_of_image_gives_the_same(tiny_run, test_images, tmp_path: Path) -> None:
    model = fedmt.load(tiny_run("fedmt"), "cpu")
    expected = model.predict(test_images)
    arrays = test_images.numpy()
    files = []
    for i, image in enumerate(arrays):
        files.append(tmp_path / f"{i}.png")
        Image.fromarray(image[0]).save(files[-1])
    kinds = [
        arrays,
        arrays[:, 0],
        arrays.transpose(0, 2, 3, 1),
        list(arrays),
        [image[0] for image in arrays],
        [Image.fromarray(image[0]) for image in arrays],
        [Image.fromarray(image[0]).convert("RGB") for image in arrays],
        files,
        [str(file) for file in files],
    ]
    for kind in kinds:
        torch.testing.assert_close(model.predict(kind), expected)
    for one in (files[0], Image.fromarray(arrays[0, 0]), arrays[0, 0]):
        torch.testing.assert_close(model.predict(one), expected[:1])
    large = np.repeat(np.repeat(arrays, 2, axis=2), 2, axis=3)  # 56 x 56, brought to 28 x 28
    assert model.predict(large).shape == expected.shape


def test_batches_do_not_change_the_answer(tiny_run, test_images, monkeypatch) -> None:
    model = fedmt.load(tiny_run("fedmt"), "cpu")
    expected = model.predict(test_images)
    monkeypatch.setattr(asking, "batch_size", lambda shape: 5)
    torch.testing.assert_close(model.predict(test_images), expected)
    torch.testing.assert_close(model.predict(list(test_images)), expected)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.full((2, 28, 28), 2, dtype=np.float32), r"values from 2 to 2; expected floats in \[0, 1\]"),
        (np.zeros((28, 28, 3), dtype=np.uint8), "in a list"),
        (np.zeros((2, 5, 28, 28), dtype=np.uint8), "1 or 3 channels"),
        ([], "No images"),
        (["nowhere.png"], "no such file"),
        ([3], "type int"),
        (3, "images: an object of type int; expected an array, a path"),
        (None, r"predict: no images are given\."),
    ],
)
def test_bad_images(tiny_run, images, message: str) -> None:
    with pytest.raises(FedmtError, match=message):
        fedmt.load(tiny_run("fedmt"), "cpu").predict(images)


def test_unknown_spaces_and_centers(tiny_run, test_images) -> None:
    model = fedmt.load(tiny_run("fedmt"), "cpu")
    with pytest.raises(
        FedmtError, match=r"No label space 'departmnt'. Did you mean 'department'\? .*'layer'"
    ):
        model.predict(test_images, "departmnt")
    with pytest.raises(FedmtError, match="No center 'center-9'"):
        model.predict(test_images, "department", center="center-9")
    with pytest.raises(FedmtError, match=r"'center-3' does not have its own answer in 'department'.*'layer'"):
        model.predict(test_images, "department", center="center-3")


def test_a_space_without_an_answer_is_named(tiny_run, test_images, tmp_path: Path) -> None:
    """Before the first round, a center that estimates M has no matrix yet."""
    folder = tmp_path / "run"
    shutil.copytree(tiny_run("fedmt-estimated"), folder)
    (folder / "checkpoints" / "round-000001.safetensors").unlink()
    model = fedmt.load(folder, "cpu")
    assert model.spaces == ("garment",) and not model.finished and model.round == 0
    with pytest.raises(FedmtError, match=r"No answer in label space 'layer'.*answers in 'garment'"):
        model.predict(test_images, "layer")


def test_folders_that_are_no_runs(tiny_run, tmp_path: Path) -> None:
    with pytest.raises(FedmtError, match="no such run folder"):
        fedmt.load(tmp_path / "nowhere")
    with pytest.raises(FedmtError, match=r"not a run folder.*There are runs in it: .*fedmt'"):
        fedmt.load(tiny_run("fedmt").parent)
    folder = tmp_path / "run"
    shutil.copytree(tiny_run("fedmt"), folder)
    model = folder / "model.json"
    text = model.read_text()
    for damaged, message in (
        ("{", "not valid JSON"),
        (text.replace("fedmt-model-1", "fedmt-model-9"), "another version"),
        (text.replace('"input"', '"shape"'), "input.*missing"),
    ):
        model.write_text(damaged)
        with pytest.raises(FedmtError, match=message):
            fedmt.load(folder)
    model.unlink()
    with pytest.raises(FedmtError, match=r"no model\.json.*--resume"):
        fedmt.load(folder)
    run(load_config(folder / "config.toml"), folder, resume=True)  # as the message says
    fedmt.load(folder)
    for checkpoint in (folder / "checkpoints").iterdir():
        data = bytearray(checkpoint.read_bytes())
        data[-1] ^= 1
        checkpoint.write_bytes(bytes(data))
    with pytest.raises(FedmtError, match="damaged"):
        fedmt.load(folder)
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(FedmtError, match="no round has finished"):
        fedmt.load(folder)


@pytest.mark.slow
def test_importing_fedmt_does_not_bring_the_model() -> None:
    loaded = "'fedmt.models' in sys.modules"
    code = f"import sys, fedmt; assert not {loaded}; fedmt.load; assert {loaded}"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="nothing"):
        _ = fedmt.nothing


# -- fedmt predict --------------------------------------------------------------------------------


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_predict_writes_a_row_for_each_file(tiny_run, pictures: Path, tmp_path: Path, command) -> None:
    out = tmp_path / "new" / "rows.csv"
    status, printed, said = command(
        "predict", tiny_run("fedmt"), pictures, "--space", "department", "--top", 2, "--out", out
    )
    assert status == 0 and printed == "" and "2 of 11 images could not be read" in said
    rows = rows_of(out.read_text())
    assert (
        list(rows[0]) == header("image", 2)
        and len(rows) == 11
        and not out.with_name("rows.csv.part").exists()
    )
    assert [r["image"] for r in rows] == sorted(r["image"] for r in rows)
    model = fedmt.load(tiny_run("fedmt"), "cpu")
    for row in rows:
        if Path(row["image"]).name in ("4.png", "empty.jpg"):
            assert row["error"] and not row["class_1"] and row["space"] == "department"
            continue
        (expected,) = model.predict(row["image"], "department", top=2)
        assert (row["class_1"], row["class_2"]) == (expected[0][0], expected[1][0]) and not row["error"]
        assert float(row["probability_1"]) == pytest.approx(expected[0][1], abs=1e-5)


def test_predict_goes_through_a_pipe_as_csv(tiny_run, pictures: Path, command) -> None:
    status, printed, said = command("predict", tiny_run("single"), pictures / "0.png")
    assert status == 0 and len(rows_of(printed)) == 1 and "not calibrated" in said


def test_predict_does_not_replace_a_pipe_or_a_link(tiny_run, pictures: Path, tmp_path: Path, command) -> None:
    """A process run by root would otherwise replace /dev/stdout or /dev/null by a file."""
    pipe, file, link = tmp_path / "pipe", tmp_path / "file.csv", tmp_path / "link.csv"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert command("predict", tiny_run("single"), pictures / "0.png", "--out", pipe)[0] == 0
    assert pipe.is_fifo() and len(rows_of(os.read(end, 1 << 16).decode())) == 1
    os.close(end)
    file.touch()
    link.symlink_to(file)
    assert command("predict", tiny_run("single"), pictures / "0.png", "--out", link)[0] == 0
    assert link.is_symlink() and len(rows_of(file.read_text())) == 1
    assert not list(tmp_path.glob("*.part"))


def test_predict_shows_a_table_on_a_terminal(tiny_run, pictures: Path, command, monkeypatch) -> None:
    from fedmt.commands import predicting

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(predicting, "SHOWN", 3)
    status, printed, _ = command("predict", tiny_run("fedmt"), pictures)
    assert status == 0 and "garment, fedmt after round 1" in printed and "first 3 of 11" in printed


def test_predict_takes_a_manifest(tiny_run, pictures: Path, tmp_path: Path, command) -> None:
    table = tmp_path / "cases.csv"
    table.write_text("case,file\na,pictures/0.png\nb,pictures/gone.png\nc,\n")
    status, printed, _ = command("predict", tiny_run("fedmt"), table, "--image-column", "file")
    rows = rows_of(printed)
    assert status == 0 and [bool(r["error"]) for r in rows] == [False, True, True]
    assert rows[0]["image"] == "pictures/0.png" and "line 3" in rows[1]["error"]
    before = table.read_text()
    assert command("predict", tiny_run("fedmt"), table, "--image-column", "file", "--out", table)[0] == 2
    assert table.read_text() == before


def test_predict_fails_where_nothing_could_be_read(tiny_run, pictures: Path, command) -> None:
    status, printed, said = command("predict", tiny_run("fedmt"), pictures / "4.png")
    assert status == 1 and "1 of 1" in said and len(rows_of(printed)) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}", "nowhere.png"], "no such file or folder"),
        (["{run}", "{empty}"], "no images in this folder"),
        (["nowhere", "{pictures}"], "no such run folder"),
        (["{empty}", "{pictures}"], "not a run folder"),
        (["{run}", "{pictures}", "--space", "garmet"], "Did you mean 'garment'?"),
        (["{run}", "{pictures}", "--center", "center-1"], "not have its own answer in 'garment'"),
        (["{pictures}/0.png", "{pictures}"], "nor a safetensors file"),
        (["{run}", "{table}"], "no column 'image'"),
        (["{run}", "{pictures}", "--out", "{pictures}/0.png"], "would overwrite one of the inputs"),
        (["{run}", "{pictures}", "--out", "{run}/config.toml"], "which is being read"),
    ],
)
def test_predict_says_what_is_wrong(
    tiny_run, pictures: Path, tmp_path: Path, command, arguments: list[str], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "table.csv").write_text("picture\n0.png\n")
    places = {
        "run": tiny_run("fedmt"),
        "pictures": pictures,
        "empty": tmp_path / "empty",
        "table": tmp_path / "table.csv",
    }
    status, _, said = command("predict", *(a.format(**places) for a in arguments))
    assert status == 2 and message in said and said.startswith("fedmt: ") and "Traceback" not in said


def test_only_two_batches_are_in_memory(tiny_run, pictures: Path, monkeypatch) -> None:
    """The reader is at most one batch ahead of the network."""
    monkeypatch.setattr(asking, "batch_size", lambda shape: 2)
    files = find_files([pictures])
    asked: list[Item] = []
    decoded = asking._decoded
    monkeypatch.setattr(asking, "_decoded", lambda file, shape: (asked.append(file), decoded(file, shape))[1])
    for number, batch in enumerate(read_files(files, (1, 28, 28)), 1):
        assert len(batch.items) <= 2 and len(asked) <= 2 * (number + 1)
    assert len(asked) == len(files) == 11


def test_rows_keep_their_order_around_broken_files(tiny_run, pictures: Path, monkeypatch) -> None:
    monkeypatch.setattr(asking, "batch_size", lambda shape: 3)
    model = fedmt.load(tiny_run("fedmt"), "cpu")
    files = find_files([pictures])
    rows = list(predict_files(model, files, "garment", 1))
    assert [r.image for r in rows] == [f.name for f in files]
    for row in rows:
        if not row.error:
            assert row.top[0][0] == model.predict(row.image, top=1)[0][0][0]


# -- model.json -----------------------------------------------------------------------------------


def test_the_description_needs_no_paths(tiny_run) -> None:
    raw = json.loads((tiny_run("fedmt") / "model.json").read_text())
    assert raw["input"] == {"name": "images", "shape": [1, 28, 28]} and list(raw["spaces"]) == [
        "garment",
        "department",
        "layer",
    ]
    assert raw["centers"][0] | {"correspondence": None} == {
        "name": "center-1",
        "samples": 30,
        "space": "department",
        "correspondence": None,
    }
    assert str(tiny_run("fedmt").parent) not in json.dumps(raw)
