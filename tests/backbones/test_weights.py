"""Weight files load exactly, or fail with a reason and leave the model unchanged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedmt.backbones.mobilenet import mobilenet_v2
from fedmt.backbones.resnet import resnet18
from fedmt.backbones.weights import load_weights
from fedmt.core.errors import FedmtError


class Tiny(nn.Module):
    """Conv, norm and head: quick to build, and all that loading looks at."""

    def __init__(self, classes: int = 4, channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 8, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.bn1(self.conv1(x)).mean((2, 3)))
        return logits


def same(a: nn.Module, b: nn.Module, but: str = "nothing") -> bool:
    mine, theirs = a.state_dict(), b.state_dict()
    return all(torch.equal(mine[key], theirs[key]) for key in mine if not key.startswith(but))


def saved(contents: object, folder: Path, name: str = "weights.pth") -> Path:
    torch.save(contents, folder / name)
    return folder / name


def refused(contents: object, folder: Path, channels: int = 3) -> str:
    """The message for a file with `contents`, after checking that it names the file and changes nothing."""
    path = saved(contents, folder)
    model = Tiny(channels=channels)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(FedmtError) as caught:
        load_weights(model, path, "fc")
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("build", "head"), [(resnet18, "fc"), (mobilenet_v2, "classifier.1")])
def test_round_trip_of_the_backbones(build, head, tmp_path) -> None:  # type: ignore[no-untyped-def]
    source, model = build(5), build(5)
    assert load_weights(model, saved(source.state_dict(), tmp_path), head) == ()
    assert same(model, source)


def test_safetensors(tmp_path: Path) -> None:
    source, model = Tiny(), Tiny()
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    assert load_weights(model, str(tmp_path / "w.safetensors"), "fc") == ()
    assert same(model, source)


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("wrapped", [False, True])
def test_prefix_and_wrapper(prefix: str, wrapped: bool, tmp_path: Path) -> None:
    source, model = Tiny(), Tiny()
    state = {prefix + key: value for key, value in source.state_dict().items()}
    load_weights(model, saved({"state_dict": state, "epoch": 3} if wrapped else state, tmp_path), "fc")
    assert same(model, source)


def test_old_files(tmp_path: Path) -> None:
    """Files in torch's format before 1.6, with parameters instead of tensors, and no count of batches."""
    source, model = Tiny(), Tiny()
    state = {k: v for k, v in source.state_dict(keep_vars=True).items() if "num_batches" not in k}
    torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert load_weights(model, tmp_path / "old.pth", "fc") == ()
    assert same(model, source)


def test_half_precision_is_widened(tmp_path: Path) -> None:
    source, model = Tiny().half(), Tiny()
    load_weights(model, saved(source.state_dict(), tmp_path), "fc")
    assert model.conv1.weight.dtype == torch.float32
    assert torch.equal(model.conv1.weight, source.conv1.weight.float())


def test_a_head_of_other_classes_stays_fresh(tmp_path: Path) -> None:
    source, model = Tiny(classes=1000), Tiny(classes=4)
    fresh = model.fc.weight.clone(), model.fc.bias.clone()
    (note,) = load_weights(model, saved(source.state_dict(), tmp_path), "fc")
    assert "'fc' has 1000 classes, the model has 4" in note
    assert same(model, source, but="fc.")
    assert torch.equal(model.fc.weight, fresh[0]) and torch.equal(model.fc.bias, fresh[1])
    (note,) = load_weights(model, saved(Tiny(classes=1).state_dict(), tmp_path), "fc")
    assert "'fc' has 1 class, the model has 4" in note


def test_color_weights_see_a_gray_image_as_before(tmp_path: Path) -> None:
    source, model = Tiny().eval(), Tiny(channels=1).eval()
    (note,) = load_weights(model, saved(source.state_dict(), tmp_path), "fc")
    assert "'conv1.weight' was summed" in note
    gray = torch.randn(2, 1, 9, 9)
    torch.testing.assert_close(model(gray), source(gray.expand(-1, 3, -1, -1)))


def test_gray_weights_do_not_fit_color(tmp_path: Path) -> None:
    message = refused(Tiny(channels=1).state_dict(), tmp_path)
    assert "'conv1.weight' is [8, 1, 3, 3], expected [8, 3, 3, 3]" in message


