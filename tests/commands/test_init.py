"""`fedmt init`: what it finds and proposes, and whether `fedmt check` accepts what it writes."""

import csv
import os
import tomllib
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedmt.commands.init import command_line
from fedmt.commands.init.looking import discover, look
from fedmt.commands.init.proposing import Entry, by_name, propose
from fedmt.config import load_config
from fedmt.core.errors import FedmtError
from fedmt.data.identifiers import names_groups
from fedmt.inputs.images.looking import proposed_size
from fedmt.training.progress import make_console

WANTED = ["basal cell carcinoma", "melanoma", "nevus"]
GROUP = {"basal cell carcinoma": "malignant", "melanoma": "malignant", "nevus": "benign"}


def picture(path: Path, size: tuple[int, int] = (8, 8), color: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (*size, 3) if color else size
    Image.fromarray(np.full(shape, len(path.name), dtype=np.uint8)).save(path)


def class_folders(path: Path, classes: Sequence[str], each: int = 3) -> None:
    for name in classes:
        for i in range(each):
            picture(path / name / f"{i}.png")


def table(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]], scans: str = "scans") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for i, row in enumerate(rows):
            picture(path.parent / scans / f"{i}.png")
            writer.writerow([f"{scans}/{i}.png", *row])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Class folders, a table in another space, a table with both labels (the wanted ones in the column with
    the less likely title), images without labels, and a test set."""
    base = tmp_path / "data"
    class_folders(base / "aachen", WANTED, 2)
    class_folders(base / "test", WANTED, 2)
    table(
        base / "berlin.csv",
        ["file", "sex", "group"],
        [("mf"[i % 2], ("malignant", "benign")[i % 3 // 2]) for i in range(9)],
    )
    both = [(name, GROUP[name]) for name in WANTED for _ in range(4)]
    both[-1] = ("nevus", "malignant")
    table(base / "cairo" / "cases.csv", ["image", "lesion", "type"], both, "pics")
    for i in range(3):
        picture(base / "delhi" / f"{i}.png")
    (base / "notes.csv").write_text("who,what\na,b\n")
    return base


def test_check_accepts_what_it_writes(data: Path, command) -> None:
    out = data / "federation.toml"
    status, printed, said = command("init", data, "--out", out)
    assert (status, said) == (0, "") and f"fedmt check {out}" in printed
    config = tomllib.loads(out.read_text())
    assert config["wanted"] == "lesion" and config["spaces"]["lesion"] == WANTED
    assert config["spaces"]["group"] == ["benign", "malignant"] and len(config["spaces"]) == 2
    assert config["reference"] == {"name": "aachen", "source": "folder", "path": "aachen"}
    assert [c["name"] for c in config["centers"]] == ["berlin", "cairo", "delhi"]  # without scans and notes
    berlin, cairo, delhi = config["centers"]
    assert (berlin["label_column"], berlin["space"], berlin["image_column"]) == ("group", "group", "file")
    assert (cairo["label_column"], cairo["space"], cairo["path"]) == (
        "lesion",
        "lesion",
        "cairo/cases.csv",
    )
    assert "space" not in delhi and config["tests"] == [{"source": "folder", "path": "test"}]
    assert config["images"] == {"size": 8, "channels": 1}
    # Counted where both labels exist: one nevus in four is called malignant.
    assert config["correspondences"]["group"]["nevus"] == {"benign": 0.75, "malignant": 0.25}
    assert config["correspondences"]["group"]["melanoma"] == "malignant"
    status, printed, said = command("check", out)
    assert status == 0, said
    assert "known, overlapping" in printed and "no labels" in printed


def test_it_never_overwrites_unasked(data: Path, command) -> None:
    out = data / "federation.toml"
    out.write_text("mine")
    status, _, said = command("init", data, "--out", out)
    assert status == 2 and "--force" in said and out.read_text() == "mine"
    assert command("init", data, "--out", out, "--force")[0] == 0
    assert "wanted" in out.read_text()
    assert not list(data.glob("*.tmp"))


def test_similar_names_are_proposed_and_not_used(tmp_path: Path, command) -> None:
    class_folders(tmp_path / "a", WANTED)
    class_folders(tmp_path / "b", ["carcinoma", "melanomas", "Nevus"])
    out = tmp_path / "federation.toml"
    arguments = ("init", tmp_path, "--reference", "a", "--out", out)
    assert command(*arguments)[0] == 0
    text = out.read_text()
    assert "correspondences" not in tomllib.loads(text)
    assert '# melanoma = "melanomas"   # similar name' in text and '# nevus = "Nevus"\n' in text
    assert command("check", out)[0] == 0
    assert command(*arguments, "--accept-similar", "--force")[0] == 0
    table = tomllib.loads(out.read_text())["correspondences"]["b-labels"]
    assert table == {"basal cell carcinoma": "carcinoma", "melanoma": "melanomas", "nevus": "Nevus"}
    assert command("check", out)[0] == 0


def test_equal_names_are_used(tmp_path: Path, command) -> None:
    class_folders(tmp_path / "a", ["basal-cell carcinoma", "melanoma"])
    class_folders(tmp_path / "b", ["Basal cell carcinoma", "Melanoma"])
    out = tmp_path / "federation.toml"
    assert command("init", tmp_path, "--reference", "a", "--out", out)[0] == 0
    table = tomllib.loads(out.read_text())["correspondences"]["b-labels"]
    assert table == {"basal-cell carcinoma": "Basal cell carcinoma", "melanoma": "Melanoma"}
    assert command("check", out)[0] == 0


def test_what_cannot_be_guessed_is_a_line_to_fill_in(tmp_path: Path, command) -> None:
    class_folders(tmp_path / "a", ["cat", "dog", "horse"])
    class_folders(tmp_path / "b", ["tame", "wild"])
    out = tmp_path / "federation.toml"
    assert command("init", tmp_path, "--out", out)[0] == 0
    text = out.read_text()
    assert '# cat = "?"' in text and "# [[tests]]" in text and "will be estimated" in text
    assert "(or give shares: { a = 0.9, b = 0.1 })" in " ".join(text.replace("#", "").split())
    assert tomllib.loads(text)["wanted"] == "wanted"
    status, printed, _ = command("check", out)
    assert status == 0 and "to be estimated" in printed


def test_a_table_that_would_make_a_label_impossible_is_not_used(tmp_path: Path, command) -> None:
    """Every wanted class has a counterpart, but the center has one more class, which then has no column."""
    class_folders(tmp_path / "a", ["melanoma", "nevus"])
    class_folders(tmp_path / "b", ["Melanoma", "Nevus", "rest"])
    out = tmp_path / "federation.toml"
    assert command("init", tmp_path, "--reference", "a", "--out", out)[0] == 0
    assert "correspondences" not in tomllib.loads(out.read_text())
    assert "no wanted class was found for 'rest'" in out.read_text()
    assert command("check", out)[0] == 0


def test_a_center_that_lacks_a_class_shares_the_space(tmp_path: Path) -> None:
    class_folders(tmp_path / "a", WANTED)
    class_folders(tmp_path / "b", WANTED[:2])
    centers, tests, _ = discover(tmp_path)
    plan = propose(centers, tests)
    assert plan.reference.found.name == "a" and plan.centers[0].space == plan.wanted and len(plan.spaces) == 1


def test_centers_by_themselves(data: Path, tmp_path: Path, command) -> None:
    out = tmp_path / "elsewhere" / "f.toml"
    status, _, said = command(
        "init", "--center", f"Aix={data / 'cairo' / 'cases.csv'}", "--center", f"Bonn={data / 'berlin.csv'}",
        "--column", "type", "--reference", "Aix", "--test", data / "cairo" / "cases.csv", "--out", out,
    )  # fmt: skip
    assert status == 0, said
    config = load_config(out)
    assert (
        config.wanted == "type" and config.reference.name == "Aix" and config.reference.label_column == "type"
    )
    assert config.centers[0].space == "type"  # the same two names
    assert command("check", out)[0] == 0


def test_archives_sizes_and_color(tmp_path: Path, command) -> None:
    images = np.zeros((6, 40, 30, 3), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.array(["x", "y", "z"] * 2))
    for name in ("p", "q"):
        picture(tmp_path / "b" / name / "0.png", (100, 70))
        picture(tmp_path / "b" / name / "1.png", (64, 80), color=True)
    out = tmp_path / "federation.toml"
    assert command("init", tmp_path, "--out", out)[0] == 0
    config = tomllib.loads(out.read_text())
    assert config["images"] == {"size": 64, "channels": 3} and config["model"]["backbone"] == "resnet18"
    assert config["reference"]["source"] == "npz"
    assert command("check", out)[0] == 0


def test_sizes() -> None:
    assert proposed_size([(28, 28)] * 3) == (28, 28) and proposed_size([(40, 60)]) == (40, 60)
    assert proposed_size([(600, 450)] * 2) == (224, 224) and proposed_size([(20, 30), (25, 25)]) == (32, 32)


def test_names() -> None:
    assert by_name("melanomas", ["melanoma", "nevus"]) == Entry({"melanoma": 1.0}, "similar")
    assert by_name("non-malignant", ["malignant", "benign"]) is None
    assert by_name("dog", ["cat", "horse"]) is None
    assert by_name("carcinoma", ["basal cell carcinoma", "squamous cell carcinoma"]) is None  # either


def test_odd_names_survive(tmp_path: Path, command) -> None:
    odd = ['say "hi"', "back\\slash", "naïve", "a = b # c"]
    class_folders(tmp_path / "cen[t]er", odd)
    class_folders(tmp_path / "b", ["p", "q"])
    out = tmp_path / "federation.toml"
    assert command("init", tmp_path, "--out", out)[0] == 0
    assert tomllib.loads(out.read_text())["spaces"]["wanted"] == sorted(odd)
    assert command("check", out)[0] == 0


def test_it_asks_on_a_terminal(tmp_path: Path) -> None:
    class_folders(tmp_path / "a", WANTED)
    class_folders(tmp_path / "b", ["carcinoma", "melanomas", "Nevus"])
    asked: list[tuple[str, str]] = []
    answers = iter([str(tmp_path), "b", "y"])  # equal numbers of classes: the second has no default

    def ask(question: str, default: str) -> str:
        asked.append((question, default))
        return next(answers)

    out = tmp_path / "f.toml"
    plan = command_line(None, [], [], None, None, out, False, False, make_console(), ask)
    assert plan.reference.found.name == "b" and [d for _, d in asked] == [".", "", "n"]
    assert "'a', 'b' have the same number of classes" in asked[1][0]
    assert "correspondences" in tomllib.loads(out.read_text())


def test_the_most_classes_are_the_answer_offered_on_a_terminal(tmp_path: Path) -> None:
    class_folders(tmp_path / "a", ["tame", "wild"])
    class_folders(tmp_path / "b", WANTED)
    asked: list[tuple[str, str]] = []

    def ask(question: str, default: str) -> str:
        asked.append((question, default))
        return default

    plan = command_line(tmp_path, [], [], None, None, tmp_path / "f.toml", False, False, make_console(), ask)
    assert plan.reference.found.name == "b" and asked == [
        ("Reference center (it has the labels you want)", "b")
    ]


def test_the_test_set_decides_between_equally_many_classes(tmp_path: Path, command) -> None:
    class_folders(tmp_path / "a", ["cat", "dog", "horse"], 2)
    class_folders(tmp_path / "b", WANTED, 4)
    class_folders(tmp_path / "c", WANTED, 3)
    class_folders(tmp_path / "test", WANTED[:2])  # it lacks a class, and has none of center a's
    out = tmp_path / "federation.toml"
    status, printed, said = command("init", tmp_path, "--out", out)
    assert (status, said) == (0, "")
    config = tomllib.loads(out.read_text())
    assert config["reference"]["name"] == "c" and config["spaces"]["wanted"] == WANTED
    assert "test set 'test' has its classes" in printed and "most classes" not in printed + out.read_text()
    assert command("check", out)[0] == 0


@pytest.mark.parametrize("tests", ["none", "unlabeled", "of no center", "of both centers"])
def test_equally_many_classes_and_nothing_that_decides(tmp_path: Path, command, tests: str) -> None:
    class_folders(tmp_path / "a", ["cat", "dog"], 2)
    class_folders(tmp_path / "b", ["tame", "wild"], 3)
    if tests == "unlabeled":
        picture(tmp_path / "test" / "0.png")
    elif tests == "of no center":
        class_folders(tmp_path / "test", ["cow", "pig"])
    elif tests == "of both centers":
        table(
            tmp_path / "test.csv", ["file", "animal", "kind"], [("cat", "tame"), ("dog", "wild")] * 2, "held"
        )
    out = tmp_path / "federation.toml"
    for more in ((), ("--yes",)):
        status, _, said = command("init", tmp_path, "--out", out, *more)
        assert status == 2 and "'a', 'b' have the same number of classes (2)" in said and not out.exists()
        assert "--reference NAME" in said
    status, printed, _ = command("init", tmp_path, "--reference", "b", "--out", out)
    assert status == 0 and "(as you chose)" in printed


def test_of_centers_with_the_same_classes_the_smallest_is_the_reference(tmp_path: Path, command) -> None:
    """The wanted labels are the same for each choice, so no question is asked."""
    class_folders(tmp_path / "a", WANTED, 3)
    class_folders(tmp_path / "b", WANTED, 2)
    out = tmp_path / "federation.toml"
    status, printed, _ = command("init", tmp_path, "--out", out)
    assert status == 0 and tomllib.loads(out.read_text())["reference"]["name"] == "b"
    assert "no center with the same classes has fewer images" in printed
    assert "most classes" not in printed + out.read_text()


def test_classes_that_may_be_mistakes_are_said(tmp_path: Path, command) -> None:
    class_folders(tmp_path / "reference", WANTED)
    table(
        tmp_path / "b.csv",
        ["file", "dx"],
        [(["Benign", "benign", "NA", "1", "1.0"][i % 5],) for i in range(15)],
    )
    out = tmp_path / "federation.toml"
    status, printed, _ = command("init", tmp_path, "--out", out)
    assert status == 0
    for said in (
        "label space 'dx': 'Benign', 'benign' are different classes. If they are the same, spell them alike.",
        "label space 'dx': '1', '1.0' are different classes.",
        "label space 'dx': 'NA' is a class. If it means that the label is missing, leave out these samples.",
    ):
        assert f"Note: {said}" in printed and said in out.read_text().replace("\n# ", " ")
    assert "'melanoma'" not in printed


def test_tables_with_missing_or_differently_spelled_labels_are_said(tmp_path: Path, command) -> None:
    """pandas writes whole numbers as 1.0 where some are missing."""
    for name, labels in (("reference", "123"), ("b", ["1.0", "2.0"]), ("c", ["1", "2", "NA"])):
        rows = "".join(f"{i * 7 % 31},{'FM'[i % 2]},{labels[i % len(labels)]}\n" for i in range(30))
        (tmp_path / f"{name}.csv").write_text("age,sex,diagnosis\n" + rows)
    out = tmp_path / "federation.toml"
    status, printed, _ = command("init", tmp_path, "--out", out)
    assert status == 0
    assert (
        "Note: c: column 'diagnosis' has empty cells; fill them in or remove the lines to use it" in printed
    )
    said = "label spaces 'diagnosis' and 'b-labels': their classes differ only in spelling, such as '1' and"
    assert f"Note: {said}" in printed and said in out.read_text().replace("\n# ", " ")


def test_folders_above_the_classes_are_not_classes(tmp_path: Path, command) -> None:
    class_folders(tmp_path / "a", WANTED)
    class_folders(tmp_path / "b" / "images", WANTED[:2])
    class_folders(tmp_path / "c" / "train", WANTED)
    class_folders(tmp_path / "c" / "test", WANTED)
    out = tmp_path / "federation.toml"
    status, printed, _ = command("init", tmp_path, "--out", out)
    assert status == 0 and list(tomllib.loads(out.read_text())["spaces"].values()) == [WANTED]
    assert "Note: b: its only folder 'images' has folders in it. If these are the classes" in printed
    assert f"center: --center b={tmp_path}/b/images." in printed
    assert "Note: c: its folders 'test', 'train' are taken as parts of a split and not as classes" in printed


def test_images_named_by_absolute_paths_are_no_second_center(tmp_path: Path, monkeypatch) -> None:
    class_folders(tmp_path / "data" / "a", WANTED)
    for i in range(6):
        picture(tmp_path / "data" / "scans" / f"{i}.png")
    lines = "".join(f"{tmp_path}/data/scans/{i}.png,{'xy'[i % 2]}\n" for i in range(6))
    (tmp_path / "data" / "b.csv").write_text("image,label\n" + lines)
    monkeypatch.chdir(tmp_path)
    for folder in (Path("data"), tmp_path / "data"):
        assert [one.name for one in discover(folder)[0]] == ["a", "b"]


def test_a_table_with_gaps_and_images_elsewhere(tmp_path: Path) -> None:
    picture(tmp_path / "images" / "0.png")
    path = tmp_path / "cases.csv"
    path.write_text(
        "image,label,site\n" + "".join(f"0.png,{'xy'[i % 2] if i else ''},{'uv'[i % 2]}\n" for i in range(6))
    )
    found = look("cases", path)
    assert found.root == tmp_path / "images" and list(found.columns) == ["site"]
    assert "column 'label' has empty cells" in found.notes[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "where is the data?"),
        (["{tmp}/nowhere"], "does not exist"),
        (["{tmp}/empty"], "looks like a center"),
        (["{tmp}/plain"], "looks like a single center with the classes 'a'. Give its parent folder"),
        (["--center", "x={tmp}/plain/a"], "No center has labels"),
        (
            ["--center", "x={data}/aachen"],
            "'x' is the only center, so it is the reference center. At least one",
        ),
        (["{data}/cairo"], "is itself one center, give its parent folder"),
        (["{data}/delhi"], "'0.png', '1.png', '2.png' was left out"),
        (["--center", "x={tmp}/none"], "no such file or folder"),
        (["--center", "=x"], "expected NAME=PATH"),
        (["{data}", "--reference", "achen"], "Did you mean 'aachen'?"),
        (["{data}", "--reference", "delhi"], "has no labels"),
        (["{data}", "--reference", "cairo", "--column", "typ"], "Did you mean 'type'?"),
        (["{data}", "--center", "aachen={data}/test"], "several centers are called 'aachen'"),
    ],
)
def test_init_says_what_is_wrong(data: Path, tmp_path: Path, command, arguments, message: str) -> None:
    (tmp_path / "empty").mkdir()
    picture(tmp_path / "plain" / "a" / "0.png")
    out = tmp_path / "federation.toml"
    status, _, said = command("init", *(a.format(data=data, tmp=tmp_path) for a in arguments), "--out", out)
    assert status == 2 and message in said and "Traceback" not in said and not out.exists()


def test_an_unclear_test_set_is_left_out_and_said(tmp_path: Path, command) -> None:
    class_folders(tmp_path / "a", ["cat", "dog"])
    class_folders(tmp_path / "b", ["cat", "dog"])
    class_folders(tmp_path / "test", ["cow", "pig"])
    out = tmp_path / "federation.toml"
    status, printed, _ = command("init", tmp_path, "--out", out)
    assert status == 0 and "Note: test: it looks like a test set, but it is left out because" in printed
    assert "('cow', 'pig' not among the wanted classes 'cat', 'dog')." in printed
    assert "left out" in out.read_text() and "tests" not in tomllib.loads(out.read_text())


TABLE = "image,label\n" + "".join(f"img/{i}.png,{'xy'[i % 2]}\n" for i in range(6))
UNREADABLE = {
    "latin-1": (TABLE.replace("x", "\xf6").encode("latin-1"), "not encoded in UTF-8. Save it as 'CSV UTF-8'"),
    "empty": (b"", "the table is empty"),
    "semicolons": (TABLE.replace(",", ";").encode(), "separated by semicolons. Save the table with commas"),
    "tabs": (TABLE.replace(",", "\t").encode(), "separated by tabs"),
    "open quote": (TABLE.replace("img/3", '"img/3').encode(), "line 5: a cell begins with a double quote"),
    "ragged": (TABLE.replace(".png,", ".png,,").encode(), "no line of this table has as many cells"),
    "one label": (TABLE.replace("x", "y").encode(), "none of its columns ('label') looks like labels"),
    "gaps": (TABLE.replace("x", "").encode(), "column 'label' has empty cells"),
    "something else": (b"who,what\na,b\n", "no column of this table names image files"),
}


@pytest.mark.parametrize(("content", "reason"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_table_that_cannot_be_used_is_named(tmp_path: Path, command, content: bytes, reason: str) -> None:
    """The folder of its images is not a class. Next to a table, only several folders are classes."""
    class_folders(tmp_path / "a", WANTED)
    class_folders(tmp_path / "b", ["img"], 6)
    class_folders(tmp_path / "c", WANTED[:2])
    for name in "bc":
        (tmp_path / name / "cases.csv").write_bytes(content)
    (tmp_path / "c" / "._cases.csv").write_bytes(b"\xff")  # a Mac leaves such files on a USB stick
    out = tmp_path / "federation.toml"
    status, printed, said = command("init", tmp_path, "--out", out)
    assert (status, said) == (0, "")
    for name in "bc":
        assert any(
            line.startswith(f"Note: {name}: 'cases.csv' in it is not used:") and reason in line
            for line in printed.splitlines()
        )
    assert "._cases" not in printed and "Note: b: 'img' may not be a class" in printed
    assert "# 'cases.csv' in it is not used" in out.read_text()
    b, c = tomllib.loads(out.read_text())["centers"]
    assert b == {"name": "b", "source": "folder", "path": "b"} and c["space"] == "wanted"
    assert command("check", out)[0] == 0


def test_a_test_set_without_labels_is_left_out_and_said(tmp_path: Path, command) -> None:
    for name in "ab":
        class_folders(tmp_path / name, ["cat", "dog"])
    picture(tmp_path / "test" / "0.png")
    _, printed, _ = command("init", tmp_path, "--out", tmp_path / "federation.toml")
    assert "Note: test: it looks like a test set, but it has no labels, so it is left out." in printed


def test_nothing_is_left_out_without_a_word(data: Path, command) -> None:
    np.savez(data / "whole.npz", images=np.zeros((4, 8, 8), dtype=np.uint8), labels=np.array(["x", "y"] * 2))
    (data / "cut.npz").write_bytes((data / "whole.npz").read_bytes()[:300])
    np.savez(data / "bare.npz", labels=np.array(["x", "y"]))
    np.savez(data / "float.npz", images=np.zeros((4, 8, 8)))
    (data / "latin.csv").write_bytes(b"image,label\n\xf6.png,x\n")
    (data / "leer").mkdir()
    (data / "inner").mkdir()
    (data / "whole.npz").rename(data / "inner" / "whole.npz")
    (data / "cases.xlsx").write_bytes(b"")
    picture(data / "stray.png")
    (data / "own.csv").write_text("image,label\n" + "".join(f"own-{i}.png,{'xy'[i % 2]}\n" for i in range(4)))
    for i in range(4):
        picture(data / f"own-{i}.png")  # a table names them, so they are not stray files
    out = data / "federation.toml"
    assert command("init", data, "--out", out)[0] == 0
    status, printed, _ = command("init", data, "--out", out, "--force")  # the file is not part of the data
    assert status == 0
    notes = [line for line in printed.splitlines() if " was left out: " in line]
    expected = [
        ("bare.npz", "no array 'images'"),
        ("cut.npz", "cannot be read: File is not a zip file"),
        ("float.npz", "'images' are float64"),
        ("latin.csv", "not encoded in UTF-8"),
        ("notes.csv", "no column of this table names image files"),
        ("inner", "'whole.npz' in it is not used, because an archive is a center of its own"),
        ("leer", "it contains no images and no CSV of images"),
        ("'cases.xlsx', 'stray.png'", "not in any center's folder or table"),
    ]
    assert len(notes) == len(expected)
    for line, (name, reason) in zip(notes, expected, strict=True):
        assert line.startswith(f"Note: {name} was left out: ") and reason in line
        assert f"# {name} was left out: " in out.read_text()
    assert command("check", out)[0] == 0


def test_the_other_of_two_centers_left_out(tmp_path: Path, command) -> None:
    class_folders(tmp_path / "a", WANTED)
    (tmp_path / "b.csv").write_bytes(b"image,label\n\xf6.png,x\n")
    out = tmp_path / "federation.toml"
    status, printed, said = command("init", tmp_path, "--out", out)
    assert status == 2 and "'a' is the only center" in said and "tmp:" not in said and not out.exists()
    assert "Note: b.csv was left out: the table is not encoded in UTF-8" in printed


def test_centers_without_labels_beside_a_labeled_one_are_no_classes(tmp_path: Path, command) -> None:
    for name in "pq":
        picture(tmp_path / "data" / name / "0.png")
    class_folders(tmp_path / "ref", WANTED)
    out = tmp_path / "federation.toml"
    assert command("init", tmp_path / "data", "--center", f"r={tmp_path / 'ref'}", "--out", out)[0] == 0


def test_lines_too_long_or_short_are_counted(tmp_path: Path) -> None:
    picture(tmp_path / "img" / "0.png")
    (tmp_path / "cases.csv").write_text(TABLE + "img/0.png,x,y\nimg/0.png\n")
    found = look("cases", tmp_path / "cases.csv")
    assert found.images == 6 and "fewer cells than the header: 2;" in found.notes[0]


def test_accents_composed_and_decomposed_are_one(tmp_path: Path, command) -> None:
    """Folder names from a Mac, and the table of another center."""
    names = ["mélanome", "nævus"]
    class_folders(tmp_path / "a", names)
    class_folders(tmp_path / "test", [unicodedata.normalize("NFD", n) for n in names])
    table(
        tmp_path / "b.csv", ["file", "dx"], [(unicodedata.normalize("NFD", names[i % 2]),) for i in range(6)]
    )
    out = tmp_path / "federation.toml"
    assert command("init", tmp_path, "--reference", "a", "--out", out)[0] == 0
    config = tomllib.loads(out.read_text())
    assert list(config["spaces"].values()) == [names] and len(config["tests"]) == 1
    assert command("check", out)[0] == 0


def test_a_table_may_end_in_capitals(tmp_path: Path) -> None:
    table(tmp_path / "CASES.CSV", ["image", "label"], [("xy"[i % 2],) for i in range(6)])
    assert look("b", tmp_path).path == tmp_path / "CASES.CSV"


def rename_to_bytes(path: Path, name: bytes) -> None:
    try:
        os.rename(os.fsencode(path), os.path.join(os.fsencode(path.parent), name))
    except OSError:
        pytest.skip("this file system has names in UTF-8 only")


@pytest.mark.parametrize("given", ["the folder", "each center"])
def test_a_class_folder_that_is_not_utf8_is_named(tmp_path: Path, command, given: str) -> None:
    data, out = tmp_path / "data", tmp_path / "federation.toml"
    class_folders(data / "a", WANTED)
    class_folders(data / "b", ["naevus", "wart"])
    rename_to_bytes(data / "b" / "naevus", b"n\xe6vus")  # the name in Latin-1
    where = [data] if given == "the folder" else ["--center", data / "a", "--center", data / "b"]
    status, _, said = command("init", *where, "--out", out)
    assert status == 2 and not out.exists()
    assert said.startswith(f"fedmt: {data / 'b'}: ")
    assert r"class folder 'n\xe6vus'" in said and "Rename it" in said


def test_other_names_that_are_not_utf8(tmp_path: Path, command) -> None:
    """A center's name is written to the file too. What is left out is named all the same."""
    data, out = tmp_path / "data", tmp_path / "federation.toml"
    class_folders(data / "a", WANTED)
    class_folders(data / "b", WANTED[:2])
    picture(data / "c" / "0.png")
    picture(data / "c" / "more" / "1.png")
    rename_to_bytes(data / "c" / "more", b"\xe6")  # this is not a class, because c has no labels
    for path in (data / "stray.txt", data / "b" / "inner.npz"):
        path.touch()
        rename_to_bytes(path, b"\xe6" + os.fsencode(path.suffix))
    rename_to_bytes(data / "b" / WANTED[0] / "0.png", b"\xe6.png")  # images keep their names
    status, printed, said = command("init", data, "--out", out)
    assert (status, said) == (0, "")
    assert r"Note: '\xe6.txt' was left out" in printed and r"Note: b: '\xe6.npz' in it" in printed
    rename_to_bytes(data / "b", b"K\xf6ln")
    status, _, said = command("init", data, "--out", out, "--force")
    assert status == 2 and rf"{data}/K\xf6ln: " in said
    odd = Path(os.fsdecode(os.fsencode(data) + b"/K\xf6ln"))
    arguments = ("init", "--center", data / "a", "--center", f"c={odd / WANTED[0]}", "--force", "--out")
    status, _, said = command(*arguments, out)
    assert status == 2 and r"data/K\xf6ln/basal cell carcinoma: this path is not valid UTF-8" in said


