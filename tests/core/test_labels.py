"""Label spaces and correspondences: errors that name the cause, and arithmetic against float64."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedmt.core.errors import FedmtError
from fedmt.core.labels import Correspondence, LabelSpace, posterior, project

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
seeds = st.integers(0, 2**32)
sizes = st.integers(1, 7)

DIAGNOSES = LabelSpace("diagnosis", ["melanoma", "nevus", "wart"])
TRIAGE = LabelSpace("triage", ["malignant", "benign"])


def space(name: str, size: int) -> LabelSpace:
    return LabelSpace(name, [f"{name} {i}" for i in range(size)])


def random_matrix(rng: np.random.Generator, coarse: int, fine: int) -> np.ndarray:
    """A valid matrix [J, K] in float64, with zeros in about a third of the entries, and others >= 1e-3."""
    mass = rng.uniform(0.01, 1, (coarse, fine)) * (rng.random((coarse, fine)) < 0.7)
    mass[rng.integers(coarse, size=fine), np.arange(fine)] += 0.5
    return mass / mass.sum(0)


def reference_posterior(f: np.ndarray, matrix: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Bayes' rule for one row at a time in float64, where no product of two float32 numbers underflows."""
    rows = []
    for row, label in zip(f.astype(np.float64), labels, strict=True):
        allowed = matrix[label].astype(np.float64)
        joint = row * allowed
        if joint.sum() == 0:
            joint = allowed if allowed.sum() > 0 else row
        rows.append(joint / joint.sum())
    return np.array(rows).reshape(f.shape)


# -- label spaces -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([], "'skin' has no classes"),
        (["a", " "], "'skin': class 2 has an empty name"),
        (["a", "b", " a "], "'skin' names 'a' more than once"),
        ("abc", "'skin': classes must be a list of names"),
        (["a", 3], "'skin': classes must be a list of names"),
    ],
)
def test_a_bad_space_is_refused_by_name(classes: list[str], message: str) -> None:
    with pytest.raises(FedmtError, match=message):
        LabelSpace("skin", classes)


def test_names_are_stripped_and_keep_their_order() -> None:
    found = LabelSpace("skin", [" wart", "nevus ", "acne"])
    assert found.classes == tuple(found) == ("wart", "nevus", "acne")
    assert [found.index(f" {c} ") for c in found] == [0, 1, 2]
    assert len(found) == 3 and "nevus" in found and "mole" not in found
    assert found == LabelSpace("skin", ["wart", "nevus", "acne"])
    assert found != LabelSpace("skin", ["nevus", "wart", "acne"])
    assert found != LabelSpace("hair", ["wart", "nevus", "acne"])


def test_names_are_the_same_however_their_accents_are_written() -> None:
    """A Mac writes folder names in decomposed form, and a config has them in composed form."""
    composed, decomposed = "N\u00e4vus", "Na\u0308vus"
    found = LabelSpace("skin", ["wart", decomposed])
    assert found.classes == ("wart", composed) and found == LabelSpace("skin", ["wart", composed])
    assert found.index(decomposed) == found.index(composed) == 1
    assert decomposed in found and composed in found and 1 not in found
    with pytest.raises(FedmtError, match="more than once"):
        LabelSpace("skin", [composed, decomposed])
    matrix = Correspondence.from_mapping(found, TRIAGE, {"wart": "benign", composed: {"benign": 1.0}})
    assert matrix.matrix.tolist() == [[0, 0], [1, 1]]


def test_an_unknown_label_says_where_and_suggests_the_nearest() -> None:
    with pytest.raises(FedmtError) as caught:
        DIAGNOSES.index("melanome", "a.csv, line 7")
    message = str(caught.value)
    for part in ("a.csv, line 7", "'melanome'", "'diagnosis'", "Did you mean 'melanoma'?", "'nevus', 'wart'"):
        assert part in message
    with pytest.raises(FedmtError) as caught:
        DIAGNOSES.index("zzzz")
    assert "Did you mean" not in str(caught.value)


# -- what a correspondence refuses --------------------------------------------------------------------------

GOOD = [[1.0, 0.25, 0.0], [0.0, 0.75, 1.0]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), -0.25])
def test_an_entry_that_is_no_probability_is_named(bad: float) -> None:
    matrix = torch.tensor(GOOD)
    matrix[0, 1] = bad
    with pytest.raises(FedmtError) as caught:
        Correspondence(matrix, DIAGNOSES, TRIAGE, source="site.toml")
    for part in ("site.toml", "'malignant'", "'nevus'", str(bad)):
        assert part in str(caught.value)


