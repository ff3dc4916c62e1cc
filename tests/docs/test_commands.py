"""Every command in README.md and docs/ is executed, and every config in them is read.

Each page has its own folder, in which its blocks run one after another, in a shell, as a reader would run
them. Only the imports happen in advance (`warm`), except on the pages in COLD and for commands that serve. If
a block needs more than it shows, a comment before it, which readers do not see, says what:

    <!-- test: setup NAME -->          data for the page, made by one of SETUPS in conftest.py
    <!-- test: fedmt COMMAND ARGS -->  arguments added to that command in the block, such as fewer rounds
    <!-- test: file NAME [--set …] --> the block is saved as this file, with these settings; TOML is checked
    <!-- test: part of NAME -->        a piece of TOML that must fit into this config
    <!-- test: until TEXT -->          the command serves: it is interrupted after it has printed this text
    <!-- test: skip: REASON -->        not executed, but its commands, options and paths are still checked

Any other block is executed (bash, python) or read (toml: as a config, or as part of one).
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import tomli_w
import typer

from fedmt import FedmtError, Model
from fedmt.aggregation import STRATEGIES
from fedmt.commands import cli
from fedmt.commands.sweeps.expansion import Sweep, expand
from fedmt.commands.sweeps.experiment import find_experiment, read_experiment
from fedmt.config import DeploymentSpec, ModelSpec, override, parse_config
from fedmt.config.errors import Origin
from fedmt.data.specs import BenchmarkSpec, CalibrationSpec
from fedmt.inputs.images import ImageSpec
from fedmt.inputs.images.augment import Augmentation
from fedmt.inputs.tables import TableSpec
from fedmt.inputs.text import TextSpec
from fedmt.inputs.text.views import TokenDropout
from fedmt.inputs.vectors import VectorSpec, VectorViews
from fedmt.methods import METHODS, Training

ROOT = Path(__file__).parents[2]
APP = typer.main.get_command(cli.app)
assert isinstance(APP, click.Group)
COMMANDS = APP.commands
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(str(p.relative_to(ROOT)) for p in sorted(ROOT.glob("docs/**/*.md"))),
]
ELSEWHERE = {"docs/start/tutorial.md": "tests/commands/test_tutorial.py"}
"""Pages that another test follows and compares with the printed output. Here they are only read."""
COLD = ("docs/guides/tracking.md",)
"""Pages that run with the installed program, including its imports."""
CLONE = ("benchmarks", "examples", "experiments", "scripts", "Makefile")
"""What a reader has in addition to their own files."""
BASE = "experiments/base/fashion_mnist.toml"
"""The config that a piece of TOML belongs to by default."""
MARK = r"(setup|file|part of|until|skip:) \S.*|fedmt (" + "|".join(COMMANDS) + r") \S.*"
SHELL, NOTHING_TO_RUN = ("bash", "sh", "console"), ("text", "csv", "json", "nginx", "bibtex")
Setups = Mapping[str, Callable[[Path], None]]


@dataclass(frozen=True)
class Block:
    where: str
    language: str
    text: str
    marks: tuple[str, ...] = ()

    def mark(self, kind: str) -> str | None:
        """The text that follows a mark of this kind."""
        found = [m.removeprefix(kind).strip() for m in self.marks if m.startswith(kind)]
        return found[0] if found else None


def blocks(page: str, text: str) -> Iterator[Block]:
    """The fenced blocks of a page, each with the marks directly before it."""
    marks: list[str] = []
    opened: re.Match[str] | None = None
    lines: list[str] = []
    where = ""
    for number, line in enumerate(text.splitlines(), 1):
        if opened is not None:
            if line.strip() == opened[2]:
                yield Block(where, opened[3].strip(), "\n".join(lines) + "\n", tuple(marks))
                opened, marks = None, []
            else:
                lines.append(line.removeprefix(opened[1]))
        elif opened := re.match(r"( *)(```+)(.*)", line):
            where, lines = f"{page}:{number}", []
        elif mark := re.match(r" *<!-- test:(.*?)(-->)?$", line):
            assert re.fullmatch(MARK, mark[1].strip()) and mark[2], f"{page}:{number}: no mark is written so"
            marks.append(mark[1].strip())
        elif line.strip():
            assert not marks, f"{page}:{number}: '<!-- test: {marks[0]} -->' has no block after it"
    assert opened is None and not marks, f"{page}: the last block has no end, or the last mark no block"


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a shell block or inline code, split into words, without comments."""
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


FILE_TYPES = {"json", "onnx", "safetensors", "card"}
SETTINGS = {
    "method": {"name", *(f.name for m in METHODS.values() for f in fields(m))},
    "aggregation": {"name", "guard", *(f.name for s in STRATEGIES.values() for f in fields(s))},
    "training": {f.name for f in fields(Training)},
    "augmentation": {f.name for v in (Augmentation, VectorViews, TokenDropout) for f in fields(v)},
    "images": set(ImageSpec.model_fields),
    "vectors": set(VectorSpec.model_fields),
    "tables": set(TableSpec.model_fields),
    "text": set(TextSpec.model_fields),
    "benchmark": set(BenchmarkSpec.model_fields),
    "calibration": set(CalibrationSpec.model_fields),
    "deployment": set(DeploymentSpec.model_fields),
    # The pages also use `model` for a loaded model, and model.json is a file.
    "model": {*ModelSpec.model_fields, *dir(Model), *FILE_TYPES},
}
"""The keys of each table of a config."""


