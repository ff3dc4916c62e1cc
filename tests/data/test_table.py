"""Rows of a table: labels in one or several spaces, and groups. None of them is ever a feature."""

from pathlib import Path

import pytest

from fedmt.core.errors import FedmtError
from fedmt.core.labels import LabelSpace
from fedmt.core.section import Section
from fedmt.data.sources import read_source
from fedmt.data.specs import SourceSpec
from fedmt.inputs.tables import Schema, Statistics, TableSpec
from fedmt.inputs.tabular import read_frame
from fedmt.inputs.vectors import VectorSpec

KIND = LabelSpace("kind", ["a", "b"])
ROWS = "patient,x1,x2,label,coarse\n7,1,2,a,p\n8,3,4,b,p\n7,5,6,b,q\n"


def source(path: Path, text: str = ROWS, **keys: object) -> SourceSpec:
    path.write_text(text)
    return SourceSpec.model_validate({"source": "table", "path": path, "group_column": "patient", **keys})


def schema(path: Path, aside: set[str]) -> Path:
    found = Schema.pooled([Statistics.of(read_frame(path), "a", aside)])
    out = path.with_name("schema.toml")
    out.write_text(found.to_toml())
    return out


@pytest.mark.parametrize("options", [VectorSpec(), VectorSpec(columns=["x*"]), VectorSpec(columns=["*"])])
def test_groups_and_labels_are_no_features_of_vectors(tmp_path: Path, options: Section) -> None:
    spec = source(tmp_path / "a.csv", label_columns={"kind": "label", "half": "coarse"})
    found = read_source(spec, options, KIND, "center 'a'")
    assert found.samples.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert found.labels["kind"].tolist() == [0, 1, 1] and found.labels["half"].tolist() == [0, 0, 1]
    assert found.spaces["half"].classes == ("p", "q")
    assert found.groups is not None and found.groups[0] == found.groups[2] != found.groups[1]


def test_a_feature_cannot_be_a_group_too(tmp_path: Path) -> None:
    spec = source(tmp_path / "a.csv")
    with pytest.raises(
        FedmtError, match=r"a.csv: column 'patient' holds labels or groups, so it cannot be a"
    ):
        read_source(spec, VectorSpec(columns=["x1", "patient"]), KIND, "center 'a'")
    options = TableSpec(schema=schema(tmp_path / "a.csv", {"label", "coarse"}))
    with pytest.raises(FedmtError, match=r"a.csv: the schema lists 'patient' as a feature, but in the"):
        read_source(spec, options, KIND, "center 'a'")
    options = TableSpec(schema=schema(tmp_path / "a.csv", {"label", "coarse", "patient"}))
    assert read_source(spec, options, KIND, "center 'a'").samples.shape == (3, 2)


def test_empty_labels_and_groups_are_told_at_once(tmp_path: Path) -> None:
    spec = source(tmp_path / "a.csv", "patient,x,label\n1,2,a\n,2,b\nNA,2,\n")
    with pytest.raises(FedmtError) as error:
        read_source(spec, VectorSpec(), KIND, "center 'a'")
    said = str(error.value)
    assert "a.csv, line 4: the column 'label' is empty; fill it in" in said
    assert "a.csv, line 3: the column 'patient' is empty, as in 1 more row; fill" in said
    with pytest.raises(FedmtError, match=r"no column 'patients'.*Did you mean 'patient'"):
        read_source(spec.model_copy(update={"group_column": "patients"}), VectorSpec(), KIND, "center 'a'")
