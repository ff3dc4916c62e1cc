"""Builds the bundled part of Fashion-MNIST from the four original IDX files, gzipped or not.

    python scripts/bundle_fashion_mnist.py IDX_FOLDER

It keeps the first images of each class, in file order, and writes no date, so that the output is always
bit-identical (with the same zlib).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedmt.core.errors import FedmtError
from fedmt.data.sampleset import Split
from fedmt.data.sources.fashion_mnist import GARMENT
from fedmt.data.sources.idx import read_mnist_folder
from fedmt.inputs.images.shaping import ImageOptions

OUTPUT = Path(__file__).parents[1] / "src" / "fedmt" / "data" / "fashion_mnist.npz"
PER_CLASS: dict[Split, int] = {"train": 700, "test": 200}


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds the bundled part of Fashion-MNIST.")
    parser.add_argument("folder", type=Path, help="folder of train-images-idx3-ubyte.gz and the other three")
    folder = parser.parse_args().folder
    arrays: dict[str, Any] = {}
    for split, count in PER_CLASS.items():
        try:
            full = read_mnist_folder(folder, split, ImageOptions(), GARMENT)
        except FedmtError as error:
            parser.error(str(error))
        labels = full.labels["garment"]
        firsts = [(labels == k).nonzero().flatten()[:count] for k in range(len(GARMENT))]
        kept = torch.cat(firsts).sort().values
        arrays[f"{split}_images"] = full.images[kept, 0].numpy()
        arrays[f"{split}_labels"] = labels[kept].to(torch.uint8).numpy()
    np.savez_compressed(OUTPUT, **arrays)
    print(f"{OUTPUT}: {OUTPUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