# -- what is not executed is read ----------------------------------------------------------------------------


def check_command(words: list[str]) -> None:
    """For known programs, checks subcommands, options and, for fedmt, values. Repository files must exist."""
    if words[0] == "fedmt":
        check_fedmt(words[1:])
    elif words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
        asked = {word for word in words[1:] if "=" not in word}  # the other words set a variable
        assert asked <= set(targets), f"make has no {asked - set(targets)}"
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
    elif words[0] == "python" and words[1:] and words[1].endswith(".py"):
        script = (ROOT / words[1]).read_text()
        for option in options_in(shlex.join(words)):
            assert f'"{option}"' in script, f"{words[1]} has no option {option}"
    elif words[0] not in ("python", "python3", "source", "ssh-keygen"):
        raise AssertionError(f"'{words[0]}' is no program that this test knows; let it run, or teach it here")
    for word in words:
        if word.split("/")[0] in (*CLONE, "src", "docs", "tests"):
            assert (ROOT / word).exists(), f"there is no {word}"


def check_fedmt(words: list[str]) -> None:
    assert words and words[0] in COMMANDS, f"{shlex.join(['fedmt', *words])}: fedmt has no such command"
    try:
        given = COMMANDS[words[0]].make_context(words[0], words[1:]).params
    except click.UsageError as error:
        raise AssertionError(f"{shlex.join(['fedmt', *words])}: {error.format_message()}") from None
    raw = {"benchmark": tomllib.loads((ROOT / BASE).read_text())["benchmark"]}
    for item in given.get("set_") or []:
        override(raw, item)
    parse_config(raw)
    if words[0] == "reproduce" and given["name"]:
        find_experiment(given["name"])


