"""Another input is one file: a toy of thirty lines is trained, reported, used for prediction and exported."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedmt
from fedmt import Center
from fedmt.config import build_federation, build_model, load_config
from fedmt.core.errors import FedmtError
from fedmt.inputs import Images, Input, from_json
from fedmt.reports.report import report

OWN = ["fedmt_toy:Points", "fedmt_toy:network"]
ALLOW = [word for name in OWN for word in ("--allow", name)]
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
    model = fedmt.load(tmp_path / "run", allow=OWN)
    points = np.array([[0.0, 2.0], [2.0, -1.0]], dtype=np.float32)
    assert model.predict(points).argmax(1).tolist() == [0, 1] and model.input.word == "point"
    assert model.predict(points, "pair").argmax(1).tolist() == [0, 1]
    with pytest.raises(FedmtError, match="points of shape"):
        model.predict(np.zeros((2, 3), dtype=np.float32))
    status, _, said = command("predict", tmp_path / "run", path, *ALLOW)
    assert status == 2 and "`fedmt predict` cannot read points from files" in said
    report([tmp_path / "run"], tmp_path / "report.html", with_images=True)
    assert command("run", path, "--out", tmp_path / "run", "--resume")[0] == 0
    status, said, _ = command(
        "export", tmp_path / "run", "--safetensors", tmp_path / "toy.safetensors", *ALLOW
    )
    assert status == 0
    assert torch.equal(
        fedmt.load(tmp_path / "toy.safetensors", allow=OWN).predict(points), model.predict(points)
    )


def test_it_is_exported_to_onnx(config, tmp_path: Path, command) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    assert command("run", config(), "--out", tmp_path / "run")[0] == 0
    status, _, said = command("export", tmp_path / "run", "--onnx", tmp_path / "toy.onnx", *ALLOW)
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


def test_a_source_of_another_input_is_refused(config) -> None:
    path = config()
    whole = path.read_text()
    path.write_text(
        whole.replace('[[tests]]\nsource = "fedmt_toy:Clouds"', '[[tests]]\nsource = "fashion_mnist"')
    )
    with pytest.raises(FedmtError, match=r"line \d+: tests.0.source: source 'fashion_mnist' reads images"):
        load_config(path)
    path.write_text(whole.replace('input = "fedmt_toy:Points"\n', "").replace("[points]\ncount = 45\n", ""))
    path.write_text(path.read_text().replace("size = 0.1\n", ""))
    with pytest.raises(FedmtError, match=r"'fedmt_toy:Clouds' reads points, which is not the config's"):
        load_config(path)


def test_an_input_must_have_a_name_for_its_table(config, tmp_path: Path) -> None:
    path = config()
    toy = tmp_path / "fedmt_toy.py"
    toy.write_text(toy.read_text().replace('name = "points"', 'name = "model"'))
    (tmp_path / "fedmt_toy_two.py").write_text(toy.read_text())
    path.write_text(path.read_text().replace("fedmt_toy:Points", "fedmt_toy_two:Points"))
    with pytest.raises(FedmtError, match=r"input: Points.name is 'model'. It names a table of the config"):
        load_config(path)


def test_a_source_must_read(config, tmp_path: Path) -> None:
    (tmp_path / "fedmt_toy_half.py").write_text(
        "from fedmt.data.sources.base import Source\nclass Half(Source):\n    input = None\n"
    )
    path, reference = config(), "[reference]\nsource = "
    path.write_text(
        path.read_text().replace(f'{reference}"fedmt_toy:Clouds"', f'{reference}"fedmt_toy_half:Half"')
    )
    with pytest.raises(FedmtError, match=r"reference.source: .* does not define 'read'"):
        load_config(path)


@dataclass(frozen=True)
class Named(Input):
    """An input with more information than its tensor shows."""

    name = "named"
    columns: tuple[str, ...] = ()

    @classmethod
    def of(cls, samples, where):
        return cls(tuple(samples.shape[1:]))


def test_what_an_input_knows_stays_with_its_center() -> None:
    center = Center("a", torch.zeros(4, 2), input=Named((2,), ("age", "sex")))
    assert replace(center, values=torch.ones(3, 2)).input.columns == ("age", "sex")
    shorter = replace(center, values=torch.ones(3, 1))
    assert shorter.input.shape == (1,)


def test_images_under_their_own_name() -> None:
    """The spelling in code that was written before there were other inputs."""
    images = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
    center = Center(name="a", images=images)
    assert center.images is images and len(center) == center.size == 3
    with pytest.raises(FedmtError, match="Center 'a': no samples are given"):
        Center("a")


def test_a_damaged_description_of_an_input() -> None:
    assert from_json({"name": "images", "shape": [3, 8, 9]}) == Images((3, 8, 9))
    for wrong in ({"name": "images", "shape": "zzz"}, {"name": "images", "shape": [3]}, {"name": "images"}):
        with pytest.raises(FedmtError, match=r"'input.shape.*' is missing or does not have fedmt's format"):
            from_json(wrong)
    with pytest.raises(FedmtError, match="no input 'nope'"):
        from_json({"name": "nope", "shape": [1]})
