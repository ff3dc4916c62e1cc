"""`Federation.from_arrays`: valid arrays give the same federation, and all problems are reported at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from fedmt import Center, CenterData, Correspondence, Federation, FedmtError, LabelSpace
from fedmt.data.sources.arrays import dump_arrays, read_arrays
from fedmt.inputs.images.decoding import read_images
from fedmt.inputs.images.shaping import AS_STORED

RNG = np.random.default_rng(0)
GRAY = RNG.integers(0, 256, (6, 9, 8), dtype=np.uint8)
COLOR = RNG.integers(0, 256, (6, 9, 8, 3), dtype=np.uint8)
ROWS = RNG.normal(size=(6, 4)).astype(np.float32)
LABELS = ["a", "b", "c"] * 2
MATRIX = [[1.0, 0.5, 0.0], [0.0, 0.5, 1.0]]


def make(x: Any = ROWS, y: Any = LABELS, **options: Any) -> Federation:
    centers = {"Oslo": (x,)}
    return Federation.from_arrays(
        **{"wanted": ["a", "b", "c"], "reference": (x, y), "centers": centers, **options}
    )


class Listed(Dataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        return self.items[i]


class Endless(Dataset[Any]):
    def __getitem__(self, i: int) -> Any:
        return ROWS[i % 6], LABELS[i % 6]


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(zip(ROWS, LABELS, strict=True))


@pytest.mark.parametrize(
    "x",
    [
        COLOR,
        COLOR.transpose(0, 3, 1, 2),
        torch.from_numpy(COLOR),
        torch.from_numpy(COLOR).permute(0, 3, 1, 2),
        COLOR / 255,
        (COLOR / 255).astype(np.float32),
        torch.from_numpy(COLOR) / 255,
        list(COLOR),
        list(torch.from_numpy(COLOR)),
        [Image.fromarray(image) for image in COLOR],
    ],
)
def test_every_form_of_images_is_stored_alike(x: Any) -> None:
    federation = make(x)
    assert federation.input.name == "images" and federation.input.shape == (3, 9, 8)
    assert torch.equal(federation.reference.values, torch.from_numpy(COLOR).permute(0, 3, 1, 2))


def test_gray_images_need_no_channel() -> None:
    assert make(GRAY).input.shape == make(GRAY[..., None]).input.shape == (1, 9, 8)


def test_pictures_are_converted_as_files_are(tmp_path: Path) -> None:
    """Pillow's own conversion would clip 16 bits to white, and show what is under transparent parts."""
    deep = [Image.fromarray(image.astype(np.uint16) * 256 + 7) for image in GRAY]
    assert torch.equal(make(deep).reference.values, torch.from_numpy(GRAY)[:, None])
    alpha = np.full((*COLOR.shape[:3], 1), 60, np.uint8)
    clear = [Image.fromarray(image, "RGBA") for image in np.concatenate([COLOR, alpha], 3)]
    for kind, pictures in {"deep": deep, "clear": clear}.items():
        (tmp_path / kind).mkdir()
        paths = [tmp_path / kind / f"{i}.png" for i in range(len(pictures))]
        for path, picture in zip(paths, pictures, strict=True):
            picture.save(path)
        read = read_images(paths, list(map(str, paths)), AS_STORED)
        stored = make(pictures).reference
        assert torch.equal(stored.values, read)
        assert torch.equal(torch.cat(list(stored.input.batches(pictures))), read)
    # Gray and color together are color, as in a folder.
    mixed = [Image.fromarray(COLOR[0]), Image.fromarray(GRAY[0])] * 3
    assert make(mixed).input.shape == (3, 9, 8)


@pytest.mark.parametrize(
    "x", [ROWS, ROWS.astype(np.float64), torch.from_numpy(ROWS), ROWS.tolist(), ROWS.astype(">f4")]
)
def test_every_form_of_vectors_is_stored_alike(x: Any) -> None:
    federation = make(x)
    assert federation.input.name == "vectors" and torch.equal(
        federation.reference.values, torch.from_numpy(ROWS)
    )


