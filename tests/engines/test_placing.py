"""The weights depend neither on where samples are stored nor on which device trains a center.

CPU devices stand in for GPUs, with the same code to deal, copy and gather. On CUDA, one GPU acts as two.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedmt.aggregation import FedAvgM, Scaffold
from fedmt.backbones.heads import add_heads
from fedmt.engines import device as device_module
from fedmt.engines.device import deal, every, place
from fedmt.engines.eager.sending import ahead, sent
from fedmt.engines.graphs import fleet as fleet_module
from fedmt.engines.graphs import program as program_module
from fedmt.engines.graphs.feed import Feed, Stage
from fedmt.engines.graphs.worker import Worker
from fedmt.engines.local import LocalEngine
from fedmt.inputs.images.augment import Augmentation
from fedmt.methods import METHODS, FedMT, Training

HERE, GPU = torch.device("cpu"), torch.device("cuda")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
on_both = pytest.mark.parametrize("device", [HERE, pytest.param(GPU, marks=needs_gpu)], ids=str)

QUICK = Training(
    rounds=3, local_epochs=1, batch_size=5, reference_epochs=1, reference_batch_size=10, warmup_epochs=1,
    learning_rate=0.01,
)  # fmt: skip
WAYS = {
    "T": (FedMT(QUICK, Augmentation(), xi=0.1), FedAvgM()),
    "learnable": (
        FedMT(
            QUICK, Augmentation(), xi=0.1, correspondence="estimated", estimator="learnable", projection="all"
        ),
        Scaffold(),
    ),
    "fedrep": (METHODS["fedrep"](QUICK, Augmentation()), FedAvgM()),
}


def smooth(model):
    """Removes layers whose gradients a GPU sums in any order."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.MaxPool2d):
                setattr(module, name, nn.AvgPool2d(child.kernel_size))
    return model


@pytest.fixture
def trained(make_federation, make_model, monkeypatch):
    """Two rounds with five centers of different sizes, each with several chunks of steps."""
    monkeypatch.setattr(program_module, "CHUNK_STEPS", 2)
    monkeypatch.setattr(fleet_module, "WORKERS", 2)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    whole = make_federation(departments=2, layers=3)
    centers = tuple(
        replace(c, values=c.images[:n], labels=c.labels[:n], truth=c.truth[:n])
        for c, n in zip(whole.centers, (30, 13, 17, 5, 30), strict=True)
    )
    federation = replace(whole, centers=centers)

    def run(way="T", device=HERE, **options):
        method, strategy = WAYS[way]
        model = smooth(make_model(federation))
        if method.heads:
            torch.manual_seed(1)
            add_heads(model, len(federation.wanted), [len(s) for s in federation.spaces[1:]])
        engine = LocalEngine(federation, method, model, 0, device, "float32", strategy, True, **options)
        state, _ = engine.start()
        for _ in range(2):
            state, record = engine.round(state)
        assert not engine._fleet.eager
        for center in record["centers"].values():
            center.pop("absent", None)
        return engine, state, record

    return run


def same(one, two):
    (_, before, told), (_, after, found) = one, two
    for key, value in before.weights.items():
        assert torch.equal(value, after.weights[key]), key
    assert before.kept.keys() == after.kept.keys()
    for name, kept in before.kept.items():
        assert all(torch.equal(v, after.kept[name][k]) for k, v in kept.items())
    assert told["centers"] == found["centers"]


@on_both
@pytest.mark.parametrize("way", WAYS)
def test_two_devices_train_the_same_weights_as_one(trained, way, device):
    one, two = trained(way, device), trained(way, device, devices=[device, device])
    same(one, two)
    fleet = two[0]._fleet
    assert len(fleet._stations) == 2 and len(fleet._workers) == 4
    samples = [station.samples.untyped_storage().data_ptr() for station in fleet._stations]
    assert samples[0] != samples[1]
    assert {len(w._programs) > 0 for w in fleet._workers} == {True}  # each worker has trained


@on_both
@pytest.mark.parametrize("way", ["T", "learnable"])
def test_samples_in_host_memory_train_the_same_weights(trained, way, device):
    one, two = trained(way, device), trained(way, device, prefetch=True)
    same(one, two)
    assert two[0]._fleet._stations[0].samples is None
    assert two[0].federation.centers[0].values.device == HERE


@on_both
def test_several_devices_with_samples_in_host_memory(trained, device):
    same(trained("T", device), trained("T", device, devices=[device] * 3, prefetch=True))


@on_both
def test_stopping_while_samples_are_gathered(trained, device):
    engine, state, _ = trained("T", device, prefetch=True)
    expected, _ = engine.round(state)

    def stop(number, name):
        if name == "center-4":
            raise KeyboardInterrupt

    engine.on_center = stop
    with pytest.raises(KeyboardInterrupt):
        engine.round(state)
    engine.on_center = lambda number, name: None
    found, _ = engine.round(state)
    assert all(torch.equal(v, found.weights[k]) for k, v in expected.weights.items())