@cache
def options_of(*command: str) -> frozenset[str]:
    """The options that another project's program lists."""
    done = subprocess.run(
        [*command, "--help"], capture_output=True, text=True, env=environment(Path.home()), check=True
    )
    return frozenset(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", done.stdout))


def fedmt_options(command: str | None = None) -> set[str]:
    """The options of one fedmt command, or of all."""
    chosen = COMMANDS.values() if command is None else [COMMANDS[command]]
    found = {o for c in (*chosen, APP) for p in c.params if isinstance(p, click.Option) for o in p.opts}
    return found | {"--help"}


# -- what is executed ----------------------------------------------------------------------------------------


def environment(folder: Path, warm: Path | None = None) -> dict[str, str]:
    """The environment of a reader who has installed fedmt. Nothing is written outside the page's folder."""
    programs = [str(Path(sys.executable).parent), os.environ["PATH"]]
    return {
        **os.environ,
        "PATH": os.pathsep.join(programs if warm is None else [str(warm), *programs]),
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "160",
    }


def execute(block: Block, folder: Path, warm: Path | None) -> None:
    if block.language == "python":
        start = [sys.executable, "-c", block.text] if warm is None else [str(warm / "python-c"), block.text]
    else:
        text = block.text
        if block.language == "console":  # input begins with $, and the rest is output
            text = "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))
        start = ["bash", "-euo", "pipefail", "-c", added_arguments(block) + text]
    until = block.mark("until ")
    if until is not None:
        start_and_interrupt(start, folder, until)
        return
    done = subprocess.run(
        start,
        cwd=folder,
        env=environment(folder, warm),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise AssertionError(f"status {done.returncode} of\n{block.text}\n{done.stdout}{done.stderr}")


def added_arguments(block: Block) -> str:
    """A shell function `fedmt` that adds the arguments from the marks and calls the program."""
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
    # A command that does not stop is killed, or reading its output would wait forever.
    watchdog = threading.Timer(120, os.killpg, (process.pid, signal.SIGKILL))
    watchdog.start()
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
        watchdog.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def keep(block: Block, name: str, folder: Path) -> None:
    """Saves a block as a file, with settings applied as by `--set`."""
    file, *settings = shlex.split(name)
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = tomllib.loads(block.text) if settings else {}
    for flag, item in zip(settings[::2], settings[1::2], strict=True):
        assert flag == "--set", f"{block.where}: after the file's name, expected --set KEY=VALUE"
        override(raw, item)
    path.write_text(tomli_w.dumps(raw) if settings else block.text)


def check_toml(path: Path) -> None:
    """Checks a file on the page: loads a federation, expands an experiment, or reads a center's file."""
    raw = tomllib.loads(path.read_text())
    if "rows" in raw:
        expand(read_experiment(path), Sweep())
    elif "state" in raw:
        from fedmt.engines.flower.settings import CenterSettings

        CenterSettings.read(path)
    else:
        cli.check(path)


def check_piece(block: Block, folder: Path) -> None:
    """TOML that is not saved as a file: a whole config, or part of one."""
    raw = tomllib.loads(block.text)
    base = block.mark("part of ")
    if base is not None or not ({"wanted", "benchmark"} & set(raw)):
        path = folder / (base or BASE)
        raw = merged(tomllib.loads(path.read_text()), raw)
    parse_config(raw, Origin(folder / "block.toml", block.text))


def merged(base: dict[str, Any], piece: dict[str, Any]) -> dict[str, Any]:
    """Merges the part into the base by tables. Another method does not inherit the base's options."""
    found = dict(base)
    for key, value in piece.items():
        own = found.get(key)
        table = (
            isinstance(value, dict) and isinstance(own, dict) and value.get("name") in (None, own.get("name"))
        )
        found[key] = merged(own, value) if table else value
    return found


# -- the tests -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page(page: str, tmp_path: Path, setups: Setups, warm: Path) -> None:
    run_page(page, (ROOT / page).read_text(), tmp_path, setups, None if page in COLD else warm)


def run_page(page: str, text: str, folder: Path, setups: Setups, warm: Path | None = None) -> None:
    for name in CLONE:
        (folder / name).symlink_to(ROOT / name)
    kept = []
    for block in blocks(page, text):
        setup, file = block.mark("setup "), block.mark("file ")
        try:
            if page in ELSEWHERE:
                assert (ROOT / ELSEWHERE[page]).is_file(), f"{ELSEWHERE[page]}, which runs it, is not there"
                for words in commands(block.text) if block.language in SHELL else ():
                    if words[0] == "fedmt":
                        check_command(words)
                continue
            if setup is not None:
                setups[setup](folder)
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
                execute(block, folder, warm)
            elif block.language == "toml":
                check_piece(block, folder)
            else:
                assert block.language in NOTHING_TO_RUN, (
                    f"a block of '{block.language}': bash, python or toml?"
                )
        except (AssertionError, FedmtError, tomllib.TOMLDecodeError, SyntaxError) as error:
            pytest.fail(f"{block.where}: {error}", pytrace=False)
    for path in kept:  # at the end, when the files that it names exist too
        check_toml(path)


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_text(page: str) -> None:
    """Inline code in a sentence or a comment: fedmt's commands and options, scripts, and make's targets."""
    text = (ROOT / page).read_text()
    shown = [b for b in blocks(page, text) if b.language in (*SHELL, "python")]
    options_shown = {option for b in shown for option in options_in(b.text)}
    prose = re.sub(r"^( *)```.*?^ *```$", "", text, flags=re.M | re.S)
    assert not re.search(r"^ {4,}(\$|fedmt|python|make) ", prose, re.M), (
        f"{page}: an indented command; fence it"
    )
    for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose):
        words, options = span.split(), options_in(span)
        if words[0] == "fedmt" and words[1:] and not words[1].startswith("-"):
            assert words[1] in COMMANDS, f"{page}: '{span}': fedmt has no such command"
            assert options <= fedmt_options(words[1]), f"{page}: '{span}': it has no such option"
        elif words[0] == "fedmt" or words[0].startswith("--"):
            assert options <= fedmt_options() | options_shown, f"{page}: '{span}': no command has it"
        elif words[0] == "make" or span.startswith(
            ("python scripts/", "python benchmarks/", "python examples/")
        ):
            check_command(words)
        elif (key := re.match(r"([a-z]+)\.(\w+)(?!\w*\.)", span)) and key[1] in SETTINGS:
            assert key[2] in SETTINGS[key[1]], f"{page}: '{span}': no such setting"
    for block in shown:
        for comment in re.findall(r"(?:^|\s)#.*", block.text):
            assert options_in(comment) <= fedmt_options(), f"{block.where}: '{comment}': no command has it"


def options_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))


SKIP = "<!-- test: skip: hours -->\n"
BROKEN = {
    "a command": "```bash\nfedmt chek federation.toml\n```",
    "an option": "```bash\nfedmt reproduce --lst\n```",
    "an option of a skipped command": SKIP + "```bash\nfedmt run a.toml --resum\n```",
    "a setting of a skipped command": SKIP + "```bash\nfedmt run a.toml --set training.round=3\n```",
    "an experiment": SKIP + "```bash\nfedmt reproduce mian --scale small\n```",
    "a file": SKIP + "```bash\nfedmt check experiments/base/cifar10.toml\n```",
    "a make target": SKIP + "```bash\nmake quickstrat\n```",
    "a key of a piece of TOML": "```toml\n[training]\nround = 3\n```",
    "a value": '```toml\n[method]\nname = "fedmt"\nestimator = "counts"\n```',
    "a name in Python": "```python\nfrom fedmt.core.errors import FedmtErorr\n```",
    "a mark": "<!-- test: skp: hours -->\n```bash\nfedmt --version\n```",
    "an end": "```bash\nfedmt --version\n",
    "a block that says not what it is": "```\nfedmt --version\n```",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", BROKEN)
def test_it_notices_a_mistake_in(what: str, tmp_path: Path, setups: Setups) -> None:
    with pytest.raises((pytest.fail.Exception, AssertionError), match="page:"):
        run_page("page", BROKEN[what], tmp_path, setups)
