"""The rule of `make check`: which tests belong to a changed file."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("changed_tests", ROOT / "scripts" / "changed_tests.py")
assert spec is not None and spec.loader is not None
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

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
    assert module.tests_of(changed) == tests


def test_the_core_is_always_tested_and_everything_once():
    assert module.chosen([]) == sorted(module.CORE)
    assert module.chosen(["docs/troubleshooting.md"]) == sorted(["tests/docs", *module.CORE])
    assert module.chosen(["docs/troubleshooting.md", "Makefile"]) == list(EVERYTHING)
    assert all((ROOT / path).exists() for path in module.CORE)
