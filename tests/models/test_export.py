"""Exported models give the model's answers: ONNX in onnxruntime, and safetensors in fedmt itself."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

import fedmt
from fedmt.backbones import mobilenet
from fedmt.config import parse_config
from fedmt.engines.state import State
from fedmt.metrics import METRICS
from fedmt.models.description import describe
from fedmt.models.export import onnx as onnx_module
from fedmt.models.export.onnx import export_onnx, output_name
from fedmt.models.export.safetensors import export_safetensors
from fedmt.runs.folder import RunFolder
from fedmt.training.run import build_engine

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(n) is None for n in ("onnx", "onnxscript", "onnxruntime")),
    reason="the extra fedmt[onnx] is not installed",
)


def untrained(make_federation, backbone: str) -> fedmt.Model:
    """A model with its starting weights, and with batch-norm statistics that are not 0 and 1."""
    federation = make_federation()
    config = parse_config(
        {
            "model": {"backbone": backbone},
            "benchmark": {
                "data": {"source": "fashion_mnist"},
                "wanted": "garment",
                "spaces": {"layer": 1},
                "per_class": 1,
            },
        }
    )
    engine = build_engine(config, federation, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    weights = engine.trainer.weights()
    for name, value in weights.items():
        if name.endswith(("running_mean", "running_var")):
            value.copy_(0.5 + torch.rand(value.shape, generator=generator))
    return fedmt.Model(describe(federation, engine.method, backbone, None), State(0, weights))


def assert_same_in_onnxruntime(model: fedmt.Model, path: Path) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    assert given.name == "images" and given.type == "tensor(uint8)"
    metadata = session.get_modelmeta().custom_metadata_map
    spaces = json.loads(metadata["fedmt.spaces"])
    assert spaces == {space: list(model.classes(space)) for space in model.spaces}
    assert json.loads(metadata["fedmt.prior"])["name"] == model.prior.name
    for count in (1, 7):  # for any batch size
        pixels = torch.randint(0, 256, (count, *model.input.shape), dtype=torch.uint8)
        found = session.run([output_name(space) for space in spaces], {"images": pixels.numpy()})
        for space, probabilities in zip(spaces, found, strict=True):
            expected = model.predict(pixels, space)
            assert probabilities.shape == (count, len(spaces[space]))
            assert (torch.from_numpy(probabilities) - expected).abs().max() < 1e-4


@pytest.mark.slow
@needs_onnx
@pytest.mark.parametrize(
    ("name", "prior"), [("fedmt-estimated", "centers"), ("fedrep-fedbn", None), ("fedtrans", None)]
)
def test_onnx_of_a_run(tiny_run, tmp_path: Path, command, name: str, prior: str | None) -> None:
    """M-hat, temperature and a prior; one network per center; and a shared model in addition to the reference
    center's."""
    path, model = tmp_path / "model.onnx", fedmt.load(tiny_run(name), "cpu")
    asked = () if prior is None else ("--prior", prior)
    model = model if prior is None else model.answering_for(prior)
    status, printed, said = command("export", tiny_run(name), "--onnx", path, *asked)
    assert status == 0 and "differ by at most" in printed and said == ""
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]  # one file, with all weights in it
    assert_same_in_onnxruntime(model, path)


@pytest.mark.slow
@needs_onnx
@pytest.mark.parametrize("backbone", ["resnet18", "mobilenet_v2"])
def test_onnx_of_each_backbone(make_federation, tmp_path: Path, monkeypatch, backbone: str) -> None:
    # The exporter's time grows with the number of blocks, so there is one of each kind, and one that repeats.
    stages = [(*stage[:2], min(stage[2], 2), stage[3]) for stage in mobilenet.STAGES[:3]]
    monkeypatch.setattr(mobilenet, "STAGES", stages)
    model = untrained(make_federation, backbone)
    difference = export_onnx(model, tmp_path / "model.onnx")
    assert difference is not None and difference < 1e-4
    assert_same_in_onnxruntime(model, tmp_path / "model.onnx")


@pytest.mark.slow
@needs_onnx
def test_paths_may_be_texts(tiny_run, tmp_path: Path) -> None:
    run = tiny_run("fedmt")
    model = fedmt.load(run)
    export_onnx(model, str(tmp_path / "model.onnx"))
    export_safetensors(model, str(run), str(tmp_path / "model.safetensors"))
    assert {p.name for p in tmp_path.iterdir()} == {"model.onnx", "model.safetensors", "model.card.json"}


@pytest.mark.slow
@needs_onnx
def test_onnx_tells_nothing_of_the_machine(make_federation, tmp_path: Path) -> None:
    export_onnx(untrained(make_federation, "small_cnn"), tmp_path / "model.onnx")
    import onnx

    data = (tmp_path / "model.onnx").read_bytes()
    for word in (b".py", b"site-packages", str(Path(fedmt.__file__).parent).encode()):
        assert word not in data
    onnx.checker.check_model(onnx.load_from_string(data))


