"""README and the other top-level pages: the files that they link to and the extras that they name exist."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_to_files(name):
    text = re.sub(r"^```.*?^```$", "", (ROOT / name).read_text(), flags=re.M | re.S)
    links = re.findall(r"\]\((?![a-z]+:|#)([^)#\s]+)", text)
    missing = sorted({link for link in links if not (ROOT / link).exists()})
    assert not missing, f"{name} links to files that are not there: {', '.join(missing)}"


def test_the_table_of_extras_is_that_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    table = (ROOT / "README.md").read_text().split("| extra |")[1].split("\n\n")[0]
    named = [name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(named) == sorted(project["optional-dependencies"])
