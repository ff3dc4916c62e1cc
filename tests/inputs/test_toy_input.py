"""Another input takes one file: a toy of thirty lines goes through every room of the house, unchanged."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import fedmt
from fedmt.config import build_federation, build_model, load_config
from fedmt.core.errors import FedmtError
from fedmt.reports.report import report

TOY = Path(__file__).parent / "fedmt_toy.py"

CONFIG = """
input = "fedmt_toy:Points"
seed = 1
device = "cpu"
wanted = "kind"
{top}
[method]
{method}
[spaces]
kind = ["a", "b", "c"]
pair = ["a", "other"]
[correspondences]
pair = {{ a = "a", b = "other", c = "other" }}
[points]
count = 45
[augmentation]
size = 0.1
[model]
backbone = "fedmt_toy:network"
[training]
rounds = 2
batch_size = 15
warmup_epochs = 5
[reference]
source = "fedmt_toy:Clouds"
[[centers]]
name = "Bonn"
source = "fedmt_toy:Clouds"
space = "pair"
[[centers]]
name = "Kiel"
source = "fedmt_toy:Clouds"
space = "kind"
[[tests]]
source = "fedmt_toy:Clouds"
[calibration]
share = 0.2
minimum = 3
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copy(TOY, tmp_path)
    monkeypatch.chdir(tmp_path)

    def write(name: str = "toy", top: str = "", method: str = 'name = "fedmt"') -> Path:
        path = tmp_path / f"{name}.toml"
        path.write_text(CONFIG.format(top=top, method=method))
        return path

    return write


@pytest.mark.parametrize("top", ["", "graphs = true"])
@pytest.mark.parametrize("method", ['name = "fedmt"\ncorrespondence = "estimated"', 'name = "fedrep"'])
def test_a_run_and_what_is_made_of_it(config, tmp_path: Path, command, top: str, method: str) -> None:
    path = config(top=top, method=method)
    status, said, _ = command("check", path)
    assert status == 0 and "Points 2;" in said
    status, said, _ = command("run", path, "--out", tmp_path / "run")
    assert status == 0 and "kind" in said
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["accuracy"]["kind"] > 0.9
    model = fedmt.load(tmp_path / "run")
    points = np.array([[0.0, 2.0], [2.0, -1.0]], dtype=np.float32)
    assert model.predict(points).argmax(1).tolist() == [0, 1] and model.input.word == "point"
    assert model.predict(points, "pair").argmax(1).tolist() == [0, 1]
    with pytest.raises(FedmtError, match="points of shape"):
        model.predict(np.zeros((2, 3), dtype=np.float32))
    report([tmp_path / "run"], tmp_path / "report.html", with_images=True)
    assert command("run", path, "--out", tmp_path / "run", "--resume")[0] == 0
    status, said, _ = command("export", tmp_path / "run", "--safetensors", tmp_path / "toy.safetensors")
    assert status == 0
    assert torch.equal(fedmt.load(tmp_path / "toy.safetensors").predict(points), model.predict(points))


def test_it_is_exported_to_onnx(config, tmp_path: Path, command) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    assert command("run", config(), "--out", tmp_path / "run")[0] == 0
    status, _, said = command("export", tmp_path / "run", "--onnx", tmp_path / "toy.onnx")
    assert status == 0, said
    session = onnxruntime.InferenceSession(str(tmp_path / "toy.onnx"))
    points = np.array([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]], dtype=np.float32)
    found = session.run(["probabilities_kind"], {"points": points})[0]
    assert found.argmax(1).tolist() == [0, 1, 2]
    about = json.loads(session.get_modelmeta().custom_metadata_map["fedmt.input"])
    assert about["shape"] == ["batch", 2] and about["type"] == "float32"


def test_its_tables_are_checked(config) -> None:
    path = config()
    path.write_text(path.read_text().replace("size = 0.1", "sise = 0.1"))
    with pytest.raises(FedmtError, match=r"line 17: unknown key 'augmentation.sise'. Did you mean 'size'"):
        load_config(path)
    path.write_text(path.read_text().replace("sise = 0.1", "size = 0.1").replace("count = 45", "cout = 45"))
    with pytest.raises(FedmtError, match=r"unknown key 'points.cout'. Did you mean 'count'"):
        load_config(path)


def test_an_image_network_is_refused(config) -> None:
    path = config()
    path.write_text(path.read_text().replace("fedmt_toy:network", "resnet18"))
    settings = load_config(path)
    with pytest.raises(FedmtError, match=r"'resnet18' takes images, but the samples .* are points"):
        build_model(settings, build_federation(settings)[0])