@pytest.mark.slow
@needs_onnx
def test_a_network_that_onnx_has_no_words_for(make_federation, tmp_path: Path, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no such operator\nand a hundred lines more")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    model = untrained(make_federation, "small_cnn")
    with pytest.raises(fedmt.FedmtError, match=r"cannot be exported to ONNX: no such operator$"):
        export_onnx(model, tmp_path / "model.onnx")


@pytest.mark.slow
@needs_onnx
def test_a_graph_that_differs_is_not_written(make_federation, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(onnx_module, "_difference", lambda *_: 0.01)
    with pytest.raises(fedmt.FedmtError, match="nothing was written"):
        export_onnx(untrained(make_federation, "small_cnn"), tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_without_the_extra_it_says_how_to_install_it(tiny_run, tmp_path: Path, command, monkeypatch) -> None:
    monkeypatch.setattr(onnx_module, "find_spec", lambda name: None)
    status, _, said = command("export", tiny_run("fedmt"), "--onnx", tmp_path / "model.onnx")
    assert status == 2 and "needs onnx and onnxscript" in said and "pip install 'fedmt[onnx]'" in said


@pytest.mark.parametrize("name", ["fedmt-estimated", "fedrep-fedbn", "fedtrans"])
def test_safetensors_is_a_model_by_itself(tiny_run, tmp_path: Path, command, name: str) -> None:
    path = tmp_path / "model.safetensors"
    assert command("export", tiny_run(name), "--safetensors", path)[0] == 0
    one, two = fedmt.load(tiny_run(name), "cpu"), fedmt.load(path, "cpu")
    images = torch.randint(0, 256, (5, 1, 28, 28), dtype=torch.uint8)
    assert one.spaces == two.spaces and one.temperature == two.temperature
    for space in one.spaces:
        assert torch.equal(one.predict(images, space), two.predict(images, space))
    center = one.predict(images, "department", center="center-2")
    assert torch.equal(center, two.predict(images, "department", center="center-2"))
    assert not [k for k in two.state.server if not k.startswith("shared:")]  # no momentum
    status, _, said = command("export", path, "--safetensors", tmp_path / "again.safetensors")
    assert status == 2 and "Copy it" in said
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(bytes(damaged))
    with pytest.raises(fedmt.FedmtError, match="damaged"):
        fedmt.load(path)
    path.write_bytes(bytes(damaged[:100]))
    with pytest.raises(fedmt.FedmtError, match=r"damaged .*export it again"):
        fedmt.load(path)
    path.write_bytes(next((tiny_run(name) / "checkpoints").glob("*")).read_bytes())
    with pytest.raises(fedmt.FedmtError, match="weights without a description"):
        fedmt.load(path)


def test_the_card_says_what_is_known_and_what_is_not(tiny_run, tmp_path: Path, command) -> None:
    folder = tiny_run("fedmt-estimated")
    command("export", folder, "--safetensors", tmp_path / "model.safetensors")
    card = json.loads((tmp_path / "model.card.json").read_text())
    record = RunFolder(folder).metrics()[-1]
    recorded = record["accuracy"]
    assert card["accuracy"]["garment"]["accuracy"] == recorded["garment"]
    assert card["accuracy"]["department"]["accuracy"] == record["mean_matrix"]["accuracy"]["department"]
    assert card["metrics"]["garment"] == {n: record[n]["garment"] for n in METRICS if n in record}
    assert card["metrics"]["department"]["auroc"] == record["mean_matrix"]["auroc"]["department"]
    assert card["accuracy"]["garment"]["test_samples"] == 200
    matrix = torch.tensor(card["correspondences"]["layer"]["matrix"])
    torch.testing.assert_close(
        matrix, fedmt.load(folder, "cpu").predictor().matrix("layer"), atol=1e-6, rtol=0
    )
    assert card["data"]["reference_center"] == {"name": "reference", "samples": 40}
    assert [c["samples"] for c in card["data"]["centers"]] == [30, 30, 30]
    assert card["intended_use"].startswith("not known") and card["data"]["origin"] == "not known"
    limits = " ".join(card["limits"])
    assert "'department', 'layer' was estimated" in limits and "not calibrated" not in limits
    assert str(tmp_path) not in json.dumps(card) and str(folder) not in json.dumps(card)


def test_the_card_of_heads_and_of_no_calibration(tiny_run, tmp_path: Path, command) -> None:
    command("export", tiny_run("fedrep"), "--safetensors", tmp_path / "model.safetensors")
    card = json.loads((tmp_path / "model.card.json").read_text())
    assert card["correspondences"] == {} and "not calibrated" in " ".join(card["limits"])
    assert card["label_spaces"]["department"]["answered_by"] == "the mean of the heads of 2 centers"
    assert "single heads" in card["accuracy"]["department"]["note"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}"], "what should be written?"),
        (["nowhere", "--onnx", "{out}/m.onnx"], "no such run folder"),
        (["{run}", "--safetensors", "{run}/config.toml/m.safetensors"], "config.toml is a file"),
        (["{run}", "--safetensors", "{run}/config.toml"], "which is being read"),
        (["{run}", "--onnx", "{run}/checkpoints/round-000001.safetensors"], "which is being read"),
    ],
)
def test_export_says_what_is_wrong(tiny_run, tmp_path: Path, command, arguments, message: str) -> None:
    places = {"run": tiny_run("fedmt"), "out": tmp_path}
    before = {p: p.read_bytes() for p in tiny_run("fedmt").rglob("*") if p.is_file()}
    status, _, said = command("export", *(a.format(**places) for a in arguments))
    assert status == 2 and message in said and "Traceback" not in said
    assert {p: p.read_bytes() for p in tiny_run("fedmt").rglob("*") if p.is_file()} == before


def test_export_makes_the_folder(tiny_run, tmp_path: Path, command) -> None:
    path = tmp_path / "new" / "folder" / "model.safetensors"
    assert command("export", tiny_run("fedmt"), "--safetensors", path)[0] == 0
    assert fedmt.load(path, "cpu").round == 1
