"""A frozen backbone: features are computed once, a head trains on them, and the model takes images."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fedmt
from fedmt.backbones import Classifier, build
from fedmt.backbones.frozen import encode
from fedmt.config import build_federation, dump_config, freeze, freezing, load_config
from fedmt.core.errors import FedmtError
from fedmt.inputs import Images, Vectors
from fedmt.inputs.vectors.views import _row
from fedmt.models.export.onnx import export_onnx, output_name
from fedmt.reports.report import report
from fedmt.runs.folder import RunFolder
from fedmt.training.run import build_engine, run

CONFIG = """
seed = 3
device = "cpu"
wanted = "fine"
[method]
name = "fedmt"
correspondence = "estimated"
[training]
learning_rate = 0.1
reference_rate = 1.0
rounds = 2
batch_size = 8
warmup_epochs = 5
[spaces]
fine = ["a", "b", "c"]
coarse = ["ab", "c"]
"""

IMAGES = """
[model]
backbone = "small_cnn"
weights = "weights.safetensors"
normalize = "reference"
freeze = true
"""

CPU = torch.device("cpu")


def sources(kind: str) -> str:
    return "".join(
        f'[{table}]\n{name}source = "npz"\npath = "{kind}-{file}.npz"\n{space}\n'
        for table, name, file, space in (
            ("reference", "", "reference", ""),
            ("[centers]", 'name = "Bonn"\n', "Bonn", 'space = "coarse"'),
            ("[centers]", 'name = "Kiel"\n', "Kiel", 'space = "fine"'),
            ("[tests]", "", "test", ""),
        )
    )


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    """Images of three classes that differ in brightness, and the weights of a network."""
    rng = np.random.default_rng(0)
    for name, count in (("reference", 15), ("Bonn", 24), ("Kiel", 15), ("test", 12)):
        fine = np.arange(count) % 3
        noise = rng.integers(0, 60, (count, 3, 12, 12))
        images = (noise + 60 * fine[:, None, None, None]).astype(np.uint8)
        labels = np.array(["ab", "ab", "c"] if name == "Bonn" else ["a", "b", "c"])[fine]
        np.savez(tmp_path / f"images-{name}.npz", images=images, labels=labels)
    torch.manual_seed(7)
    network = build("small_cnn", 5, Images((3, 12, 12)))  # with another number of classes
    with torch.no_grad():
        for key, value in network.state_dict().items():
            if "running" in key:
                value.uniform_(0.5, 1.5)
    save_file(network.state_dict(), tmp_path / "weights.safetensors")

    def make(more: str = "", model: str = IMAGES) -> Path:
        path = tmp_path / "federation.toml"
        path.write_text(CONFIG + model + more + sources("images"))
        return path

    return make


def state(folder: Path) -> Any:
    found = RunFolder(folder).load()
    assert found is not None
    return found


def by_hand(path: Path, samples: torch.Tensor) -> torch.Tensor:
    """The input of the last layer of the whole network."""
    network = build("small_cnn", 5, Images((3, 12, 12)), path.parent / "weights.safetensors")
    reference = torch.from_numpy(np.load(path.parent / "images-reference.npz")["images"])
    model = Classifier(network, *Images((3, 12, 12)).statistics(reference)).eval()
    seen: list[torch.Tensor] = []
    model.backbone.fc.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model.to(memory_format=torch.channels_last)
    with torch.no_grad():
        model((samples.float() / 255).contiguous(memory_format=torch.channels_last))
    return seen[0]


def test_the_same_as_a_head_on_features_made_by_hand(config, tmp_path: Path) -> None:
    """The round's weights are bit-identical, for FedMT with an estimated M."""
    path = config()
    run(load_config(path), tmp_path / "frozen")
    for name in ("reference", "Bonn", "Kiel", "test"):
        arrays = dict(np.load(tmp_path / f"images-{name}.npz"))
        vectors = by_hand(path, torch.from_numpy(arrays.pop("images"))).numpy()
        np.savez(tmp_path / f"vectors-{name}.npz", vectors=vectors, **arrays)
    other = tmp_path / "vectors.toml"
    other.write_text('input = "vectors"' + CONFIG + '[model]\nbackbone = "linear"\n' + sources("vectors"))
    run(load_config(other), tmp_path / "vectors")
    one, two = state(tmp_path / "frozen").weights, state(tmp_path / "vectors").weights
    assert one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)
    # The frozen weights are those of the file, whatever was trained on top of them.
    kept, given = (
        load_file(tmp_path / "frozen" / "frozen.safetensors"),
        load_file(tmp_path / "weights.safetensors"),
    )
    trunk = {k.removeprefix("backbone."): v for k, v in kept.items() if k.startswith("backbone.")}
    assert trunk.keys() == {k for k in given if not k.startswith("fc.")}
    assert all(torch.equal(v, given[k]) for k, v in trunk.items())


