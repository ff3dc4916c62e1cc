"""Networks from timm: built without a download, with weights from a file, heads and frozen features."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import fedmt
from fedmt import FedmtError
from fedmt.backbones import build, find_backbone
from fedmt.backbones.frozen import encoder
from fedmt.backbones.heads import add_heads, find_heads
from fedmt.config import parse_config
from fedmt.config.building import build_federation, normalization_of
from fedmt.inputs import Images
from fedmt.training.run import run

LAST = {
    "resnet10t": "fc",
    "mobilenetv3_small_050": "classifier",
    "convnext_atto": "head.fc",
    "vit_tiny_patch16_224": "head",
}
SMALL = Images((3, 32, 32))


@pytest.fixture
def timm() -> Any:
    """timm, if it can be imported. It cannot if its torchvision was built for another torch."""
    try:
        import timm
    except Exception as error:
        pytest.skip(f"timm cannot be imported: {error}")
    return timm


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(FedmtError, match=r"model.backbone: 'timm:resnet18' needs timm; .*'fedmt\[timm\]'"):
        build("timm:resnet18", 3, SMALL)


def test_with_versions_that_do_not_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(
        FedmtError, match=r"importing timm failed: operator torchvision::nms .* fit each other"
    ):
        build("timm:resnet18", 3, SMALL)


@pytest.mark.parametrize("name", LAST)
def test_heads_go_to_the_last_layer(timm: Any, name: str) -> None:
    network = build(f"timm:{name}", 5, SMALL).eval()
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        before = network(images)
        add_heads(network, 5, [2])
        assert before.shape == (2, 5) and torch.equal(network(images), before)
    found = find_heads(network)
    assert found is not None and found[0] == LAST[name]


@pytest.mark.parametrize("name", LAST)
def test_weights_and_features(timm: Any, tmp_path: Path, name: str) -> None:
    """A file with timm's names and other classes. The features are the input of timm's last layer."""
    sized = {"img_size": 32} if name.startswith("vit") else {}
    theirs = timm.create_model(name, num_classes=7, **sized).eval()
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    with pytest.warns(UserWarning, match=rf"its head '{LAST[name]}' has 7 classes, the model has 5"):
        ours = build(f"timm:{name}", 5, SMALL, tmp_path / "weights.safetensors").state_dict()
    for key, value in theirs.state_dict().items():
        assert key.startswith(f"{LAST[name]}.") or torch.equal(ours[key], value)
    frozen = encoder(f"timm:{name}", 5, SMALL, weights=tmp_path / "weights.safetensors")
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        expected = theirs.forward_head(theirs.forward_features(images), pre_logits=True)
        torch.testing.assert_close(frozen(images), expected)


def test_gray_images(timm: Any, tmp_path: Path) -> None:
    save_file(timm.create_model("resnet10t", num_classes=3).state_dict(), tmp_path / "weights.safetensors")
    with pytest.warns(UserWarning, match="summed over its 3 channels"):
        network = build("timm:resnet10t", 3, Images((1, 32, 32)), tmp_path / "weights.safetensors").eval()
    assert network(torch.rand(2, 1, 32, 32)).shape == (2, 3)


def test_a_network_says_how_its_weights_were_trained(timm: Any) -> None:
    assert find_backbone("timm:vit_tiny_patch16_224", SMALL).published == ((0.5,) * 3, (0.5,) * 3)
    known = find_backbone("timm:resnet18", SMALL).published
    assert known is not None and known[0] == (0.485, 0.456, 0.406)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("resnet8", r"timm \S+ has no network 'resnet8'\. Did you mean"),
        ("hf-hub:timm/resnet18.a1_in1k", "has no network 'hf-hub:timm/resnet18.a1_in1k'"),
        ("resnet18.no_such_tag", "Leave out what follows the dot"),
    ],
)
def test_unknown_networks(timm: Any, name: str, said: str) -> None:
    with pytest.raises(FedmtError, match=said):
        build(f"timm:{name}", 3, SMALL)


def test_a_network_with_two_last_layers_has_no_heads(timm: Any) -> None:
    network = build("timm:deit_tiny_distilled_patch16_224", 3, SMALL)
    with pytest.raises(FedmtError, match=r"found no last nn\.Linear of 3 outputs"):
        add_heads(network, 3, [2])
    with pytest.raises(FedmtError, match=r"model\.freeze: found no last nn\.Linear"):
        encoder("timm:deit_tiny_distilled_patch16_224", 3, SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("freeze", [False, True])
def test_a_run(timm: Any, tmp_path: Path, freeze: bool) -> None:
    name = "mobilenetv3_small_050"
    save_file(timm.create_model(name, num_classes=10).state_dict(), tmp_path / "weights.safetensors")
    model = {"backbone": f"timm:{name}", "weights": str(tmp_path / "weights.safetensors"), "freeze": freeze}
    config = parse_config(
        {
            "device": "cpu",
            "model": model,
            "method": {"name": "fedrep"},
            "images": {"size": 32, "channels": 3},
            "training": {"rounds": 1, "local_epochs": 1, "reference_epochs": 1, "warmup_epochs": 1},
            "benchmark": {
                "data": {"source": "fashion_mnist"},
                "wanted": "garment",
                "spaces": {"layer": 2},
                "per_class": 2,
                "samples": 10,
                "test_samples": 20,
            },
        }
    )
    mean, _ = normalization_of(config, build_federation(config)[0])
    assert mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    run(config, tmp_path / "run")
    loaded = fedmt.load(tmp_path / "run", "cpu")
    images = np.zeros((4, 32, 32, 3), np.uint8)
    assert loaded.predict(images, "layer").shape == (4, 4)
