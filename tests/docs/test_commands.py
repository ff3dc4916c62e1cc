"""Every command of README.md and docs/ is executed, and every config in them read.

Each page has a folder of its own in which its blocks run one after the other, in a shell, as a reader would run
them. What a block needs beyond what is shown stands in a comment before it, which readers do not see:

    <!-- test: setup NAME -->          data for the page, made by one of SETUPS
    <!-- test: fedmt COMMAND ARGS -->  arguments added to that command in the block: fewer rounds, say
    <!-- test: file NAME [--set …] --> the block is kept as this file, with these settings; a TOML file is checked
    <!-- test: part of NAME -->        a piece of TOML that must fit into this config
    <!-- test: until TEXT -->          the command serves: it is interrupted when it has printed this
    <!-- test: skip: REASON -->        not executed; its commands, options and paths are checked all the same

Any other block is executed (bash, python) or read (toml: as a config, or as a piece of one).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import tomli_w
import typer
from PIL import Image

from fedmt import FedmtError, cli
from fedmt.config import load_config, override, parse_config
from fedmt.config_errors import Origin
from fedmt.data.fashion_mnist import read_fashion_mnist
from fedmt.experiment import Sweep, expand, find_experiment, read_experiment
from fedmt.run import run

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *(str(p.relative_to(ROOT)) for p in sorted(ROOT.glob("docs/**/*.md"))),
]
CLONE = ("benchmarks", "examples", "experiments", "scripts", "Makefile")
"""What a reader has beside their own files."""
BASE = "experiments/base/fashion_mnist.toml"
"""The config that a piece of TOML belongs to, where nothing else is said."""
SHELL, NOTHING_TO_RUN = ("bash", "sh", "console"), ("text", "csv", "json", "nginx", "bibtex")
SHORT = [
    "training.rounds=1",
    "training.warmup_epochs=1",
    "training.local_epochs=1",
    "model.backbone=small_cnn",
]


@dataclass(frozen=True)
class Block:
    where: str
    language: str
    text: str
    marks: tuple[str, ...] = ()

    def mark(self, kind: str) -> str | None:
        """What a mark of this kind says after it."""
        found = [m.removeprefix(kind).strip() for m in self.marks if m.startswith(kind)]
        return found[0] if found else None


def blocks(page: str, text: str) -> Iterator[Block]:
    """The fenced blocks of a page, each with the marks that stand right before it."""
    marks: list[str] = []
    fence, opened, lines = "", 0, []
    for number, line in enumerate(text.splitlines(), 1):
        if fence:
            if line.strip() == fence:
                yield replace(block, text="\n".join(lines) + "\n")
                fence, marks = "", []
            else:
                lines.append(line[opened:] if not line[:opened].strip() else line)
        elif match := re.match(r"( *)(```+)(.*)", line):
            opened, fence, lines = len(match[1]), match[2], []
            block = Block(f"{page}:{number}", match[3].strip(), "", tuple(marks))
        elif match := re.fullmatch(r" *<!-- test: (.*) -->", line):
            marks.append(match[1])
        elif line.strip():
            assert not marks, f"{page}:{number}: '<!-- test: {marks[0]} -->' has no block after it"


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a shell block or a span of code, in words, without comments."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
        lexer.whitespace_split, lexer.commenters = True, "#"
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set(";&|()"):
                yield from [words] if words else []
                words = []
            else:
                words.append(word)


# -- what is not executed is read ----------------------------------------------------------------------------


def check_command(words: list[str]) -> None:
    """Known programs: their subcommands, options and, for fedmt, values; files of the repository exist."""
    if words[0] == "fedmt":
        check_fedmt(words[1:])
    elif words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert set(words[1:]) <= set(targets), f"make has no {set(words[1:]) - set(targets)}"
    elif words[0] in ("flwr", "flower-superlink", "flower-supernode"):
        path = words[: 1 + (words[0] == "flwr") + (words[:2] == ["flwr", "supernode"])]
        known = options_of(*path)
        for option in (w.split("=")[0] for w in words if w.startswith("-")):
            assert option in known, f"{shlex.join(path)} has no option {option}"
    elif words[0] == "pip":
        with (ROOT / "pyproject.toml").open("rb") as file:
            known = set(tomllib.load(file)["project"]["optional-dependencies"])
        extras = {e for w in words for m in re.findall(r"\[([\w,]+)\]", w) for e in m.split(",")}
        assert extras <= known, f"there is no extra {extras - known}"
    elif words[0] not in ("python", "ssh-keygen"):
        raise AssertionError(f"'{words[0]}' is no program that this test knows; let it run, or teach it here")
    for word in words:
        if word.split("/")[0] in (*CLONE, "src", "docs", "tests"):
            assert (ROOT / word).exists(), f"there is no {word}"


def check_fedmt(words: list[str]) -> None:
    app = typer.main.get_command(cli.app)
    assert isinstance(app, click.Group)
    if words[0].startswith("-"):
        app.make_context("fedmt", list(words), resilient_parsing=False)
        return
    command = app.commands.get(words[0])
    assert command is not None, f"fedmt has no command '{words[0]}'"
    try:
        given = command.make_context(words[0], words[1:]).params
    except click.UsageError as error:
        raise AssertionError(f"{shlex.join(['fedmt', *words])}: {error.format_message()}") from None
    load_config(ROOT / BASE, given.get("set_"))
    if words[0] == "reproduce" and given["name"]:
        find_experiment(given["name"])


@cache
def options_of(*command: str) -> frozenset[str]:
    """The options that a program of another project says it has."""
    done = subprocess.run(
        [*command, "--help"], capture_output=True, text=True, env=environment(Path.home()), check=True
    )
    return frozenset(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", done.stdout))


def fedmt_options(command: str | None = None) -> set[str]:
    """The options of one command of fedmt, or of all."""
    app = typer.main.get_command(cli.app)
    assert isinstance(app, click.Group)
    chosen = app.commands.values() if command is None else [app.commands[command]]
    found = {o for c in (*chosen, app) for p in c.params if isinstance(p, click.Option) for o in p.opts}
    return found | {"--help"}


# -- what is executed ----------------------------------------------------------------------------------------


def environment(folder: Path) -> dict[str, str]:
    """Of a reader who has fedmt installed; nothing outside the page's folder is written."""
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "160",
    }


