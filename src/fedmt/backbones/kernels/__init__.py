"""Layers as a few Triton kernels of our own, where torch's take many or start slowly. Networks use them by
`fedmt.backbones.fused`, which decides whether they can be used.

Tensors are in `channels_last` layout: in memory, they are [rows, channels], with a row for each place of each
image. A kernel works on tiles of this table.
"""
