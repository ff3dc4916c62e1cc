"""The data that the pages mention, made from the bundled images."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paper_runs
import paper_tables
import pytest
from PIL import Image

from fedmt.config import load_config
from fedmt.data.sources.fashion_mnist import read_fashion_mnist
from fedmt.training.run import run

ROOT = Path(__file__).parents[2]
SHORT = [
    "training.rounds=1",
    "training.warmup_epochs=1",
    "training.local_epochs=1",
    "model.backbone=small_cnn",
]

DIAGNOSES = {
    "melanoma": "malignant",
    "basal cell carcinoma": "malignant",
    "nevus": "benign",
    "seborrheic keratosis": "benign",
}


def clinic(folder: Path) -> None:
    """The clinics of README and docs/guides/your-data.md, with four bundled garments named as diagnoses."""
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
    for name, column in (("berlin/cases", "label"), ("data/berlin/cases", "triage"), ("b", "triage")):
        path = folder / f"{name}.csv"
        for number, _ in chosen:
            save(path.parent / "pictures" / f"{number}.png", number)
        lines = [f"pictures/{number}.png,{triage}" for number, triage in chosen]
        path.write_text("\n".join([f"image,{column}", *lines, ""]))
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
    """The same clinics with their federation.toml, which docs/guides/sweeps.md calls hospitals.toml."""
    clinic(folder)
    shown = re.search(r"```toml\n(.*?)```", (ROOT / "docs/guides/your-data.md").read_text(), re.S)
    assert shown is not None
    for name in ("federation.toml", "hospitals.toml"):
        (folder / name).write_text(shown[1])


def trained(folder: Path) -> None:
    """That federation after one round, as `runs/federation`, and under other names for comparisons."""
    described(folder)
    run(load_config(folder / "federation.toml", SHORT), folder / "runs" / "federation")
    for name in ("a", "b", "c"):
        shutil.copytree(folder / "runs" / "federation", folder / "runs" / name)


SETUPS: dict[str, Callable[[Path], None]] = {"clinic": clinic, "described": described, "trained": trained}


@pytest.fixture(scope="session")
def setups() -> dict[str, Callable[[Path], None]]:
    """The names that `<!-- test: setup NAME -->` accepts."""
    return SETUPS


@pytest.fixture(scope="session")
def tables() -> paper_tables.Tables:
    """The tables of docs/results/paper.md, from the raw files."""
    return paper_tables.Tables(paper_runs.Runs())
