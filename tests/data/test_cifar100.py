from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from fedmt.core.errors import FedmtError
from fedmt.data import ImageOptions, cifar100_correspondence, read_cifar100
from fedmt.data.sampleset import Split

DATA = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)
RECORD: dict[str, Any] = {
    "data": DATA,
    "fine_labels": [0, 1, 2, 0],
    "coarse_labels": [1, 0, 0, 1],
    "filenames": ["a.png", "b.png", "c.png", "d.png"],
}
META = {"fine_label_names": ["apple", "bear", "wolf"], "coarse_label_names": ["animals", "fruit"]}


def write(
    folder: Path, record: object = RECORD, meta: object = META, protocol: int = 2, split: str = "train"
) -> None:
    folder = folder / "cifar-100-python"
    folder.mkdir(exist_ok=True)
    (folder / split).write_bytes(pickle.dumps(record, protocol=protocol))
    (folder / "meta").write_bytes(pickle.dumps(meta, protocol=protocol))


def error_of(folder: Path) -> str:
    with pytest.raises(FedmtError) as error:
        read_cifar100(folder, "train")
    assert str(folder) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("parent", [True, False])
def test_round_trip(tmp_path: Path, protocol: int, parent: bool) -> None:
    write(tmp_path, protocol=protocol)
    found = read_cifar100(tmp_path if parent else tmp_path / "cifar-100-python", "train")
    assert torch.equal(found.images, torch.from_numpy(DATA).reshape(4, 3, 32, 32))
    assert found.labels["fine"].tolist() == RECORD["fine_labels"]
    assert found.labels["coarse"].tolist() == RECORD["coarse_labels"]
    assert found.spaces["fine"].classes == ("apple", "bear", "wolf")
    correspondence = cifar100_correspondence(found)
    assert correspondence.matrix.tolist() == [[0, 1, 1], [1, 0, 0]]


def python2(value: object) -> bytes:
    """The opcodes with which Python 2 writes `value`. Its strings are bytes, in BINSTRING."""
    if isinstance(value, str | bytes):
        text = value.encode() if isinstance(value, str) else value
        return b"T" + len(text).to_bytes(4, "little") + text
    if isinstance(value, np.ndarray):
        # numpy.core.multiarray._reconstruct(ndarray, (0,), 'b'), then its state with dtype('u1', 0, 1)
        dtype = b"cnumpy\ndtype\n(" + python2("u1") + b"K\x00K\x01tR"
        dtype += b"(K\x03" + python2("|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        shape = b"(" + b"".join(b"M" + n.to_bytes(2, "little") for n in value.shape) + b"t"
        state = b"(K\x01" + shape + dtype + b"\x89" + python2(value.tobytes()) + b"t"
        made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + python2("b") + b"tR"
        return made + state + b"b"
    if isinstance(value, dict):
        return b"}(" + b"".join(python2(k) + python2(v) for k, v in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(python2, value)) + b"e"
    return pickle.dumps(value, protocol=2)[2:-1]


def test_files_of_python_2_as_in_the_original_archive(tmp_path: Path) -> None:
    write(tmp_path)
    for name, value in (("train", RECORD), ("meta", META)):
        (tmp_path / "cifar-100-python" / name).write_bytes(b"\x80\x02" + python2(value) + b".")
    found = read_cifar100(tmp_path, "train")
    assert torch.equal(found.images, torch.from_numpy(DATA).reshape(4, 3, 32, 32))
    assert found.labels["fine"].tolist() == RECORD["fine_labels"]
    assert found.spaces["coarse"].classes == ("animals", "fruit")


def test_keys_and_names_as_bytes(tmp_path: Path) -> None:
    record = {key.encode(): value for key, value in RECORD.items()}
    meta = {key.encode(): [name.encode() for name in names] for key, names in META.items()}
    write(tmp_path, record, meta)
    assert read_cifar100(tmp_path, "train").spaces["fine"].classes == ("apple", "bear", "wolf")


def test_options(tmp_path: Path) -> None:
    write(tmp_path, split="test")
    assert read_cifar100(tmp_path, "test", ImageOptions((8, 8), 1)).images.shape == (4, 1, 8, 8)


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


class Evaluates:
    def __reduce__(self) -> Any:
        return eval, ("1 / 0",)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_malicious_pickle_is_refused_without_running(tmp_path: Path, protocol: int) -> None:
    trap = tmp_path / "ran"
    write(tmp_path, {**RECORD, "extra": Malicious(trap)}, protocol=protocol)
    assert "refused to load" in error_of(tmp_path)
    assert not trap.exists()
    write(tmp_path, {**RECORD, "extra": Evaluates()}, protocol=protocol)
    message = error_of(tmp_path)
    assert "eval" in message and "refused to load" in message
    write(tmp_path, meta={**META, "extra": Evaluates()}, protocol=protocol)
    assert "meta" in error_of(tmp_path)


def test_arrays_of_objects_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {**RECORD, "data": np.array([None, {}], dtype=object)})
    assert "refused to load an array of type 'O" in error_of(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data": DATA[:, :100]}, "uint8 (4, 100); expected uint8 [N, 3072]"),
        ({"data": [1, 2]}, "'data' is list"),
        ({"fine_labels": [0, 1, 2]}, "4 images but 'fine_labels' of shape (3,)"),
        ({"fine_labels": [0, 1, 2, 3]}, "fine_labels[3] is 3, but 'fine' has 3 classes"),
        ({"coarse_labels": ["a", "b", "c", "d"]}, "'coarse_labels' is not a list of integers"),
    ],
)
def test_bad_records(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    write(tmp_path, {**RECORD, **change})
    message = error_of(tmp_path)
    assert "train" in message and said in message


def test_other_bad_files(tmp_path: Path) -> None:
    assert "there is no file 'train'" in error_of(tmp_path)
    write(tmp_path, {"data": DATA, "labels": [0, 1, 2, 0]})
    assert "no entry 'fine_labels'" in error_of(tmp_path)
    write(tmp_path, [1])
    assert "contains a list" in error_of(tmp_path)
    write(tmp_path, meta={**META, "fine_label_names": 3})
    assert "'fine_label_names' is a int" in error_of(tmp_path)
    write(tmp_path)
    train = tmp_path / "cifar-100-python" / "train"
    for content in (b"", b"text", train.read_bytes()[:500]):
        train.write_bytes(content)
        assert "truncated or damaged" in error_of(tmp_path)
    write(tmp_path)
    (tmp_path / "cifar-100-python" / "meta").unlink()
    assert "meta: it cannot be read" in error_of(tmp_path)
    with pytest.raises(FedmtError, match="no split 'val'"):
        read_cifar100(tmp_path, cast(Split, "val"))


def test_a_fine_class_with_two_coarse_ones(tmp_path: Path) -> None:
    write(tmp_path, {**RECORD, "coarse_labels": [1, 0, 0, 0]})
    with pytest.raises(FedmtError, match=r"'apple' are labeled both 'animals' and 'fruit'"):
        cifar100_correspondence(read_cifar100(tmp_path, "train"))


def test_a_fine_class_without_images(tmp_path: Path) -> None:
    write(tmp_path, {**RECORD, "fine_labels": [0, 1, 1, 0]})
    with pytest.raises(FedmtError, match=r"no entry for 'wolf'"):
        cifar100_correspondence(read_cifar100(tmp_path, "train"))