@pytest.mark.parametrize("off", [0.5, 0.99, 1.01, 2.0])
def test_a_column_that_does_not_sum_to_one_is_named(off: float) -> None:
    matrix = torch.tensor(GOOD)
    matrix[:, 2] *= off
    with pytest.raises(FedmtError, match=f"the column of 'wart' sums to {off:g}, expected 1"):
        Correspondence(matrix, DIAGNOSES, TRIAGE)


def test_an_empty_column_asks_where_its_class_belongs() -> None:
    with pytest.raises(FedmtError, match=r"column of 'nevus' sums to 0.*say which class of 'triage'"):
        Correspondence([[1.0, 0, 0], [0, 0, 1]], DIAGNOSES, TRIAGE)


@pytest.mark.parametrize("shape", [(3, 2), (2, 2), (3, 3), (6,), (1, 2, 3)])
def test_the_wrong_shape_says_what_was_expected(shape: tuple[int, ...]) -> None:
    with pytest.raises(FedmtError) as caught:
        Correspondence(torch.ones(shape), DIAGNOSES, TRIAGE)
    for part in (" x ".join(map(str, shape)), "2 x 3", "'triage'", "'diagnosis'"):
        assert part in str(caught.value)


def test_rows_of_different_lengths_are_the_users_mistake() -> None:
    with pytest.raises(FedmtError, match="diagnosis"):
        Correspondence([[1.0, 0.5, 0.0], [0.0, 0.5]], DIAGNOSES, TRIAGE)


def test_three_decimals_pass_as_the_tolerance_says() -> None:
    three = space("center", 3)
    found = Correspondence([[0.333], [0.333], [0.333]], space("wanted", 1), three)
    torch.testing.assert_close(found.matrix, torch.full((3, 1), 1 / 3))


@quick
@given(seeds, sizes, sizes)
def test_columns_within_the_tolerance_are_renormalized(seed: int, coarse: int, fine: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = random_matrix(rng, coarse, fine)
    found = Correspondence(
        matrix * rng.uniform(1 - 9e-5, 1 + 9e-5, fine), space("f", fine), space("c", coarse)
    )
    assert found.matrix.dtype == torch.float32
    np.testing.assert_allclose(found.matrix.numpy(), matrix, rtol=1e-6)
    np.testing.assert_allclose(found.matrix.double().sum(0).numpy(), 1, atol=1e-6)


def test_the_callers_matrix_is_neither_changed_nor_shared() -> None:
    mine = torch.tensor(GOOD) * (1 + 5e-5)
    before = mine.clone()
    found = Correspondence(mine, DIAGNOSES, TRIAGE)
    assert torch.equal(mine, before)
    mine.zero_()
    torch.testing.assert_close(found.matrix, torch.tensor(GOOD))


# -- from a mapping ---------------------------------------------------------------------------------------


def test_a_mapping_of_names_and_shares() -> None:
    # Not nested: a nevus may have either label, and the order of the mapping does not matter.
    found = Correspondence.from_mapping(
        DIAGNOSES,
        TRIAGE,
        {"wart": " benign ", "nevus": {"benign": 0.75, "malignant": 0.25}, "melanoma": "malignant"},
    )
    assert found.matrix.tolist() == GOOD
    assert not found.is_partition
    assert found == Correspondence(GOOD, DIAGNOSES, TRIAGE)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"wart": None}, ["site.toml", "no entry for 'wart'", "'diagnosis'"]),
        ({"wart": "bening"}, ["site.toml", "class 'wart'", "'bening'", "Did you mean 'benign'?"]),
        ({"wart": {"bening": 1.0}}, ["site.toml", "class 'wart'", "Did you mean 'benign'?"]),
        ({"warts": "benign"}, ["site.toml", "'warts'", "Did you mean 'wart'?", "'diagnosis'"]),
        ({"wart": {"benign": 0.5}}, ["site.toml", "column of 'wart' sums to 0.5"]),
        ({"wart": 3}, ["site.toml", "class 'wart': 3 given, expected a class of 'triage'"]),
        ({"wart": {}}, ["site.toml", "column of 'wart' sums to 0"]),
        ({"wart": {"benign": 1.5, "malignant": -0.5}}, ["site.toml", "('malignant', 'wart') is -0.5"]),
        ({"wart": {"benign": float("nan")}}, ["site.toml", "('benign', 'wart') is nan"]),
    ],
)
def test_a_bad_mapping_names_the_class(change: dict[str, object], parts: list[str]) -> None:
    mapping = {"melanoma": "malignant", "nevus": "benign", "wart": "benign", **change}
    mapping = {name: target for name, target in mapping.items() if target is not None}
    with pytest.raises(FedmtError) as caught:
        Correspondence.from_mapping(DIAGNOSES, TRIAGE, mapping, source="site.toml")  # type: ignore[arg-type]
    for part in parts:
        assert part in str(caught.value)