@pytest.mark.parametrize(
    "y",
    [
        LABELS,
        [0, 1, 2, 0, 1, 2],
        np.array(LABELS),
        np.array(LABELS, dtype="S"),
        torch.tensor([0, 1, 2, 0, 1, 2]),
        np.array([0, 1, 2, 0, 1, 2], dtype=np.uint8),
        pd.Series(LABELS),
        pd.Series(LABELS, dtype="category"),
        np.array(LABELS, dtype=object),
    ],
)
def test_labels_are_names_or_positions(y: Any) -> None:
    labels = make(y=y).reference.labels
    assert labels is not None and labels.tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    "data",
    [
        Listed(list(zip(ROWS, LABELS, strict=True))),
        Listed([(torch.from_numpy(x), torch.tensor(i % 3)) for i, x in enumerate(ROWS)]),
        Streamed(),
        TensorDataset(torch.from_numpy(ROWS), torch.arange(6) % 3),
        CenterData(Listed(list(zip(ROWS, LABELS, strict=True)))),
        pd.DataFrame(ROWS, columns=list("wxyz")).assign(label=LABELS),
        (pd.DataFrame(ROWS, columns=list("wxyz")).assign(diagnosis=LABELS), "diagnosis"),
        (pd.DataFrame(ROWS, columns=list("wxyz")), LABELS),
    ],
)
def test_datasets_and_frames(data: Any) -> None:
    kind = "vectors"  # otherwise a frame is a table, which is standardized by all centers' statistics
    federation = make(reference=data, centers={"Bonn": data}, input=kind)
    for center in (federation.reference, federation.centers[0]):
        assert center.labels is not None and center.labels.tolist() == [0, 1, 2, 0, 1, 2]
        assert torch.equal(center.values, torch.from_numpy(ROWS))


def test_a_dataset_without_labels() -> None:
    for data in (Listed(list(ROWS)), TensorDataset(torch.from_numpy(ROWS))):
        assert make(centers={"Oslo": data}).centers[0].labels is None


def test_tables_are_encoded_by_the_statistics_of_the_centers() -> None:
    reference = pd.DataFrame(
        {"age": [40.0, 60.0], "sex": ["f", "m"], "code": pd.Categorical([1, 2]), "label": ["a", "b"]}
    )
    oslo = pd.DataFrame({"age": [80.0, np.nan], "sex": ["x", "m"], "code": pd.Categorical([2, 2])})
    federation = make(reference=reference, centers={"Oslo": oslo})
    assert federation.input.name == "tables"
    expected = ("age", "age is missing", "sex = f", "sex = m", "sex = x", "code = 1", "code = 2")
    assert federation.input.columns == expected  # type: ignore[attr-defined]
    values = np.array([40.0, 60.0, 80.0])
    found = federation.reference.values[:, 0].numpy()
    np.testing.assert_allclose(found, (values[:2] - values.mean()) / values.std(), rtol=1e-6)


def test_missing_values_of_pandas_are_missing() -> None:
    frame = pd.DataFrame({"age": [40, None, 60], "sex": ["f", "m", None]})
    label = ["a", "b", "c"]
    expected = make(reference=(frame, label), centers={"Oslo": frame}).reference
    for typed in (frame.convert_dtypes(), frame.convert_dtypes(dtype_backend="pyarrow")):
        found = make(reference=(typed, label), centers={"Oslo": typed}).reference
        assert found.input == expected.input and torch.equal(found.values, expected.values)


def test_columns_that_are_left_out_are_named() -> None:
    frame = pd.DataFrame({"age": range(20, 32), "sex": list("fm") * 6})
    told = frame.assign(note=[f"n{i}" for i in range(12)], empty=np.nan, label=["a", "b", "c"] * 4)
    federation = make(reference=told, centers={"Oslo": told.drop(columns="label")})
    assert federation.input.columns == ("sex = f", "sex = m")  # type: ignore[attr-defined]
    assert federation.notes[0].startswith("Columns left out: 'age', 'note', 'empty'. A column is not")
    assert not make(reference=told[["sex", "label"]], centers={"Oslo": told[["sex"]]}).notes


