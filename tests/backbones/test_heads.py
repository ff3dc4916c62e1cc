"""Several heads on one network: names, order, and networks that cannot have several."""

from pathlib import Path

import pytest
import torch
from torch import nn

from fedmt import FedmtError
from fedmt.aggregation import FedAvg
from fedmt.backbones import build
from fedmt.backbones.heads import Heads, add_heads, find_heads, head_keys
from fedmt.config import build_federation, build_model, parse_config
from fedmt.engines.local import LocalEngine
from fedmt.inputs import Images
from fedmt.methods import FedRep, FedTrans, Training

LAST = {"small_cnn": "fc", "resnet18": "fc", "mobilenet_v2": "classifier.1"}


@pytest.mark.parametrize("name", LAST)
def test_the_own_head_keeps_its_name_and_weights(name):
    torch.manual_seed(0)
    model = build(name, 10, Images((1, 28, 28))).eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    images = torch.rand(2, 1, 28, 28)
    with torch.no_grad():
        expected = model(images)
    add_heads(model, 10, [5, 4])
    after = model.state_dict()
    assert all(torch.equal(after[k], v) for k, v in before.items())
    new = {f"{LAST[name]}.others.{i}.{n}" for i in (0, 1) for n in ("weight", "bias")}
    assert after.keys() - before.keys() == new
    with torch.no_grad():
        assert torch.equal(model(images), expected)
    own = frozenset(f"{LAST[name]}.{n}" for n in ("weight", "bias"))
    others = [frozenset(k for k in new if f".others.{i}." in k) for i in (0, 1)]
    assert head_keys(model) == [own, *others]


def test_published_weights_still_fit(tmp_path: Path):
    """A file of the plain network loads into one with heads, and provides everything but the other heads."""
    torch.manual_seed(0)
    plain = build("small_cnn", 10, Images((1, 28, 28)))
    torch.save(plain.state_dict(), tmp_path / "weights.pt")
    model = build("small_cnn", 10, Images((1, 28, 28)), tmp_path / "weights.pt")
    add_heads(model, 10, [5])
    assert all(torch.equal(model.state_dict()[k], v) for k, v in plain.state_dict().items())
    # In the other direction, the names of a network with heads include those of the plain one.
    assert plain.state_dict().keys() <= model.state_dict().keys()


def test_the_active_head_answers_and_alone_has_gradients():
    torch.manual_seed(0)
    model = build("small_cnn", 10, Images((1, 28, 28))).eval()
    add_heads(model, 10, [5, 4])
    _, heads = find_heads(model)
    features = []
    heads.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    for active, layer, size in ((0, heads, 10), (1, heads.others[0], 5), (2, heads.others[1], 4)):
        heads.active = active
        model.zero_grad()
        scores = model(torch.rand(3, 1, 28, 28))
        assert scores.shape == (3, size)
        torch.testing.assert_close(scores, features[-1] @ layer.weight.T + layer.bias)
        scores.sum().backward()
        touched = {
            k for k, p in model.named_parameters() if p.grad is not None and "fc" in k and p.grad.any()
        }
        assert touched == head_keys(model)[active]


def test_a_last_layer_without_bias():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))
    add_heads(model, 3, [2])
    assert head_keys(model) == [frozenset({"1.weight"}), frozenset({"1.others.0.weight"})]


def test_the_last_linear_of_that_size_is_taken():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3))
    add_heads(model, 3, [2])
    assert isinstance(model[3], Heads) and not isinstance(model[1], Heads)


def test_a_network_without_a_last_linear_is_refused():
    model = nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(FedmtError, match=r"model\.backbone: found no last nn\.Linear of 10 outputs"):
        add_heads(model, 10, [5])
    assert find_heads(model) is None and head_keys(model) == []


def test_a_config_with_such_a_backbone_is_refused(tmp_path, monkeypatch):
    (tmp_path / "own_network.py").write_text(
        "from torch import nn\n"
        "def make(classes, channels):\n"
        "    return nn.Sequential(nn.Conv2d(channels, classes, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    raw = {
        "model": {"backbone": "own_network:make"},
        "benchmark": {
            "data": {"source": "fashion_mnist"},
            "wanted": "garment",
            "spaces": {"layer": 1, "department": 1},
            "per_class": 2,
            "samples": 20,
        },
    }
    for method, refused in (("fedrep", True), ("fedtrans", True), ("fedmt", False)):
        config = parse_config({**raw, "method": {"name": method}})
        federation, _ = build_federation(config)
        if refused:
            with pytest.raises(FedmtError, match=r"model\.backbone: found no last"):
                build_model(config, federation)
        else:
            assert build_model(config, federation) is not None
    # With a network that has a last layer, the heads follow the federation's spaces, the wanted one first.
    config = parse_config({**raw, "model": {"backbone": "small_cnn"}, "method": {"name": "fedrep"}})
    federation, _ = build_federation(config)
    _, heads = find_heads(build_model(config, federation))
    assert [heads.out_features, *(h.out_features for h in heads.others)] == list(map(len, federation.spaces))
    assert federation.spaces[0] == federation.wanted and len(federation.spaces) == 3


@pytest.mark.parametrize("method", [FedRep, FedTrans])
def test_an_engine_refuses_a_model_without_enough_heads(make_federation, make_model, method):
    federation = make_federation(samples=20, half=True)
    model = make_model(federation)
    with pytest.raises(FedmtError, match=r"head for each of 3 label spaces; this one has 1\..*add_heads"):
        LocalEngine(federation, method(Training()), model, strategy=FedAvg())
    add_heads(model, 10, [5])
    with pytest.raises(FedmtError, match="this one has 2"):
        LocalEngine(federation, method(Training()), model, strategy=FedAvg())


def test_a_space_finds_its_head(make_federation, make_engine):
    federation = make_federation(departments=1, layers=2, samples=20, half=True)
    site = make_engine(federation, FedRep(Training())).site
    names = [s.name for s in federation.spaces]
    assert [site.head(n) for n in names] == [0, 1, 2] and site.head(None) == 0
    for i, space in enumerate(federation.spaces):
        own = site.heads[i]
        assert site.other_heads(space.name) == frozenset().union(*site.heads) - own
        (weight,) = (k for k in own if k.endswith("weight"))
        assert len(site.trainer.weights()[weight]) == len(space)
