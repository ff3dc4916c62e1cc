"""The rules of the architecture, read from the import graph (docs/development/architecture.md)."""

import ast
import re
from pathlib import Path

import fedmt

ROOT = Path(fedmt.__file__).parent

# The layers, from the bottom up. A room imports itself and rooms of the layers below.
LAYERS = (
    {"core"},
    {"metrics", "estimators", "inputs", "theory", "privacy"},
    {"data", "aggregation", "backbones"},
    {"methods", "tracking", "attacks"},
    {"engines", "config"},
    {"runs"},
    {"models"},
    {"training"},
    {"reports"},
    {"engines/flower", "api"},  # Flower's apps and the Python functions are outermost, like the commands
    {"commands"},
)


ROOMS = set().union(*LAYERS)


def imports(path: Path) -> set[str]:
    """The dotted names that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from fedmt import static_bn` imports a room by its name.
            names = {f"fedmt.{a.name}" for a in node.names} if node.module == "fedmt" else set()
            found |= {n for n in names if n.split(".")[1] in ROOMS} or {node.module}
    return found


def room(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return "/".join(parts[:2]) if parts[:2] == ("engines", "flower") else parts[0]


def test_arrows_point_down() -> None:
    layer = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
    for path in ROOT.rglob("*.py"):
        here = room(path)
        if here in ("__init__", "__main__"):
            continue
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != "fedmt" or len(parts) == 1:
                continue
            there = "/".join(parts[1:3]) if parts[1:3] == ["engines", "flower"] else parts[1]
            below = there == here or layer[there] < layer[here]
            assert below, f"{path.relative_to(ROOT)} imports fedmt.{there}"


def test_every_room_is_on_the_plan() -> None:
    rooms = {room(path) for path in ROOT.rglob("*.py")} - {"__init__", "__main__"}
    assert rooms == ROOMS


def test_only_the_room_of_images_knows_what_a_pixel_is() -> None:
    """Another input needs no change elsewhere. Only image networks and image sources know about images."""
    spared = ("inputs/images/", "data/sources/", "backbones/")
    for path in ROOT.rglob("*.py"):
        if str(path.relative_to(ROOT)).startswith(spared):
            continue
        found = re.findall(r"\b(channels|height|pixels?|H, W)\b", path.read_text(), re.IGNORECASE)
        assert not found, f"{path.relative_to(ROOT)} mentions {sorted(set(found))}"


def test_nothing_imports_the_command_line() -> None:
    for path in ROOT.rglob("*.py"):
        if path.name not in ("cli.py", "__main__.py"):
            assert "fedmt.commands.cli" not in imports(path), path
            names = {name for name in imports(path) if name.startswith("fedmt.commands")}
            assert not names or room(path) == "commands", path


def test_methods_know_no_device() -> None:
    """A method says what is computed. A device, a stream or a process would be how."""
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
    """Flower is an extra, so nothing else may need it."""
    for path in ROOT.rglob("*.py"):
        if room(path) != "engines/flower":
            assert not {n for n in imports(path) if n.split(".")[0] in ("flwr", "ray")}, path.name


def test_trackers_stay_in_their_room() -> None:
    """TensorBoard and MLflow are extras and slow to import. Each has its own file, imported on demand."""
    for path in ROOT.rglob("*.py"):
        names = {n for n in imports(path) if n.split(".")[0] == "mlflow" or "tensorboard" in n.split(".")[:3]}
        if room(path) != "tracking":
            assert not names, path.name
            assert not imports(path) & {"fedmt.tracking.mlflow", "fedmt.tracking.tensorboard"}, path.name
