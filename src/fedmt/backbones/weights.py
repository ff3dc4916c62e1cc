"""Pretrained weights from a file into a backbone.

A file is a state dict with the network's own names, which are torchvision's, or timm's of a timm network:
`.safetensors`, or anything `torch.save` wrote. It is read so that it can hold nothing but tensors and plain
values: a file from the internet never runs code.
Every key and shape is checked before the model is touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedmt.core.errors import FedmtError

SHOWN = 4
"""How many offending keys an error names: enough to see the pattern."""


def load_weights(
    model: nn.Module, path: str | Path, head: str | None, left_out: str | None = None
) -> tuple[str, ...]:
    """Loads the state dict at `path` into `model`, in place. Returns notes on what was adapted.

    head: prefix of the classification layer (`"fc"`, `"classifier.1"`). If the file's head has another number
    of classes, the model's own, freshly initialized head is kept. None allows no such difference. left_out:
    prefix of a layer that the model does not have, whatever the file contains for it. A first convolution of
    3 channels is summed into a 1-channel model's. Any other difference is a FedmtError, and then the model is
    unchanged.
    """
    path = Path(path)
    found = _plain_names(_read(path), path)
    if left_out is not None:
        found = {key: value for key, value in found.items() if not key.startswith(f"{left_out}.")}
    own: dict[str, Tensor] = model.state_dict()
    if head is not None and f"{head}.weight" not in own:
        raise FedmtError(
            f"{path}: the model has no layer '{head}' to take as its head; "
            f"name its last layer, for example '{list(own)[-1].rpartition('.')[0]}'."
        )
    notes = []
    if head is not None and _other_classes(found, own, head):
        there, here = len(found[f"{head}.weight"]), len(own[f"{head}.weight"])
        notes.append(
            f"{path}: its head '{head}' has {there} class{'' if there == 1 else 'es'}, the model has {here}. "
            "The head starts from its random initialization."
        )
        found |= {key: own[key] for key in own if key.startswith(f"{head}.")}
    first = _first_convolution(model)
    if first in found and _is_color_for_gray(found[first], own[first]):
        # A grayscale image shown as RGB repeats itself in 3 channels, and a convolution adds up its channels.
        # With their sum as its only channel, it responds to the grayscale image exactly as it did to RGB.
        found[first] = found[first].sum(1, keepdim=True)
        notes.append(f"{path}: '{first}' was summed over its 3 channels, for images of 1 channel.")
    for key in own:
        # This only counts the batches seen. Files from before torch 0.4.1 do not have it.
        if key.endswith("num_batches_tracked"):
            found.setdefault(key, own[key])
    _check(found, own, path)
    model.load_state_dict(found)
    return tuple(notes)


def _read(path: Path) -> object:
    """The contents of the file, on the CPU."""
    if not path.is_file():
        raise FedmtError(f"{path}: no such file; give the path of a .pth, .pt or .safetensors state dict.")
    try:
        if path.suffix.lower() == ".safetensors":
            return load_file(path)
        contents: object = torch.load(path, map_location="cpu", weights_only=True)
        return contents
    except OSError as error:
        raise FedmtError(f"{path}: cannot be read ({error.strerror or error}).") from None
    except Exception as error:
        # A damaged file can fail in any way, so all exceptions are caught. torch's own message is left out,
        # because it recommends weights_only=False, which would run code from the file.
        raise FedmtError(
            f"{path}: not a readable file of plain tensors ({type(error).__name__}): it is damaged, or holds "
            "other objects such as a whole pickled model. Expected what "
            "torch.save(model.state_dict(), file) writes, or a .safetensors file; fetch or save it again."
        ) from None


def _plain_names(contents: object, path: Path) -> dict[str, Tensor]:
    """The state dict itself, taken out of a `{"state_dict": ...}` wrapper and without a `module.` prefix."""
    if isinstance(contents, Mapping) and isinstance(contents.get("state_dict"), Mapping):
        contents = contents["state_dict"]
    if not isinstance(contents, Mapping) or not contents:
        kind = "nothing" if isinstance(contents, Mapping) else f"an object of type {type(contents).__name__}"
        raise FedmtError(
            f"{path}: it contains {kind}, expected a state dict: parameter names with their tensors."
        )
    state: dict[str, Tensor] = {}
    for key, value in contents.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise FedmtError(
                f"{path}: entry {key!r} is of type {type(value).__name__}, expected a name with a tensor; "
                "save model.state_dict() alone, or under the key 'state_dict'."
            )
        state[key] = value
    # DataParallel and DistributedDataParallel wrap the model as `module` before it is saved.
    if all(key.startswith("module.") for key in state):
        state = {key.removeprefix("module."): value for key, value in state.items()}
    return state


def _other_classes(found: Mapping[str, Tensor], own: Mapping[str, Tensor], head: str) -> bool:
    """Whether the file's head equals the model's except for the number of classes."""
    keys = [key for key in own if key.startswith(f"{head}.")]
    if not all(key in found and found[key].dim() == own[key].dim() > 0 for key in keys):
        return False
    counts = {len(found[key]) for key in keys}
    return (
        counts != {len(own[keys[0]])}
        and len(counts) == 1
        and all(found[key].shape[1:] == own[key].shape[1:] for key in keys)
    )


def _first_convolution(model: nn.Module) -> str:
    """The key of the first convolution's weight, or an empty string if there is none."""
    names = (name for name, module in model.named_modules() if isinstance(module, nn.Conv2d))
    name = next(names, None)
    return "" if name is None else f"{name}.weight".removeprefix(".")


def _is_color_for_gray(found: Tensor, own: Tensor) -> bool:
    outputs, channels, *size = own.shape
    return channels == 1 and tuple(found.shape) == (outputs, 3, *size)


def _check(found: Mapping[str, Tensor], own: Mapping[str, Tensor], path: Path) -> None:
    """Raises unless both have the same keys, shapes and kind of numbers."""
    problems = [f"'{key}' {_shape(own[key])} is missing" for key in own if key not in found]
    for key, value in found.items():
        if key not in own:
            problems.append(f"'{key}' {_shape(value)} is not in the model")
        elif value.shape != own[key].shape:
            problems.append(f"'{key}' is {_shape(value)}, expected {_shape(own[key])}")
        elif value.is_floating_point() != own[key].is_floating_point():
            problems.append(f"'{key}' holds {value.dtype}, expected {own[key].dtype}")
    if problems:
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise FedmtError(
            f"{path} does not fit the model: {'; '.join(problems[:SHOWN])}{more}. Choose the backbone that "
            "the weights were made for, or another file."
        )


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))