def test_a_table_may_name_images_by_every_ending_of_a_jpeg(tmp_path: Path) -> None:
    endings = ["jfif", "jpe"] * 3
    lines = [f"{i}.{ending},{'xy'[i % 2]}\n" for i, ending in enumerate(endings)]
    (tmp_path / "cases.csv").write_text("image,label\n" + "".join(lines))
    assert look("b", tmp_path / "cases.csv").images == 6


def test_identifiers_are_no_labels_and_those_that_repeat_are_groups(tmp_path: Path, command) -> None:
    header = ["image", "patient_id", "lesion", "record", "diagnosis"]
    for center, classes in (("a", ["nevus", "melanoma", "keratosis"]), ("b", ["benign", "malignant"])):
        rows = [
            [f"P{i // 4}", f"L{i // 2}", f"{center}-{i:04d}", classes[i % len(classes)]] for i in range(24)
        ]
        table(tmp_path / "data" / center / "cases.csv", header, rows)
    found = look("a", tmp_path / "data" / "a")
    assert list(found.columns) == ["diagnosis"] and found.group_column == "patient_id"
    out = tmp_path / "federation.toml"
    code, said, _ = command("init", str(tmp_path / "data"), "--out", str(out))
    assert code == 0 and "grouped by" in said
    config = tomllib.loads(out.read_text())
    assert config["reference"]["group_column"] == config["centers"][0]["group_column"] == "patient_id"
    code, checked, _ = command("check", str(out))
    assert code == 0
    assert "Groups of the same name at two centers: 6 of 'a' and 'b'." in checked


