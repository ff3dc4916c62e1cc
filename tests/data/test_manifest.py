from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedmt.core.errors import FedmtError
from fedmt.core.labels import LabelSpace
from fedmt.data import ImageOptions, SampleSet, read_manifest

SPACE = LabelSpace("diagnosis", ["nevus", "melanoma"])


@pytest.fixture(autouse=True)
def pictures(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name, shade in (("a", 10), ("b", 20)):
        Image.new("L", (4, 4), shade).save(tmp_path / "images" / f"{name}.png")


def read(folder: Path, text: str | bytes, **options: Any) -> SampleSet:
    table = folder / "berlin.csv"
    table.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_manifest(table, ImageOptions(), **options)


def error_of(folder: Path, text: str | bytes, **options: Any) -> str:
    with pytest.raises(FedmtError) as error:
        read(folder, text, **options)
    return str(error.value)


def test_round_trip(tmp_path: Path) -> None:
    absolute = tmp_path / "images" / "a.png"
    text = f"\ufefflabel, image ,age\r\nnevus,images/b.png,40\r\n\r\nmelanoma,{absolute},50\r\n"
    found = read(tmp_path, text)
    assert found.images[:, 0, 0, 0].tolist() == [20, 10]
    assert found.spaces["labels"].classes == ("melanoma", "nevus")
    assert found.labels["labels"].tolist() == [1, 0]
    assert read(tmp_path, text, space=SPACE).labels["diagnosis"].tolist() == [0, 1]


def test_other_columns_root_and_unlabeled(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "file,triage\na.png,urgent\n",
        image_column="file",
        label_column="triage",
        root=tmp_path / "images",
        space_name="triage",
    )
    assert found.spaces["triage"].classes == ("urgent",)
    unlabeled = read(tmp_path, "image\nimages/a.png\n", label_column=None)
    assert (len(unlabeled), unlabeled.labels, unlabeled.spaces) == (1, {}, {})


def test_unknown_label_names_the_physical_line(tmp_path: Path) -> None:
    text = 'image,label,note\nimages/a.png,nevus,"two\nlines"\n\nimages/b.png,melanom,\n'
    message = error_of(tmp_path, text, space=SPACE)
    assert "berlin.csv, line 5: label 'melanom'" in message and "Did you mean 'melanoma'" in message


def test_missing_image_names_the_line(tmp_path: Path) -> None:
    message = error_of(tmp_path, "image,label\nimages/a.png,nevus\nimages/c.png,nevus\n")
    assert "berlin.csv, line 3" in message and "c.png" in message and "no such file" in message


def test_damaged_image_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "images" / "b.png").write_text("damaged")
    assert "berlin.csv, line 2" in error_of(tmp_path, "image,label\nimages/b.png,nevus\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("images,label\n", "line 1: no column 'image'; the columns are 'images', 'label'. Did you mean"),
        ("image;label\n", "the cells are separated by semicolons. Save the table with commas instead."),
        ("image;size;label\nimages/a.png;1,5;nevus\n", "the cells are separated by semicolons."),
        ("image,label,label\n", "several columns are called 'label'"),
        ("", "no header; expected the names of the columns on line 1"),
        ("image,label\n", "no images"),
        ("image,label\nimages/a.png\n", "line 2: 1 cells, expected 2"),
        ("image,label\nimages/a.png,nevus,late, stage\n", "double quotes"),
        ("image,label\nimages/a.png, \n", "line 2: the column 'label' is empty"),
        ("image,label\n,nevus\n", "line 2: the column 'image' is empty"),
        (b"image,label\na.png,n\xe6vus\n", "UTF-8"),
        ("image,label\n" + "x" * 200_000, "line 2: a cell has more than 131,072 characters. Shorten it, or"),
        (
            'image,label\nimages/a.png,nevus\n\nimages/a.png,"nevus\nimages/b.png,nevus\n',
            "line 4: a cell begins with a double quote, but does not end with one (unexpected end of data).",
        ),
    ],
)
def test_bad_tables(tmp_path: Path, text: str | bytes, said: str) -> None:
    message = error_of(tmp_path, text)
    assert "berlin.csv" in message and said in message


def test_no_table(tmp_path: Path) -> None:
    with pytest.raises(FedmtError, match=r"absent\.csv: the table cannot be read"):
        read_manifest(tmp_path / "absent.csv", ImageOptions())


