"""What each center contributed, compared with the updates themselves in float64."""

from typing import Any

import numpy as np
import pytest

from fedmt.reports.contribution import contributions


def test_parts_are_those_of_the_mean_updates_and_sum_to_one() -> None:
    rng = np.random.default_rng(0)
    rounds = [{"a": rng.normal(size=9), "b": rng.normal(size=9), "c": rng.normal(size=9)} for _ in range(3)]
    del rounds[1]["b"]  # it is absent in one round
    records, parts, way = [], dict.fromkeys("abc", 0.0), 0.0
    for updates in rounds:
        mean = np.mean(list(updates.values()), axis=0)
        length = np.linalg.norm(mean)
        way += length
        centers: dict[str, Any] = {"d": {"absent": "dropped out"}}
        for name, update in updates.items():
            parts[name] += update @ mean / length / len(updates)
            norm = np.linalg.norm(update)
            centers[name] = {"update_norm": norm, "update_cosine": update @ mean / (norm * length)}
        centers["e"] = {"update_norm": 1e9, "update_cosine": 1.0, "left_out": "not plausible"}
        records.append({"centers": centers})
    found = contributions(records)
    assert found == pytest.approx({name: part / way for name, part in parts.items()})
    assert sum(found.values()) == pytest.approx(1)


def test_without_norms_nothing_is_said() -> None:
    assert contributions([{"centers": {"a": {"losses": {}}}}, {"centers": {}}]) == {}
