from __future__ import annotations

import io
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedmt.core.errors import FedmtError
from fedmt.core.labels import LabelSpace
from fedmt.data import ImageOptions, SampleSet, read_npz
from fedmt.inputs.vectors.reading import archive_arrays

RGB = np.random.default_rng(0).integers(0, 256, (3, 5, 6, 3), dtype=np.uint8)
GRAY = RGB[..., 0]
SPACE = LabelSpace("triage", ["urgent", "routine"])


def read(folder: Path, space: LabelSpace | None = None, **arrays: Any) -> SampleSet:
    np.savez(folder / "set.npz", **arrays)
    return read_npz(folder / "set.npz", ImageOptions(), space)


def error_of(folder: Path, space: LabelSpace | None = None, **arrays: Any) -> str:
    with pytest.raises(FedmtError) as error:
        read(folder, space, **arrays)
    assert "set.npz" in str(error.value)
    return str(error.value)


def test_layouts(tmp_path: Path) -> None:
    expected = torch.from_numpy(RGB).permute(0, 3, 1, 2)
    assert torch.equal(read(tmp_path, images=RGB).images, expected)
    assert torch.equal(read(tmp_path, images=RGB.transpose(0, 3, 1, 2)).images, expected)
    assert torch.equal(read(tmp_path, images=np.asfortranarray(GRAY)).images, expected[:, :1])
    assert torch.equal(read(tmp_path, images=GRAY[..., None]).images, expected[:, :1])
    assert read(tmp_path, images=RGB).labels == {}


def test_labels(tmp_path: Path) -> None:
    text = np.array(["urgent", "routine", "urgent"])
    for labels in (text, text.astype(bytes)):
        inferred = read(tmp_path, images=GRAY, labels=labels)
        assert inferred.spaces["labels"].classes == ("routine", "urgent")
        assert inferred.labels["labels"].tolist() == [1, 0, 1]
        assert read(tmp_path, SPACE, images=GRAY, labels=labels).labels["triage"].tolist() == [0, 1, 0]
    classes = ["routine", "none", "urgent"]
    numbers: dict[str, Any] = {"labels": np.array([2, 0, 2], np.uint8), "classes": classes}
    inferred = read(tmp_path, images=GRAY, **numbers)
    assert inferred.spaces["labels"].classes == ("routine", "none", "urgent")
    assert inferred.labels["labels"].tolist() == [2, 0, 2]
    assert read(tmp_path, SPACE, images=GRAY, **numbers).labels["triage"].tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"pictures": GRAY}, "no array 'images'"),
        ({"images": GRAY.astype(np.float32)}, "float32; expected uint8"),
        ({"images": np.zeros((2, 3, 5, 3), np.uint8)}, "could be"),
        ({"images": np.zeros((2, 5, 5, 4), np.uint8)}, "(2, 5, 5, 4)"),
        ({"images": np.zeros((2, 5), np.uint8)}, "(2, 5)"),
        ({"images": np.zeros((0, 5, 5), np.uint8)}, "no images"),
        ({"images": GRAY, "labels": ["urgent"]}, "3 images but 'labels' of shape (1,)"),
        ({"images": GRAY, "labels": [0, 1, 2]}, "'classes' must name them"),
        ({"images": GRAY, "labels": [0, 1, 2], "classes": ["a", "b"]}, "labels[2] is 2"),
        ({"images": GRAY, "labels": [0, -1, 1], "classes": ["a", "b"]}, "labels[1] is -1"),
        ({"images": GRAY, "labels": [0, 1, 1], "classes": [1, 2]}, "expected a list of names"),
        ({"images": GRAY, "labels": [0.0, 1.0, 1.0]}, "float64"),
        ({"images": GRAY, "labels": np.array(["a", None, 1], object)}, "Python objects"),
    ],
)
def test_bad_arrays(tmp_path: Path, arrays: dict[str, Any], said: str) -> None:
    assert said in error_of(tmp_path, **arrays)


def test_label_outside_the_space(tmp_path: Path) -> None:
    message = error_of(tmp_path, SPACE, images=GRAY, labels=["urgent", "routin", "urgent"])
    assert "labels[1]: label 'routin'" in message and "Did you mean 'routine'" in message


def test_bad_files(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "set.npz", images=RGB)
    whole = (tmp_path / "set.npz").read_bytes()
    damaged = bytearray(whole)
    damaged[100:140] = bytes(40)
    for content in (b"", b"text", whole[: len(whole) // 2], bytes(damaged)):
        (tmp_path / "bad.npz").write_bytes(content)
        with pytest.raises(FedmtError, match=r"bad\.npz: the archive cannot be read"):
            read_npz(tmp_path / "bad.npz", ImageOptions())
    with pytest.raises(FedmtError, match=r"absent\.npz: this file does not exist"):
        read_npz(tmp_path / "absent.npz", ImageOptions())
    np.save(tmp_path / "single.npy", GRAY)
    with pytest.raises(FedmtError, match="a single array"):
        read_npz(tmp_path / "single.npy", ImageOptions())


def test_an_archive_that_unpacks_to_more_than_the_limit_is_not_unpacked(tmp_path: Path) -> None:
    """A few kilobytes unpack to 64 MiB of zeros. The archive's directory is enough to reject it."""
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, images=np.zeros((1024, 256, 256), np.uint8), labels=["a"] * 1024)
    assert path.stat().st_size < 200_000
    tracemalloc.start()
    with pytest.raises(FedmtError, match=r"bomb.npz: its arrays unpack to 0.0\d+ GiB.*memory_limit_gib"):
        read_npz(path, ImageOptions(memory_limit=2**20))
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    assert len(read_npz(path, ImageOptions(memory_limit=2**27)).samples) == 1024
    # Vectors have no limit of their own, but a compression ratio that no real data has is rejected.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedmt.inputs.archives.LIMIT", 2**20)
        with pytest.raises(FedmtError, match="more than the memory limit"):
            archive_arrays(path, "images")


def test_a_header_that_speaks_of_more_than_there_is(tmp_path: Path) -> None:
    """NumPy would allocate the size that the array's header states, here 2 TiB."""
    path = tmp_path / "lying.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (2**41,)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", header.getvalue() + bytes(100))
    for read_it in (lambda: read_npz(path, ImageOptions()), lambda: archive_arrays(path, "images")):
        with pytest.raises(FedmtError, match=r"array 'images' should have shape .* holds only 100 bytes"):
            read_it()


def test_labels_with_decomposed_accents_are_their_class(tmp_path: Path) -> None:
    composed, decomposed = "n\u00e4vus", "na\u0308vus"
    arrays = {"images": GRAY, "labels": [decomposed, composed, "wart"]}
    assert read(tmp_path, **arrays).spaces["labels"].classes == (composed, "wart")
    space = LabelSpace("diagnosis", ["wart", composed])
    assert read(tmp_path, space, **arrays).labels["diagnosis"].tolist() == [1, 1, 0]


def test_all_labels_outside_the_space_are_named(tmp_path: Path) -> None:
    message = error_of(tmp_path, SPACE, images=GRAY, labels=["urgent", "routin", "urgend"])
    assert message.startswith("2 problems:\n") and "labels[1]" in message and "labels[2]" in message
