"""The site of each test sample: read from the data, never a feature, and named in errors."""

from pathlib import Path

import numpy as np
import pytest

from fedmt.config import build_federation, load_config
from fedmt.core.errors import FedmtError
from fedmt.core.labels import LabelSpace
from fedmt.data.sites import MOST
from fedmt.data.sources import read_source
from fedmt.data.specs import SourceSpec
from fedmt.inputs.images import ImageSpec
from fedmt.inputs.vectors import VectorSpec

KIND = LabelSpace("kind", ["a", "b"])
CONFIG = """
input = "vectors"
wanted = "kind"
[spaces]
kind = ["a", "b"]
half = ["p", "q"]
[correspondences.half]
a = "p"
b = "q"
[reference]
source = "table"
path = "fit.csv"
[[centers]]
name = "Bonn"
source = "table"
path = "half.csv"
space = "half"
[[tests]]
source = "table"
path = "test.csv"
site_column = "hospital"
"""


def table(path: Path, text: str) -> SourceSpec:
    path.write_text(text)
    return SourceSpec.model_validate({"source": "table", "path": path, "site_column": "hospital"})


def test_a_column_of_sites_is_read_and_is_no_feature(tmp_path: Path) -> None:
    spec = table(tmp_path / "a.csv", "hospital,x,label\nBonn,1,a\nKiel,2,b\nBonn,3,b\n")
    found = read_source(spec, VectorSpec(), KIND, "test 1")
    assert found.sites == ("Bonn", "Kiel", "Bonn") and found.samples.tolist() == [[1], [2], [3]]


def test_an_archive_has_an_array_of_sites(tmp_path: Path) -> None:
    arrays = {"images": np.zeros((2, 8, 8), np.uint8), "labels": np.array(["a", "b"])}
    np.savez(tmp_path / "a.npz", **arrays, hospital=np.array(["Bonn", "Kiel"]), odd=np.zeros((2, 2)))
    keys = {"source": "npz", "path": tmp_path / "a.npz"}
    spec = SourceSpec.model_validate({**keys, "site_column": "hospital"})
    assert read_source(spec, ImageSpec(), KIND, "test 1").sites == ("Bonn", "Kiel")
    for column, said in (("clinic", "no array 'clinic'; its arrays are"), ("odd", "expected one name per")):
        with pytest.raises(FedmtError, match=rf"a\.npz: site_column: .*{said}"):
            read_source(spec.model_copy(update={"site_column": column}), ImageSpec(), KIND, "test 1")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("Bonn,1,a\n,2,b\n", r"a\.csv, line 3: the column 'hospital' is empty; fill in the site"),
        ("".join(f"{i},1,a\n" for i in range(MOST + 1)), "51 different values, .* use group_column"),
    ],
)
def test_what_are_no_sites_is_refused(tmp_path: Path, rows: str, said: str) -> None:
    with pytest.raises(FedmtError, match=said):
        read_source(table(tmp_path / "a.csv", "hospital,x,label\n" + rows), VectorSpec(), KIND, "test 1")


def test_a_source_without_columns_says_so() -> None:
    spec = SourceSpec.model_validate({"source": "fashion_mnist", "site_column": "hospital"})
    with pytest.raises(FedmtError, match="test 1: site_column: source 'fashion_mnist' has no column"):
        read_source(spec, ImageSpec(), None, "test 1", "test")


def test_tests_of_a_config_know_their_sites_in_every_space(tmp_path: Path) -> None:
    (tmp_path / "fit.csv").write_text("x,label\n1,a\n2,b\n")
    (tmp_path / "half.csv").write_text("x,label\n1,p\n2,q\n")
    (tmp_path / "test.csv").write_text("hospital,x,label\nBonn,1,a\nKiel,2,b\n")
    (tmp_path / "federation.toml").write_text(CONFIG)
    federation, _ = build_federation(load_config(tmp_path / "federation.toml"))
    assert [t.sites for t in federation.tests] == [("Bonn", "Kiel"), ("Bonn", "Kiel")]
    assert federation.reference.sites is None and federation.centers[0].sites is None
