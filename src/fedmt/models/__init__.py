"""Loads a trained model and predicts in any label space (docs/guides/predict-and-export.md)."""

from __future__ import annotations

from fedmt.models.loaded import Model, load

__all__ = ["Model", "load"]
