"""The house's rules, read off the import graph (docs/architecture.md)."""

import ast
from pathlib import Path

import fedmt

ROOT = Path(fedmt.__file__).parent

# Each room and the rooms below it that it may import from; the pure core at the bottom imports none.
BELOW = {
    "errors": set(),
    "registry": {"errors"},
    "labels": {"errors"},
    "losses": set(),
    "calibration": set(),
    "estimation": {"labels"},
    "augment": {"errors"},
    "static_bn": set(),
    "theory": {"errors", "labels"},
    "backbones": {"errors", "registry"},
    "data": {"errors", "labels", "augment"},
    "methods": {"errors", "registry", "labels", "losses", "estimation", "augment", "data", "aggregation"},
    "aggregation": {"errors", "registry"},
    # The distributed engine's apps are a rim of their own, as the command line is.
    "engines/flower": {
        "errors",
        "labels",
        "static_bn",
        "backbones",
        "aggregation",
        "data",
        "methods",
        "engines",
        "config",
        "runs",
        "run",
        "progress",
    },
    "engines": {"errors", "static_bn", "backbones", "aggregation", "data", "methods"},
    "runs": {"errors", "labels", "engines"},
    "config": {
        "errors",
        "registry",
        "labels",
        "augment",
        "backbones",
        "data",
        "methods",
        "aggregation",
        "tracking",
    },
    "tracking": {"errors", "data"},
    "model": {
        "errors",
        "registry",
        "labels",
        "calibration",
        "backbones",
        "aggregation",
        "data",
        "methods",
        "engines",
        "runs",
    },
    "run": {"errors", "config", "data", "engines", "model", "runs", "tracking"},
    "progress": {"data", "engines", "run"},
    "export": {"engines", "errors", "model", "runs"},
    "init": {"errors", "labels", "config", "data"},
    "report": {"errors", "config", "engines", "run", "runs"},
    "watch": {"errors", "report", "runs"},
    "quickstart": {"augment", "config", "progress", "report", "run", "runs"},
    "sweeps": {"errors", "config", "data", "engines", "progress", "run", "runs"},
    # Each command; `cli` puts them together.
    "commands": {
        "errors",
        "config",
        "data",
        "engines",
        "export",
        "init",
        "methods",
        "model",
        "progress",
        "quickstart",
        "report",
        "run",
        "runs",
        "sweeps",
        "watch",
    },
    "cli": {"errors", "commands"},
}


def imports(path: Path) -> set[str]:
    """The dotted names that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from fedmt import static_bn` imports a room by its name.
            names = {f"fedmt.{a.name}" for a in node.names} if node.module == "fedmt" else set()
            found |= {n for n in names if n.split(".")[1] in BELOW} or {node.module}
    return found


def room(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return "/".join(parts[:2]) if parts[:2] == ("engines", "flower") else parts[0]


def test_arrows_point_down() -> None:
    for path in ROOT.rglob("*.py"):
        here = room(path)
        if here in ("__init__", "__main__"):
            continue
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != "fedmt" or len(parts) == 1:
                continue
            there = "/".join(parts[1:3]) if parts[1:3] == ["engines", "flower"] else parts[1]
            assert there == here or there in BELOW[here], f"{path.relative_to(ROOT)} imports fedmt.{there}"


def test_every_room_is_on_the_plan() -> None:
    rooms = {room(path) for path in ROOT.rglob("*.py")} - {"__init__", "__main__"}
    assert rooms == set(BELOW)


def test_nothing_imports_the_command_line() -> None:
    for path in ROOT.rglob("*.py"):
        if path.name not in ("cli.py", "__main__.py"):
            assert "fedmt.cli" not in imports(path), path
            names = {name for name in imports(path) if name.startswith("fedmt.commands")}
            assert not names or room(path) == "commands", path


def test_methods_know_no_device() -> None:
    """A method says what is computed; a device, a stream or a process in it would be how."""
    for path in (ROOT / "methods").glob("*.py"):
        text = path.read_text()
        for word in (
            "cuda",
            "torch.device",
            ".backward(",
            "torch.optim",
            "import multiprocessing",
            "import socket",
        ):
            assert word not in text, f"{path.name} mentions {word}"


def test_flower_stays_in_its_room() -> None:
    """Flower is an extra: nothing else may need it."""
    for path in ROOT.rglob("*.py"):
        if room(path) != "engines/flower":
            assert not {n for n in imports(path) if n.split(".")[0] in ("flwr", "ray")}, path.name


def test_trackers_stay_in_their_room() -> None:
    """TensorBoard and MLflow are extras, slow to import: each in its own file, imported when asked for."""
    for path in ROOT.rglob("*.py"):
        names = {n for n in imports(path) if n.split(".")[0] == "mlflow" or "tensorboard" in n.split(".")[:3]}
        if room(path) != "tracking":
            assert not names, path.name
            assert not imports(path) & {"fedmt.tracking.mlflow", "fedmt.tracking.tensorboard"}, path.name
