"""The part of a config that is sent to the centers: every key declares it, and none is dropped."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import Field

from fedmt.aggregation.transforms import Transform, TransformSpec
from fedmt.config import Config, config_class, parse_config, resolved
from fedmt.config.building import build_transforms
from fedmt.config.traveling import check_marks, for_centers
from fedmt.core.section import Stays, Travels
from fedmt.data.specs import Section

BENCHMARK = {
    "data": {"source": "fashion_mnist"},
    "wanted": "garment",
    "spaces": {"department": 2},
    "per_class": 2,
}


class Noise(Section):
    """A table that a later version might have."""

    clip: Travels[float] = Field(1.0, gt=0)
    secret: Stays[str] = "of the coordinator"


class Larger(Config):
    noise: Travels[Noise] = Noise()
    budget: Travels[Noise | None] = None
    ledger: Stays[Noise] = Noise()


def test_every_key_says_whether_it_travels() -> None:
    check_marks(Config)


def test_a_key_that_does_not_say_it_is_refused() -> None:
    class Forgotten(Config):
        noise: Noise = Noise()

    with pytest.raises(TypeError, match=r"Forgotten.noise must declare whether it Travels"):
        check_marks(Forgotten)

    class Half(Section):
        clip: float = 1.0

    class Inside(Config):
        noise: Travels[Half | None] = None

    with pytest.raises(TypeError, match=r"Half.clip must declare whether it Travels"):
        check_marks(Inside)


def test_a_new_table_travels_as_it_says() -> None:
    check_marks(Larger)
    values = {"noise": {"clip": 2.0, "secret": "s"}, "budget": {"clip": 3.0}, "ledger": {"clip": 4.0}}
    assert for_centers(Larger, values) == {"noise": {"clip": 2.0}, "budget": {"clip": 3.0}}


def test_what_travels_today() -> None:
    config = parse_config(
        {
            "seed": 4,
            "preset": "paper",
            "checkpoint_every": 5,
            "model": {"normalize": "imagenet", "max_pool": False},
            "method": {"xi": 0.5},
            "calibration": {},
            "deployment": {"wire": "bfloat16"},
            "benchmark": BENCHMARK,
        }
    )
    found: dict[str, Any] = for_centers(Config, resolved(config))
    assert list(found) == [
        "input",
        "seed",
        "precision",
        "method",
        "aggregation",
        "training",
        "augmentation",
        "model",
    ]
    assert found["model"] == {"backbone": "resnet18", "max_pool": False}
    again = config_class(found).model_validate(json.loads(json.dumps(found)))
    assert (again.seed, again.training, again.augmentation) == (4, config.training, config.augmentation)
    assert again.method["xi"] == 0.5 and again.method["estimator"] == "counting"


class Clipping(TransformSpec):
    norm: Travels[float] = 1.0

    def transform(self) -> Transform:
        return Clip(self.norm)


@dataclass(frozen=True)
class Clip(Transform):
    norm: float


def test_a_table_that_asks_for_a_transform_needs_nothing_but_its_line_in_the_schema() -> None:
    raw = {"method": {"name": "fedmt"}, "aggregation": {"name": "fedavgm"}, "benchmark": BENCHMARK}

    class Clipped(config_class(raw)):  # type: ignore[misc]
        clipping: Travels[Clipping | None] = None

    assert build_transforms(Clipped.model_validate(raw)) == ()
    config = Clipped.model_validate({**raw, "clipping": {"norm": 3.0}})
    assert build_transforms(config) == (Clip(3.0),)
    sent = for_centers(Clipped, resolved(config))
    assert build_transforms(Clipped.model_validate(sent)) == (Clip(3.0),)