def test_wrong_keys_and_shapes_are_named(tmp_path: Path) -> None:
    state = Tiny().state_dict()
    del state["bn1.running_var"]
    state["extra"] = torch.zeros(2)
    state["bn1.weight"] = torch.zeros(9)
    message = refused(state, tmp_path)
    assert "'bn1.running_var' [8] is missing" in message
    assert "'extra' [2] is not in the model" in message
    assert "'bn1.weight' is [9], expected [8]" in message


def test_many_wrong_keys_are_counted(tmp_path: Path) -> None:
    message = refused({f"x{i}": torch.zeros(1) for i in range(10)}, tmp_path)
    # Seven keys of the model are missing (an eighth, the count of batches, may be), and ten are unknown.
    assert "and 13 more" in message


@pytest.mark.parametrize("key", ["fc.weight", "fc.bias"])
def test_a_broken_head_is_not_taken_for_other_classes(key: str, tmp_path: Path) -> None:
    state = Tiny().state_dict()
    state[key] = torch.zeros(9, *state[key].shape[1:])
    assert f"'{key}' is [9" in refused(state, tmp_path)


def test_without_a_head_to_leave_out_all_must_fit(tmp_path: Path) -> None:
    path = saved(Tiny(classes=9).state_dict(), tmp_path)
    with pytest.raises(FedmtError, match=r"'fc.weight' is \[9, 8\], expected \[4, 8\]"):
        load_weights(Tiny(), path, None)
    source, model = Tiny(), Tiny()
    assert load_weights(model, saved(source.state_dict(), tmp_path), None) == ()
    assert same(model, source)


def test_a_head_of_other_features_is_refused(tmp_path: Path) -> None:
    state = {**Tiny().state_dict(), "fc.weight": torch.zeros(9, 7), "fc.bias": torch.zeros(9)}
    assert "'fc.weight' is [9, 7], expected [4, 8]" in refused(state, tmp_path)


def test_integers_are_not_weights(tmp_path: Path) -> None:
    state = {**Tiny().state_dict(), "fc.bias": torch.zeros(4, dtype=torch.int8)}
    assert "'fc.bias' holds torch.int8" in refused(state, tmp_path)


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ({}, "contains nothing"),
        ([torch.zeros(1)], "contains an object of type list"),
        (torch.zeros(3), "contains an object of type Tensor"),
        ({"epoch": 3}, "entry 'epoch' is of type int"),
        ({3: torch.zeros(1)}, "entry 3"),
    ],
)
def test_not_a_state_dict(contents: object, expected: str, tmp_path: Path) -> None:
    assert expected in refused(contents, tmp_path)


class Trap:
    """Pickles to a call that writes a file when it is executed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_is_never_run(tmp_path: Path) -> None:
    message = refused({"fc.bias": Trap(tmp_path / "sprung")}, tmp_path)
    assert "plain tensors" in message and "weights_only=False" not in message
    assert not (tmp_path / "sprung").exists()


def test_a_whole_pickled_model_is_refused(tmp_path: Path) -> None:
    assert "whole pickled model" in refused(nn.Linear(2, 2), tmp_path)


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
@pytest.mark.parametrize("kept", [0, 1, 100, 1000, -30])
def test_damaged_files(name: str, kept: int, tmp_path: Path) -> None:
    path = tmp_path / name
    if name.endswith("pth"):
        torch.save(Tiny().state_dict(), path)
    else:
        save_file(Tiny().state_dict(), path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(FedmtError, match=name):
        load_weights(Tiny(), path, "fc")


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_some_other_file(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("<html>404 Not Found</html>")
    with pytest.raises(FedmtError, match="not a readable file"):
        load_weights(Tiny(), tmp_path / name, "fc")


@pytest.mark.parametrize("name", ["none.pth", "none.safetensors", "."])
def test_no_such_file(name: str, tmp_path: Path) -> None:
    with pytest.raises(FedmtError, match="no such file"):
        load_weights(Tiny(), tmp_path / name, "fc")


def test_no_such_head(tmp_path: Path) -> None:
    with pytest.raises(FedmtError, match=r"no layer 'classifier\.1'.*'fc'"):
        load_weights(Tiny(), saved(Tiny().state_dict(), tmp_path), "classifier.1")
