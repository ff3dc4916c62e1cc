"""Logit adjustment: training on wanted labels corrects for how frequent the classes are in that set."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedmt import Center
from fedmt.data.member import with_identity
from fedmt.inputs.images.augment import GEOMETRIC, Augmentation
from fedmt.methods import FedRep, FedTrans, Single, Training

VIEWS = Augmentation(operations=("identity", *GEOMETRIC))
QUICK = Training(rounds=2, local_epochs=1, batch_size=10, reference_epochs=1, reference_batch_size=10)
METHODS = [FedRep, FedTrans, Single]


@pytest.fixture
def uneven(make_federation):
    """A center that labels in the wanted space: half of its labels are of the first class."""
    federation = make_federation(samples=40, half=True)
    center = federation.centers[0]
    truth = torch.where(torch.arange(40) % 2 == 0, 0, center.truth)
    return with_identity(Center("Berlin", center.values, federation.wanted, truth), federation.wanted)


def work_of(method, center):
    rng = np.random.default_rng(0)
    found = (
        method.reference_work(center, 2, rng)
        if isinstance(method, Single)
        else method.center_round(center, torch.empty(0), {}, 1, rng).work
    )
    assert found is not None
    return found


@pytest.mark.parametrize("method", METHODS)
def test_wanted_labels_are_adjusted_for_wherever_they_train(method, uneven):
    """The loss is the cross-entropy of softmax(z + log pi), with pi from the center's own labels."""
    training = replace(QUICK, supervised_views="weak")
    work = work_of(method(training, VIEWS), uneven)
    shares = (uneven.labels.bincount(minlength=10).double() + 1) / 50
    logits = torch.randn(10, 10, generator=torch.Generator().manual_seed(0)).double()
    step = {k: v[0] for k, v in work.steps.items()}
    target = uneven.labels[step["index"]]
    expected = F.cross_entropy(logits + shares.log(), target)
    torch.testing.assert_close(work.loss(logits, step, work.tables)["loss"], expected, rtol=1e-5, atol=1e-5)
    plain = work_of(method(replace(training, logit_adjustment=False), VIEWS), uneven)
    found = plain.loss(logits, step, plain.tables)["loss"]
    torch.testing.assert_close(found, F.cross_entropy(logits, target))


@pytest.mark.parametrize("method", [FedRep, FedTrans])
def test_other_labels_are_not(method, make_federation):
    """A center's own classes may be as uneven as they are: its head answers for its own samples."""
    center = make_federation(samples=40, half=True).centers[0]
    labels = torch.where(torch.arange(40) % 2 == 0, 0, center.labels)
    assert "log_prior" not in work_of(method(QUICK, VIEWS), replace(center, labels=labels)).tables
