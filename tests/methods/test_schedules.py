"""Schedules: what each one returns, and that an engine asks for nothing else, whatever the method."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from fedmt.inputs.images.augment import Augmentation
from fedmt.methods import METHODS, SemiFL, Training
from fedmt.methods.schedules import Alone, Alternate, FineTune, Joint, Schedule

VIEWS = Augmentation(operations=("identity", "rotate"))
TINY = Training(rounds=2, local_epochs=1, batch_size=10, reference_epochs=1, reference_batch_size=10,
                warmup_epochs=1, learning_rate=0.05)  # fmt: skip


def test_what_each_answers():
    after = {
        s: [s().reference_trains_after(r, 3) for r in range(4)] for s in (Alternate, Joint, FineTune, Alone)
    }
    assert after == {
        Alternate: [True] * 4,
        Joint: [False] * 4,
        FineTune: [False, False, False, True],
        Alone: [True] * 4,
    }
    schedules = {name: type(method.schedule) for name, method in METHODS.items()}
    assert schedules == {
        "fedmt": Alternate, "single": Alone, "fedtrans": FineTune, "fedrep": Joint, "semifl": Alternate
    }  # fmt: skip
    assert [name for name, m in METHODS.items() if not m.schedule.centers_train] == ["single"]


@dataclass(frozen=True)
class JointSemiFL(SemiFL):
    schedule: ClassVar[Schedule] = Joint()


@dataclass(frozen=True)
class FineTunedSemiFL(SemiFL):
    schedule: ClassVar[Schedule] = FineTune()


@dataclass(frozen=True)
class LonelySemiFL(SemiFL):
    schedule: ClassVar[Schedule] = Alone()


@pytest.mark.parametrize("graphs", [False, True])
def test_a_method_with_another_schedule(make_federation, make_engine, graphs):
    """SemiFL's own schedule alternates. With every other schedule, the engine follows that schedule."""
    federation = make_federation(samples=20, half=True)

    def played(kind):
        engine = replace(make_engine(federation, kind(TINY, VIEWS, xi=0.05)), graphs=graphs)
        fresh = engine.trainer.weights()
        state, record = engine.start()
        states, losses = [state], [record["reference_loss"]]
        for _ in range(2):
            state, record = engine.round(state)
            states.append(state)
            losses.append(record["reference_loss"])
        warm = any(not torch.equal(fresh[k], states[0].weights[k]) for k in engine._parameters)
        shared = [any(k.startswith("shared:") for k in s.server) for s in states]
        return warm, [loss is not None for loss in losses], shared, len(record["centers"])

    assert played(SemiFL) == (True, [True] * 3, [False] * 3, 3)
    assert played(JointSemiFL) == (False, [False, True, True], [False] * 3, 3)
    assert played(FineTunedSemiFL) == (False, [False, False, True], [False, False, True], 3)
    assert played(LonelySemiFL) == (True, [True] * 3, [False] * 3, 0)
