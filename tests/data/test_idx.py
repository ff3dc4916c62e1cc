from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fedmt.core.errors import FedmtError
from fedmt.core.labels import LabelSpace
from fedmt.data import ImageOptions, read_idx, read_mnist_folder
from fedmt.data.sampleset import Split

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 5, 6), dtype=np.uint8)
LABELS = np.array([0, 2, 1, 2], dtype=np.uint8)
SPACE = LabelSpace("digit", ["zero", "one", "two"])
OPTIONS = ImageOptions()


def idx(array: npt.NDArray[Any]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    images, labels = tmp_path / "images", tmp_path / "labels"
    images.write_bytes(idx(IMAGES))
    labels.write_bytes(idx(LABELS))
    return images, labels


def test_round_trip(files: tuple[Path, Path]) -> None:
    found = read_idx(*files, OPTIONS, SPACE)
    assert torch.equal(found.images, torch.from_numpy(IMAGES)[:, None])
    assert found.labels["digit"].tolist() == LABELS.tolist() and found.labels["digit"].dtype == torch.int64
    assert found.spaces == {"digit": SPACE}
    assert read_idx(*files, OPTIONS).spaces["labels"].classes == ("0", "1", "2")
    assert read_idx(files[0], None, OPTIONS).labels == {}
    assert read_idx(*files, ImageOptions(size=(8, 8), channels=3), SPACE).images.shape == (4, 3, 8, 8)


@pytest.mark.parametrize("gzipped", [True, False])
def test_mnist_folder(tmp_path: Path, gzipped: bool) -> None:
    for prefix, count in (("train", 4), ("t10k", 2)):
        for name, array in (("images-idx3", IMAGES), ("labels-idx1", LABELS)):
            path, content = tmp_path / f"{prefix}-{name}-ubyte", idx(array[:count])
            if gzipped:
                path, content = path.with_name(f"{path.name}.gz"), gzip.compress(content)
            path.write_bytes(content)
    assert len(read_mnist_folder(tmp_path, "train", OPTIONS, SPACE)) == 4
    assert len(read_mnist_folder(tmp_path, "test", OPTIONS, SPACE)) == 2
    with pytest.raises(FedmtError, match="'val'; it is 'train' or 'test'"):
        read_mnist_folder(tmp_path, cast(Split, "val"), OPTIONS, SPACE)


def test_mnist_folder_without_the_files(tmp_path: Path) -> None:
    with pytest.raises(FedmtError, match=r"no 't10k-images-idx3-ubyte' or 't10k-images-idx3-ubyte\.gz'"):
        read_mnist_folder(tmp_path, "test", OPTIONS, SPACE)


# With mtime=0, the content, which is part of a test's name, is the same in every worker.
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not an IDX file of images"),
        (idx(LABELS), "begins with 00000801, expected 00000803"),
        (idx(IMAGES)[:10], "truncated within its header"),
        (idx(IMAGES)[:-1], "truncated: its header states 4 x 5 x 6 = 120 values, but it has 119"),
        (idx(IMAGES) + b"x", "too long"),
        (idx(IMAGES[:0]), "no images"),
        (gzip.compress(idx(IMAGES), mtime=0)[:-20], "truncated or damaged gzip"),
        (gzip.compress(idx(IMAGES), mtime=0)[:30] + bytes(60), "truncated or damaged gzip"),
    ],
)
def test_bad_images(files: tuple[Path, Path], content: bytes, said: str) -> None:
    files[0].write_bytes(content)
    with pytest.raises(FedmtError) as error:
        read_idx(*files, OPTIONS, SPACE)
    assert str(files[0]) in str(error.value) and said in str(error.value)


def test_bad_labels(files: tuple[Path, Path]) -> None:
    files[1].write_bytes(idx(LABELS[:3]))
    with pytest.raises(FedmtError, match=r"labels: 3 labels, but '.*images' has 4 images"):
        read_idx(*files, OPTIONS, SPACE)
    files[1].write_bytes(idx(np.array([0, 1, 3, 0], dtype=np.uint8)))
    with pytest.raises(FedmtError, match=r"label 3 is 3, outside label space 'digit', which has 3 classes"):
        read_idx(*files, OPTIONS, SPACE)
    files[1].unlink()
    with pytest.raises(FedmtError, match="labels cannot be read"):
        read_idx(*files, OPTIONS, SPACE)
