"""Updates that do not fit in memory are stored elsewhere, and their combination is bit-identical."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

from fedmt.aggregation import FedAvgM, Received, Scaffold, packed, shelf
from fedmt.aggregation.guards import GUARDS
from fedmt.aggregation.guards.geometry import dot, norm, plain_mean, weight_names
from fedmt.aggregation.shelf import Shelf, Stored
from fedmt.core.errors import FedmtError

HERE, GPU = torch.device("cpu"), torch.device("cuda")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
on_both = pytest.mark.parametrize("device", [HERE, pytest.param(GPU, marks=needs_gpu)], ids=str)


def update(seed, device=HERE, scale=1.0, head=""):
    generator = torch.Generator().manual_seed(seed)
    found = {
        "conv.weight": torch.randn(4, 3, 3, 3, generator=generator).contiguous(
            memory_format=torch.channels_last
        ),
        "norm.running_mean": torch.randn(4, generator=generator),
        "exact": torch.randn(5, generator=generator, dtype=torch.float64),
        "turned": torch.randn(6, 2, generator=generator).T,
        "none": torch.zeros(0),
        **({head: torch.randn(2, 2, generator=generator)} if head else {}),
    }
    found |= packed("control", {"conv.weight": torch.randn(4, 3, 3, 3, generator=generator)})
    return {k: scale * v.to(device) for k, v in found.items()}


def combined(device, guard, strategy):
    received = Received(strategy, guard, {"conv.weight": torch.ones(4, 3, 3, 3, device=device)})
    scales = (1.0, 1.1, 30.0, 0.9, 1e9, 1.2)  # one to be clipped, and one to be left out
    for place, scale in enumerate(scales):
        head = "head.a" if place % 2 else "head.b"
        assert received.add(f"center-{place}", update(place, device, scale, head), 1.0 + place)
    kinds = {type(u.tensors) for u in received.updates}
    return received.combine(update(99, device)), kinds


@on_both
@pytest.mark.parametrize("name", GUARDS)
@pytest.mark.parametrize("shares", [(0.0, 0.5), (0.5, 0.0), (0.0, 0.0)], ids=str)
def test_stored_updates_give_the_same(monkeypatch, device, name, shares):
    guard, strategy = GUARDS[name](), Scaffold() if name == "clip" else FedAvgM()
    expected, kinds = combined(device, guard, strategy)
    assert kinds == {dict}
    monkeypatch.setattr(shelf, "DEVICE_SHARE", shares[0])
    monkeypatch.setattr(shelf, "HOST_SHARE", shares[1])
    found, kinds = combined(device, guard, strategy)
    elsewhere = shares[0 if device == GPU else 1] == 0.0
    assert kinds == ({Stored} if elsewhere else {dict})
    assert found.mean.keys() == expected.mean.keys()
    for key, value in expected.mean.items():
        assert torch.equal(found.mean[key], value) and found.mean[key].stride() == value.stride()
    assert found.facts == expected.facts and found.left_out == expected.left_out
    if name == "clip":
        assert "clipped" in found.facts["center-2"] and list(found.left_out) == ["center-4"]


def test_a_stored_update_is_let_go(monkeypatch):
    monkeypatch.setattr(shelf, "HOST_SHARE", 0.0)
    received = Received(FedAvgM(), GUARDS["clip"](), {"w": torch.ones(3)})
    given = {"w": torch.ones(3)}
    held = weakref.ref(given["w"])
    received.add("a", given, 1.0)
    del given
    gc.collect()
    assert held() is None
    assert received.updates[0].tensors["w"].tolist() == [1, 1, 1]


def test_only_what_has_no_room_is_stored(monkeypatch):
    monkeypatch.setattr(shelf, "_available", lambda: 100)
    monkeypatch.setattr(shelf, "HOST_SHARE", 0.5)
    received = Received(FedAvgM(), GUARDS["clip"](), {"w": torch.ones(3)})
    for place in range(6):
        received.add(f"{place}", {"w": torch.full((3,), float(place))}, 1.0)  # 12 bytes of 50
    assert [isinstance(u.tensors, Stored) for u in received.updates] == [False] * 4 + [True] * 2
    assert received.combine().mean["w"].tolist() == [2.5] * 3


def test_a_full_disk_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(shelf, "HOST_SHARE", 0.0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(FedmtError, match=r"gone: the updates of a round .* set TMPDIR"):
        Shelf().put({"w": torch.ones(3)})


@on_both
def test_lengths_and_angles_are_those_of_float64(device):
    one, two = update(1, device, 1e30, "head.a"), update(2, device, 1e-30, "head.a")
    names = weight_names(one)
    flat = [np.concatenate([u[k].double().cpu().numpy().ravel() for k in names]) for u in (one, two)]
    assert norm(one, names) == pytest.approx(np.linalg.norm(flat[0]), rel=1e-14)
    assert dot(one, two, names) == pytest.approx(float(flat[0] @ flat[1]), rel=1e-12)
    mean = plain_mean([one, two, update(3, device)])
    for key in names:
        parts = [u[key].double() for u in (one, two, update(3, device)) if key in u]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        assert torch.equal(mean[key], total / len(parts)), key
    assert one["exact"].equal(update(1, device, 1e30)["exact"])  # the sums are new tensors