def test_labels_with_decomposed_accents_are_their_class(tmp_path: Path) -> None:
    text = "image,label\nimages/a.png,Na\u0308vus\nimages/b.png,N\u00e4vus\n"
    assert read(tmp_path, text).spaces["labels"].classes == ("N\u00e4vus",)
    space = LabelSpace("diagnosis", ["wart", "N\u00e4vus"])
    assert read(tmp_path, text, space=space).labels["diagnosis"].tolist() == [1, 1]


def test_all_missing_images_and_unknown_labels_are_named(tmp_path: Path) -> None:
    lines = [f"images/{i}.png,nevus\n" for i in range(14)]
    message = error_of(tmp_path, "image,label\n" + "".join([*lines, "images/a.png,nevus\n"]))
    assert message.startswith("14 problems:\n  ") and message.endswith("\n  and 4 more.")
    assert [f"berlin.csv, line {i}:" in message for i in range(2, 14)] == [True] * 10 + [False] * 2

    text = "image,label\nimages/a.png,nevi\nimages/b.png,nevi\nimages/b.png,melanom\n"
    message = error_of(tmp_path, text, space=SPACE)
    assert message.startswith("2 problems:\n")  # each label is named with its first line
    assert "line 2: label 'nevi'" in message and "line 4: label 'melanom'" in message


def test_an_image_with_two_labels_names_both_lines(tmp_path: Path) -> None:
    text = "image,label\nimages/a.png,nevus\nimages/b.png,nevus\nimages/../images/a.png,melanoma\n"
    for space in (None, SPACE):
        message = error_of(tmp_path, text, space=space)
        assert "berlin.csv, line 4: image" in message and "a.png' has the label 'melanoma'" in message
        assert "'nevus' on line 2; remove one of the two lines" in message
    assert len(read(tmp_path, text, label_column=None)) == 3  # labels that are not requested


@pytest.mark.parametrize("label_column", ["label", None])
def test_images_listed_again_are_counted(tmp_path: Path, label_column: str | None) -> None:
    text = "image,label\nimages/a.png,nevus\nimages/b.png,nevus\n"
    assert read(tmp_path, text, label_column=label_column).notes == ()
    found = read(tmp_path, text + "images/a.png,nevus\n", label_column=label_column)
    said = "1 line repeats an image listed above, which then counts again. Remove unintended repetitions."
    assert len(found) == 3 and found.notes == (f"{tmp_path / 'berlin.csv'}: {said}",)
    again = read(tmp_path, text + 2 * "images/a.png,nevus\n", label_column=label_column)
    assert "2 lines repeat an image" in again.notes[0]


@pytest.mark.parametrize("label_column", ["label", None])
def test_twelve_bit_images_are_noted(tmp_path: Path, label_column: str | None) -> None:
    Image.fromarray(np.full((4, 4), 4095, dtype=np.uint16)).save(tmp_path / "images" / "a.png")
    [note] = read(tmp_path, "image,label\nimages/a.png,nevus\n", label_column=label_column).notes
    assert "berlin.csv: its 16-bit images only use values up to 4095" in note


def test_paths_from_windows_are_found(tmp_path: Path) -> None:
    assert len(read(tmp_path, "image,label\nimages\\a.png,nevus\n.\\images\\b.png,wart\n")) == 2


def test_a_name_alone_is_found_below_where_there_is_one_file_of_it(tmp_path: Path) -> None:
    for place in ("a/1.png", "a/deep/2.png", "b/3.png", "a/4.png", "b/4.png"):
        (tmp_path / "all" / place).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), len(place)).save(tmp_path / "all" / place)
    (tmp_path / "t.csv").write_text("image,label\n1.png,x\n2.png,y\nb/3.png,x\n")
    whole = read_manifest(tmp_path / "t.csv", ImageOptions(), root=tmp_path / "all")
    (tmp_path / "u.csv").write_text("image,label\na/1.png,x\na/deep/2.png,y\nb/3.png,x\n")
    spelled = read_manifest(tmp_path / "u.csv", ImageOptions(), root=tmp_path / "all")
    assert torch.equal(whole.samples, spelled.samples)
    (tmp_path / "t.csv").write_text("image,label\n1.png,x\n4.png,y\n")
    with pytest.raises(FedmtError, match=r"t.csv, line 3: cannot read image '.*4.png'"):
        read_manifest(tmp_path / "t.csv", ImageOptions())
    with pytest.raises(FedmtError, match=r"none of its 2 images is in .*nowhere; the first is '1.png'"):
        read_manifest(tmp_path / "t.csv", ImageOptions(), root=tmp_path / "nowhere")
