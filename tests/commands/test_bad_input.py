"""Mistakes in a user's data or network: each gives one clear error, and nothing is half written.

Every row goes through `fedmt run`, which reads all data before it writes anything.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

CONFIG = """
input = "{input}"
device = "cpu"
wanted = "kind"
[spaces]
kind = ["a", "b"]
half = ["p", "q"]
[training]
rounds = 1
warmup_epochs = 1
[reference]
source = "{source}"
path = "reference{suffix}"
{keys}
[[centers]]
name = "Bonn"
source = "{source}"
path = "bonn{suffix}"
space = "half"
{keys}
[[tests]]
source = "{source}"
path = "test{suffix}"
{keys}
{tables}
"""

SOURCES = {
    "npz": ("vectors", "npz", ".npz", "", ""),
    "npy": ("vectors", "npy", ".npy", 'labels = "labels.npy"', ""),
    "csv": ("vectors", "table", ".csv", "", ""),
    "parquet": ("vectors", "table", ".parquet", "", ""),
    "table": ("tables", "table", ".csv", "", '[tables]\nschema = "schema.toml"'),
    "text": ("text", "text", ".csv", "", ""),
    "folder": ("images", "folder", "", "", '[model]\nbackbone = "small_cnn"'),
    "pictures": ("images", "npz", ".npz", "", '[model]\nbackbone = "small_cnn"'),
}

SCHEMA = """
[[columns]]
name = "age"
type = "numeric"
mean = 50.0
deviation = 10.0
[[columns]]
name = "sex"
type = "categorical"
categories = ["F", "M"]
"""

ROWS = {
    "csv": ("x,y,label", "1,2,{}"),
    "table": ("age,sex,label", "40,F,{}"),
    "text": ("text,label", "some words,{}"),
}


def rows(kind: str, labels: str) -> str:
    header, line = ROWS[kind]
    return "\n".join([header, *(line.format(label) for label in labels)]) + "\n"


def archive(path: Path, names: str, **arrays: Any) -> None:
    np.savez(path, **{"vectors": np.ones((len(names), 2)), "labels": np.array(list(names)), **arrays})


def parquet(path: Path, columns: dict[str, list[Any]]) -> None:
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(arrow.table(columns), path)


def write(kind: str, path: Path, labels: str) -> None:
    """Writes a folder with four good samples."""
    if kind == "npz":
        archive(path, labels)
    elif kind == "npy":
        np.save(path, np.ones((len(labels), 2)))
    elif kind == "parquet":
        parquet(path, {"x": [1.0] * 4, "y": [2.0] * 4, "label": list(labels)})
    elif kind == "pictures":
        archive(path, labels, images=np.zeros((4, 8, 8), dtype=np.uint8))
    elif kind == "folder":
        for i, label in enumerate(labels):
            (path / label).mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8), i, dtype=np.uint8)).save(path / label / f"{i}.png")
    else:
        path.write_text(rows(kind, labels))


def dicom(path: Path, **elements: object) -> None:
    pydicom = pytest.importorskip("pydicom")
    meta = pydicom.dataset.FileMetaDataset()
    meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.7"
    meta.MediaStorageSOPInstanceUID = pydicom.uid.generate_uid()
    found = pydicom.dataset.FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    for name, value in elements.items():
        setattr(found, name, value)
    found.save_as(path, enforce_file_format=True)


NETWORKS = """
import torch


def wide(classes, features):
    return torch.nn.Linear(features, classes + 3)


def narrow(classes, features):
    return torch.nn.Linear(features - 1, classes)


def broad(classes, channels):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64 * channels, classes + 3))


def picture(classes, **_):
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(8, classes))


class twice(torch.nn.Module):
    def __init__(self, classes, features):
        super().__init__()
        self.inner = torch.nn.Linear(features, classes)

    def forward(self, x):
        return self.inner(x), x


def failing(classes, features):
    raise RuntimeError("no such layer")
"""


def network(name: str) -> Callable[[Path], str]:
    """A user's own network, and the option that names it."""

    def spoil(folder: Path) -> str:
        (folder / "broken_networks.py").write_text(NETWORKS)
        return f"model.backbone=broken_networks:{name}"

    return spoil


def too_small(folder: Path) -> str:
    """Images of three pixels, for a network that halves the side three times."""
    config = folder / "federation.toml"
    config.write_text(config.read_text().replace("small_cnn", "resnet9"))
    return "images.size=3"