def test_spaces_correspondences_and_named_tests() -> None:
    two = LabelSpace("two", ["p", "q"])
    own = Correspondence(MATRIX, LabelSpace("wanted", ["a", "b", "c"]), two)
    y, table = ["p", "q"] * 3, pd.DataFrame(MATRIX, index=["p", "q"], columns=["a", "b", "c"])
    federation = make(
        centers={
            "by matrix": CenterData(ROWS, y, "two", np.array(MATRIX)),
            "by object": CenterData(ROWS, y, two, own),
            "by names": CenterData(ROWS, y, two, table.loc[["q", "p"], ["c", "a", "b"]]),
            "by positions": CenterData(ROWS, y, two, pd.DataFrame(MATRIX).loc[[1, 0], [2, 0, 1]]),
            "by table": CenterData(ROWS, y, "two", {"a": "p", "b": {"p": 0.5, "q": 0.5}, "c": "q"}),
            "by space": (ROWS, y, "two"),
            "wanted": (ROWS, LABELS),
        },
        spaces={"two": ["p", "q"], "three": ["x"]},
        correspondences={"two": MATRIX},
        test={"here": (ROWS, LABELS), "there": CenterData(ROWS, y, "two"), "odd": (ROWS, [0] * 6, "three")},
    )
    assert [c.correspondence for c in federation.centers if c.space == two] == [own] * 6
    assert [t.name for t in federation.tests] == ["here", "there", "odd"]
    assert federation.notes == (
        "odd: no center labels in space 'three', so no model predicts in it, and the test is left out.",
    )


