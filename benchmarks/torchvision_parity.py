"""Do the backbones give the same outputs as torchvision's, and can weights be loaded in both directions?

Each network loads torchvision's state dict, and torchvision's loads ours. Both predict on the same random
images, in evaluation and in training mode (batch statistics), on every available device, in float32.

    python benchmarks/torchvision_parity.py

Measured 2026-11-15 on one NVIDIA H200, Python 3.12.3, torch 2.11.0, torchvision 0.26: resnet18, resnet50 and
mobilenet_v2 differ by 0.0 in evaluation and training mode, on the CPU and CUDA. Weights load both ways.
"""

from __future__ import annotations

import platform

import torch
import torchvision

from fedmt.backbones import BACKBONES, build


def main() -> None:
    print(f"torchvision {torchvision.__version__}, torch {torch.__version__}, {platform.python_version()}")
    torch.backends.cudnn.allow_tf32 = False
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for name in BACKBONES:
        if not hasattr(torchvision.models, name):
            print(f"{name:13} is fedmt's own: torchvision has none")
            continue
        torch.manual_seed(0)
        theirs = getattr(torchvision.models, name)(weights=None, num_classes=100)
        ours = build(name, 100, 3, (64, 64), max_pool=True)
        ours.load_state_dict(theirs.state_dict())  # strict: every name and shape must match
        images = torch.rand(8, 3, 64, 64)
        for device in devices:
            one, two, x = ours.to(device), theirs.to(device), images.to(device)
            gaps = []
            for mode in (False, True):
                torch.manual_seed(1)  # for mobilenet's dropout in training mode
                mine = one.train(mode)(x)
                torch.manual_seed(1)
                gaps.append(float((mine - two.train(mode)(x)).abs().max()))
            print(
                f"{name:13} {device:4} largest difference: evaluation {gaps[0]:.1e}, training {gaps[1]:.1e}"
            )
            assert max(gaps) < 1e-4, name
        back = getattr(torchvision.models, name)(weights=None, num_classes=100)
        back.load_state_dict({k: v.cpu() for k, v in ours.state_dict().items()})
        print(f"{name:13} weights go both ways, {sum(p.numel() for p in back.parameters()):,} parameters")


if __name__ == "__main__":
    main()
