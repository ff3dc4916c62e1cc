"""The bundled part of Fashion-MNIST (Zalando SE, MIT license, see FASHION_MNIST_LICENSE.txt).

The first 700 training and 200 test images of each of the ten garments, in the order of the original files:
7,000 and 2,000 grayscale images of 28 x 28 pixels. Besides the garment, each image is labeled in two coarser
spaces that are not nested in each other: the department of a shop, and the layer in which it is worn.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedmt.core.labels import Correspondence, LabelSpace
from fedmt.data.sampleset import SampleSet, Split, check_split
from fedmt.data.sources.base import Request, Source
from fedmt.data.specs import SourceSpec
from fedmt.inputs.images.shaping import AS_STORED, ImageOptions, conform

GARMENT = LabelSpace(
    "garment",
    ["t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"],
)
DEPARTMENT = LabelSpace("department", ["tops", "bottoms", "dress", "shoes", "bag"])
LAYER = LabelSpace("layer", ["inner", "outer", "footwear", "accessory"])

GARMENT_TO_DEPARTMENT = Correspondence.from_mapping(
    GARMENT,
    DEPARTMENT,
    {
        "t-shirt": "tops",
        "trouser": "bottoms",
        "pullover": "tops",
        "dress": "dress",
        "coat": "tops",
        "sandal": "shoes",
        "shirt": "tops",
        "sneaker": "shoes",
        "bag": "bag",
        "ankle boot": "shoes",
    },
)
GARMENT_TO_LAYER = Correspondence.from_mapping(
    GARMENT,
    LAYER,
    {
        "t-shirt": "inner",
        "trouser": "inner",
        "pullover": "outer",
        "dress": "inner",
        "coat": "outer",
        "sandal": "footwear",
        "shirt": "inner",
        "sneaker": "footwear",
        "bag": "accessory",
        "ankle boot": "footwear",
    },
)


@cache
def _unpacked(split: Split) -> tuple[Tensor, Tensor]:
    """Images and garments as they are stored. Kept, because each run of a sweep reads them again."""
    with (
        resources.files("fedmt.data").joinpath("fashion_mnist.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        images = torch.from_numpy(archive[f"{split}_images"])[:, None]
        return images, torch.from_numpy(archive[f"{split}_labels"]).to(torch.int64)


def read_fashion_mnist(split: Split, options: ImageOptions = AS_STORED) -> SampleSet:
    """Images uint8 [7000 or 2000, 1, 28, 28], labeled in "garment", "department" and "layer"."""
    check_split(split, "Fashion-MNIST")
    images, garments = (kept.clone() for kept in _unpacked(split))  # the caller may change them
    labels = {
        "garment": garments,
        "department": GARMENT_TO_DEPARTMENT.map_labels(garments),
        "layer": GARMENT_TO_LAYER.map_labels(garments),
    }
    spaces = {space.name: space for space in (GARMENT, DEPARTMENT, LAYER)}
    return SampleSet(conform(images, options, "Fashion-MNIST"), labels, spaces)


class FashionMnist(Source):
    """The bundled subset."""

    name = "fashion_mnist"
    needs_path: ClassVar[bool] = False

    def read(self, request: Request) -> SampleSet:
        return read_fashion_mnist(request.split, request.images)

    def has_test_part(self, spec: SourceSpec) -> bool:
        return True
