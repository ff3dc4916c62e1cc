"""The pages that are generated from the code are up to date."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import reference_pages  # noqa: E402


@pytest.mark.parametrize("name", ["config", "cli"])
def test_the_page_is_what_the_code_says(name: str) -> None:
    made = getattr(reference_pages, f"{name}_page")()
    stored = (ROOT / "docs" / "reference" / f"{name}.md").read_text()
    assert stored == made, f"run `python scripts/reference_pages.py`; docs/reference/{name}.md is out of date"


def test_ranges_are_found_by_trying() -> None:
    assert reference_pages.range_of(lambda v: v >= 0, whole=False) == "at least 0"
    assert reference_pages.range_of(lambda v: 0 < v <= 1, whole=False) == "above 0, at most 1"
    assert reference_pages.range_of(lambda v: 0 <= v < 1, whole=False) == "at least 0, below 1"
    assert reference_pages.range_of(lambda v: v >= 1, whole=True) == "at least 1"
    assert reference_pages.range_of(lambda v: True, whole=False) == ""


def test_a_key_without_a_docstring_is_refused() -> None:
    class Undocumented:
        key: int = 0

    with pytest.raises(SystemExit, match=r"Undocumented\.key: write a docstring"):
        reference_pages.description(Undocumented, "key")