def test_groups_with_gaps_or_of_one_row_each_are_not_proposed(tmp_path: Path) -> None:
    rows = [["" if i == 3 else f"P{i // 4}", "ab"[i % 2]] for i in range(12)]
    table(tmp_path / "gap.csv", ["image", "patient", "label"], rows)
    found = look("gap", tmp_path / "gap.csv")
    assert found.group_column is None and list(found.columns) == ["label"]
    assert "column 'patient' has empty cells; fill them in to keep its groups together" in found.notes[0]
    table(
        tmp_path / "one.csv",
        ["image", "patient", "label"],
        [[f"P{i}", r[1]] for i, r in enumerate(rows)],
    )
    found = look("one", tmp_path / "one.csv")
    assert found.group_column is None and list(found.columns) == ["label"] and not found.notes


@pytest.mark.parametrize(
    ("title", "cells", "expected"),
    [
        ("patient", ["Ann", "Bob"], True),
        ("PatientID", ["1", "2"], True),
        ("lesion_id", ["a", "b"], True),
        ("case", ["17", "18"], True),
        ("case", ["mild", "severe"], False),
        ("lesion type", ["1a", "2b"], False),
        ("patient age", ["40", "50"], False),
        ("id", ["1", "2"], False),
    ],
)
def test_titles_of_groups(title: str, cells: list[str], expected: bool) -> None:
    assert names_groups(title, cells) is expected


