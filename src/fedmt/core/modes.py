"""What a caller may have set in torch for its own work, which must not change fedmt's results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def usual_modes() -> Iterator[None]:
    """With gradients, without autocast, in float32 and on the CPU by default; afterwards as before.

    So `fedmt.train` gives the same weights inside `torch.no_grad()`, and predictions are in float32 inside
    `torch.autocast`.
    """
    dtype = torch.get_default_dtype()
    with ExitStack() as modes:
        modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                modes.enter_context(torch.autocast(device, enabled=False))
        if torch.get_default_device().type != "cpu":
            modes.enter_context(torch.device("cpu"))
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
