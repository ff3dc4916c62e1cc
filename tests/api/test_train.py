"""`fedmt.train` and `Result`: the example of docs/guides/python.md for every input, and user mistakes."""

from __future__ import annotations

import gc
import json
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, get_overloads

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import fedmt
from fedmt.api import training as training_module
from fedmt.config import load_config
from fedmt.runs.folder import RunFolder
from fedmt.training.run import Silent, Stopped, run

WANTED = ["melanoma", "nevus", "keratosis"]
TRIAGE = {"melanoma": "malignant", "nevus": "benign", "keratosis": {"benign": 0.7, "malignant": 0.3}}
FAST: dict[str, Any] = {"rounds": 1, "warmup_epochs": 1, "local_epochs": 1, "progress": False}


def points(count: int, seed: int, dimensions: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Three well-separated classes in a few dimensions."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 3
    return (rng.normal(size=(count, dimensions)) + 3 * np.eye(dimensions)[y]).astype(np.float32), y


def pictures(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Color images (NHWC) whose class is the color."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 3
    x = rng.integers(0, 100, (count, 10, 10, 3))
    x[np.arange(count), :, :, y] += 150
    return x.astype(np.uint8), y


def frames(count: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    x, y = points(count, seed)
    frame = pd.DataFrame({"age": 50 + x[:, 0], "site": np.where(x[:, 1] > 1, "arm", "leg"), "size": x[:, 2]})
    frame.loc[0, "size"] = np.nan
    return frame, y


class Items(Dataset[Any]):
    """A Dataset as users write it, which returns one item at a time."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        return self.x[i], int(self.y[i])


def federation(make: Callable[..., Any] = points, pack: Callable[..., Any] = lambda x, y: (x, y)) -> Any:
    (x, y), (bx, by), (ox, _), (tx, ty) = make(12, 0), make(12, 1), make(9, 2), make(30, 3)
    triage = np.array(["malignant", "benign", "benign"])[by]
    berlin = fedmt.CenterData(bx, triage, space="triage", correspondence=TRIAGE)
    return fedmt.Federation.from_arrays(
        wanted=WANTED,
        reference=pack(x, y),
        centers={"Berlin": berlin, "Oslo": fedmt.CenterData(ox)},
        spaces={"triage": ["malignant", "benign"]},
        test=pack(tx, ty),
    )


def labeled(x: pd.DataFrame, y: np.ndarray) -> pd.DataFrame:
    return x.assign(label=np.array(WANTED)[y])


def sentences(count: int, seed: int) -> tuple[list[str], np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 3
    words = ["dark irregular border", "round even brown", "rough waxy stuck"]
    return [f"lesion {rng.integers(99)} {words[k]}" for k in y], y


KINDS = {
    "images": (pictures, lambda x, y: (x, y), "small_cnn"),
    "vectors": (points, lambda x, y: (torch.from_numpy(x), [WANTED[k] for k in y]), "mlp"),
    "a DataFrame": (frames, labeled, "mlp"),
    "texts": (sentences, lambda x, y: (x, y), "linear"),
    "a Dataset": (points, Items, "linear"),
    "a TensorDataset": (
        pictures,
        lambda x, y: TensorDataset(torch.from_numpy(x).permute(0, 3, 1, 2) / 255, torch.from_numpy(y)),
        "small_cnn",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_example(kind: str, tmp_path: Path, command: Any) -> None:
    make, pack, backbone = KINDS[kind]
    data = federation(make, pack)
    result = fedmt.train(data, model=backbone, method="fedmt", **FAST, seed=0)
    single = fedmt.train(data, model=backbone, method="single", **FAST, seed=0)

    assert 0 <= result.metrics["accuracy"]["wanted"] <= 1
    low, high = result.intervals["accuracy"]["wanted"]
    assert low <= result.metrics["accuracy"]["wanted"] <= high
    assert [row["round"] for row in result.history] == [0, 1]
    assert result.history.to_pandas().loc[1, "accuracy.wanted"] == result.metrics["accuracy"]["wanted"]
    assert result.correspondences["Berlin"].matrix[:, 2].tolist() == pytest.approx([0.3, 0.7])
    assert "Oslo" not in result.correspondences

    difference = result.compare(single).differences["wanted"]["accuracy"]
    expected = result.metrics["accuracy"]["wanted"] - single.metrics["accuracy"]["wanted"]
    assert difference.value == pytest.approx(expected) and difference.low <= difference.high
    compared = result.compare(single)
    assert "wanted, 30 test" in repr(compared)
    assert (compared.first, compared.second) == ("FedMT", "Single")  # as on the command line

    asked = make(3, 4)[0]
    triage, wanted = result.predict(asked, space="triage"), result.predict(asked)
    torch.testing.assert_close(triage, wanted @ result.correspondences["Berlin"].matrix.T)
    assert len(result.predict(asked, top=2)[0]) == 2
    assert torch.equal(result.predict(asked, prior="uniform"), wanted)
    assert not torch.equal(
        result.predict(asked, prior=[0.9, *[0.1 / (wanted.shape[1] - 1)] * (wanted.shape[1] - 1)]), wanted
    )

    page = result.report(tmp_path / "report.html", baseline=single).read_text()
    assert "single" in page and "melanoma" in page
    saved = result.save(tmp_path / "first")
    assert torch.equal(fedmt.load(saved).predict(asked), wanted)
    before = {p: p.read_bytes() for p in saved.rglob("*") if p.is_file()}
    status, said, errors = command("run", saved / "config.toml", "--out", saved, "--resume")
    assert status == 0 and "all 1 rounds are already done" in said, errors
    assert {p: p.read_bytes() for p in saved.rglob("*") if p.is_file() and p.name != "lock"} == before
    assert command("report", saved, "--out", tmp_path / "again.html")[0] == 0
    assert command("export", saved, "--safetensors", tmp_path / "model.safetensors")[0] == 0


TOML = """
wanted = "diagnosis"
seed = 5
[spaces]
diagnosis = ["melanoma", "nevus", "keratosis"]
triage = ["malignant", "benign"]
[reference]
source = "npz"
path = "reference.npz"
[[centers]]
name = "Berlin"
source = "npz"
path = "berlin.npz"
space = "triage"
correspondence = { melanoma = "malignant", nevus = "benign", keratosis = { benign = 0.7, malignant = 0.3 } }
[[centers]]
name = "Oslo"
source = "npz"
path = "oslo.npz"
[[tests]]
source = "npz"
path = "test.npz"
[method]
xi = 0.8
[training]
rounds = 2
warmup_epochs = 1
local_epochs = 1
learning_rate = 0.02
weights = "samples"
[augmentation]
cutout = 0.25
[model]
backbone = "small_cnn"
"""


def test_the_same_data_and_options_give_the_same_weights_as_fedmt_run(tmp_path: Path) -> None:
    (x, y), (bx, by), (ox, _), (tx, ty) = (pictures(n, i) for i, n in enumerate((12, 12, 9, 30)))
    triage = np.array(["malignant", "benign", "benign"])[by]
    np.savez(tmp_path / "reference.npz", images=x, labels=np.array(WANTED)[y])
    np.savez(tmp_path / "berlin.npz", images=bx, labels=triage)
    np.savez(tmp_path / "oslo.npz", images=ox)
    np.savez(tmp_path / "test.npz", images=tx, labels=np.array(WANTED)[ty])
    (tmp_path / "federation.toml").write_text(TOML)
    run(load_config(tmp_path / "federation.toml"), tmp_path / "files")
    data = fedmt.Federation.from_arrays(
        wanted=fedmt.LabelSpace("diagnosis", WANTED),
        reference=(x.transpose(0, 3, 1, 2), y),
        centers={"Oslo": (ox / 255,), "Berlin": (bx, triage, "triage")},
        spaces={"triage": ["malignant", "benign"]},
        correspondences={"triage": np.array([[1, 0, 0.3], [0, 1, 0.7]])},
        test=(tx, ty),
    )
    options = {"xi": 0.8, "learning_rate": 0.02, "cutout": 0.25, "training": {"weights": "samples"}}
    fast = {**FAST, "rounds": 2}
    fedmt.train(data, "small_cnn", seed=5, out=tmp_path / "arrays", **fast, **options)
    one, two = RunFolder(tmp_path / "files").load(), RunFolder(tmp_path / "arrays").load()
    assert one is not None and two is not None and one.weights.keys() == two.weights.keys()
    assert all(torch.equal(one.weights[k], two.weights[k]) for k in one.weights)
    assert (
        RunFolder(tmp_path / "files").data_file.read_text()
        == RunFolder(tmp_path / "arrays").data_file.read_text()
    )


class Impatient(Silent):
    """Stops in the second round, like Ctrl-C."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def center(self, round: int, name: str) -> None:
        if round == 2:
            raise self.error


@pytest.mark.parametrize("error", [Stopped, KeyboardInterrupt])
def test_ctrl_c_leaves_what_can_be_resumed(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Any
) -> None:
    data, options = federation(), {**FAST, "rounds": 3, "method": "fedmt"}
    whole = fedmt.train(data, **options)
    real = training_module.run_arrays
    monkeypatch.setattr(training_module, "run_arrays", lambda *a: real(*a[:4], Impatient(error), *a[5:]))
    with pytest.raises(KeyboardInterrupt, match=r"out='.*stopped', resume=True"):
        fedmt.train(data, **options, out=tmp_path / "stopped")
    with pytest.raises(KeyboardInterrupt, match="Nothing is kept"):
        fedmt.train(data, **options)
    monkeypatch.undo()

    status, _, errors = command(
        "run", tmp_path / "stopped" / "config.toml", "--out", tmp_path / "stopped", "--resume"
    )
    assert status == 2 and "fedmt.train(..., out=..., resume=True)" in errors
    # A saved copy keeps the arrays, so that the command line can finish it.
    half = fedmt.Result(tmp_path / "stopped")
    half._federation = data
    half.save(tmp_path / "copy")
    status, _, errors = command(
        "run", tmp_path / "copy" / "config.toml", "--out", tmp_path / "copy", "--resume"
    )
    assert status == 0, errors
    for path in (tmp_path / "copy", fedmt.train(data, **options, out=tmp_path / "stopped", resume=True).path):
        weights = fedmt.Result(path).model.state.weights
        assert all(torch.equal(v, whole.model.state.weights[k]) for k, v in weights.items())
    # Python can continue it too, although its config names files.
    assert fedmt.train(data, **options, out=tmp_path / "copy", resume=True).history[-1]["round"] == 3


def test_a_result_without_a_folder_leaves_nothing_behind(capfd: Any) -> None:
    result = fedmt.train(federation(), **FAST)
    path = result.path
    assert path.is_dir()
    del result
    gc.collect()
    assert not path.parent.exists()
    assert capfd.readouterr() == ("", "")  # progress=False prints nothing


def test_a_result_is_not_copied_without_its_folder(tmp_path: Path) -> None:
    result = fedmt.train(federation(), **FAST)
    with pytest.raises(fedmt.FedmtError, match=r"temporary folder.* cannot be pickled or copied\. Pass out="):
        pickle.dumps(result)
    kept = fedmt.train(federation(), **FAST, out=tmp_path / "run")
    x = points(4, 9)[0]
    assert torch.equal(pickle.loads(pickle.dumps(kept)).predict(x), kept.predict(x))


def test_samples_may_be_read_only_or_a_dataset() -> None:
    """pandas 3 gives read-only arrays, and `np.load(mmap_mode="r")` does too."""
    x, y = points(12, 0)
    x.flags.writeable = False
    data = fedmt.Federation.from_arrays(wanted=WANTED, reference=(x, y), centers={"Oslo": (x,)})
    result = fedmt.train(data, **FAST, device=torch.device("cpu"))
    expected = result.predict(x)
    assert torch.equal(result.predict(Items(x, y)), expected)
    assert torch.equal(result.predict(TensorDataset(torch.tensor(x))), expected)
    assert torch.equal(result.predict(x.astype(">f4")), expected)
    with pytest.raises(fedmt.FedmtError, match=r"predict: no vectors are given\."):
        result.predict(None)


def test_the_types_of_predictions_follow_the_arguments() -> None:
    """What a type checker infers: `top` decides between a tensor and lists."""
    assert len(get_overloads(fedmt.Result.predict)) == len(get_overloads(fedmt.Model.predict)) == 2


def test_progress_is_one_line_per_round(capsys: pytest.CaptureFixture[str]) -> None:
    fedmt.train(federation(), **{**FAST, "progress": True})
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == [
        "round 0/1",
        "round 1/1",
    ]


def test_training_in_a_thread() -> None:
    """In a thread, no signal handler can be set."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(lambda: fedmt.train(federation(), **{**FAST, "progress": True}))
    assert len(done.result().history) == 2


class Drawing(nn.Module):
    """Draws from torch's generator, which all threads share."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(nn.functional.dropout(self.first(x).relu(), 0.5, self.training))


@pytest.mark.parametrize("model", ["mlp", "drawing"])
def test_runs_in_threads_do_not_change_each_other(model: str) -> None:
    x, data, own = points(4, 9)[0], federation(), Drawing() if model == "drawing" else model

    def one(seed: int) -> Tensor:
        return fedmt.train(data, model=own, **{**FAST, "rounds": 3}, seed=seed).predict(x)

    seeds = [0, 1, 0, 1, 0, 1]
    alone = [one(seed) for seed in (0, 1)]
    before = torch.get_rng_state()
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(one, seeds))
    assert [torch.equal(p, alone[seed]) for p, seed in zip(together, seeds, strict=True)] == [True] * 6
    assert torch.equal(torch.get_rng_state(), before)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "float64": lambda: default_dtype(torch.float64),
    "default device": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("mode", MODES)
def test_what_the_caller_has_set_in_torch_changes_nothing(mode: str, tmp_path: Path) -> None:
    x, data = points(4, 9)[0], federation()
    expected = fedmt.train(data, **FAST).predict(x)
    with MODES[mode]():
        inside = fedmt.train(data, **FAST, out=tmp_path / "run")
        found = [inside.predict(x), fedmt.load(tmp_path / "run").predict(x)]
        kept = torch.empty(2).requires_grad_(False), torch.is_grad_enabled(), torch.get_default_dtype()
    assert all(torch.equal(one, expected) for one in found)
    assert kept[0].is_meta == (mode == "default device") and kept[0].is_inference() == (mode[:3] == "inf")
    assert kept[1] == (mode not in ("no_grad", "inference_mode"))
    assert (kept[2] == torch.float64) == (mode == "float64") and torch.get_default_dtype() == torch.float32


def test_several_test_sets() -> None:
    x, y = points(30, 7)
    data = fedmt.Federation.from_arrays(
        wanted=WANTED,
        reference=(x, y),
        centers={"Oslo": (x,)},
        test={"day": (x, y), "night": (x, (y + 1) % 3)},
    )
    result = fedmt.train(data, **FAST)
    day, night = (result.metrics_by_test[name]["accuracy"] for name in ("day", "night"))
    assert day > 0.5 > night and (day + night) / 2 == pytest.approx(result.metrics["accuracy"]["wanted"])


def test_a_folder_that_is_taken(tmp_path: Path) -> None:
    fedmt.train(federation(), **FAST, out=tmp_path / "run")
    with pytest.raises(fedmt.FedmtError, match=r"already holds a run\. Continue it with resume=True"):
        fedmt.train(federation(), **FAST, out=tmp_path / "run")
    with pytest.raises(fedmt.FedmtError, match=r"is not empty; give another out="):
        fedmt.train(federation(), **FAST, out=tmp_path)
    with pytest.raises(fedmt.FedmtError, match=r"its config differs in seed \(0 there, 1 here\)"):
        fedmt.train(federation(), **FAST, out=tmp_path / "run", resume=True, seed=1)
    with pytest.raises(fedmt.FedmtError, match=r"began with other data .* of 'reference'"):
        fedmt.train(federation(pack=lambda x, y: (x + 1, y)), **FAST, out=tmp_path / "run", resume=True)


def test_a_copy_without_arrays_holds_no_samples(tmp_path: Path) -> None:
    saved = fedmt.train(federation(), **FAST).save(tmp_path / "run", arrays=False)
    assert not (saved / "arrays").exists() and "path" not in (saved / "config.toml").read_text()
    with pytest.raises(fedmt.FedmtError, match="already holds a run"):
        fedmt.Result(saved).save(saved)
    again = fedmt.Result(saved).save(tmp_path / "again")  # the source is a folder whose arrays are gone
    assert (again / "config.toml").read_text() == (saved / "config.toml").read_text()


def test_samples_can_be_held_out(tmp_path: Path) -> None:
    result = fedmt.train(federation(), **FAST, calibration={"share": 0.5, "minimum": 2})
    assert result.model.temperature is not None
    saved = result.save(tmp_path / "run")
    assert run(load_config(saved / "config.toml"), saved, resume=True)["calibration"]["held_out"]


# -- networks of the user's own -------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu())


@pytest.mark.parametrize("method", ["fedmt", "fedrep", "fedtrans"])
@pytest.mark.parametrize(("width", "head"), [(3, None), (3, True), (7, None)])
def test_a_module_of_logits_or_of_features(
    method: str, width: int, head: bool | None, tmp_path: Path
) -> None:
    net = Net(width)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    options = {} if head is None else {"head": head}
    result = fedmt.train(federation(), model=net, method=method, out=tmp_path / "run", **FAST, **options)
    added = head is True or width != 3
    named = json.loads((tmp_path / "run" / "model.json").read_text())
    assert (named["backbone"], named["head"]) == ("given:Net", added)
    keys = result.model.state.weights
    assert ("backbone.head.weight" in keys) == added
    own = "backbone.features.last.weight" if added else "backbone.last.weight"
    assert not torch.equal(keys[own], before["last.weight"])  # trained, from the module's own weights
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items()) and net.training
    x = points(4, 9)[0]
    again = fedmt.load(tmp_path / "run", model=Net(width))
    assert torch.equal(again.predict(x, "triage"), result.predict(x, "triage"))
    with pytest.raises(fedmt.FedmtError, match=r"an nn.Module, 'Net'.*fedmt.load\(path, model=module\)"):
        fedmt.load(tmp_path / "run")
    with pytest.raises(fedmt.FedmtError, match="do not fit backbone 'given:Net'"):
        fedmt.load(tmp_path / "run", model=nn.Linear(5, width))


class Counting(nn.Module):
    """What a forward pass may change: the modes of layers, buffers, the weights of lazy layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.LazyLinear(8), nn.Linear(8, 3)
        self.norm = nn.BatchNorm1d(8).eval()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.last(self.norm(self.first(x)).relu())


def test_the_users_own_module_and_generator_do_not_change() -> None:
    net = Counting()
    before = torch.get_rng_state()
    results = [fedmt.train(federation(), model=net, **FAST) for _ in range(2)]
    x = points(4, 9)[0]
    assert torch.equal(results[0].predict(x), results[1].predict(x))  # the second began like the first
    assert torch.equal(torch.get_rng_state(), before)
    assert isinstance(net.first, nn.LazyLinear) and net.training and not net.norm.training
    assert net.calls == 0


class Scaled(nn.Linear):
    scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


def test_a_result_keeps_the_module_as_it_was_trained() -> None:
    net, x = Scaled(5, 3), points(4, 9)[0]
    changed = fedmt.train(federation(), model=net, **FAST)
    expected = fedmt.train(federation(), model=net, **FAST).predict(x)
    net.scale = 100.0
    assert torch.equal(changed.predict(x), expected)


class Shared(nn.Module):
    """Two layers with the same weights: as one parameter with two names, or used twice under one name."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.last, two = nn.Linear(5, 5), nn.Linear(5, 3), nn.Linear(5, 5)
        self.bias = two.bias
        if tied:
            self.two = two
            two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(nn.functional.linear(self.one(x).relu(), self.one.weight, self.bias).relu())


@pytest.mark.parametrize("strategy", ["fedavgm", "fedadam", "scaffold"])
def test_tied_weights_follow_the_strategy_like_others(strategy: str) -> None:
    """Only the guard differs, which counts the norm of each name."""
    options: dict[str, Any] = {**FAST, "rounds": 3, "strategy": {"name": strategy, "guard": "none"}}
    one, two = (fedmt.train(federation(), model=Shared(tied), **options) for tied in (True, False))
    x = points(4, 9)[0]
    assert torch.equal(one.predict(x), two.predict(x))


class Auxiliary(nn.Linear):
    """Like torchvision's Inception, it returns a second output while it trains."""

    def forward(self, x: Tensor) -> Any:
        return (super().forward(x), x) if self.training else super().forward(x)


class Extra(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"calls": 3}


def with_buffer(value: float) -> nn.Module:
    net = nn.Linear(5, 3)
    net.register_buffer("mask", torch.tensor(value))
    return net


def with_open_file() -> nn.Module:
    net = nn.Linear(5, 3)
    net.log = (i for i in range(3))  # type: ignore[assignment]
    return net


class Odd(nn.Module):
    def __init__(self, answer: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor) -> Any:
        return self.answer(x)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            nn.Linear(4, 3),
            {},
            r"Linear cannot take vectors of shape \(2, 5\) and dtype float32: RuntimeError",
        ),
        (
            Odd(lambda x: x[:, None]),
            {},
            r"output of shape \(2, 1, 5\).*expected logits \(2, 3\), or features",
        ),
        (Odd(lambda x: (x, x)), {}, "output of type tuple"),
        (Odd(lambda x: x[:1]), {}, r"output of shape \(1, 5\)"),
        (
            Auxiliary(5, 3),
            {},
            r"Auxiliary returns an output of type tuple for .* \(2, 5\) in training mode; exp",
        ),
        (Auxiliary(5, 3), {"head": False}, "an output of type tuple for .* in training mode"),
        (Extra(5, 3), {}, "'_extra_state' of Extra is not a tensor, so no mean over centers can be taken"),
        (with_buffer(float("-inf")), {}, "'mask' of Linear has NaN or infinite values.*persistent=False"),
        (
            with_open_file(),
            {},
            "Linear cannot be copied, and training changes only a copy: TypeError: cannot",
        ),
        (nn.Linear(5, 4), {"head": False}, "returns 4 scores for each vector, expected 3"),
        (nn.Linear(5, 4), {"head": "yes"}, "model.head: 'yes' given, expected True or False"),
        ({"backbone": nn.Linear(5, 3), "max_pool": True}, {}, "model.max_pool: this is for fedmt's"),
        (3, {}, "model: an object of type int; expected the name of a backbone, an nn.Module"),
        ("small_cnn", {}, "'small_cnn' takes images, but the samples of this federation are vectors"),
        ("mpl", {}, "Did you mean 'mlp'"),
    ],
)
def test_a_model_that_does_not_fit(model: Any, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(fedmt.FedmtError, match=message):
        fedmt.train(federation(), model=model, out=tmp_path / "run", **FAST, **options)
    assert not (tmp_path / "run").exists()


# -- options --------------------------------------------------------------------------------------


def test_options_by_name_and_by_table() -> None:
    data = federation()
    one = fedmt.train(data, **FAST, xi=0.7, learning_rate=0.02, noise=0.2, aggregation={"momentum": 0.25})
    two = fedmt.train(
        data,
        "mlp",
        {"name": "fedmt", "xi": 0.7},
        {"name": "fedavgm", "momentum": 0.25},
        training={"rounds": 1, "warmup_epochs": 1, "local_epochs": 1, "learning_rate": 0.02},
        augmentation={"noise": 0.2},
        progress=False,
    )
    texts = [(r.path / "config.toml").read_text() for r in (one, two)]
    assert texts[0] == texts[1] and "xi = 0.7" in texts[0] and "momentum = 0.25" in texts[0]


def test_numbers_of_numpy_and_torch_are_numbers() -> None:
    data = federation()
    shares = {name: 1 / len(data.wanted) for name in data.wanted}
    plain = fedmt.train(data, **FAST, noise=0.5, prior=shares)
    typed = {name: torch.tensor(value, dtype=torch.float64) for name, value in shares.items()}
    other = fedmt.train(data, **FAST, noise=np.float32(0.5), prior=typed)
    assert (plain.path / "config.toml").read_text() == (other.path / "config.toml").read_text()


def test_images_in_memory_are_not_resized_by_a_key_of_the_config() -> None:
    images = np.zeros((8, 2, 2, 3), dtype=np.uint8)
    labels = ["a", "b"] * 4
    small = fedmt.Federation.from_arrays(
        wanted=["a", "b"], reference=(images, labels), centers={"x": (images, labels)}, test=(images, labels)
    )
    with pytest.raises(fedmt.FedmtError, match=r"cannot take .*\. Choose another model.backbone\.$"):
        fedmt.train(small, "resnet9", rounds=1, progress=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounnds": 3}, "rounnds: there is no such option with method 'fedmt'. Did you mean 'rounds'?"),
        ({"method": "single", "xi": 0.5}, "xi: there is no such option with method 'single'."),
        (
            {"momentum": 0.5},
            r'several tables have it. Choose one: aggregation=\{"momentum": ...\} or train',
        ),
        (
            {"training": {"rounds": 2}, "rounds": 3},
            r"rounds: it is in training=\{...\} as well; give it once",
        ),
        ({"wanted": "a"}, "wanted: the federation already determines it"),
        ({"vectors": {}}, "vectors: the federation already determines it"),
        ({"deployment": {}}, "deployment: this is for runs between machines"),
        ({"learning_rate": -1}, "training.learning_rate: -1"),
        ({"method": "fedmtt"}, "no method 'fedmtt'. Did you mean 'fedmt'?"),
        ({"strategy": "fedavgn"}, "no strategy 'fedavgn'. Did you mean 'fedavg"),
        ({"device": "tpu"}, "device: 'tpu'"),
        ({"resume": True}, "resume: name the folder"),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fedmt.FedmtError, match=message):
        fedmt.train(federation(), **{"progress": False, **options})


def test_what_is_no_federation_or_result() -> None:
    with pytest.raises(fedmt.FedmtError, match=r"an object of type dict; expected a fedmt.Federation"):
        fedmt.train({}, progress=False)  # type: ignore[arg-type]
    with pytest.raises(fedmt.FedmtError, match=r"an object of type str; expected a fedmt.Result"):
        fedmt.train(federation(), **FAST).compare("single")  # type: ignore[arg-type]
    with pytest.raises(fedmt.FedmtError, match="no such run folder"):
        fedmt.Result("nowhere")