BROKEN = ROWS.copy()
BROKEN[1, 2] = np.nan
BROKEN[4, 2] = np.inf


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"x": [[1.0, 2.0], [3.0]]},
            r"center 'reference': a ragged array: its samples have the shapes \(2,\), \(1,\)",
        ),
        ({"x": np.array([ROWS[0], ROWS[1, :2]], dtype=object)}, "a ragged array"),
        ({"x": np.array([["x", {}]], dtype=object)}, "an object array, with elements of type"),
        ({"x": np.array([["x", "y"]])}, r"dtype <U1 and shape \(1, 2\); expected numbers"),
        ({"x": object()}, "an object of type object; expected an array"),
        (
            {"x": BROKEN},
            "center 'reference': 2 values are missing, NaN or infinite, the first on row 1: 2 in column 2",
        ),
        ({"x": ROWS[0]}, r"vectors of shape \(4,\) and dtype float32; expected floats \[N, D\]"),
        (
            {"x": np.full((6, 8, 8), 1.5)},
            r"dtype float64 with values from 1.5 to 1.5; expected floats in \[0, 1\]",
        ),
        ({"x": np.full((6, 8, 8), np.nan)}, "384 of the 384 values of its images are NaN or infinite"),
        ({"x": GRAY.astype(np.int32)}, r"dtype int32 and shape \(6, 1, 9, 8\); expected uint8"),
        (
            {"x": np.zeros((6, 4, 9, 8), np.uint8)},
            r"shape \(6, 4, 9, 8\) and dtype uint8; expected \[N, H, W, C\]",
        ),
        ({"x": np.zeros((6, 3, 9, 3), np.uint8)}, r"could be \[N, H, W, C\] or \[N, C, H, W\]"),
        (
            {"x": [Image.fromarray(GRAY[0] / np.float32(255))] * 6},
            r"center 'reference', x\[0\]: the picture cannot be read: it holds floating-point values",
        ),
        ({"x": ROWS[:0], "y": []}, "Center 'reference' is empty"),
        ({"y": [*LABELS[:5], "d"]}, r"center 'reference', y\[5\]: label 'd' is not in label space 'wanted'"),
        (
            {"y": [0, 1, 2, 3, 4, -1]},
            r"3 of 6 labels are outside label space 'wanted', .* the first is y\[3\] = 3",
        ),
        ({"y": LABELS[:4]}, r"6 vectors but labels of shape \(4,\)"),
        ({"y": np.eye(6)}, r"labels of shape \(6, 6\). For scores or a one-hot table, pass argmax"),
        (
            {"y": [0.0, 1.0] * 3},
            r"labels of dtype float64 \('float'\); expected class names, or integers from 0 to 2",
        ),
        ({"y": ["a", None] * 3}, r"3 of 6 labels are missing, the first is y\[1\]"),
        ({"y": ["a", np.nan] * 3}, r"3 of 6 labels are missing, the first is y\[1\]"),
        ({"y": np.array([0, np.nan] * 3)}, r"3 of 6 labels are missing, the first is y\[1\]"),
        (
            {"y": pd.Series(["a", None] * 3, dtype="string")},
            r"3 of 6 labels are missing, the first is y\[1\]",
        ),
        (
            {"y": np.arange(6)[:, None] % 3},
            r"labels of shape \(6, 1\). Remove the second axis, as in y\[:, 0",
        ),
        (
            {"wanted": ["1", "2", "3"], "y": [1, 2] * 3},
            "integers are positions in label space 'wanted', but 1 is also the name of the class at",
        ),
        ({"wanted": {"a", "b", "c"}}, "Label space 'wanted': classes must be a list of names, got {"),
        ({"spaces": {"two": {"p", "q"}}}, "Label space 'two': classes must be a list of names, got {"),
        ({"spaces": {"two": "pq"}}, "Label space 'two': classes must be a list of names, got 'pq'"),
        ({"wanted": 3}, "Label space 'wanted': classes must be a list of names, got 3"),
        ({"y": "diagnosis"}, "y is the text 'diagnosis'; expected the labels"),
        ({"y": None}, "the reference center needs labels"),
        ({"reference": (ROWS, LABELS, "two", 1)}, r"a tuple of length 4; expected \(x, y, space\)"),
        ({"centers": []}, "centers: expected a dictionary of at least one center"),
        (
            {"centers": {"Bonn": (ROWS, LABELS, "tow")}},
            "center 'Bonn': label space 'tow' is not in `spaces`. Did you mean 'two'",
        ),
        (
            {"centers": {"Bonn": CenterData(ROWS, space="two")}},
            "center 'Bonn' has a label space but no labels",
        ),
        (
            {"centers": {"Bonn": (ROWS[:, :3],)}},
            r"center 'Bonn': vectors of shape \(3,\), but the reference center has \(4,\)",
        ),
        ({"centers": {"Bonn": (GRAY,)}}, r"center 'Bonn': vectors of shape \(6, 9, 8\) and dtype uint8"),
        ({"centers": {"Bonn": (ROWS, ["p"] * 6, "two", [[1, 0], [0, 1]])}}, "a tuple of length 4"),
        (
            {"centers": {"Bonn": CenterData(ROWS, ["p"] * 6, "two", [[1, 0], [0, 1]])}},
            "Bonn': correspondence 'wanted' -> 'two': the matrix is 2 x 2, expected 2 x 3",
        ),
        (
            {"centers": {"Bonn": CenterData(ROWS, LABELS, None, MATRIX)}},
            "labels in the wanted space 'wanted' and needs no corr",
        ),
        ({"centers": {3: (ROWS,)}}, "center '3': its name is 3; expected text"),
        (
            {"centers": {"Bonn": pd.DataFrame(ROWS)}},
            "center 'reference': this is an array, but center 'Bonn' has a data frame",
        ),
        ({"reference": (pd.DataFrame(ROWS), "diagnosis")}, "the frame has no column 'diagnosis'"),
        (
            {
                "reference": (pd.DataFrame(ROWS, columns=list("wxyw")), LABELS),
                "centers": {"O": pd.DataFrame(ROWS, columns=list("wxyw"))},
            },
            "center 'reference': several columns are called 'w'. Rename or drop all but one",
        ),
        (
            {"reference": (pd.DataFrame({"age": [np.inf] * 6}), LABELS), "centers": {"O": pd.DataFrame()}},
            "center 'reference', row 0: column 'age' is infinite, as in 5 more rows, expected a number",
        ),
        (
            {
                "reference": (pd.DataFrame({"text": [f"lesion {i}" for i in range(12)]}), LABELS * 2),
                "centers": {"O": pd.DataFrame({"text": [f"lesion {i}" for i in range(12)]})},
            },
            r"no column that can be a feature.*For texts, pass the column itself, such as frame\['text'\]",
        ),
        ({"reference": Listed([])}, "the Dataset is empty"),
        ({"reference": Listed([(1, 2, 3)])}, r"items of the Dataset have \[3\] parts; expected \(x, y\)"),
        (
            {"reference": Endless()},
            "the Dataset has no length. Define __len__ in Endless, or make it an Iter",
        ),
        (
            {"reference": Listed([{"x": ROWS[0], "y": "a"}])},
            r"items of the Dataset are dictionaries; expected \(x, y\)",
        ),
        (
            {"x": [__file__] * 6},
            "center 'reference': x has names of files, such as '.*'. Read the files first",
        ),
        ({"reference": (Streamed(), LABELS)}, r"both a Dataset of \(x, y\) and separate labels"),
        ({"wanted": "for"}, "wanted: label space 'for' is not in `spaces`"),
        ({"test": (ROWS,)}, "test 'test 1': a test needs labels"),
        ({"input": "image"}, "input: no input 'image'. Did you mean 'images'"),
    ],
)
def test_what_does_not_fit_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FedmtError, match=message):
        make(**{"spaces": {"two": ["p", "q"]}, **options})


