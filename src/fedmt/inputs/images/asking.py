"""The images that a model should predict: arrays, pictures or files, converted to its shape one batch at a
time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fedmt.core.errors import FedmtError
from fedmt.inputs.arrays import as_tensor
from fedmt.inputs.base import Batch, Item
from fedmt.inputs.images.arrays import as_uint8
from fedmt.inputs.images.decoding import picture_pixels, read_image
from fedmt.inputs.images.dicom import Window
from fedmt.inputs.images.files import files_below, located, no_images, passed_over
from fedmt.inputs.images.shaping import ImageOptions, conform
from fedmt.inputs.rows import table_rows

Picture = str | Path | Image.Image | NDArray[Any] | Tensor
Images = Picture | Sequence[Picture]
Shape = tuple[int, int, int]


def batch_size(shape: Shape) -> int:
    """Number of images at a time: about two million pixels, so that memory is bounded for any image size."""
    return min(256, max(8, (1 << 21) // (shape[1] * shape[2])))


def batches(images: Images, shape: Shape, window: Window | None = None) -> Iterator[Tensor]:
    """Whatever `Model.predict` accepts, as uint8 [n, *shape], one batch at a time.

    window: the window of grayscale DICOM files; None for each file's own.
    """
    options = ImageOptions((shape[1], shape[2]), shape[0], window=window)
    size = batch_size(shape)
    if isinstance(images, Tensor | np.ndarray) and images.ndim != 2:
        if images.ndim == 3 and shape[0] == 1 and tuple(images.shape[1:]) == shape[1:]:
            images = images[:, None]  # grayscale images of exactly the model's size, however few
        stack = _channels_first(_uint8(images))
        for part in stack.split(size):
            yield conform(part, options, "images")
        return
    if isinstance(images, str | Path | Image.Image | np.ndarray | Tensor):
        images = [images]
    if not hasattr(images, "__len__"):
        raise FedmtError(
            f"images: an object of type {type(images).__name__}; expected an array, a path, a PIL image, or "
            "a list of these."
        )
    for start in range(0, len(images), size):
        part = images[start : start + size]
        yield torch.stack([_one(image, f"images[{start + i}]", options) for i, image in enumerate(part)])


def _one(image: Picture, where: str, options: ImageOptions) -> Tensor:
    """One picture as uint8 [channels, H, W], according to the options."""
    if isinstance(image, str | Path):
        return torch.from_numpy(read_image(Path(image), where, options).copy())
    if isinstance(image, Image.Image):
        try:
            return torch.from_numpy(picture_pixels(image, options.size, options.channels or 3).copy())
        except (OSError, ValueError) as error:
            raise FedmtError(f"{where}: the picture cannot be read: {error}.") from None
    if isinstance(image, Tensor | np.ndarray):
        pixels = _uint8(image, where)
        if pixels.dim() == 2:
            pixels = pixels[None]
        if pixels.dim() == 3:
            return conform(_channels_first(pixels[None], where), options, where)[0]
        raise FedmtError(
            f"{where}: an image of shape {tuple(image.shape)}; expected [H, W] with 1 or 3 channels."
        )
    raise FedmtError(
        f"{where}: an object of type {type(image).__name__}; expected a path, a PIL image or a uint8 array."
    )


def _uint8(images: Tensor | NDArray[Any], where: str = "images") -> Tensor:
    return as_uint8(as_tensor(images, where), where)


def _channels_first(images: Tensor, where: str = "images") -> Tensor:
    """Converts [N, C, H, W], [N, H, W, C] or [N, H, W] to [N, C, H, W]."""
    if images.dim() == 4 and images.shape[1] in (1, 3):
        return images
    if images.dim() == 4 and images.shape[3] in (1, 3):
        return images.permute(0, 3, 1, 2)
    if images.dim() == 3 and images.shape[2] not in (1, 3) and images.shape[0] not in (1, 3):
        return images[:, None]
    raise FedmtError(
        f"{where}: shape {tuple(images.shape)}; expected [N, C, H, W], [N, H, W, C] or [N, H, W] with 1 or 3 "
        "channels. Give a single image in a list: [image]."
    )


# -- files ----------------------------------------------------------------------------------------


def find_files(
    inputs: Sequence[Path], image_column: str = "image", notes: list[str] | None = None
) -> list[Item]:
    """The image files that paths name: each itself, all in a folder at any depth, or those of a CSV.

    `notes` lists the files in a folder that are skipped.
    """
    files: list[Item] = []
    for path in inputs:
        if path.is_dir():
            found, others = files_below(path)
            if not found:
                raise no_images(path, others)
            if notes is not None and others:
                notes.append(f"{path}: {passed_over(others)}")
            files += [Item(str(image), str(path), image) for image in found]
        elif not path.exists():
            raise FedmtError(f"{path}: there is no such file or folder.")
        elif path.suffix.lower() == ".csv":
            lines = [(line, name) for line, (name,) in table_rows(path, [image_column])]
            places = located(path.parent, [name for _, name in lines])
            rows = [
                Item(name, f"{path}, line {line}", place)
                for (line, name), place in zip(lines, places, strict=True)
            ]
            if not rows:
                raise FedmtError(f"{path}: no images; expected a line for each image below the header.")
            files += rows
        else:
            files.append(Item(str(path), str(path), path))
    return files


def read_files(files: Sequence[Item], shape: Shape, window: Window | None = None) -> Iterator[Batch]:
    """All files, one batch at a time. While one batch is used, threads decode the next."""
    options = ImageOptions((shape[1], shape[2]), shape[0], window=window)
    size = batch_size(shape)
    parts = [files[start : start + size] for start in range(0, len(files), size)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:

        def begin(part: Sequence[Item]) -> list[Future[NDArray[np.uint8] | FedmtError]]:
            return [pool.submit(_decoded, file, options) for file in part]

        ahead = begin(parts[0]) if parts else []
        for number, part in enumerate(parts):
            decoded = [future.result() for future in ahead]
            ahead = begin(parts[number + 1]) if number + 1 < len(parts) else []
            pixels = [torch.from_numpy(d.copy()) for d in decoded if not isinstance(d, FedmtError)]
            errors = [str(d) if isinstance(d, FedmtError) else None for d in decoded]
            stacked = torch.stack(pixels) if pixels else torch.empty(0, *shape, dtype=torch.uint8)
            yield Batch(part, errors, stacked)


def _decoded(file: Item, options: ImageOptions) -> NDArray[np.uint8] | FedmtError:
    if not file.name:
        return FedmtError(f"{file.where}: the image column is empty.")
    try:
        return read_image(file.path, file.where, options)
    except FedmtError as error:
        return error
