from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from fedmt.commands import predicting
from fedmt.core.errors import FedmtError
from fedmt.core.labels import LabelSpace
from fedmt.data import ImageOptions, read_folder
from fedmt.inputs.images import Images
from fedmt.inputs.images.asking import find_files

OPTIONS = ImageOptions()
SPACE = LabelSpace("diagnosis", ["nevus", "melanoma", "wart"])


def write(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4), shade).save(path)


def error_of(path: Path, space: LabelSpace | None = None, labeled: bool = True) -> str:
    with pytest.raises(FedmtError) as error:
        read_folder(path, OPTIONS, space, labeled=labeled)
    return str(error.value)


def test_class_folders_in_sorted_order(tmp_path: Path) -> None:
    write(tmp_path / "nevus" / "b.png", 30)
    write(tmp_path / "nevus" / "a.PNG", 20)
    write(tmp_path / "melanoma" / "deeper" / "c.png", 10)
    write(tmp_path / "nevus" / ".hidden.png")
    write(tmp_path / ".hidden" / "d.png")
    (tmp_path / "nevus" / "notes.txt").write_text("not an image")
    (tmp_path / "README.md").write_text("not an image")

    inferred = read_folder(tmp_path, OPTIONS, space_name="mine")
    assert inferred.spaces == {"mine": LabelSpace("mine", ["melanoma", "nevus"])}
    assert inferred.labels["mine"].tolist() == [0, 1, 1]
    assert inferred.images[:, 0, 0, 0].tolist() == [10, 20, 30]

    given = read_folder(tmp_path, OPTIONS, SPACE)
    assert given.spaces == {"diagnosis": SPACE}
    assert given.labels["diagnosis"].tolist() == [1, 0, 0]

    unlabeled = read_folder(tmp_path, OPTIONS, labeled=False)
    assert (len(unlabeled), unlabeled.labels, unlabeled.spaces) == (3, {}, {})


def test_folder_outside_the_space_is_named_with_the_nearest(tmp_path: Path) -> None:
    write(tmp_path / "melanom" / "a.png")
    message = error_of(tmp_path, SPACE)
    assert str(tmp_path) in message and "'melanom'" in message and "Did you mean 'melanoma'" in message


def test_empty_folders_that_are_no_class_are_skipped(tmp_path: Path) -> None:
    """An unpacked archive has __MACOSX. With an image in it, the folder could be a misspelled class."""
    for name in ("nevus", "__MACOSX"):
        (tmp_path / name).mkdir()
    Image.new("L", (4, 4)).save(tmp_path / "nevus" / "a.png")
    (tmp_path / "__MACOSX" / "._a.png").write_bytes(b"")
    space = LabelSpace("diagnosis", ["melanoma", "nevus"])
    found = read_folder(tmp_path, ImageOptions(), space)
    assert found.labels["diagnosis"].tolist() == [1]
    assert found.notes == (f"{tmp_path}: folders without images that are no class were skipped: '__MACOSX'.",)
    Image.new("L", (4, 4)).save(tmp_path / "__MACOSX" / "b.png")
    with pytest.raises(FedmtError, match=r"class folder '__MACOSX': label '__MACOSX' is not in"):
        read_folder(tmp_path, ImageOptions(), space)


def test_no_class_folders(tmp_path: Path) -> None:
    write(tmp_path / "a.png")
    message = error_of(tmp_path)
    assert "no class folders" in message and "do not name a label space" in message
    assert len(read_folder(tmp_path, OPTIONS, labeled=False)) == 1


def test_image_beside_the_class_folders(tmp_path: Path) -> None:
    write(tmp_path / "nevus" / "a.png")
    write(tmp_path / "stray.png")
    assert "'stray.png'" in error_of(tmp_path)


@pytest.mark.parametrize("labeled", [True, False])
def test_no_images(tmp_path: Path, labeled: bool) -> None:
    (tmp_path / "nevus").mkdir()
    message = error_of(tmp_path, labeled=labeled)
    assert str(tmp_path) in message and "no images" in message and ".jpeg" in message


def test_not_a_folder(tmp_path: Path) -> None:
    assert "does not exist" in error_of(tmp_path / "absent")
    (tmp_path / "file").touch()
    assert "is not a folder" in error_of(tmp_path / "file")


def test_damaged_image_names_file_and_class(tmp_path: Path) -> None:
    (tmp_path / "nevus").mkdir()
    (tmp_path / "nevus" / "a.png").write_text("damaged")
    message = error_of(tmp_path)
    assert "class 'nevus'" in message and "a.png" in message


