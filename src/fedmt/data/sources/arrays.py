"""Arrays that were given in Python. A run folder may store them in one file per center, for any input.

The file holds the samples in their stored form, so that reading them back changes nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from safetensors import SafetensorError

from fedmt.core.errors import FedmtError
from fedmt.core.labels import LabelSpace
from fedmt.core.tensor_files import in_order
from fedmt.data.center import Center
from fedmt.data.groups import group_numbers
from fedmt.data.groups import in_order as numbered
from fedmt.data.sampleset import SampleSet
from fedmt.data.sources.base import Request, Source
from fedmt.inputs import from_json, to_json

SUFFIX = ".safetensors"


def dump_arrays(center: Center) -> bytes:
    """What `Arrays` reads: the samples of a center or test, and its labels if it has any."""
    tensors = {"samples": center.values.cpu().contiguous()}
    facts = {"input": json.dumps(to_json(center.input))}
    if center.labels is not None and center.space is not None:
        tensors["labels"] = center.labels.cpu().contiguous()
        facts["classes"] = json.dumps(center.space.classes)
    if center.groups is not None:  # which samples belong together, without the names of the groups
        tensors["groups"] = torch.from_numpy(numbered(center.groups))
    return in_order(safetensors.torch.save(tensors, facts))


def read_arrays(path: Path, space: LabelSpace | None) -> SampleSet:
    """The samples in the file and, where `space` is given, their labels in it."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            facts = file.metadata() or {}
            found = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError:
        raise FedmtError(
            f"{path}: this file does not exist. It held the arrays of a run; if the run folder was moved, "
            "correct the paths in its config.toml."
        ) from None
    except (SafetensorError, OSError, ValueError) as error:
        raise FedmtError(f"{path}: the file is damaged ({error}).") from None
    if "samples" not in found or "input" not in facts:
        raise FedmtError(f"{path}: this is not a file of arrays that `Result.save` wrote.")
    input = from_json(json.loads(facts["input"]))
    numbers = found["groups"].tolist() if "groups" in found else None
    # Equal numbers in two files mean nothing.
    groups = None if numbers is None else group_numbers([f"{path} {number}" for number in numbers])
    if space is None:
        return SampleSet(found["samples"], input=input, groups=groups)
    if "labels" not in found or json.loads(facts["classes"]) != list(space.classes):
        raise FedmtError(f"{path}: it has no labels in label space '{space.name}'.")
    labels, spaces = {space.name: found["labels"]}, {space.name: space}
    return SampleSet(found["samples"], labels, spaces, input=input, groups=groups)


class Arrays(Source):
    """`path` is a file that `Result.save` wrote. Without it, the arrays were only in memory and are gone."""

    name = "arrays"
    input = None
    needs_path = False

    def read(self, request: Request) -> SampleSet:
        if request.spec.path is None:
            raise FedmtError(
                f"{request.where}: its samples were arrays in memory, and the run folder does not keep them. "
                "Continue with the same arrays in Python: fedmt.train(..., out=..., resume=True)."
            )
        return read_arrays(request.path, request.space)
