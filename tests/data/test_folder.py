from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from fedmt.data import ImageOptions, read_folder
from fedmt.errors import FedmtError
from fedmt.labels import LabelSpace

OPTIONS = ImageOptions()
SPACE = LabelSpace("diagnosis", ["nevus", "melanoma", "wart"])


def write(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4), shade).save(path)


def error_of(path: Path, space: LabelSpace | None = None, labelled: bool = True) -> str:
    with pytest.raises(FedmtError) as error:
        read_folder(path, OPTIONS, space, labelled=labelled)
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

    unlabelled = read_folder(tmp_path, OPTIONS, labelled=False)
    assert (len(unlabelled), unlabelled.labels, unlabelled.spaces) == (3, {}, {})


def test_folder_outside_the_space_is_named_with_the_nearest(tmp_path: Path) -> None:
    write(tmp_path / "melanom" / "a.png")
    message = error_of(tmp_path, SPACE)
    assert str(tmp_path) in message and "'melanom'" in message and "Did you mean 'melanoma'" in message


def test_no_class_folders(tmp_path: Path) -> None:
    write(tmp_path / "a.png")
    message = error_of(tmp_path)
    assert "no class folders" in message and "no label space" in message
    assert len(read_folder(tmp_path, OPTIONS, labelled=False)) == 1


def test_image_beside_the_class_folders(tmp_path: Path) -> None:
    write(tmp_path / "nevus" / "a.png")
    write(tmp_path / "stray.png")
    assert "'stray.png'" in error_of(tmp_path)


@pytest.mark.parametrize("labelled", [True, False])
def test_no_images(tmp_path: Path, labelled: bool) -> None:
    (tmp_path / "nevus").mkdir()
    message = error_of(tmp_path, labelled=labelled)
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
