"""Fitzpatrick 17k from its table and the available images, all created here in the real layout."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from PIL import Image

from fedmt.core.errors import FedmtError
from fedmt.data import ImageOptions, SampleSet, read_fitzpatrick17k
from fedmt.data.sources.fitzpatrick17k import NINE, THREE

HEADER = [
    "md5hash", "fitzpatrick_scale", "fitzpatrick_centaur", "label",
    "nine_partition_label", "three_partition_label", "qc", "url", "url_alphanum",
]  # fmt: skip
BROAD = {"benign": "benign", "malignant": "malignant"}


def row(md5: str, nine: str, three: str | None = None) -> list[str]:
    """A line as in the public table."""
    three = BROAD.get(nine.split(" ")[0], "non-neoplastic") if three is None else three
    return [
        md5,
        "3",
        "3",
        "some condition",
        nine,
        three,
        "",
        f"https://atlas/{md5}.jpg",
        f"atlas{md5}jpg.jpg",
    ]


def picture(path: Path, shade: int = 90) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 8), (shade, shade, shade)).save(path)


ROWS = [
    row("dd", "malignant melanoma"),
    row("bb", "inflammatory"),
    row("cc", "benign dermal"),
    row("aa", "inflammatory"),
]


def write(folder: Path, rows: list[list[str]], header: list[str] = HEADER) -> None:
    with (folder / "fitzpatrick17k.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, ROWS)
    for i, md5 in enumerate(("dd", "bb", "cc", "aa")):
        picture(tmp_path / "images" / f"{md5}.jpg", 10 + 20 * i)
    return tmp_path


def read(path: Path, root: Path | None = None) -> SampleSet:
    return read_fitzpatrick17k(path, ImageOptions((8, 8)), root)


def error_of(path: Path, root: Path | None = None) -> str:
    with pytest.raises(FedmtError) as error:
        read(path, root)
    return str(error.value)


def test_all_images_are_there(folder):
    for path in (folder, folder / "fitzpatrick17k.csv"):
        found = read(path)
        assert found.images.shape == (4, 3, 8, 8) and found.notes == ()
        assert found.images[:, 0, 0, 0].tolist() == pytest.approx([10, 30, 50, 70], abs=2)
        assert [NINE.classes[k] for k in found.labels["nine"]] == [r[4] for r in ROWS]
        assert [THREE.classes[k] for k in found.labels["three"]] == [r[5] for r in ROWS]
        assert (found.spaces["nine"], found.spaces["three"]) == (NINE, THREE)
    assert list(NINE) == sorted(NINE) and len(NINE) == 9 and list(THREE) == sorted(THREE)


def test_missing_images_are_counted_by_class(folder):
    write(folder, [*ROWS, *(row(f"e{i}", "inflammatory") for i in range(1200)), row("f", "genodermatoses")])
    (folder / "images" / "aa.jpg").unlink()
    found = read(folder)
    assert len(found) == 3 and found.labels["nine"].tolist() == [8, 4, 0]
    (note,) = found.notes
    assert "1,202 of 1,205 images are missing; 3 used" in note
    assert "inflammatory 1 of 1,202" in note and "genodermatoses 0 of 1" in note
    assert "benign epidermal" not in note  # the table has no such image


def test_other_formats_depths_and_folders(folder):
    (folder / "images" / "dd.jpg").rename(folder / "images" / "dd.JPG")
    (folder / "images" / "bb.jpg").unlink()
    picture(folder / "images" / "atlas" / "bb.png", 200)
    picture(folder / "images" / "zz.png")  # not in the table, so it is ignored
    (folder / "images").rename(folder / "elsewhere")
    found = read(folder, folder / "elsewhere")
    assert found.notes == () and found.images[:, 0, 0, 0].tolist() == pytest.approx([10, 200, 50, 70], abs=2)
    message = error_of(folder)
    assert str(folder / "images") in message and "does not exist" in message and "root" in message


def test_lines_without_a_label_and_repeated_lines_are_left_out_and_counted(folder):
    write(folder, [*ROWS, row("bb", "inflammatory"), row("gg", ""), row("hh", "inflammatory", "")])
    found = read(folder)
    assert len(found) == 4
    unlabeled, repeated = found.notes
    assert "2 lines" in unlabeled and "without a label" in unlabeled
    assert "1 lines" in repeated and "repeat" in repeated


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            row("gg", "malignant melanomas"),
            ["line 6", "'malignant melanomas'", "Did you mean 'malignant mel"],
        ),
        (row("gg", "inflammatory", "none"), ["line 6", "'none'", "'three'"]),
        (row("bb", "genodermatoses"), ["line 6", "bb", "line 3"]),
        (row("", "inflammatory"), ["line 6", "md5hash", "empty"]),
        (["gg", "inflammatory"], ["line 6", "2 cells"]),
    ],
)
def test_bad_lines(folder, more, said):
    write(folder, [*ROWS, more])
    message = error_of(folder)
    assert "fitzpatrick17k.csv" in message and all(part in message for part in said), message


def test_a_table_without_the_columns(folder):
    write(folder, [["aa", "inflammatory"]], ["md5hash", "nine_partition_lable"])
    message = error_of(folder)
    assert "fitzpatrick17k.csv, line 1: no column 'nine_partition_label'" in message
    assert "Did you mean 'nine_partition_lable'?" in message


def test_a_damaged_image_names_its_file_and_line(folder):
    path = folder / "images" / "cc.jpg"
    path.write_bytes(path.read_bytes()[:-300])
    message = error_of(folder)
    assert "fitzpatrick17k.csv, line 4" in message and "cc.jpg" in message


def test_nothing_to_read(folder):
    write(folder, [])
    assert "no labeled images" in error_of(folder)
    write(folder, [row("xx", "inflammatory")])
    message = error_of(folder)
    assert "none of its 4 images" in message and "lists 1" in message and "<md5hash>.jpg" in message
    for file in (folder / "images").iterdir():
        file.unlink()
    assert "no images in this folder" in error_of(folder)
    message = error_of(folder / "images")
    assert "no such table" in message and "fitzpatrick17k.csv" in message
