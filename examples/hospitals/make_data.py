"""Creates three hospitals and a coordinator from the bundled images, each in a separate folder.

    python make_data.py OUT

OUT then has a folder for each machine (coordinator, berlin, lyon, oslo). Each has its config, copied from the
folder of this script, and its images as PNG files in class folders, or listed in a CSV. No image is repeated.
"""

from __future__ import annotations

import argparse
import csv
import shutil
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from fedmt.data import SampleSet
from fedmt.data.sources.fashion_mnist import GARMENT_TO_DEPARTMENT, read_fashion_mnist
from fedmt.data.splits import iid_split

HERE = Path(__file__).parent
PER_CLASS, SAMPLES, TEST_PER_CLASS = 3, 300, 30


def make_data(out: Path, samples: int = SAMPLES) -> None:
    train, test = read_fashion_mnist("train"), read_fashion_mnist("test")
    split = iid_split(train.labels["garment"], 10, PER_CLASS, 3, samples, seed=0)
    for site in ("coordinator", "berlin", "lyon", "oslo"):
        shutil.copytree(HERE / site, out / site, dirs_exist_ok=True)
    as_folders(train, split.reference, "garment", out / "coordinator" / "reference")
    as_table(train, split.centers[0], {"label": "department"}, out / "berlin", "cases.csv")
    as_folders(train, split.centers[1], "department", out / "lyon" / "images")
    as_table(train, split.centers[2], {"label": "layer"}, out / "oslo", "cases.csv")
    columns = {name: name for name in ("garment", "layer")}
    as_table(test, test_images(test), columns, out / "coordinator", "test.csv")
    for site in ("coordinator", "berlin"):
        GARMENT_TO_DEPARTMENT.to_csv(out / site / "department.csv")


def test_images(test: SampleSet) -> Tensor:
    labels = test.labels["garment"]
    return torch.cat([(labels == k).nonzero().flatten()[:TEST_PER_CLASS] for k in range(10)])


def as_folders(data: SampleSet, chosen: Tensor, space: str, folder: Path) -> None:
    for number in chosen.tolist():
        label = data.spaces[space].classes[int(data.labels[space][number])]
        save(data, number, folder / label / f"{number:05d}.png")


def as_table(data: SampleSet, chosen: Tensor, columns: dict[str, str], folder: Path, name: str) -> None:
    """columns: the columns of the CSV, and the label space of each."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", *columns])
        for number in chosen.tolist():
            image = f"images/{number:05d}.png"
            save(data, number, folder / image)
            writer.writerow(
                [image, *(data.spaces[s].classes[int(data.labels[s][number])] for s in columns.values())]
            )


def save(data: SampleSet, number: int, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(data.images[number, 0].numpy()).save(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Creates the folders of three hospitals and a coordinator.")
    parser.add_argument("out", type=Path)
    make_data(parser.parse_args().out)
