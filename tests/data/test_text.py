"""A CSV of texts: what is read, and all of its problems at once."""

from pathlib import Path

import pytest
import torch

from fedmt.core.errors import FedmtError
from fedmt.core.labels import LabelSpace
from fedmt.data.sources import read_source
from fedmt.data.specs import SourceSpec
from fedmt.inputs.text import TextSpec

KIND = LabelSpace("kind", ["card", "travel"])
OPTIONS = TextSpec(features=256, length=4, ngrams=2)


def write(path: Path, text: str) -> SourceSpec:
    path.write_text(text, encoding="utf-8")
    return SourceSpec(source="text", path=path)


def test_texts_and_labels(tmp_path: Path) -> None:
    spec = write(
        tmp_path / "a.csv", 'text,label\n"My card, please",card\nbook a flight to Oslo now please,travel\n'
    )
    found = read_source(spec, OPTIONS, KIND, "center 'a'")
    assert found.input == OPTIONS.input() and found.samples.dtype == torch.int32
    assert torch.equal(
        found.samples, found.input.hashed(["My card, please", "book a flight to Oslo"]).samples
    )
    assert found.labels["kind"].tolist() == [0, 1]
    assert found.snippets == ("My card, please", "book a flight to Oslo now please")
    assert found.notes == (
        f"{spec.path}: 1 text has more than 4 words, up to 6; only the first 4 are read (text.length).",
    )
    assert not read_source(spec, OPTIONS, None, "center 'a'").labels


def test_several_label_columns(tmp_path: Path) -> None:
    spec = write(tmp_path / "a.csv", "question,fine,coarse\nmy card,lost,card\nbook it,flight,travel\n")
    spec = spec.model_copy(
        update={"text_column": "question", "label_columns": {"intent": "fine", "kind": "coarse"}}
    )
    found = read_source(spec, OPTIONS, None, "benchmark")
    assert found.spaces["intent"].classes == ("flight", "lost") and found.spaces["kind"] == KIND
    assert found.labels["intent"].tolist() == [1, 0] and found.labels["kind"].tolist() == [0, 1]


def test_everything_that_is_empty_is_named_at_once(tmp_path: Path) -> None:
    spec = write(tmp_path / "a.csv", "text,label\n,card\nmy card,\nbook it,travel\n , travel\n")
    with pytest.raises(FedmtError) as error:
        read_source(spec, OPTIONS, KIND, "center 'a'")
    for place in (
        "line 2: the column 'text' is",
        "line 3: the column 'label' is",
        "line 5: the column 'text' is",
    ):
        assert f"a.csv, {place} empty; fill it in or remove the line." in str(error.value)
    spec = write(tmp_path / "b.csv", "text,label\n?!,card\nmy card,card\nI a,travel\n")
    with pytest.raises(FedmtError) as error:
        read_source(spec, OPTIONS, KIND, "center 'a'")
    assert "b.csv, line 2: the text '?!' has no word in it" in str(error.value) and "line 4" in str(
        error.value
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,label\n", r"a.csv: no texts; expected a line for each text"),
        ("words,label\nmy card,card\n", r"line 1: no column 'text'; the columns are 'words', 'label'"),
        ("text,label\nmy card,crad\n", r"line 2: .*'crad'.*Did you mean 'card'"),
        # Else the cell would swallow all rows below it, or all up to the next quote.
        ('label,text\ncard,my card\ncard,"my card\ntravel,a flight\n', r"line 3: a cell begins with"),
        ('label,text\ncard,"my card\ncard,my card\ntravel,"a flight"\n', r"line 2: a cell begins with"),
        ("text,label\nmy card, please,card\n", r"line 2: 3 cells, expected 2 as in the header; put a cell"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(FedmtError, match=message):
        read_source(write(tmp_path / "a.csv", content), OPTIONS, KIND, "center 'a'")


def test_groups(tmp_path: Path) -> None:
    spec = write(
        tmp_path / "a.csv", "text,label,patient\nmy card,card,1\nbook it,travel,2\na trip,travel,1\n"
    )
    found = read_source(spec.model_copy(update={"group_column": "patient"}), OPTIONS, KIND, "center 'a'")
    assert found.groups is not None and found.labels["kind"].tolist() == [0, 1, 1]
    assert found.groups[0] == found.groups[2] != found.groups[1]
    spec = write(tmp_path / "b.csv", "text,label,patient\nmy card,card,\n")
    with pytest.raises(FedmtError, match=r"b.csv, line 2: the column 'patient' is empty"):
        read_source(spec.model_copy(update={"group_column": "patient"}), OPTIONS, KIND, "center 'a'")
