"""A user's own network is found in the working directory, and each mistake is named."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fedmt.backbones import build
from fedmt.backbones.frozen import encoder
from fedmt.core.errors import FedmtError
from fedmt.inputs import Images

SOURCE = """
import fedmt.backbones
from torch import nn
SIZE = 3
def build(classes, channels):
    return nn.Conv2d(channels, classes, 3)
def deep(classes, channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Linear(4, classes))
class Net(nn.Linear):
    def __init__(self, *, classes, channels):
        super().__init__(channels, classes)
def stingy(classes):
    return nn.Identity()
def late(classes, channels):
    import fedmt_test_helper
    return fedmt_test_helper.network
def wrong(classes, channels):
    return [classes, channels]
def pooling(classes, channels, max_pool):
    return nn.MaxPool2d(2) if max_pool else nn.Identity()
POOLING = fedmt.backbones.Backbone(pooling, head="fc", pools=True)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "fedmt_test_net.py").write_text(SOURCE)
    (tmp_path / "fedmt_test_helper.py").write_text("from torch import nn\nnetwork = nn.Identity()\n")
    (tmp_path / "fedmt_test_lacking.py").write_text("import fedmt_test_nothing\n")
    (tmp_path / "fedmt_test_broken.py").write_text("1 / 0\n")
    (tmp_path / "fedmt_test_package").mkdir()
    (tmp_path / "fedmt_test_package" / "inner.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield tmp_path
    assert sys.path == path
    for name in [name for name in sys.modules if name.startswith("fedmt_test_")]:
        del sys.modules[name]


def own(spec: str, channels: int = 1, size: int = 8) -> nn.Module:
    return build(spec, 5, Images((channels, size, size)))


def test_a_function_in_the_working_directory() -> None:
    network = own("fedmt_test_net:build", channels=1)
    assert isinstance(network, nn.Conv2d)
    assert network.weight.shape == (5, 1, 3, 3)


def test_a_class_inside_a_package() -> None:
    network = own("fedmt_test_package.inner:Net", channels=2)
    assert isinstance(network, nn.Linear)
    assert network.weight.shape == (5, 2)


def test_imports_inside_the_call_work() -> None:
    assert isinstance(own("fedmt_test_net:late"), nn.Identity)


def test_a_network_that_says_more_of_itself() -> None:
    assert isinstance(own("fedmt_test_net:POOLING", size=8), nn.Identity)
    assert isinstance(own("fedmt_test_net:POOLING", size=64), nn.MaxPool2d)


def test_weights_of_another_number_of_classes(tmp_path: Path) -> None:
    """As for our own networks, the file's last layer is left out, with a note."""
    file = tmp_path / "weights.safetensors"
    save_file(own("fedmt_test_net:deep").state_dict(), file)
    with pytest.warns(UserWarning, match="its head '2' has 5 classes, the model has 3"):
        network = build("fedmt_test_net:deep", 3, Images((1, 8, 8)), file)
    assert network[2].weight.shape == (3, 4) and torch.equal(network[1].weight, load_file(file)["1.weight"])
    save_file(own("fedmt_test_net:Net").state_dict(), file)
    assert torch.equal(
        build("fedmt_test_net:Net", 5, Images((1, 8, 8)), file).weight, load_file(file)["weight"]
    )
    for spec in ("fedmt_test_net:Net", "fedmt_test_net:build"):
        with pytest.raises(FedmtError, match=r"model\.freeze: found no last nn\.Linear of 5 outputs"):
            encoder(spec, 5, Images((1, 8, 8)))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("fedmt_test_net", "or your own as 'package.module:callable'"),
        ("fedmt_test_net:", "expected 'package.module:callable'"),
        (":build", "expected 'package.module:callable'"),
        ("nets/fedmt_test_net.py:build", "expected 'package.module:callable'"),
        ("fedmt_test_absent:build", "no module 'fedmt_test_absent'"),
        ("fedmt_test_package.absent:build", "no module 'fedmt_test_package.absent'"),
        ("fedmt_test_absent.inner:build", "no module 'fedmt_test_absent'"),
        (
            "fedmt_test_lacking:build",
            "importing 'fedmt_test_lacking' raised ModuleNotFoundError: No module named 'fedmt_test_nothing'",
        ),
        ("fedmt_test_broken:build", "importing 'fedmt_test_broken' raised ZeroDivisionError"),
        ("fedmt_test_net:biuld", "has no 'biuld'. Did you mean 'build'?"),
        ("fedmt_test_net:SIZE", "'SIZE' is of type int, expected a function or class"),
        ("fedmt_test_net:stingy", "calling stingy(classes=5, channels=1) raised TypeError"),
        ("fedmt_test_net:wrong", "returned an object of type list, expected a torch.nn.Module"),
    ],
)
def test_each_mistake_is_named(spec: str, expected: str) -> None:
    with pytest.raises(FedmtError) as caught:
        own(spec)
    assert f"'{spec}'" in str(caught.value)
    assert expected in str(caught.value)
