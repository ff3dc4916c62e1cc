from __future__ import annotations

from importlib import resources
from typing import cast

import pytest
import torch

from fedmt.core.errors import FedmtError
from fedmt.data import ImageOptions, read_fashion_mnist
from fedmt.data.sampleset import Split
from fedmt.data.sources.fashion_mnist import (
    DEPARTMENT,
    GARMENT,
    GARMENT_TO_DEPARTMENT,
    GARMENT_TO_LAYER,
    LAYER,
)


@pytest.mark.parametrize(("split", "count"), [("train", 700), ("test", 200)])
def test_bundled_images(split: Split, count: int) -> None:
    found = read_fashion_mnist(split)
    assert found.images.shape == (10 * count, 1, 28, 28) and found.images.dtype == torch.uint8
    assert found.images.float().std((1, 2, 3)).min() > 0
    assert found.spaces == {"garment": GARMENT, "department": DEPARTMENT, "layer": LAYER}
    assert found.labels["garment"].bincount().tolist() == [count] * 10
    assert found.labels["department"].bincount().tolist() == [4 * count, count, count, 3 * count, count]
    assert found.labels["layer"].bincount().tolist() == [4 * count, 2 * count, 3 * count, count]


def test_the_images_are_what_their_labels_say() -> None:
    """Trousers and dresses are narrow, and bags and sneakers are wide. This checks the order of classes."""
    found = read_fashion_mnist("train")
    widths = (found.images[:, 0].amax(1) > 50).sum(1).float()
    width = {name: widths[found.labels["garment"] == k].mean() for k, name in enumerate(GARMENT)}
    assert max(width["trouser"], width["dress"]) < 20 < min(width["bag"], width["sneaker"])


def test_correspondences() -> None:
    assert GARMENT_TO_DEPARTMENT.is_partition and GARMENT_TO_LAYER.is_partition
    assert (GARMENT_TO_DEPARTMENT.fine, GARMENT_TO_DEPARTMENT.coarse) == (GARMENT, DEPARTMENT)
    assert (GARMENT_TO_LAYER.fine, GARMENT_TO_LAYER.coarse) == (GARMENT, LAYER)
    coat = torch.tensor([GARMENT.index("coat")])
    assert DEPARTMENT.classes[int(GARMENT_TO_DEPARTMENT.map_labels(coat))] == "tops"
    assert LAYER.classes[int(GARMENT_TO_LAYER.map_labels(coat))] == "outer"


def test_options_and_splits() -> None:
    assert read_fashion_mnist("test", ImageOptions((32, 32), 3)).images.shape == (2000, 3, 32, 32)
    with pytest.raises(FedmtError, match="no split 'val'"):
        read_fashion_mnist(cast(Split, "val"))


def test_the_license_is_bundled_and_the_file_is_small() -> None:
    folder = resources.files("fedmt.data")
    assert "Zalando" in folder.joinpath("FASHION_MNIST_LICENSE.txt").read_text()
    assert len(folder.joinpath("fashion_mnist.npz").read_bytes()) < 5_000_000