def test_centers_are_dealt_by_their_samples(make_federation):
    centers = make_federation(departments=4, layers=3).centers
    sizes = (40, 13, 27, 40, 5, 31, 40)
    uneven = [
        replace(c, values=c.values[:n], labels=c.labels[:n], truth=None)
        for c, n in zip(centers, sizes, strict=True)
    ]
    assert list(deal(uneven, 2).values()) == [0, 1, 1, 0, 1, 1, 1]
    assert set(deal(uneven, 1).values()) == {0}
    assert sorted(deal(uneven, 7).values()) == list(range(7))


def test_no_more_devices_than_centers(make_federation):
    federation = make_federation(departments=1, layers=1)
    placed = place(federation, [HERE] * 5, together=True)
    assert len(placed.devices) == 2 and sorted(placed.dealt.values()) == [0, 1]
    assert len(place(replace(federation, centers=()), [HERE] * 5, together=True).devices) == 1


def test_a_name_without_a_number_is_all_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert [str(d) for d in every(torch.device("cuda"))] == ["cuda", "cuda:1", "cuda:2"]
    assert every(torch.device("cuda:1")) == (torch.device("cuda:1"),)
    assert every(HERE) == (HERE,)


@needs_gpu
def test_samples_that_do_not_fit_stay_in_host_memory(trained, monkeypatch):
    fitting = trained("T", GPU)
    monkeypatch.setattr(device_module, "DEVICE_SHARE", 1e-9)
    waiting = trained("T", GPU)
    assert fitting[0]._fleet._stations[0].samples is not None
    assert waiting[0]._fleet._stations[0].samples is None
    same(fitting, waiting)


def test_a_feed_gathers_each_chunk_in_order(tmp_path):
    """Reads from a memory-mapped file with more chunks than places, of which the last one is shorter."""
    pixels = np.random.default_rng(0).integers(0, 256, (50, 3, 4, 4), dtype=np.uint8)
    np.save(tmp_path / "pixels.npy", pixels)
    samples = torch.from_numpy(np.load(tmp_path / "pixels.npy", mmap_mode="c"))
    index = torch.randint(50, (11, 2, 5), generator=torch.Generator().manual_seed(0))
    slot = torch.zeros(3, 2, 5, 3, 4, 4, dtype=torch.uint8)
    stages = [Stage(slot.shape, torch.uint8, HERE) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        feed = Feed(samples, index, 3, stages, threads)
        for first in range(0, 11, 3):
            chunk = index[first : first + 3]
            feed.send(slot)
            assert torch.equal(slot[: len(chunk)], samples[chunk])
        unfinished = Feed(samples, index, 3, stages, threads)
        unfinished.stop()
        with pytest.raises(IndexError, match="50 samples"):
            Feed(samples, index + 1, 3, stages, threads)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_what_is_computed_ahead_comes_in_order(count):
    assert [v.item() for v in ahead(torch.tensor, range(count))] == list(range(count))

    def fails(item):
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        list(ahead(fails, range(5)))


@needs_gpu
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_batches_are_sent_ahead_in_order(count):
    batches = torch.arange(70).view(7, 10)[:count].unbind()
    assert [b.tolist() for b in sent(batches, GPU)] == [b.tolist() for b in batches]


@on_both
def test_chunks_are_as_long_as_a_small_centers_work_and_grow(
    make_federation, make_model, monkeypatch, device
):
    """No views are made for steps that a center does not have. A much larger center gets longer chunks."""
    monkeypatch.setattr(fleet_module, "WORKERS", 1)
    whole = make_federation(departments=3, layers=0, samples=60)
    sizes = (7, 12, 60)  # 2, 3 and 12 steps
    centers = tuple(
        replace(c, values=c.images[:n], labels=c.labels[:n], truth=c.truth[:n])
        for c, n in zip(whole.centers, sizes, strict=True)
    )
    method, strategy = WAYS["T"]
    federation = replace(whole, centers=centers)
    engine = LocalEngine(
        federation, method, smooth(make_model(federation)), 0, device, "float32", strategy, True
    )
    state, _ = engine.start()
    chunks = []
    launch = Worker._chunk

    def chunk(self, now):
        launch(self, now)
        chunks.append((now.job.center.name, now.program.chunk))

    monkeypatch.setattr(Worker, "_chunk", chunk)
    engine.round(state)
    first = dict(reversed(chunks))  # with captured steps, a check replays some of another center's
    assert [first[c.name] for c in centers] == [2, 2, 16]
