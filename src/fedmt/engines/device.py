"""Which device a run uses, and what of a federation lies on it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedmt.data.center import Center, Federation
from fedmt.errors import FedmtError

DEVICE_SHARE = 0.6
"""Images stay on the GPU while they take at most this share of its free memory."""


def pick_device(name: str) -> torch.device:
    """'auto', 'cpu', 'cuda' or 'cuda:1'; a device that is not there is an error, not a silent CPU run."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise FedmtError(
            f"device: '{name}' is not a device; use 'auto', 'cpu', 'cuda' or 'cuda:1'."
        ) from None
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            found = f"{count} CUDA devices" if count else "no CUDA device"
            raise FedmtError(
                f"device: '{name}' was asked for, but this machine has {found}; use device = 'cpu' or 'auto'."
            )
    elif device.type != "cpu":
        raise FedmtError(f"device: '{name}' is not supported; use 'auto', 'cpu' or 'cuda'.")
    return device


def place(federation: Federation, device: torch.device) -> Federation:
    """Labels on the device, and images too while they fit; else a batch travels at a time."""
    if device.type != "cuda":
        return federation
    everyone = (federation.reference, *federation.centers, *federation.tests)
    size = sum({id(c.images): c.images.nbytes for c in everyone}.values())
    fits = size <= DEVICE_SHARE * torch.cuda.mem_get_info(device)[0]
    moved: dict[int, Tensor] = {}

    def moved_center(center: Center) -> Center:
        images = center.images
        if fits:
            if id(images) not in moved:  # tests in several spaces share their images
                moved[id(images)] = images.to(device)
            images = moved[id(images)]
        labels = None if center.labels is None else center.labels.to(device)
        truth = None if center.truth is None else center.truth.to(device)
        return replace(center, images=images, labels=labels, truth=truth)

    return replace(
        federation,
        reference=moved_center(federation.reference),
        centers=tuple(map(moved_center, federation.centers)),
        tests=tuple(map(moved_center, federation.tests)),
    )
