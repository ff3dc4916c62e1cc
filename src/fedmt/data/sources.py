"""Every source a config can name, behind one function."""

from __future__ import annotations

from typing import Literal

from fedmt.data.cifar100 import read_cifar100
from fedmt.data.fashion_mnist import read_fashion_mnist
from fedmt.data.fitzpatrick17k import read_fitzpatrick17k
from fedmt.data.folder import read_folder
from fedmt.data.idx import read_idx, read_mnist_folder
from fedmt.data.imageset import ImageOptions, ImageSet
from fedmt.data.manifest import read_manifest
from fedmt.data.npz import read_npz
from fedmt.data.specs import SourceSpec
from fedmt.errors import FedmtError
from fedmt.labels import LabelSpace


def read_source(
    spec: SourceSpec, options: ImageOptions, space: LabelSpace | None, where: str, split: str = ""
) -> ImageSet:
    """Reads a source; `split` is the part to read where the spec does not say."""
    part: Literal["train", "test"] = spec.split or ("test" if split == "test" else "train")
    if spec.source == "remote":
        raise FedmtError(
            f"{where}: its data stay on its own machine (source = 'remote'), so it trains there, over "
            "Flower: see docs/deployment.md."
        )
    if spec.source == "fashion_mnist":
        return read_fashion_mnist(part, options)
    if spec.path is None:
        raise FedmtError(f"{where}: source '{spec.source}' needs a path.")
    if spec.source == "cifar100":
        return read_cifar100(spec.path, part, options)
    if spec.source == "fitzpatrick17k":
        return read_fitzpatrick17k(spec.path, options, spec.root)
    if spec.source == "folder":
        return read_folder(spec.path, options, space, labelled=space is not None)
    if spec.source == "npz":
        return read_npz(spec.path, options, space, labelled=space is not None)
    if spec.source == "manifest":
        column = spec.label_column if space is not None else None
        return read_manifest(
            spec.path,
            options,
            space,
            image_column=spec.image_column,
            label_column=column,
            root=spec.root,
        )
    if space is None and spec.path.is_dir():
        raise FedmtError(f"{where}: an IDX folder has labels; name their space.")
    if spec.path.is_dir():
        assert space is not None
        return read_mnist_folder(spec.path, part, options, space)
    return read_idx(spec.path, spec.labels, options, space)


def has_test_part(spec: SourceSpec) -> bool:
    """Whether one source holds training and test images: an IDX file does not, its folder does."""
    if spec.source == "idx":
        return spec.path is not None and spec.path.is_dir()
    return spec.source in ("cifar100", "fashion_mnist")