@pytest.mark.parametrize("labels", [[0, 1, 0], np.array([0, 1, 0]), torch.tensor([0, 1, 0]).int()])
def test_a_center_made_by_hand_says_what_labels_it_needs(labels: Any) -> None:
    images, space = torch.zeros(3, 1, 8, 8, dtype=torch.uint8), LabelSpace("two", ["p", "q"])
    with pytest.raises(FedmtError, match=r"labels are of type .*; expected a tensor of int64"):
        Center("Bonn", images, space, labels)
    center = Center("Bonn", images, space, torch.tensor([0, 1, 0]))
    assert repr(center) == "Center('Bonn', 3 images, labeled in 'two')"  # no values: they may be confidential


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(FedmtError) as caught:
        make(
            BROKEN, centers={"Bonn": (ROWS, LABELS, "two"), "Kiel": (ROWS, [9] * 6)}, test=(ROWS, LABELS[:2])
        )
    said = str(caught.value).splitlines()
    assert sorted(line.split(":")[0] for line in said) == [
        "center 'Bonn'",
        "center 'Kiel'",
        "center 'reference'",
        "test 'test 1'",
    ]


def test_frames_whose_columns_differ_are_listed() -> None:
    one = pd.DataFrame({"age": [1.5, 2.5], "sex": ["f", "m"], "label": ["a", "b"]})
    with pytest.raises(FedmtError) as caught:
        make(reference=one, centers={"Bonn": one.rename(columns={"age": "years"})})
    assert (
        "column 'age' differs between the centers (center 'reference': numeric, center 'Bonn': not there)"
        in str(caught.value)
    )
    with pytest.raises(
        FedmtError, match=r"test 'test 1', row 1: column 'sex' has 'x', which the schema does not know"
    ):
        make(reference=one, centers={"Bonn": one}, test=one.assign(sex=["f", "x"]))


def test_files_of_arrays(tmp_path: Path) -> None:
    """What was stored comes back exactly, and other files are rejected."""
    reference = make().reference
    path = tmp_path / "a.safetensors"
    path.write_bytes(dump_arrays(reference))
    found = read_arrays(path, reference.space)
    assert torch.equal(found.samples, reference.values) and found.input == reference.input
    assert torch.equal(found.labels["wanted"], reference.labels)
    with pytest.raises(FedmtError, match="no labels in label space 'two'"):
        read_arrays(path, LabelSpace("two", ["p"]))
    with pytest.raises(FedmtError, match=r"does not exist.*moved"):
        read_arrays(tmp_path / "b.safetensors", None)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(FedmtError, match="damaged"):
        read_arrays(path, None)


