"""The methods, one a file. They say what is computed; engines say how."""

from __future__ import annotations

from typing import Any

from fedmt.methods.base import CenterRound, LocalWork, Method, Training
from fedmt.methods.fedmt import PAPER, FedMT
from fedmt.methods.single import Single

METHODS: dict[str, type[Method]] = {"fedmt": FedMT, "single": Single}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {"paper": PAPER}
"""Named settings of whole config tables; what a config says itself goes before them."""

__all__ = ["METHODS", "PRESETS", "CenterRound", "FedMT", "LocalWork", "Method", "Single", "Training"]
