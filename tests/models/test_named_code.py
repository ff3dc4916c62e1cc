"""A model's file may name code. Loading the file imports only code that the user allowed."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import fedmt
from fedmt.core.errors import FedmtError

EVIL = 'from pathlib import Path\nPath("imported").touch()\n'

PLACES: dict[str, dict[str, Any]] = {
    "backbone": {"backbone": "fedmt_evil:Name"},
    "method.name": {"method": {"name": "fedmt_evil:Name"}},
    "method.estimator": {"method": {"name": "fedmt", "estimator": "fedmt_evil:Name"}},
    "input.name": {"input": {"name": "fedmt_evil:Name", "shape": [1, 28, 28]}},
    "frozen.backbone": {"frozen": {"backbone": "fedmt_evil:Name", "input": {"name": "images"}}},
    "frozen.input.name": {"frozen": {"backbone": "resnet18", "input": {"name": "fedmt_evil:Name"}}},
}


@pytest.fixture
def received(tiny_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder from elsewhere, next to a module with the name that it will use."""
    folder = tmp_path / "received"
    shutil.copytree(tiny_run("fedmt"), folder)
    (tmp_path / "fedmt_evil.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "fedmt_evil", raising=False)
    return folder


@pytest.mark.parametrize("place", PLACES)
def test_a_run_folder_from_elsewhere_imports_nothing(received: Path, place: str) -> None:
    about = json.loads((received / "model.json").read_text())
    (received / "model.json").write_text(json.dumps({**about, **PLACES[place]}))
    with pytest.raises(FedmtError) as error:
        fedmt.load(received, "cpu")
    said = str(error.value)
    assert "model.json" in said and f"{place} 'fedmt_evil:Name'" in said and "--allow fedmt_evil:Name" in said
    assert not Path("imported").exists() and "fedmt_evil" not in sys.modules


def test_predict_with_a_file_from_elsewhere(received: Path, command) -> None:
    """The whole path: an exported file in the folder of the user who predicts with it."""
    assert command("export", received, "--safetensors", "model.safetensors")[0] == 0
    data = Path("model.safetensors").read_bytes()
    # The header has the same length, so that nothing else in the file moves. Only its description differs.
    name = b'\\"backbone\\": \\"small_cnn\\"'
    assert name in data
    Path("evil.safetensors").write_bytes(data.replace(name, b'\\"backbone\\": \\"fedmt_e:N\\"'))
    Path("fedmt_e.py").write_text(EVIL)
    for words in (["predict", "evil.safetensors", "scan.png"], ["export", "evil.safetensors", "--onnx", "m"]):
        status, _, said = command(*words)
        assert status == 2 and "evil.safetensors: the model names code" in said
        assert not Path("imported").exists()
    status, _, said = command("predict", "evil.safetensors", "scan.png", "--allow", "fedmt_e:N")
    assert status == 2 and "has no 'N'" in said  # it was imported, because it was named
    assert Path("imported").exists()


def test_a_metric_of_a_run_folder_from_elsewhere_is_not_imported_by_export(received: Path, command) -> None:
    config = received / "config.toml"
    config.write_text('metrics = ["fedmt_evil:NAME"]\n' + config.read_text())
    assert command("export", received, "--safetensors", "model.safetensors")[0] == 0
    fedmt.Result(received)
    assert not Path("imported").exists()


def test_reports_of_a_run_folder_from_elsewhere_import_nothing(received: Path, command) -> None:
    """They import neither a metric that its config names, nor the network of an unfinished run."""
    config = received / "config.toml"
    plain = config.read_text()
    config.write_text('metrics = ["fedmt_evil:NAME"]\n' + plain)
    shutil.copytree(received, received.with_name("again"))
    assert command("report", received)[0] == 0
    assert "A metric of this run is not shown" in Path("report.html").read_text()
    assert command("compare", received, "again")[0] == 0
    assert not Path("imported").exists()
    (received / "evaluation.npz").unlink()
    config.write_text(plain.replace('backbone = "small_cnn"', 'backbone = "fedmt_evil:Name"'))
    assert command("report", received)[0] == 0
    assert not Path("imported").exists() and "fedmt_evil" not in sys.modules
    assert command("report", received, "--allow", "fedmt_evil:Name")[0] == 0
    assert Path("imported").exists()  # because it was named