# -- texts --------------------------------------------------------------------------------------------


def texts(path: Path, header: Sequence[str], labels: Sequence[Sequence[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for i, row in enumerate(labels):
            writer.writerow([f"question {i} about this and that", *row])


def test_tables_of_texts(tmp_path: Path, capsys) -> None:
    base = tmp_path / "data"
    fine = [("lost card", "card"), ("new card", "card"), ("flight", "travel")] * 4
    texts(base / "reference.csv", ["question", "intent", "topic"], fine)
    texts(base / "bonn.csv", ["text", "topic"], [(topic,) for _, topic in fine])
    texts(base / "kiel.csv", ["text"], [() for _ in fine])
    texts(base / "test.csv", ["text", "intent"], [(intent,) for intent, _ in fine])
    out = tmp_path / "federation.toml"
    command_line(base, [], [], None, None, out, False, False, make_console())
    assert "texts" in capsys.readouterr().out
    config = load_config(out)
    assert config.input == "text" and config.model.backbone == "mlp" and config.options.length == 32
    assert config.wanted == "intent" and config.correspondences["topic"]["flight"] == "travel"
    assert config.reference.text_column == "question" and config.reference.label_column == "intent"
    assert [(c.name, c.text_column, c.space) for c in config.centers] == [
        ("bonn", "text", "topic"),
        ("kiel", "text", None),
    ]
    assert "images" not in out.read_text()


def test_the_sites_of_a_test_set_are_proposed(tmp_path: Path, command) -> None:
    """A column that says where test samples come from is not a label. If the centers have it too, it is not a
    label there either."""
    texts = [f"note {i} about a patient,{'ab'[i % 2]},{('Bonn', 'Kiel', 'Ulm')[i % 3]}" for i in range(12)]
    for name in ("reference", "berlin", "test"):
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label,hospital", *texts]) + "\n")
    out = tmp_path / "federation.toml"
    assert command("init", tmp_path, "--yes", "--reference", "reference", "--out", out)[0] == 0
    config = tomllib.loads(out.read_text())
    assert config["tests"][0]["site_column"] == "hospital" and config["tests"][0]["label_column"] == "label"
    assert all("site_column" not in place for place in (config["reference"], *config["centers"]))
    assert load_config(out).tests[0].site_column == "hospital"


def test_texts_and_images_do_not_mix(tmp_path: Path) -> None:
    texts(tmp_path / "a.csv", ["text", "label"], [("x",), ("y",)] * 4)
    class_folders(tmp_path / "b", ["x", "y"])
    out = tmp_path / "federation.toml"
    with pytest.raises(
        FedmtError, match="there are texts at 'a' and images at 'b', but all centers and tests must"
    ):
        command_line(tmp_path, [], [], "a", None, out, False, False, make_console())
    assert not out.exists()


def test_tables_and_texts_are_grouped_too(tmp_path: Path, command) -> None:
    """Identifiers are neither features nor labels. A column that names groups anywhere does so everywhere."""
    for name, count, header in (
        ("reference", 24, "patient_id,visit,age,mood,text,diagnosis"),
        ("bonn", 24, "patient_id,visit,age,mood,text,finding"),
        ("test", 12, "patient_id,visit,age,mood,text,diagnosis"),
    ):
        # In the test set, each patient occurs once, and all of them are at Bonn too.
        patients = [f"{name[0]}{i // 2}" if name != "test" else f"b{i}" for i in range(count)]
        for kind in ("rows", "texts"):
            titles = [t for t in header.split(",") if kind == "texts" or t != "text"]
            lines = [",".join(titles)]
            for i, patient in enumerate(patients):
                label = ("a", "b", "c")[i % 3] if "diagnosis" in header else ("a", "rest")[i % 3 > 0]
                cells = {
                    "patient_id": patient,
                    "visit": i % 2 + 1,
                    "age": 20 + i * 7 % 61,
                    "mood": "xy"[i // 2 % 2],
                }
                cells["text"] = f"word{i} and more"
                lines.append(",".join(str(cells.get(title, label)) for title in titles))
            (tmp_path / kind).mkdir(exist_ok=True)
            (tmp_path / kind / f"{name}.csv").write_text("\n".join(lines) + "\n")
    for kind in ("rows", "texts"):
        out = tmp_path / kind / "federation.toml"
        status, _, error = command("init", tmp_path / kind, "--out", out)
        assert status == 0, error
        config = tomllib.loads(out.read_text())
        places = [config["reference"], *config["centers"], *config["tests"]]
        assert [place["group_column"] for place in places] == ["patient_id"] * 3
        assert set(config["spaces"]) == {"diagnosis", "finding"}
        status, printed, error = command("check", out)
        assert status == 0, error
        assert "some of its 12 groups are also used for training" in printed and "12 at 'bonn'" in printed
    names = [c["name"] for c in tomllib.loads((tmp_path / "rows/schema.toml").read_text())["columns"]]
    assert names == ["age", "mood"]


def rows_of_all_sites(path: Path) -> None:
    """Three sites and a test in one table. `group` follows from the diagnosis, and `flag` does by chance."""
    lines = ["Site,tsh,sex,flag,diagnosis,group"]
    for number, (site, count) in enumerate((("Ulm", 30), ("Bonn", 60), ("Test", 30))):
        for i in range(count):
            kind = "abc"[i % 3]
            flag = "x" if (kind == "a" if site == "Ulm" else i % 2) else "y"
            lines.append(
                f"{site},{number + i % 3}.5,{'FM'[i % 2]},{flag},{kind},{'p' if kind == 'a' else 'q'}"
            )
    path.write_text("\n".join(lines) + "\n")


def test_one_table_of_all_centers_is_split_by_a_column(tmp_path: Path, command) -> None:
    rows_of_all_sites(tmp_path / "all.csv")
    out = tmp_path / "federation.toml"
    for given in ((tmp_path / "all.csv",), ("--center", f"all={tmp_path / 'all.csv'}")):
        status, _, said = command("init", *given, "--out", out)
        assert status == 2 and f"`fedmt init {tmp_path / 'all.csv'} --by Site` splits it" in said
    by_site = ("init", tmp_path / "all.csv", "--by", "Site", "--out", out)
    assert command(*by_site, "--reference", "Nowhere")[0] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["all.csv"]
    status, printed, said = command(*by_site)
    assert status == 0, said
    assert sorted(p.name for p in (tmp_path / "all-by-Site").iterdir()) == ["Bonn.csv", "Test.csv", "Ulm.csv"]
    assert len((tmp_path / "all-by-Site/Bonn.csv").read_text().splitlines()) == 61
    config, schema = (tomllib.loads((tmp_path / name).read_text()) for name in (out.name, "schema.toml"))
    assert config["reference"]["name"] == "Ulm" and len(config["tests"]) == 1
    # `group` would reveal the diagnosis, `Site` is the center itself, and `flag` is a feature elsewhere.
    assert [column["name"] for column in schema["columns"]] == ["tsh", "sex", "flag"]
    assert "diagnosis (3 classes); group (2 classes)" in printed
    assert "fedmt schema federation.toml --ignore group --force" in out.read_text()
    assert command("check", out)[0] == 0


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("Sites", "no column 'Sites'; the columns are"),
        ("row", "column 'row' has 4 different values in 4 rows ('1', '2', '3' and 1 more); expected"),
        ("gap", "all.csv, line 3: the column 'gap' is empty, so the row's center is unknown. Fill it in"),
        ("twin", "the centers 'a/b', 'A?b' in column 'twin' would share one file"),
    ],
)
def test_a_column_that_does_not_name_centers(tmp_path: Path, command, column: str, expected: str) -> None:
    path = tmp_path / "all.csv"
    path.write_text("row,gap,twin,x\n1,a,a/b,1\n2,,a/b,2\n3,b,A?b,3\n4,b,A?b,4\n")
    status, _, said = command("init", path, "--by", column, "--out", tmp_path / "new.toml")
    assert status == 2 and expected in said and list(tmp_path.iterdir()) == [path]


def test_archives_of_vectors(tmp_path: Path, command) -> None:
    rng = np.random.default_rng(0)
    for name, classes in (("reference", "abc"), ("bonn", "pqq"), ("test", "abc")):
        labels = np.array([classes[i % 3] for i in range(12)])
        np.savez(tmp_path / f"{name}.npz", embeddings=rng.normal(size=(12, 4)), labels=labels)
    out = tmp_path / "federation.toml"
    status, printed, said = command("init", tmp_path, "--out", out)
    assert status == 0, said
    config = tomllib.loads(out.read_text())
    assert (config["input"], config["vectors"], config["model"]["backbone"]) == (
        "vectors",
        {"array": "embeddings"},
        "mlp",
    )
    assert "vectors" in printed and command("check", out)[0] == 0
    np.savez(tmp_path / "kiel.npz", vectors=rng.normal(size=(12, 4)))
    status, _, said = command("init", tmp_path, "--out", out, "--force")
    assert status == 2 and "under different names: 'embeddings', 'vectors'" in said
    np.savez(tmp_path / "kiel.npz", images=np.zeros((12, 8, 8), dtype=np.uint8))
    status, _, said = command("init", tmp_path, "--out", out, "--force")
    assert status == 2 and "vectors at 'bonn', 'reference', 'test' and images at 'kiel'" in said
