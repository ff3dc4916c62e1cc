"""Builds the site as readers get it. A broken link, a missing anchor or a missing page is an error."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# The clone's origin, as git is told.
ORIGIN = ("remote.origin.url", "git@git.example.org:fedmt/fedmt.git")
HOME = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": ORIGIN[0], "GIT_CONFIG_VALUE_0": ORIGIN[1]}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", **HOME},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    pages = [p.relative_to(ROOT / "docs").with_suffix(".html") for p in ROOT.glob("docs/**/*.md")]
    for page in [
        *pages,
        "index.html",
        "development/changelog.html",
        "source/src/fedmt/methods/fedmt.py.html",
    ]:
        assert (site / page).is_file(), page


PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_numbers_at_the_beginning_of_a_line_count_a_list(page: Path) -> None:
    """A sentence that ends with a number, such as "21.", at the beginning of a line would become a list."""
    text = re.sub(r"^( *)```.*?^ *```$", "", page.read_text(), flags=re.M | re.S)
    at: dict[str, int] = {}
    for indent, number in re.findall(r"^( *)(\d+)[.)] ", text, re.M):
        assert int(number) in (1, at.get(indent, 0) + 1), f"{page}: a line begins with '{number}.'"
        at[indent] = int(number)


def test_every_page_links_to_the_repository(site: Path) -> None:
    for page in ("index.html", "reference/config.html"):
        assert 'href="https://git.example.org/fedmt/fedmt"' in (site / page).read_text()


@pytest.mark.parametrize(
    ("remote", "link"),
    [
        ("https://git.example.org/fedmt/fedmt", "https://git.example.org/fedmt/fedmt"),
        ("https://ada:secret@git.example.org/fedmt/fedmt.git", "https://git.example.org/fedmt/fedmt"),
        ("ssh://git@git.example.org/fedmt/fedmt.git", "https://git.example.org/fedmt/fedmt"),
        ("/home/ada/fedmt", None),
        ("", None),
    ],
)
def test_the_repository_is_one_that_a_browser_can_open(remote: str, link: str | None) -> None:
    assert runpy.run_path(str(ROOT / "scripts" / "docs_site.py"))["address"](remote) == link


def test_reading_asks_no_network(site: Path) -> None:
    """Links may lead to other sites, but a page loads nothing from them."""
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        loads = r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?:https?:)?//[^"' >]*"""
        loads += r"""|<link[^>]*\srel=["']?(?:stylesheet|preconnect|icon)[^>]*(?:https?:)?//[^"' >]*"""
        loads += r"""|url\(["']?(?:https?:)?//[^)]*|@import[^;]*//[^;]*"""
        found = re.findall(loads, path.read_text(errors="replace"))
        assert not found, f"{path.relative_to(site)} loads {found}"


def test_docstrings_become_examples_and_lists(site: Path) -> None:
    """The API page shows doctests as code, and the arguments that a docstring explains as a list."""
    text = re.sub(r"<[^>]+>", "", (site / "reference" / "api.html").read_text()).replace("&gt;", ">")
    assert ">>> space = LabelSpace" in text
    items = re.findall(r"<li>\s*(?:<p>)?<code>(\w+)</code>:", (site / "reference" / "api.html").read_text())
    assert {"logits", "matrix", "target", "labels", "participation"} <= set(items)
    assert "test:" not in (site / "start" / "quickstart.html").read_text(), "the marks for tests are left out"


def test_a_page_from_disk_has_search_and_equations(site: Path, browser) -> None:
    """Without a server or a network, a page requests nothing, and its search and its equations work."""
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: asked.append(message.text))
    page.goto((site / "concepts" / "method.html").as_uri())
    assert page.locator("math").count() > 5 and "arithmatex" not in page.content()
    page.keyboard.press("/")
    page.keyboard.type("secure aggregation")
    page.locator(".md-search-result__item").first.wait_for()
    assert "Secure aggregation" in page.locator(".md-search-result__item").first.inner_text()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    page.close()