# -- CSV ----------------------------------------------------------------------------------------------------

# Commas, quotes, line ends and non-ASCII letters, which make real class names difficult in CSV.
names = st.lists(
    st.text(alphabet="abÅß✓ ,;\"'\n\r\t.", min_size=1, max_size=6).map(str.strip).filter(bool),
    min_size=1,
    max_size=5,
    unique=True,
)


@quick
@given(seeds, names, names, st.booleans())
def test_csv_round_trip_in_any_order(
    tmp_path: Path, seed: int, fine: list[str], coarse: list[str], bom: bool
) -> None:
    rng = np.random.default_rng(seed)
    wanted, other = LabelSpace("wanted", fine), LabelSpace("other", coarse)
    original = Correspondence(random_matrix(rng, len(coarse), len(fine)), wanted, other)
    path = tmp_path / "m.csv"
    original.to_csv(path)
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    body = [rows[0], *(rows[1:][i] for i in rng.permutation(len(coarse)))]
    order = [0, *(1 + rng.permutation(len(fine)))]
    with path.open("w", newline="", encoding="utf-8-sig" if bom else "utf-8") as file:
        # Blank rows and spaces around numbers, as spreadsheets and people leave them.
        csv.writer(file).writerows([[], *([f" {row[i]} " for i in order] for row in body), [""] * len(order)])
    found = Correspondence.from_csv(path, wanted, other)
    assert (found.fine, found.coarse) == (wanted, other)
    np.testing.assert_allclose(found.matrix.numpy(), original.matrix.numpy(), rtol=3e-7, atol=0)


def test_csv_of_a_partition_is_exact(tmp_path: Path) -> None:
    original = Correspondence([[1, 0, 1], [0, 1, 0]], DIAGNOSES, TRIAGE)
    original.to_csv(tmp_path / "m.csv")
    assert Correspondence.from_csv(tmp_path / "m.csv", DIAGNOSES, TRIAGE) == original


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["found 0 rows"]),
        (",melanoma,nevus,wart\n", ["found 1 rows"]),
        (",melanoma,nevu,wart\n", ["found 1 rows"]),
        (",melanoma,nevu,wart\nmalignant,1,0,0\n", ["line 1", "'nevu'", "Did you mean 'nevus'?"]),
        ("\n,melanoma,nevus\nmalignant,1,0\n", ["line 2", "'wart' of 'diagnosis' missing"]),
        (",melanoma,nevus,nevus,wart\nbenign,1,0,0,0\n", ["line 1", "'nevus'", "more than once"]),
        (",melanoma,nevus,wart\nmalignant,1,0\n", ["line 2", "3 cells, expected 4"]),
        (",melanoma,nevus,wart\n\nbenign,0,1,1\nmalignant,1,0,0,0\n", ["line 4", "5 cells, expected 4"]),
        (",melanoma,nevus,wart\nbening,0,1,1\n", ["line 2", "'bening'", "Did you mean 'benign'?"]),
        (
            ",melanoma,wart,nevus\nmalignant,1,0,0\nbenign,0,many,1\n",
            ["line 3", "column 'wart'", "'many' is not a number"],
        ),
        (",melanoma,nevus,wart\nmalignant,1,,0\n", ["line 2", "column 'nevus'", "'' is not a number"]),
        (",melanoma,nevus,wart\nbenign,1,1,1\n", ["'malignant' of 'triage' missing"]),
        (
            ",melanoma,nevus,wart\nbenign,0,1,1\nmalignant,1,0,0\nbenign,0,1,1\n",
            ["'benign' of 'triage'", "more than once"],
        ),
        (",melanoma,nevus,wart\nmalignant,1,0,0\nbenign,0,0.5,1\n", ["column of 'nevus' sums to 0.5"]),
        (",melanoma,nevus,wart\nmalignant,1,nan,0\nbenign,0,1,1\n", ["('malignant', 'nevus') is nan"]),
        (";melanoma;nevus;wart\nmalignant;1;0;0\n", ["line 1", "separated by commas"]),
        (
            ",malignant,benign\nmelanoma,1,0\nnevus,0,1\nwart,0,1\n",
            ["line 1", "'triage' are across the top. Transpose the table"],
        ),
        # With a line end inside quotes, the line number is that of the file, not that of the record.
        ('"diagnosis\nby row",melanoma,nevus,wart\nmalignant,1,x,0\n', ["line 3", "'x' is not a number"]),
    ],
)
def test_a_bad_csv_names_file_and_line(tmp_path: Path, text: str, parts: list[str]) -> None:
    path = tmp_path / "triage.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FedmtError) as caught:
        Correspondence.from_csv(path, DIAGNOSES, TRIAGE)
    assert str(caught.value).startswith(str(path))
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, r"cannot be read \(No such file or directory\)"),
        (b"\xff\xfe\x00", "as 'CSV UTF-8'"),
        ("folder", r"cannot be read \(Is a directory\)"),
    ],
)
def test_an_unreadable_csv_names_the_file(tmp_path: Path, content: bytes | str | None, said: str) -> None:
    path = tmp_path / "triage.csv"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        path.mkdir()
    with pytest.raises(FedmtError, match=said) as caught:
        Correspondence.from_csv(path, DIAGNOSES, TRIAGE)
    assert str(path) in str(caught.value)


