from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from fedmt.core.errors import FedmtError
from fedmt.data import ImageOptions
from fedmt.inputs.images import shaping
from fedmt.inputs.images.shaping import conform


def noise(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_as_stored_is_the_same_tensor() -> None:
    images = noise(3, 1, 5, 6)
    assert conform(images, ImageOptions(), "set") is images
    assert conform(images, ImageOptions(size=(5, 6), channels=1), "set") is images


def test_gray_to_rgb_repeats_and_comes_back() -> None:
    images = noise(3, 1, 5, 6)
    rgb = conform(images, ImageOptions(channels=3), "set")
    assert rgb.shape == (3, 3, 5, 6)
    assert all(torch.equal(rgb[:, c : c + 1], images) for c in range(3))
    assert torch.equal(conform(rgb, ImageOptions(channels=1), "set"), images)


def test_luma_is_pillows() -> None:
    image = noise(1, 3, 32, 32)
    expected = np.asarray(Image.fromarray(image[0].permute(1, 2, 0).numpy()).convert("L"))
    assert np.array_equal(conform(image, ImageOptions(channels=1), "set")[0, 0].numpy(), expected)


def test_resize_keeps_the_aspect_ratio_and_the_centre() -> None:
    image = torch.zeros(1, 1, 8, 24, dtype=torch.uint8)
    image[:, :, :, 8:16] = 200
    resized = conform(image, ImageOptions(size=(4, 4)), "set")
    assert resized.shape == (1, 1, 4, 4)
    assert (resized == 200).all()


def test_resize_in_chunks_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    images, options = noise(7, 3, 9, 12), ImageOptions(size=(5, 4), channels=1)
    whole = conform(images, options, "set")
    monkeypatch.setattr(shaping, "CHUNK_BYTES", 1)
    assert torch.equal(conform(images, options, "set"), whole)


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (torch.zeros(2, 1, 4, 4), "float32"),
        (torch.zeros(2, 2, 4, 4, dtype=torch.uint8), "(2, 2, 4, 4)"),
        (torch.zeros(0, 1, 4, 4, dtype=torch.uint8), "no images"),
    ],
)
def test_bad_images_are_errors(images: torch.Tensor, said: str) -> None:
    with pytest.raises(FedmtError) as error:
        conform(images, ImageOptions(), "here")
    assert "here" in str(error.value) and said in str(error.value)


def test_more_than_the_memory_limit_is_an_error() -> None:
    with pytest.raises(FedmtError, match=r"here.*memory limit.*images.size"):
        conform(noise(2, 1, 4, 4), ImageOptions(size=(8, 8), memory_limit=100), "here")


def test_bad_options_are_errors() -> None:
    with pytest.raises(FedmtError, match="channels must be 1"):
        ImageOptions(channels=2)
    with pytest.raises(FedmtError, match="height, width"):
        ImageOptions(size=(0, 4))


def test_more_than_the_memory_limit_goes_to_the_cache(tmp_path, monkeypatch) -> None:
    images = noise(5, 3, 6, 4)
    expected = conform(images, ImageOptions(size=(9, 9), channels=1), "here")
    options = ImageOptions(size=(9, 9), channels=1, cache=tmp_path / "cache", memory_limit=100)
    assert torch.equal(conform(images, options, "here"), expected)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    # A second call without resizing finds the same images, but no others.
    monkeypatch.setattr("fedmt.inputs.images.shaping._fit", None)
    assert torch.equal(conform(images, options, "here"), expected)
    with pytest.raises(TypeError):
        conform(255 - images, options, "here")