def test_a_model_takes_images(config, tmp_path: Path) -> None:
    path = config("[calibration]\nshare = 0.2\nminimum = 3\n")
    run(load_config(path), tmp_path / "run")
    images = torch.from_numpy(np.load(tmp_path / "images-test.npz")["images"])
    model = fedmt.load(tmp_path / "run", "cpu")
    assert model.input == Images((3, 12, 12)) and model.temperature is not None
    # Features and head, computed by hand.
    about, weights = model.description, model.state.weights
    assert isinstance(about.input, Vectors)
    features = about.input.plain(by_hand(path, images))
    logits = features @ weights["backbone.fc.weight"].T + weights["backbone.fc.bias"]
    expected = (logits / model.temperature).softmax(1)
    torch.testing.assert_close(model.predict(images), expected, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_the_onnx_graph_takes_images(config, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    run(load_config(config()), tmp_path / "run")
    images = torch.from_numpy(np.load(tmp_path / "images-test.npz")["images"])
    _row.cache_clear()  # as in a new process, which has computed nothing yet
    model = fedmt.load(tmp_path / "run", "cpu")
    export_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    found = session.run([output_name("coarse")], {"images": images.numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(found), model.predict(images, "coarse"), atol=1e-5, rtol=0)


def test_commands_on_a_frozen_run(config, tmp_path: Path, command) -> None:
    path = config()
    status, said, _ = command("check", path)
    assert status == 0 and "small_cnn (frozen, 96 features), head linear with 291 parameters" in said
    assert command("run", path, "--out", tmp_path / "run", "--baseline", "single")[0] == 0
    before = state(tmp_path / "run").weights
    assert command("run", path, "--out", tmp_path / "run", "--resume")[0] == 0
    assert all(torch.equal(before[k], v) for k, v in state(tmp_path / "run").weights.items())
    checkpoint = next((tmp_path / "run" / "checkpoints").iterdir())
    assert checkpoint.stat().st_size < (tmp_path / "run" / "frozen.safetensors").stat().st_size / 10
    report([tmp_path / "run"], tmp_path / "report.html", with_images=True)
    mistakes = RunFolder(tmp_path / "run").metrics()[-1]["accuracy"]["fine"] < 1
    assert ("data:image/png" in (tmp_path / "report.html").read_text()) == mistakes
    file = tmp_path / "model.safetensors"
    assert command("export", tmp_path / "run", "--safetensors", file)[0] == 0
    images = torch.from_numpy(np.load(tmp_path / "images-test.npz")["images"])
    whole = fedmt.load(tmp_path / "run", "cpu").predict(images)
    assert torch.equal(fedmt.load(file, "cpu").predict(images), whole)
    card = json.loads((tmp_path / "model.card.json").read_text())["model"]
    assert (card["backbone"], card["head"]) == ("small_cnn", "linear")
    assert len(card["input"]["normalization"]["mean"]) == 3 and card["input"]["name"] == "images"
    # The folder contains a complete model. Missing or damaged files are named.
    frozen = tmp_path / "run" / "frozen.safetensors"
    damaged = bytearray(frozen.read_bytes())
    damaged[-1] ^= 1
    frozen.write_bytes(damaged)
    with pytest.raises(
        FedmtError, match=r"run: the weights of the frozen backbone 'small_cnn' are missing, dam"
    ):
        fedmt.load(tmp_path / "run")
    frozen.unlink()
    with pytest.raises(
        FedmtError, match=r"frozen\.safetensors: .* cannot be read .* --resume writes the file"
    ):
        fedmt.load(tmp_path / "run")
    assert command("run", path, "--out", tmp_path / "run", "--resume")[0] == 0
    assert torch.equal(fedmt.load(tmp_path / "run", "cpu").predict(images), whole)


def test_a_run_is_not_resumed_on_another_frozen_network(config, tmp_path: Path) -> None:
    path = config()
    run(load_config(path, ["training.rounds=1"]), tmp_path / "run")
    file = tmp_path / "weights.safetensors"
    save_file({k: v * 2 for k, v in load_file(file).items()}, file)
    with pytest.raises(FedmtError, match=r"other data .* of 'model\.weights'"):
        run(load_config(path, ["training.rounds=1"]), tmp_path / "run", resume=True)


@pytest.mark.parametrize("method", ["single", "fedmt", "fedtrans", "fedrep", "semifl"])
@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_every_method_trains_a_head(config, tmp_path: Path, method: str, head: str) -> None:
    own = [
        "model.head=" + head,
        f'method={{name="{method}"}}',
        "graphs=" + ("true" if head == "mlp" else "false"),
    ]
    run(load_config(config(), own), tmp_path / "run")
    model = fedmt.load(tmp_path / "run", "cpu")
    images = torch.from_numpy(np.load(tmp_path / "images-test.npz")["images"])
    for space in model.spaces:
        assert model.predict(images, space).shape == (12, len(model.classes(space)))
    tested = RunFolder(tmp_path / "run").metrics()[-1]["accuracy"]["fine"]
    labels = torch.arange(12) % 3
    assert (model.predict(images).argmax(1) == labels).float().mean() == pytest.approx(tested)


def test_what_a_run_folder_keeps_of_the_settings(config) -> None:
    spellings = [dump_config(load_config(config(), [f"model.freeze={f}"])) for f in ("true", '"backbone"')]
    assert spellings[0] == spellings[1]
    kept = tomllib.loads(spellings[0])
    assert kept["model"]["freeze"] == "backbone" and kept["model"]["head"] == "linear"
    assert kept["augmentation"].keys() == {"noise", "strong_noise", "masked"}
    plain = tomllib.loads(dump_config(load_config(config(), ["model.freeze=false"])))
    assert plain["model"].keys() == {"backbone", "weights", "normalize"} and "flip" in plain["augmentation"]


def test_a_federation_is_encoded_once(config) -> None:
    settings = load_config(config())
    federation, notes = build_federation(settings)
    features = freeze(settings, federation, CPU)
    assert freeze(settings, features, CPU) is features
    assert build_engine(settings, features, CPU).federation.encoded is features.encoded
    assert features.reference.values.mean(0).allclose(
        torch.tensor(features.input.mean)
    )  # the mean of the reference center
    assert not any("random" in note for note in notes)
    _, notes = build_federation(load_config(config(model=IMAGES.replace("weights =", "# weights ="))))
    assert any("the features come from a network with random weights" in note for note in notes)


def test_runs_share_the_features_in_a_cache_folder(config, tmp_path: Path, monkeypatch) -> None:
    cached = ["images.cache='cache'", "training.rounds=1"]
    run(load_config(config(), cached), tmp_path / "one")
    files = sorted((tmp_path / "cache").iterdir())
    assert [f.name[:9] for f in files] == ["features-"] * 4
    # With other weights, or with a damaged file, they are computed again.
    files[0].write_bytes(b"damaged")
    seen: list[str] = []

    def counted(*arguments: Any) -> torch.Tensor:
        seen.append(arguments[-1])
        return encode(*arguments)

    monkeypatch.setattr(freezing, "encode", counted)
    run(load_config(config(), cached), tmp_path / "two")
    assert len(seen) == 1
    one, two = state(tmp_path / "one").weights, state(tmp_path / "two").weights
    assert all(torch.equal(one[k], two[k]) for k in one)
    run(load_config(config(model=IMAGES.replace("weights =", "# weights =")), cached), tmp_path / "three")
    assert len(seen) == 5 and len(list((tmp_path / "cache").iterdir())) == 8


def test_a_network_that_makes_no_features_names_the_center(config) -> None:
    settings = load_config(config())
    federation, _ = build_federation(settings)
    encoded = freeze(settings, federation, CPU, reference_only=True).encoded
    assert encoded is not None
    encoded.network.get_buffer("mean").fill_(torch.nan)
    for network, said in (
        (encoded.network, "NaN or infinite"),
        (nn.Identity(), r"features of shape \(15, 3, 12, 12\) for 15 images"),
        (nn.Linear(5, 2), r"cannot take images of shape \(3, 12, 12\): mat1 and mat2"),
    ):
        with pytest.raises(FedmtError, match=f"Center 'Bonn': .*{said}"):
            encode(network, federation.input, federation.reference.values, CPU, "Center 'Bonn'")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("model.freeze=3", "model.freeze: 3 given, expected true, false or 'backbone'"),
        ("model.freeze=false model.head='mlp'", "model.head: this is for the features of a frozen backbone"),
        (
            "model.head='resnet18'",
            "'resnet18' takes images, but the features of a frozen backbone are vectors",
        ),
        ("augmentation.flip=true", "unknown key 'augmentation.flip'.* views are views of vectors"),
        ("input='vectors'", "model.freeze: the samples of this federation are vectors"),
        ("input='text' model.backbone='linear'", "model.freeze: the samples of this federation are text"),
        ("model.backbone='resnet18'", "weights.safetensors does not fit the model: 'conv1.weight'"),
    ],
)
def test_wrong_settings(config, tmp_path: Path, change: str, said: str) -> None:
    with pytest.raises(FedmtError, match=said):
        run(load_config(config(), change.split(" ")), tmp_path / "run")
    assert not (tmp_path / "run").exists()
