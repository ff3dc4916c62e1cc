"""Turns Fitzpatrick 17k into a federation of npz files, with features of a frozen ImageNet network.

    python scripts/embeddings.py data/fitzpatrick17k resnet18.safetensors data/embeddings
    fedmt reproduce embeddings --data data

The first folder holds fitzpatrick17k.csv and `images/<md5hash>.jpg`. Missing images are left out. The second
argument is a weight file with torchvision's names. A ResNet18 turns each image, at 128 pixels, into 512
numbers. A fifth of each class is the test set. The reference center has 20 images of each of the seven
classes that have images. The other images are spread over six centers. Three of these centers label in three
classes, and three label whether a lesion is malignant. Every center's file has a counterpart `*-fine.npz`
with the fine labels, for the bound.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import torch

from fedmt.backbones import Classifier, build
from fedmt.inputs.images import Images
from fedmt.inputs.images.decoding import read_images
from fedmt.inputs.images.shaping import ImageOptions

SIZE, PER_CLASS, CENTERS = 128, 20, 6


def embed(paths: list[Path], weights: Path) -> np.ndarray:
    """Features of shape [N, 512]."""
    input = Images((3, SIZE, SIZE))
    network = build("resnet18", 1, input, weights)
    network.fc = torch.nn.Identity()
    model = Classifier(network, *input.pretrained_statistics()).eval()
    options = ImageOptions(size=(SIZE, SIZE), channels=3)
    found = []
    with torch.no_grad():
        for i in range(0, len(paths), 64):
            part = paths[i : i + 64]
            images = read_images(part, list(map(str, part)), options)
            found.append(model(input.plain(images)))
            print(f"\r{min(i + 64, len(paths))} of {len(paths)} images", end="", flush=True)
    print()
    return torch.cat(found).numpy()


def main(folder: Path, weights: Path, out: Path) -> None:
    with (folder / "fitzpatrick17k.csv").open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if (folder / "images" / f"{r['md5hash']}.jpg").exists()]
    vectors = embed([folder / "images" / f"{r['md5hash']}.jpg" for r in rows], weights)
    fine = np.array([r["nine_partition_label"] for r in rows])
    three = np.array([r["three_partition_label"] for r in rows])
    malignant = np.where(three == "malignant", "malignant", "not malignant")
    rng = np.random.default_rng(0)
    test, reference, rest = [], [], []
    for name in sorted(set(fine)):
        own = rng.permutation(np.flatnonzero(fine == name))
        cut = len(own) // 5
        test, reference = [*test, *own[:cut]], [*reference, *own[cut : cut + PER_CLASS]]
        rest += [*own[cut + PER_CLASS :]]
    out.mkdir(parents=True, exist_ok=True)

    def write(name: str, which: list[int], labels: np.ndarray) -> None:
        np.savez_compressed(out / f"{name}.npz", vectors=vectors[which], labels=labels[which])
        print(f"{out / name}.npz: {len(which):,} images")

    write("test", test, fine)
    write("reference", reference, fine)
    for number, part in enumerate(np.array_split(rng.permutation(rest), CENTERS), 1):
        which = part.tolist()
        write(f"center-{number}", which, three if number % 2 else malignant)
        write(f"center-{number}-fine", which, fine)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*map(Path, sys.argv[1:]))
