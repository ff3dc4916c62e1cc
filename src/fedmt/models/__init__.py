"""Using a trained model: loading it from a run folder, predicting in any label space (docs/using.md)."""

from __future__ import annotations

from fedmt.models.loaded import Model, load

__all__ = ["Model", "load"]