def text(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


def npz(**arrays: Any) -> Callable[[Path], None]:
    return lambda folder: archive(folder / "bonn.npz", "ppqq", **arrays)


def npy(name: str, array: Any) -> Callable[[Path], None]:
    return lambda folder: np.save(folder / f"{name}.npy", array, allow_pickle=True)


def columns(**found: list[Any]) -> Callable[[Path], None]:
    return lambda folder: parquet(folder / "bonn.parquet", found)


RAGGED = np.empty(4, dtype=object)
RAGGED[:] = [[1.0], [1.0, 2.0], [1.0], [1.0]]
NAN = np.array([[1, np.nan], [np.inf, 2], [1, 2], [1, np.nan]])
WORDS = np.array([["old", "new"]] * 4)
PPQQ = list("ppqq")

BONN = "center 'Bonn': bonn"
OBJECTS = "holds Python objects, which are not loaded. Rows of different lengths become such an array"
COUNTED = "3 values are missing, NaN or infinite, the first on row 0: 1 in column 0, 2 in column 1."
UNKNOWN = "label 'z' is not in label space 'half'. Its classes are 'p', 'q'."

MISTAKES: list[tuple[str, Callable[[Path], object], list[str]]] = [
    # a ragged or object array
    ("npz", npz(vectors=RAGGED), [f"{BONN}.npz: array 'vectors' {OBJECTS}"]),
    ("npz", npz(labels=np.array(PPQQ, dtype=object)), [f"{BONN}.npz: array 'labels' {OBJECTS}"]),
    ("npz", npz(vectors=WORDS), [f"{BONN}.npz, 'vectors': an array of <U3, shape (4, 2); expected numbers"]),
    ("npz", npz(vectors=np.ones((4, 2, 2))), [f"{BONN}.npz, 'vectors': vectors of shape (4, 2, 2); expecte"]),
    ("npz", npz(vectors=np.ones((0, 2)), labels=WORDS[:0, 0]), ["'vectors': it contains no vectors"]),
    ("npz", npz(labels=np.array(list("ppq"))), [f"{BONN}.npz: 4 vectors but 'labels' of shape (3,)"]),
    ("npz", npz(vectors=np.ones((4, 3))), ["'Bonn' has vectors of shape (3,), the reference center (2,)"]),
    ("npz", text("bonn.npz", "no archive"), [f"{BONN}.npz: not a NumPy file; write it with numpy.save"]),
    ("npy", npy("bonn", RAGGED), [f"{BONN}.npy: it {OBJECTS}"]),
    ("npy", npy("labels", RAGGED), ["center 'Bonn': labels.npy: it holds Python objects"]),
    ("pictures", npz(images=RAGGED), [f"{BONN}.npz: the archive cannot be read", "holds Python objects"]),
    ("parquet", columns(v=RAGGED.tolist(), label=PPQQ), [f"{BONN}.parquet, row 2: the lists of column 'v'"]),
    (
        "parquet",
        columns(v=WORDS.tolist(), label=PPQQ),
        ["the lists of column 'v' hold values other than numbers"],
    ),
    ("csv", text("bonn.csv", "x,y,label\n1,2,p\n1,2\n"), [f"{BONN}.csv, line 3: 2 cells, expected 3"]),
    # NaN or infinity in vectors
    ("npz", npz(vectors=NAN), [f"{BONN}.npz, 'vectors': {COUNTED}"]),
    ("npy", npy("bonn", NAN), [f"{BONN}.npy: {COUNTED}"]),
    (
        "csv",
        text("bonn.csv", "x,y,label\n1,,p\ninf,2,q\nnan,2,q\n"),
        [f"{BONN}.csv: 3 values are missing, NaN or infinite, the first on line 2: 2 in 'x', 1 in 'y'."],
    ),
    (
        "parquet",
        columns(x=[1.0, None], y=[float("inf"), 1.0], label=["p", "q"]),
        [f"{BONN}.parquet: 2 values are missing, NaN or infinite, the first on row 1: 1 in 'x', 1 in 'y'."],
    ),
    ("csv", text("bonn.csv", "x,y,label\n1,old,p\n"), [f"{BONN}.csv: 'y' has words, expected numbers"]),
    ("table", text("bonn.csv", "age,sex,label\ninf,F,p\n"), [f"{BONN}.csv, line 2: column 'age' is infinit"]),
    # a label that is not in its label space
    ("npz", npz(labels=np.array(list("ppqz"))), [f"{BONN}.npz, labels[3]: {UNKNOWN}"]),
    ("npz", npz(labels=np.array([0, 1, 0, 9])), ["'labels' are integers, so an array 'classes' must name"]),
    ("npz", npz(labels=np.ones(4)), [f"{BONN}.npz: 'labels' are float64; expected strings, or integers"]),
    (
        "npy",
        npy("labels", np.array([0, 1, 0, 9])),
        ["center 'Bonn': labels.npy: labels[3] is 9, but there are 2 classes (0 to 1): 'p', 'q'."],
    ),
    ("csv", text("bonn.csv", rows("csv", "ppqz")), [f"{BONN}.csv, line 5: {UNKNOWN}"]),
    ("parquet", columns(x=[1.0] * 2, y=[1.0] * 2, label=list("pz")), [f"{BONN}.parquet, row 2: {UNKNOWN}"]),
    ("table", text("bonn.csv", rows("table", "ppqz")), [f"{BONN}.csv, line 5: {UNKNOWN}"]),
    ("text", text("bonn.csv", rows("text", "ppqz")), [f"{BONN}.csv, line 5: {UNKNOWN}"]),
    ("text", text("test.csv", rows("text", "aaz")), ["test 1: test.csv, line 4: label 'z' is not in label"]),
    ("folder", lambda folder: (folder / "bonn/q").rename(folder / "bonn/z"), [UNKNOWN]),
    # a table whose columns differ between centers
    ("csv", text("bonn.csv", "x,z,label\n1,2,p\n"), ["'Bonn' has other columns", "lacks 'y' and has beside"]),
    ("csv", text("bonn.csv", "y,x,label\n1,2,p\n"), ["it has them in another order", "vectors.columns"]),
    ("parquet", columns(x=["a"], y=["c"], label=["p"]), [f"{BONN}.parquet: 'x', 'y' have words, expected n"]),
    (
        "table",
        text("bonn.csv", "age,gender,label\n1,F,p\n"),
        [f"{BONN}.csv: no column 'sex', which the schema has; the columns are 'age', 'gender', 'label'."],
    ),
    ("table", text("bonn.csv", "age,sex,diagnosis\n1,F,p\n"), [f"{BONN}.csv: no column 'label'; the column"]),
    # a category that is not in the schema
    (
        "table",
        text("bonn.csv", "age,sex,label\n1,F,p\nold,D,q\n"),
        ["line 3: column 'age' has 'old', expected a number.", "line 3: column 'sex' has 'D', which the"],
    ),
    ("table", text("test.csv", "age,sex,label\n1,m,a\n"), ["test 1: test.csv, line 2: column 'sex' has 'm'"]),
    # empty text
    ("text", text("bonn.csv", "text,label\nmy card,p\n,q\n"), [f"{BONN}.csv, line 3: the column 'text' is"]),
    ("text", text("bonn.csv", "text,label\n? !,q\n"), [f"{BONN}.csv, line 2: the text '? !' has no word in"]),
    ("text", text("bonn.csv", "text,label\n"), [f"{BONN}.csv: no texts; expected a line for each text"]),
    ("text", text("bonn.csv", ""), [f"{BONN}.csv: no header; expected the names of the columns on line 1."]),
    # a DICOM file without pixels
    ("folder", lambda folder: dicom(folder / "bonn/p/x.dcm", Rows=8), ["'bonn/p/x.dcm': it has no pixels"]),
    ("folder", text("bonn/p/x.dcm", "no DICOM"), ["'bonn/p/x.dcm': it is not a DICOM file"]),
    # a network with the wrong output width, or one that cannot take the input's shape
    ("npz", network("wide"), ["'broken_networks:wide' returned scores of shape (2, 5) for 2 vectors"]),
    ("table", network("wide"), ["returned scores of shape (2, 5) for 2 rows, expected (2, 2), with one"]),
    ("text", network("wide"), ["returned scores of shape (2, 5) for 2 texts, expected (2, 2), with one"]),
    ("folder", network("broad"), ["returned scores of shape (2, 5) for 2 images, expected (2, 2)"]),
    ("npz", network("picture"), ["'broken_networks:picture' cannot take 2 vectors as a tensor of shape (2,"]),
    ("table", network("narrow"), ["'broken_networks:narrow' cannot take 2 rows as a tensor of shape (2, 3)"]),
    ("text", network("narrow"), ["cannot take 2 texts as a tensor of shape (2, 4096): RuntimeError: "]),
    ("folder", network("picture"), ["cannot take 2 images as a tensor of shape (2, 1, 8, 8): RuntimeError:"]),
    (
        "folder",
        too_small,
        [
            "federation.toml: model.backbone: 'resnet9' cannot take 2 images as a tensor of shape (2, 1, 3",
            "too small. Choose another model.backbone, or change images.size or images.channels.",
        ],
    ),
    ("npz", network("twice"), ["'broken_networks:twice' returned an object of type tuple, expected a"]),
    ("npz", network("failing"), ["calling failing(classes=2, features=2) raised RuntimeError: no such laye"]),
]


@pytest.mark.parametrize(("kind", "spoil", "said"), MISTAKES, ids=[f"{m[0]}-{m[2][0]}" for m in MISTAKES])
def test_it_is_told_and_nothing_is_written(
    kind: str,
    spoil: Callable[[Path], object],
    said: list[str],
    tmp_path: Path,
    command: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    input, source, suffix, keys, tables = SOURCES[kind]
    for name, labels in (("reference", "aabb"), ("bonn", "ppqq"), ("test", "aabb")):
        write(kind, tmp_path / f"{name}{suffix}", labels)
    np.save(tmp_path / "labels.npy", np.array([0, 0, 1, 1]))
    (tmp_path / "schema.toml").write_text(SCHEMA)
    config = tmp_path / "federation.toml"
    config.write_text(CONFIG.format(input=input, source=source, suffix=suffix, keys=keys, tables=tables))
    monkeypatch.chdir(tmp_path)
    changed = spoil(tmp_path)
    more = ["--set", changed] if isinstance(changed, str) else []
    before = sorted(tmp_path.rglob("*"))
    status, out, error = command("run", "federation.toml", "--out", "runs/first", *more)
    assert status == 2 and out == "" and "Traceback" not in error
    for part in said:
        assert part in error.replace(f"{tmp_path}{os.sep}", "")
    assert [path for path in sorted(tmp_path.rglob("*")) if "__pycache__" not in path.parts] == before