@given(
    st.integers(1, 12).flatmap(
        lambda rows: st.lists(
            st.lists(st.floats(0, 1, width=32), min_size=rows, max_size=rows).filter(lambda c: sum(c) > 0.01),
            min_size=1,
            max_size=4,
        )
    )
)
def test_a_correspondence_survives_as_a_table(columns: list[list[float]]) -> None:
    """Written into a config and read again, the matrix is bit-identical."""
    matrix = torch.tensor(columns, dtype=torch.float64).T
    fine = LabelSpace("fine", [f"f{k}" for k in range(matrix.shape[1])])
    coarse = LabelSpace("coarse", [f"c{j}" for j in range(matrix.shape[0])])
    one = Correspondence(matrix / matrix.sum(0), fine, coarse)
    assert Correspondence.from_mapping(fine, coarse, one.to_mapping()) == one


# -- patients ---------------------------------------------------------------------------------------


def patients(count: int = 40) -> tuple[pd.DataFrame, list[str]]:
    """Rows of patients with two visits each, and their labels."""
    numbers = np.arange(count)
    rows = {
        "patient_id": 100 + numbers // 2,
        "age": numbers % 7 * 10.0,
        "marker": numbers % 2 + numbers % 3 / 9,
    }
    return pd.DataFrame(rows), ["a" if n % 2 else "b" for n in numbers]


def test_a_column_of_patients_is_no_feature() -> None:
    """As in `fedmt schema`. It would only help the model to recognize the patients of the training data."""
    frame, labels = patients()
    federation = Federation.from_arrays(["a", "b"], (frame, labels), {"Bonn": (frame, labels)})
    assert [column.name for column in federation.input.known.columns] == ["age", "marker"]
    assert any("'patient_id'" in note and "give it as `groups`" in note for note in federation.notes)


@pytest.mark.parametrize("dtype", [int, float])
def test_groups_of_samples_in_memory(dtype: type) -> None:
    """By the frame's column or one by one. A missing value elsewhere turns pandas' whole numbers into
    floats, which are the same patients. A column of groups is no feature at any center."""
    frame, labels = patients()
    other = frame.rename(columns={"patient_id": "who"}).astype({"who": dtype})
    federation = Federation.from_arrays(
        ["a", "b"],
        CenterData(other, labels, groups="who"),
        {"Bonn": (other, labels)},
        test=CenterData(other.drop(columns="who"), labels, groups=other["who"]),
    )
    (test,), reference = federation.tests, federation.reference
    assert reference.groups is not None and test.groups is not None
    assert torch.equal(reference.groups, test.groups) and len(test.groups.unique()) == 20
    assert [column.name for column in reference.input.known.columns] == ["age", "marker"]


def test_a_saved_federation_keeps_who_belongs_together(tmp_path: Path) -> None:
    frame, labels = patients()
    federation = Federation.from_arrays(
        ["a", "b"], CenterData(frame, labels, groups="patient_id"), {"Bonn": (frame, labels)}
    )
    path = tmp_path / "reference.safetensors"
    path.write_bytes(dump_arrays(federation.reference))
    assert b"patient" not in path.read_bytes()
    found = read_arrays(path, federation.wanted).groups
    assert found is not None and federation.reference.groups is not None
    same = federation.reference.groups[:, None] == federation.reference.groups
    assert torch.equal(found[:, None] == found, same)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ("patient", "groups: there is no column 'patient', because its columns are 'patient_id', 'age'"),
        ([1, 2, 3], "center 'reference': 40 rows but 3 groups"),
        ([None, *range(39)], r"groups: 1 of 40 are missing, the first is groups\[0\]"),
    ],
)
def test_groups_that_do_not_fit_are_named(groups: Any, said: str) -> None:
    frame, labels = patients()
    with pytest.raises(FedmtError, match=said):
        Federation.from_arrays(
            ["a", "b"], CenterData(frame, labels, groups=groups), {"Bonn": (frame, labels)}
        )