def test_a_class_folder_with_decomposed_accents_is_its_class(tmp_path: Path) -> None:
    """One folder has the name as a Mac writes it, and another has the same name as other systems write it."""
    write(tmp_path / "Na\u0308vus" / "a.png")
    write(tmp_path / "N\u00e4vus" / "b.png")
    write(tmp_path / "wart" / "c.png")
    space = LabelSpace("diagnosis", ["wart", "N\u00e4vus"])
    assert read_folder(tmp_path, OPTIONS, space).labels["diagnosis"].tolist() == [1, 1, 0]
    inferred = read_folder(tmp_path, OPTIONS)
    assert inferred.spaces["labels"].classes == ("N\u00e4vus", "wart")
    assert inferred.labels["labels"].tolist() == [0, 0, 1]


def test_all_folders_outside_the_space_are_named(tmp_path: Path) -> None:
    for name in ("melanom", "nevi", "wart"):
        write(tmp_path / name / "a.png")
    message = error_of(tmp_path, SPACE)
    assert message.startswith("2 problems:\n") and "'melanom'" in message and "'nevi'" in message


@pytest.mark.parametrize("labeled", [True, False])
def test_files_of_other_kinds_are_counted(tmp_path: Path, labeled: bool) -> None:
    write(tmp_path / "nevus" / "a.png")
    assert read_folder(tmp_path, OPTIONS, labeled=labeled).notes == ()
    (tmp_path / "stray.nii").touch()
    (tmp_path / "nevus" / ".hidden.nii").touch()
    kind = "1 file of another kind was skipped (.nii)."
    said = f"{kind} If any of them are images, convert them, for example to PNG."
    assert read_folder(tmp_path, OPTIONS, labeled=labeled).notes == (f"{tmp_path}: {said}",)
    (tmp_path / "nevus" / "more").mkdir()
    for name in ("b.jp2", "more/c.NII", "more/IM0001"):
        (tmp_path / "nevus" / name).touch()
    [note] = read_folder(tmp_path, OPTIONS, labeled=labeled).notes
    assert "4 files of other kinds were skipped (.nii, no ending, .jp2)" in note
    for number in range(10):
        (tmp_path / "nevus" / f"1.2.840.{number}").touch()
    assert "14 files" in (note := read_folder(tmp_path, OPTIONS, labeled=labeled).notes[0])
    assert "…" in note and len(note) < len(str(tmp_path)) + 160


@pytest.mark.parametrize("labeled", [True, False])
def test_a_folder_of_other_kinds_alone_says_so(tmp_path: Path, labeled: bool) -> None:
    (tmp_path / "nevus").mkdir()
    (tmp_path / "nevus" / "a.nii").touch()
    message = error_of(tmp_path, labeled=labeled)
    assert "no images" in message and message.endswith("for example to PNG.") and "(.nii)" in message


def test_what_predict_passes_over_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`predict` lists folders with the same function."""
    write(tmp_path / "a.png")
    (tmp_path / "b.nii").touch()
    notes: list[str] = []
    assert [file.path.name for file in find_files([tmp_path], notes=notes)] == ["a.png"]
    assert len(notes) == 1 and notes[0].startswith(f"{tmp_path}: 1 file of another kind")
    assert len(find_files([tmp_path, tmp_path / "b.nii"])) == 2
    model = SimpleNamespace(spaces=["s"], classes=lambda s: ["a"], calibrated=lambda s: True, finished=True)
    model.input, model.prior = Images((1, 8, 8)), None
    monkeypatch.setattr(predicting, "load", lambda run, device, allow: model)
    monkeypatch.setattr(predicting, "predict_files", lambda *_: iter([predicting.Row("a.png", [("a", 1.0)])]))
    said = io.StringIO()
    console = Console(file=said, width=1000)
    predicting.command_line(
        tmp_path, [tmp_path], None, 1, None, None, "image", None, "cpu", io.StringIO(), console
    )
    assert said.getvalue() == f"Note: {notes[0]}\n"
    (tmp_path / "a.png").unlink()
    with pytest.raises(FedmtError, match=r"no images in this folder.*\(\.nii\)"):
        find_files([tmp_path])


@pytest.mark.parametrize("ending", [".jfif", ".jpe", ".JFIF"])
def test_every_ending_of_a_jpeg_is_read(tmp_path: Path, ending: str) -> None:
    """This holds for the reader of folders, and for `predict`, which lists folders with the same function."""
    (tmp_path / "nevus").mkdir()
    Image.new("L", (4, 4), 90).save(tmp_path / "nevus" / f"a{ending}", "JPEG")
    write(tmp_path / "wart" / "b.png")
    read = read_folder(tmp_path, OPTIONS)
    assert len(read) == 2 and read.notes == ()
    assert len(find_files([tmp_path])) == 2


def test_twelve_bit_images_are_noted(tmp_path: Path) -> None:
    for name, value in (("a", 4095), ("b", 300)):
        Image.fromarray(np.full((4, 4), value, dtype=np.uint16)).save(tmp_path / f"{name}.png")
    [note] = read_folder(tmp_path, OPTIONS, labeled=False).notes
    assert note.startswith(f"{tmp_path}: its 16-bit images only use values up to 4095 (2 files checked)")
