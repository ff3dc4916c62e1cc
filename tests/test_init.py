"""`fedmt init`: what it finds, what it proposes, and that `fedmt check` accepts what it writes."""

import csv
import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedmt.config import load_config
from fedmt.init import command_line
from fedmt.init.looking import discover, look
from fedmt.init.proposing import Entry, by_name, propose
from fedmt.init.writing import proposed_size
from fedmt.progress import make_console

WANTED = ["basal cell carcinoma", "melanoma", "nevus"]
GROUP = {"basal cell carcinoma": "malignant", "melanoma": "malignant", "nevus": "benign"}


def picture(path: Path, size: tuple[int, int] = (8, 8), colour: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (*size, 3) if colour else size
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
    """Class folders, a table in another space, one with both labels (the wanted ones under the less likely
    title), images without labels, a test set."""
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
    assert [c["name"] for c in config["centers"]] == ["berlin", "cairo", "delhi"]  # not scans, not notes
    berlin, cairo, delhi = config["centers"]
    assert (berlin["label_column"], berlin["space"], berlin["image_column"]) == ("group", "group", "file")
    assert (cairo["label_column"], cairo["space"], cairo["path"]) == (
        "lesion",
        "lesion",
        "cairo/cases.csv",
    )
    assert "space" not in delhi and config["tests"] == [{"source": "folder", "path": "test"}]
    assert config["images"] == {"size": 8, "channels": 1}
    # Counted: one nevus in four is called malignant where both labels are.
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
    assert '# cat = "?"' in text and "# [[tests]]" in text and "is estimated" in text
    assert tomllib.loads(text)["wanted"] == "wanted"
    status, printed, _ = command("check", out)
    assert status == 0 and "to be estimated" in printed


def test_a_table_that_would_make_a_label_impossible_is_not_used(tmp_path: Path, command) -> None:
    """Every wanted class has its equal, but the center has one class more, which then has no column."""
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
    plan = propose(*discover(tmp_path))
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


def test_archives_sizes_and_colour(tmp_path: Path, command) -> None:
    images = np.zeros((6, 40, 30, 3), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.array(["x", "y", "z"] * 2))
    for name in ("p", "q"):
        picture(tmp_path / "b" / name / "0.png", (100, 70))
        picture(tmp_path / "b" / name / "1.png", (64, 80), colour=True)
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
    answers = iter([str(tmp_path), "b", "y"])

    def ask(question: str, default: str) -> str:
        asked.append((question, default))
        return next(answers)

    out = tmp_path / "f.toml"
    plan = command_line(None, [], [], None, None, out, False, False, make_console(), ask)
    assert plan.reference.found.name == "b" and [d for _, d in asked] == [".", "a", "n"]
    assert "correspondences" in tomllib.loads(out.read_text())


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
        (["{tmp}/plain"], "No center has labels"),
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
    assert command("init", tmp_path, "--out", out)[0] == 0
    assert "left out" in out.read_text() and "tests" not in tomllib.loads(out.read_text())
