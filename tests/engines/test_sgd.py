"""The flat optimizer against torch's own, on a real network."""

import copy

import pytest
import torch

from fedmt.backbones.small_cnn import SmallCNN
from fedmt.engines.sgd import FlatSGD


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("clip", [0.0, 0.5, 100.0])
def test_steps_are_torchs(nesterov, clip):
    torch.manual_seed(0)
    ours = SmallCNN(10).to(memory_format=torch.channels_last)
    theirs = copy.deepcopy(ours)
    flat = FlatSGD(dict(ours.named_parameters()))
    optimizer = torch.optim.SGD(
        theirs.parameters(), lr=0.1, momentum=0.9, nesterov=nesterov, weight_decay=1e-3
    )
    for _ in range(4):
        images, labels = torch.rand(8, 1, 28, 28), torch.randint(10, (8,))
        torch.nn.functional.cross_entropy(ours(images), labels).backward()
        flat.step(0.1, 0.9, nesterov, 1e-3, clip)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(theirs(images), labels).backward()
        if clip > 0:
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        optimizer.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)
        assert mine.stride() == other.stride()


def test_restart_forgets_the_momentum_and_loading_keeps_the_views():
    model = SmallCNN(10)
    flat = FlatSGD(dict(model.named_parameters()))
    before = copy.deepcopy(model.state_dict())
    model(torch.rand(4, 1, 28, 28)).sum().backward()
    flat.step(0.1, 0.9, True, 0.0, 0.0)
    assert flat.velocity.abs().sum() > 0 and flat.gradient.abs().sum() == 0
    flat.restart()
    assert flat.velocity.abs().sum() == 0
    model.load_state_dict(before)
    assert torch.equal(flat.weights[: 16 * 25], before["features.0.0.weight"].flatten())
