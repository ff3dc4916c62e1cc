"""Hooks of mkdocs.yml: they show files of the repository as pages, and docstrings as Markdown.

CHANGELOG.md and CONTRIBUTING.md are pages too. A page links to a file of the repository by its relative path,
as on GitHub. In the site, that file becomes a separate page. A link to a missing file is a warning, which
`mkdocs build --strict` treats as an error. Equations are written in GitHub's syntax and become MathML.
"""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files

log = get_plugin_logger("docs_site")
ROOT_PAGES = {
    "CHANGELOG.md": "development/changelog.md",
    "CONTRIBUTING.md": "development/contributing.md",
}
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yml": "yaml"}
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)\s#]+)")


# -- the repository's address -----------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Links every page to the repository that this clone comes from, if a browser can open it.

    The link is in the footer. With mkdocs' own `repo_url`, pages would ask the host for its stars and forks.
    """
    asked = ["git", "-C", str(Path(config.config_file_path).parent), "config", "--get", "remote.origin.url"]
    link = address(subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip())
    if link:
        config.extra["social"] = [{"icon": "material/source-repository", "link": link, "name": "Repository"}]
    return config


def address(remote: str) -> str | None:
    """The page of a repository, without anybody's password. None if it is a folder, or none at all."""
    remote = re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", remote)
    return re.sub(r"//[^/@]+@", "//", remote).removesuffix(".git") if remote.startswith("https://") else None


# -- pages ------------------------------------------------------------------------------------------------


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the changelog and similar files, and a page for each file of the repository that is linked."""
    root = Path(config.config_file_path).parent
    for name, uri in ROOT_PAGES.items():
        files.append(File.generated(config, uri, content=(root / name).read_text()))
    wanted = {}
    for page in files.documentation_pages():
        for link in links(page.content_string):
            path = in_repository(page.src_uri, link)
            if in_site(path).startswith("source/"):
                wanted[path] = page.src_uri
    for path, linked_from in sorted(wanted.items()):
        if (root / path).is_file():
            files.append(File.generated(config, in_site(path), content=source_page(root, path)))
        else:
            log.warning("%s links to %s, which is no file of the repository.", linked_from, path)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Points links that leave docs/ to their pages in the site, and removes the marks that are for tests."""
    here = page.file.src_uri

    def lead(match: re.Match[str]) -> str:
        target = in_site(in_repository(here, match[0]))
        return posixpath.relpath(target, posixpath.dirname(here) or ".")

    text = outside_code(markdown, lambda prose: LINK.sub(lead, prose))
    return re.sub(r"^<!-- test:.*?-->\n", "", text, flags=re.M)


def in_repository(page: str, link: str) -> str:
    """The path in the repository of the target of a link."""
    home = "" if page in ROOT_PAGES.values() else posixpath.join("docs", posixpath.dirname(page))
    return posixpath.normpath(posixpath.join(home, link))


def in_site(path: str) -> str:
    """The page or file of the site that shows a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return ROOT_PAGES.get(path, f"source/{path}.md")


def source_page(root: Path, path: str) -> str:
    language = LANGUAGES.get(Path(path).suffix, "text")
    code = (root / path).read_text()
    if path.endswith(".ipynb"):
        return "---\nsearch:\n  exclude: true\n---\n\n" + notebook_page(path, code)
    return f"---\nsearch:\n  exclude: true\n---\n\n# `{path}`\n\n`````{language}\n{code}\n`````\n"


def notebook_page(path: str, text: str) -> str:
    """The text and the code of a notebook, without outputs. The notebook has its own title."""
    parts = [f"`{path}`"]
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    return "\n\n".join(parts) + "\n"


def links(markdown: str) -> Iterator[str]:
    """The relative links of a page, without code that only looks like a link."""
    for match in LINK.finditer(FENCED.sub("", markdown)):
        yield match[0]


def outside_code(markdown: str, change: Any) -> str:
    parts = re.split(f"({FENCED.pattern})", markdown, flags=re.M | re.S)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


# -- equations --------------------------------------------------------------------------------------------


def on_page_content(html: str, **_: Any) -> str:
    """Converts equations, which pymdownx.arithmatex marks, to MathML, which needs no script in a browser."""

    def mathml(match: re.Match[str]) -> str:
        display = "block" if match[1] == "div" else "inline"
        found: str = convert(unescape(match[2]).strip(), display=display)
        found = found.replace("<mi>log</mi>", '<mspace width="0.17em"/><mi>log</mi><mspace width="0.17em"/>')
        return f'<div class="equation">{found}</div>' if display == "block" else found

    return re.sub(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', mathml, html, flags=re.S)


# -- docstrings -------------------------------------------------------------------------------------------


class Docstrings(griffe.Extension):
    """Converts this project's docstrings to Markdown: examples become code, and lines that begin with the
    name of an argument or attribute become a list."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None and not obj.is_alias:
            names = set(obj.members)
            if obj.is_function:
                names = {parameter.name for parameter in obj.parameters}
            elif obj.is_class and "__init__" in obj.members:
                names |= {parameter.name for parameter in obj.members["__init__"].parameters}
            obj.docstring.value = as_markdown(obj.docstring.value, names)


def as_markdown(docstring: str, names: set[str]) -> str:
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", docstring):
        if paragraph.startswith(">>> "):
            paragraph = f"```pycon\n{paragraph}\n```"
        else:
            paragraph = as_list(paragraph, names)
        paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


def as_list(paragraph: str, names: set[str]) -> str:
    """Finds `name: text` for known names, at the beginning of a line or after a full stop or semicolon."""
    if not names or paragraph.startswith("    "):  # an equation
        return paragraph
    name = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    begin = re.compile(rf"(?:^|(?<=[.;])\s)((?:{name})(?:, (?:{name}))*): ", re.M)

    def item(match: re.Match[str]) -> str:
        listed = ", ".join(f"`{name}`" for name in match[1].split(", "))
        return f"\n\n- {listed}: "

    text = begin.sub(item, paragraph)
    return re.sub(r"^(?=Returns )", "\n", text, flags=re.M)