def execute(block: Block, folder: Path) -> None:
    if block.language == "python":
        start = [sys.executable, "-c", block.text]
    else:
        text = block.text
        if block.language == "console":  # what is typed begins with $; the rest is what was printed
            text = "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))
        start = ["bash", "-euo", "pipefail", "-c", added_arguments(block) + text]
    until = block.mark("until ")
    if until is not None:
        start_and_interrupt(start, folder, until)
        return
    done = subprocess.run(
        start, cwd=folder, env=environment(folder), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise AssertionError(f"status {done.returncode} of\n{block.text}\n{done.stdout}{done.stderr}")


def added_arguments(block: Block) -> str:
    """A shell function `fedmt` that adds what the marks say, and calls the program."""
    cases = "".join(
        f'{command}) set -- "$@" {arguments};;\n'
        for command, _, arguments in (
            m.removeprefix("fedmt ").partition(" ") for m in block.marks if m[:6] == "fedmt "
        )
    )
    return f'fedmt() {{ case "$1" in\n{cases}esac\ncommand fedmt "$@"; }}\n' if cases else ""


def start_and_interrupt(start: list[str], folder: Path, until: str) -> None:
    process = subprocess.Popen(
        start,
        cwd=folder,
        env={**environment(folder), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    printed = ""
    try:
        for line in process.stdout:
            printed += line
            if until in line:
                os.killpg(process.pid, signal.SIGINT)
                break
        printed += process.stdout.read()
        status = process.wait(60)
        if status not in (0, 130) or until not in printed:
            raise AssertionError(f"status {status}; it printed\n{printed}")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def keep(block: Block, name: str, folder: Path) -> None:
    """Writes a block as a file; settings go into it as `--set` would put them."""
    file, *settings = shlex.split(name)
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = tomllib.loads(block.text) if settings else {}
    for flag, item in zip(settings[::2], settings[1::2], strict=True):
        assert flag == "--set", f"{block.where}: after the file's name, expected --set KEY=VALUE"
        override(raw, item)
    path.write_text(tomli_w.dumps(raw) if settings else block.text)


def check_toml(path: Path) -> None:
    """A file that the page shows: a federation is loaded, an experiment expanded, a center's file read."""
    raw = tomllib.loads(path.read_text())
    if "rows" in raw:
        expand(read_experiment(path), Sweep())
    elif "state" in raw:
        from fedmt.engines.flower.settings import CenterSettings

        CenterSettings.read(path)
    else:
        cli.check(path)


def check_piece(block: Block, folder: Path) -> None:
    """TOML that is not kept as a file: a whole config, or a piece of one."""
    raw = tomllib.loads(block.text)
    base = block.mark("part of ")
    if base is not None or not ({"wanted", "benchmark"} & set(raw)):
        path = folder / (base or BASE)
        raw = merged(tomllib.loads(path.read_text()), raw)
    parse_config(raw, Origin(folder / "block.toml", block.text))


def merged(base: dict[str, Any], piece: dict[str, Any]) -> dict[str, Any]:
    """The piece over the base, table by table; another method or strategy starts without the base's options."""
    found = dict(base)
    for key, value in piece.items():
        own = found.get(key)
        table = (
            isinstance(value, dict) and isinstance(own, dict) and value.get("name") in (None, own.get("name"))
        )
        found[key] = merged(own, value) if table else value
    return found


# -- data ----------------------------------------------------------------------------------------------------

DIAGNOSES = {
    "melanoma": "malignant",
    "basal cell carcinoma": "malignant",
    "nevus": "benign",
    "seborrheic keratosis": "benign",
}


def clinic(folder: Path) -> None:
    """The clinics of README and docs/federation.md: bundled images of four garments stand for four diagnoses."""
    train, test = read_fashion_mnist("train"), read_fashion_mnist("test")
    numbers = [np.flatnonzero(train.labels["garment"].numpy() == k).tolist() for k in range(4)]
    tested = [np.flatnonzero(test.labels["garment"].numpy() == k).tolist() for k in range(4)]

    def image(number: int, data: Any = train) -> Image.Image:
        return Image.fromarray(data.images[number, 0].numpy()).convert("RGB")

    def save(path: Path, number: int, data: Any = train) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        image(number, data).save(path)

    for k, diagnosis in enumerate(DIAGNOSES):
        for i in range(4):
            save(folder / "vancouver" / diagnosis / f"{i}.png", numbers[k][i])
            save(folder / "test" / diagnosis / f"{i}.png", tested[k][i], test)
            save(folder / "oslo" / f"{k}{i}.png", numbers[k][4 + i])
            save(folder / "scans" / f"{k}{i}.png", tested[k][4 + i], test)
    chosen = [(n, triage) for k, triage in enumerate(DIAGNOSES.values()) for n in numbers[k][8:20]]
    for name, column in (("berlin", "label"), ("data/berlin", "triage"), ("b", "triage")):
        table = [f"image,{column}"]
        for number, triage in chosen:
            save(folder / name / f"{number}.png", number)
            table.append(
                f"{number}.png,{triage}" if name == "berlin" else f"{Path(name).name}/{number}.png,{triage}"
            )
        path = folder / name / "cases.csv" if name == "berlin" else folder / f"{name}.csv"
        path.write_text("\n".join(table) + "\n")
    for name in ("vancouver", "test"):
        shutil.copytree(folder / name, folder / "data" / name)
    shutil.copytree(folder / "vancouver", folder / "l")
    pixels = np.stack([np.asarray(image(number)) for number, _ in chosen])
    np.savez(folder / "lyon.npz", images=pixels, labels=np.array([triage for _, triage in chosen]))
    scans = sorted((folder / "scans").iterdir())
    (folder / "cases.csv").write_text("image\n" + "".join(f"scans/{p.name}\n" for p in scans))
    np.save(folder / "scans.npy", np.stack([np.asarray(Image.open(p).resize((64, 64))) for p in scans]))
    for name in ("a.jpg", "b.png", "extra.png"):
        Image.open(scans[0]).save(folder / name)
    columns = ",".join(DIAGNOSES)
    (folder / "triage.csv").write_text(f"triage,{columns}\nmalignant,1,1,0,0\nbenign,0,0,1,1\n")


def described(folder: Path) -> None:
    """The same, with their federation.toml; docs/reproduce.md calls it hospitals.toml."""
    clinic(folder)
    shown = next(b for b in blocks("", (ROOT / "docs/federation.md").read_text()) if b.language == "toml")
    for name in ("federation.toml", "hospitals.toml"):
        (folder / name).write_text(shown.text)


def trained(folder: Path) -> None:
    """That federation after one round, as `runs/federation`, and again under other names to compare."""
    described(folder)
    run(load_config(folder / "federation.toml", SHORT), folder / "runs" / "federation")
    for name in ("a", "b", "c"):
        shutil.copytree(folder / "runs" / "federation", folder / "runs" / name)


SETUPS: dict[str, Callable[[Path], None]] = {"clinic": clinic, "described": described, "trained": trained}


# -- the tests -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page(page: str, tmp_path: Path) -> None:
    run_page(page, (ROOT / page).read_text(), tmp_path)


def run_page(page: str, text: str, folder: Path) -> None:
    for name in CLONE:
        (folder / name).symlink_to(ROOT / name)
    kept = []
    for block in blocks(page, text):
        setup, file = block.mark("setup "), block.mark("file ")
        try:
            if setup is not None:
                SETUPS[setup](folder)
            if file is not None:
                keep(block, file, folder)
                kept += [folder / shlex.split(file)[0]] if block.language == "toml" else []
            elif block.mark("skip: ") is not None:
                if block.language in SHELL:
                    for words in commands(block.text):
                        check_command(words)
                elif block.language == "toml":
                    tomllib.loads(block.text)
                elif block.language == "python":
                    compile(block.text, block.where, "exec")
            elif block.language in (*SHELL, "python"):
                execute(block, folder)
            elif block.language == "toml":
                check_piece(block, folder)
            else:
                assert block.language in NOTHING_TO_RUN, (
                    f"a block of '{block.language}': bash, python or toml?"
                )
        except (AssertionError, FedmtError, tomllib.TOMLDecodeError, SyntaxError) as error:
            pytest.fail(f"{block.where}: {error}", pytrace=False)
    for path in kept:  # at the end, when the files that it names are there too
        check_toml(path)


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_text(page: str) -> None:
    """Code within a sentence: fedmt's commands and their options, options alone, scripts and make's targets."""
    text = (ROOT / page).read_text()
    shown = {w.split("=")[0] for b in blocks(page, text) for w in b.text.split() if w.startswith("--")}
    prose = re.sub(r"^( *)```.*?^ *```$", "", text, flags=re.M | re.S)
    for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose):
        words = span.split()
        options = {w.split("=")[0] for w in words if re.match(r"--[a-z]", w)}
        if words[0] == "fedmt" and len(words) > 1:
            assert words[1].startswith("--") or words[1] in typer.main.get_command(cli.app).commands, (
                f"{page}: {span}"
            )
            command = None if words[1].startswith("--") else words[1]
            assert options <= fedmt_options(command), f"{page}: {span}: no {options - fedmt_options(command)}"
        elif words[0].startswith("--"):
            assert options <= fedmt_options() | shown, f"{page}: {span}: no command has it"
        elif words[0] == "make" or (words[0] == "python" and words[-1].endswith(".py")):
            check_command(words)


BROKEN = {
    "a command": "```bash\nfedmt chek federation.toml\n```",
    "an option": "```bash\nfedmt reproduce --lst\n```",
    "an option of a skipped command": "<!-- test: skip: hours -->\n```bash\nfedmt run a.toml --resum\n```",
    "a setting of a skipped command": "<!-- test: skip: hours -->\n```bash\nfedmt run a.toml --set training.round=3\n```",
    "an experiment": "<!-- test: skip: hours -->\n```bash\nfedmt reproduce mian --scale small\n```",
    "a file": "<!-- test: skip: hours -->\n```bash\nfedmt check experiments/base/cifar10.toml\n```",
    "a make target": "<!-- test: skip: hours -->\n```bash\nmake quickstrat\n```",
    "a key of a piece of TOML": "```toml\n[training]\nround = 3\n```",
    "a value": '```toml\n[method]\nname = "fedmt"\nestimator = "counts"\n```',
    "a name in Python": "```python\nfrom fedmt.losses import fixed_loss\n```",
    "a block that says not what it is": "```\nfedmt --version\n```",
}


@pytest.mark.parametrize("what", BROKEN)
def test_it_notices_a_mistake_in(what: str, tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="page:"):
        run_page("page", BROKEN[what], tmp_path)