# -- projection -------------------------------------------------------------------------------------------


@quick
@given(seeds, sizes, sizes, st.lists(st.integers(0, 3), max_size=3))
def test_projection_is_the_matrix_product(seed: int, coarse: int, fine: int, lead: list[int]) -> None:
    rng = np.random.default_rng(seed)
    found = Correspondence(random_matrix(rng, coarse, fine), space("f", fine), space("c", coarse))
    f = rng.dirichlet(np.ones(fine), size=tuple(lead)).reshape(*lead, fine).astype(np.float32)
    expected = np.zeros((*lead, coarse))
    for j in range(coarse):
        for k in range(fine):
            expected[..., j] += float(found.matrix[j, k]) * f[..., k].astype(np.float64)
    projected = found.project(torch.from_numpy(f))
    assert projected.dtype == torch.float32
    np.testing.assert_allclose(projected.numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(projected.numpy().sum(-1), 1, atol=1e-5)
    # The precision of the probabilities is kept.
    double = found.project(torch.from_numpy(f).double())
    assert double.dtype == torch.float64
    np.testing.assert_allclose(double.numpy(), expected, atol=1e-14)
    torch.testing.assert_close(project(torch.from_numpy(f), found.matrix), projected)


# -- posterior --------------------------------------------------------------------------------------------


@quick
@given(seeds, sizes, sizes, st.integers(0, 9))
def test_posterior_is_bayes_rule(seed: int, coarse: int, fine: int, count: int) -> None:
    """Covers probabilities down to 1e-30, zeros, one-hot rows, and rows of M that are all zero."""
    rng = np.random.default_rng(seed)
    matrix = random_matrix(rng, coarse + 1, fine).astype(np.float32)
    matrix[rng.integers(coarse + 1)] = 0
    f = 10 ** rng.uniform(-30, 0, (count, fine)) * (rng.random((count, fine)) < 0.8)
    f[np.arange(count), rng.integers(fine, size=count)] = 1
    f = (f / f.sum(1, keepdims=True)).astype(np.float32)
    labels = rng.integers(coarse + 1, size=count)
    q = posterior(torch.from_numpy(f), torch.from_numpy(matrix), torch.from_numpy(labels)).numpy()
    assert q.shape == f.shape and q.dtype == np.float32
    np.testing.assert_allclose(q, reference_posterior(f, matrix, labels), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(q.sum(1), 1, atol=1e-6)


def test_posterior_of_hardly_likely_classes() -> None:
    """If the model is sure of a class that the label rules out, the odds of the other classes decide."""
    f = torch.tensor([[1.0, 3e-30, 1e-30, 1e-33]])
    matrix = torch.tensor([[1.0, 0, 0, 0], [0, 0.5, 0.5, 1], [0, 0.5, 0.5, 0]])
    q = posterior(f, matrix, torch.tensor([1]))
    expected = torch.tensor([[0.0, 1.5, 0.5, 1e-3]]) / 2.001
    torch.testing.assert_close(q, expected, rtol=1e-5, atol=0)
    # No probability on the label's classes: only M counts. A label of no class: only the model counts.
    sure = torch.tensor([[1.0, 0, 0, 0]])
    torch.testing.assert_close(posterior(sure, matrix, torch.tensor([1])), matrix[1:2] / 2)
    torch.testing.assert_close(posterior(f, torch.zeros(3, 4), torch.tensor([2])), f)


@pytest.mark.parametrize(
    ("f", "row"),
    [
        ([1.0, 3e-30, 1e-30], [0.0, 1e-20, 1e-20]),  # products of 1e-50: below every float32
        ([1.0, 3e-30, 1e-30], [0.0, 1e-20, 6e-20]),
        ([1.0, 3e-38, 1e-38], [0.0, 1e-6, 1e-6]),  # products of 1e-44: a few units of the last place
        ([1.0, 3e-42, 1e-42], [0.0, 0.3, 0.7]),
    ],
)
def test_posterior_where_the_product_underflows(f: list[float], row: list[float]) -> None:
    probabilities, matrix = torch.tensor([f]), torch.tensor([row, [1 - v for v in row]])
    expected = reference_posterior(probabilities.numpy(), matrix.numpy(), np.array([0]))
    q = posterior(probabilities, matrix, torch.tensor([0]))
    np.testing.assert_allclose(q.numpy(), expected, rtol=1e-3)


def test_posterior_is_a_distribution_whatever_comes_in() -> None:
    """Even if neither the model nor M gives any information, there is no NaN."""
    q = posterior(torch.zeros(2, 3), torch.zeros(2, 3), torch.tensor([0, 1]))
    torch.testing.assert_close(q.sum(1), torch.ones(2))
    assert (q >= 0).all()


@quick
@given(seeds, sizes)
def test_posterior_through_the_identity_is_the_label(seed: int, fine: int) -> None:
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy(rng.integers(fine, size=5))
    f = torch.from_numpy(rng.dirichlet(np.full(fine, 0.1), size=5))
    q = Correspondence.identity(space("s", fine)).posterior(f, labels)
    assert q.dtype == torch.float64
    assert torch.equal(q, torch.nn.functional.one_hot(labels, fine).double())


@quick
@given(seeds, sizes, sizes)
def test_posterior_averaged_over_the_projected_labels_is_the_model(seed: int, coarse: int, fine: int) -> None:
    """The law of total probability, sum_j (M f)_j q(. | j) = f, ties both directions to one matrix."""
    rng = np.random.default_rng(seed)
    found = Correspondence(random_matrix(rng, coarse, fine), space("f", fine), space("c", coarse))
    f = torch.from_numpy(rng.dirichlet(np.ones(fine)))
    every = found.posterior(f.expand(coarse, fine), torch.arange(coarse))
    torch.testing.assert_close(found.project(f) @ every, f, rtol=1e-6, atol=1e-7)


# -- labels through a partition --------------------------------------------------------------------------


@quick
@given(seeds, sizes, sizes)
def test_map_labels_follows_the_mapping(seed: int, coarse: int, fine: int) -> None:
    rng = np.random.default_rng(seed)
    wanted, other = space("f", fine), space("c", coarse)
    target = rng.integers(coarse, size=fine)
    found = Correspondence.from_mapping(
        wanted, other, {wanted.classes[k]: other.classes[target[k]] for k in rng.permutation(fine)}
    )
    labels = rng.integers(fine, size=8)
    assert found.is_partition
    mapped = found.map_labels(torch.from_numpy(labels))
    assert mapped.dtype == torch.int64
    assert mapped.tolist() == target[labels].tolist()
    # A certain label projects to itself.
    sure = torch.nn.functional.one_hot(torch.from_numpy(labels), fine).float()
    assert torch.equal(found.project(sure).argmax(1), mapped)


def test_map_labels_refuses_spaces_that_are_not_nested() -> None:
    found = Correspondence(GOOD, DIAGNOSES, TRIAGE)
    assert not found.is_partition
    with pytest.raises(FedmtError, match="'diagnosis' -> 'triage' is not a partition"):
        found.map_labels(torch.tensor([0]))


def test_a_finer_center_space_is_no_partition_but_valid() -> None:
    """A center may have finer labels than wanted: J > K."""
    found = Correspondence([[0.6, 0], [0.4, 0], [0, 0.1], [0, 0.9]], TRIAGE, space("ward", 4))
    torch.testing.assert_close(found.project(torch.tensor([0.5, 0.5])), torch.tensor([0.3, 0.2, 0.05, 0.45]))
    f = torch.tensor([[0.3, 0.7]])
    torch.testing.assert_close(found.posterior(f, torch.tensor([3])), torch.tensor([[0.0, 1.0]]))


def test_equality_needs_the_same_spaces_and_matrix() -> None:
    a = Correspondence(GOOD, DIAGNOSES, TRIAGE)
    assert a == Correspondence(GOOD, DIAGNOSES, TRIAGE)
    assert hash(a) == hash(Correspondence(GOOD, DIAGNOSES, TRIAGE))
    assert a != Correspondence([[1, 0, 0], [0, 1, 1]], DIAGNOSES, TRIAGE)
    assert a != Correspondence(GOOD, DIAGNOSES, LabelSpace("triage", ["benign", "malignant"]))
    assert a != GOOD
