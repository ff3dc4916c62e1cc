"""Prints the tests of the changed files, for `make check`.

    python scripts/changed_tests.py [COMMIT]

A file has changed if it differs from COMMIT (default: main) or is not tracked by git. A changed test file
selects itself. Source in src/fedmt/ROOM selects tests/ROOM. Pages, and the files that they show, select
tests/docs. Any other file, such as conftest.py or pyproject.toml, selects all tests. The tests of the core
always run.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
EVERYTHING = ("tests", "src")
CORE = ("tests/test_architecture.py", "tests/core", "tests/config")
PAGES = ("docs", "experiments", "examples", "benchmarks", "scripts", "mkdocs.yml", "CITATION.cff", "LICENSE")
"""Files that the pages show, link to or mention."""


def tests_of(path: str) -> tuple[str, ...]:
    """The tests to run for a changed file, as paths from the root."""
    parts = PurePosixPath(path).parts
    if parts[0] in PAGES or path.endswith(".md"):
        return ("tests/docs",)
    if parts[0] == "tests" and parts[-1].startswith("test_") and (ROOT / path).exists():
        return (path,)
    if parts[:2] == ("src", "fedmt") and len(parts) > 2:
        tests = f"tests/{parts[2]}"
        return (tests,) if (ROOT / tests).is_dir() else EVERYTHING
    return EVERYTHING


def chosen(changed: Iterable[str]) -> list[str]:
    """The tests of all changed files and of the core, without duplicates."""
    found = {test for path in changed for test in tests_of(path)}
    if found >= set(EVERYTHING):
        return list(EVERYTHING)
    return sorted(found | set(CORE))


def git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.splitlines()


if __name__ == "__main__":
    commit = sys.argv[1] if len(sys.argv) > 1 else "main"
    new = git("ls-files", "--others", "--exclude-standard")
    print(*chosen([*git("diff", "--name-only", commit), *new]))
