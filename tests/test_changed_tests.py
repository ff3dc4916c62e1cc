"""The rule of `make check`: which tests belong to a changed file."""

from pathlib import Path

import changed_tests
import pytest

ROOT = Path(__file__).parents[1]
EVERYTHING = ("tests", "src")


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("src/fedmt/aggregation/fedavg.py", ("tests/aggregation",)),
        ("src/fedmt/data/a_room_of_tomorrow/new.py", ("tests/data",)),
        ("src/fedmt/nothing_is_named_so.py", EVERYTHING),
        ("src/fedmt/__init__.py", EVERYTHING),
        ("tests/data/test_splits.py", ("tests/data/test_splits.py",)),
        ("tests/data/test_that_is_gone.py", EVERYTHING),
        ("tests/reports/conftest.py", EVERYTHING),
        ("docs/results/methods.md", ("tests/docs",)),
        ("README.md", ("tests/docs",)),
        ("scripts/docs_site.py", ("tests/docs",)),
        ("pyproject.toml", EVERYTHING),
    ],
)
def test_the_tests_of_a_file(changed, tests):
    assert changed_tests.tests_of(changed) == tests


def test_the_core_is_always_tested_and_everything_once():
    assert changed_tests.chosen([]) == sorted(changed_tests.CORE)
    assert changed_tests.chosen(["docs/troubleshooting.md"]) == sorted(["tests/docs", *changed_tests.CORE])
    assert changed_tests.chosen(["docs/troubleshooting.md", "Makefile"]) == list(EVERYTHING)
    assert all((ROOT / path).exists() for path in changed_tests.CORE)
