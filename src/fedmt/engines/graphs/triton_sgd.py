"""`sgd.sgd_step` as one kernel. It reads and writes every vector once, while the operations of `flat.update`
pass over them a dozen times. Triton comes with torch for CUDA on Linux. Without it, the engine uses
`flat.update`."""

from __future__ import annotations

from torch import Tensor

from fedmt.core.kernels import tl, triton
from fedmt.methods.training import Training

BLOCK = 2048

if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def _update(  # type: ignore[no-untyped-def]
        weights, velocity, gradient, twins, norms, rate, anchor, correction, total,
        size, clip, momentum, decay, proximal,
        NESTEROV: tl.constexpr, CLIP: tl.constexpr, TWINS: tl.constexpr,
        ANCHOR: tl.constexpr, CORRECTION: tl.constexpr, TOTAL: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < size
        g = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(weights + at, mask=inside, other=0.0)
        v = tl.load(velocity + at, mask=inside, other=0.0)
        if CLIP:
            first, second = tl.load(norms), tl.load(norms + 1)
            g *= tl.minimum(clip / (tl.sqrt(first * first + second * second) + 1e-6), 1.0)
        if TOTAL:
            tl.store(total + at, tl.load(total + at, mask=inside, other=0.0) + g, mask=inside)
        if CORRECTION:
            g += tl.load(correction + at, mask=inside, other=0.0)
        if ANCHOR:
            g += proximal * (w - tl.load(anchor + at, mask=inside, other=0.0))
        g += decay * w
        v = momentum * v + g
        if NESTEROV:
            w -= tl.load(rate) * (g + momentum * v)
        else:
            w -= tl.load(rate) * v
        tl.store(weights + at, w, mask=inside)
        tl.store(velocity + at, v, mask=inside)
        if TWINS:
            tl.store(twins + at, w.to(tl.bfloat16), mask=inside)


def update(
    weights: Tensor,
    velocity: Tensor,
    gradient: Tensor,
    twins: Tensor | None,
    norms: Tensor,
    rate: Tensor,
    training: Training,
    proximal: float,
    anchor: Tensor | None,
    correction: Tensor | None,
    total: Tensor | None,
) -> None:
    """Like `flat.update`."""
    grid = (triton.cdiv(len(weights), BLOCK),)
    _update[grid](
        weights, velocity, gradient, twins, norms, rate, anchor, correction, total,
        len(weights), float(training.clip), float(training.momentum), float(training.weight_decay), proximal,
        NESTEROV=training.nesterov, CLIP=training.clip > 0, TWINS=twins is not None,
        ANCHOR=anchor is not None, CORRECTION=correction is not None, TOTAL=total is not None, BLOCK=BLOCK,
    )  # fmt: skip
