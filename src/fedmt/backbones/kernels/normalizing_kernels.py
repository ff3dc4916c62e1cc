"""The kernels of batch norm with the statistics of the batch, a residual sum and an activation.

Each program works on tiles of ROWS x CHANNELS of a table [rows, channels], where channels = groups * VECTOR:
Triton loads VECTOR numbers at once if it knows that a row has a multiple of them. An activation is given by
its bounds: (0, inf) for ReLU, (0, 6) for ReLU6, (-inf, inf) for none. `adds` is 1 with a residual and 0
without, so that no row has one. So the same few compiled kernels serve all layers. Parts are added up in a
fixed order, so results are the same in every run.
"""

from __future__ import annotations

from fedmt.core.kernels import jit, tl


@jit()
def _bounded(z, low, high):  # type: ignore[no-untyped-def]
    """Unlike with `minimum` and `maximum`, what is not a number stays that."""
    return tl.where(z < low, low, tl.where(z > high, high, z))


@jit()
def _total_of(partial, column, channels, parts, PARTS: tl.constexpr, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of [parts, channels] over the parts."""
    total = tl.zeros([CHANNELS], tl.float32)
    for start in range(0, parts, PARTS):
        part = start + tl.arange(0, PARTS)
        inside = (part < parts)[:, None] & (column < channels)[None, :]
        total += tl.sum(tl.load(partial + part[:, None] * channels + column[None, :], inside, other=0.0), 0)
    return total


@jit(counts=("rows", "groups", "span", "parts"))
def moments(  # type: ignore[no-untyped-def]
    x, partial, rows, groups, span, parts,
    VECTOR: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The mean and the sum of squared deviations of each part of `span` rows: partial [2, parts, channels].

    Values are counted from the mean of the first tile, because sums of large squares would lose digits. The
    loss is at most by a factor of the number of tiles.
    """
    channels = groups * VECTOR
    column = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    part = tl.program_id(1)
    first = part * span
    last = tl.minimum(first + span, rows)
    count = (last - first).to(tl.float32)
    row = first + tl.arange(0, ROWS)
    inside = (row < last)[:, None] & (column < channels)[None, :]
    begin = tl.load(x + row[:, None] * channels + column[None, :], mask=inside, other=0.0).to(tl.float32)
    shift = tl.sum(begin, 0) / tl.minimum(count, ROWS)
    sums = tl.zeros([ROWS, CHANNELS], tl.float32)
    squares = tl.zeros([ROWS, CHANNELS], tl.float32)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < last)[:, None] & (column < channels)[None, :]
        value = tl.load(x + row[:, None] * channels + column[None, :], mask=inside, other=0.0).to(tl.float32)
        value = tl.where(inside, value - shift[None, :], 0.0)
        sums += value
        squares += value * value
    total = tl.sum(sums, 0)
    at = part * channels + column
    tl.store(partial + at, shift + total / count, mask=column < channels)
    spread = tl.sum(squares, 0) - total * total / count
    tl.store(partial + parts * channels + at, spread, mask=column < channels)


@jit()
def _combined(  # type: ignore[no-untyped-def]
    partial, column, channels, rows, span, parts, PARTS: tl.constexpr, CHANNELS: tl.constexpr
):
    """Mean and variance of all rows, from those of the parts. Means are counted from the first part's."""
    kept = column < channels
    origin = tl.load(partial + column, mask=kept, other=0.0)
    sums = tl.zeros([CHANNELS], tl.float32)
    squares = tl.zeros([CHANNELS], tl.float32)
    for start in range(0, parts, PARTS):
        part = start + tl.arange(0, PARTS)
        inside = (part < parts)[:, None] & kept[None, :]
        at = part[:, None] * channels + column[None, :]
        count = tl.minimum(rows - part * span, span).to(tl.float32)[:, None]
        apart = tl.load(partial + at, mask=inside, other=0.0) - origin[None, :]
        apart = tl.where(inside, apart, 0.0)
        sums += tl.sum(count * apart, 0)
        spread = tl.load(partial + parts * channels + at, mask=inside, other=0.0)
        squares += tl.sum(spread + count * apart * apart, 0)
    every = rows.to(tl.float32)
    variance = (squares - sums * sums / every) / every
    return origin + sums / every, tl.where(variance < 0.0, 0.0, variance)


@jit(counts=("rows", "groups", "span", "parts", "reach", "adds"), unaligned=("weight", "bias"))
def normalize(  # type: ignore[no-untyped-def]
    x, residual, y, weight, bias, partial, saved,
    rows, groups, span, parts, reach, adds, epsilon, low, high,
    VECTOR: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """y = bounded((x - mean) / deviation * weight + bias + residual) for `reach` rows.

    saved [2, channels]: the mean, and 1 / deviation.
    """
    channels = groups * VECTOR
    column = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    kept = column < channels
    mean, variance = _combined(partial, column, channels, rows, span, parts, PARTS, CHANNELS)
    inverse = 1.0 / tl.sqrt(variance + epsilon)
    if tl.program_id(1) == 0:
        tl.store(saved + column, mean, mask=kept)
        tl.store(saved + channels + column, inverse, mask=kept)
    scale = (tl.load(weight + column, mask=kept, other=0.0).to(tl.float32) * inverse)[None, :]
    offset = tl.load(bias + column, mask=kept, other=0.0).to(tl.float32)[None, :]
    first = tl.program_id(1) * reach
    last = tl.minimum(first + reach, rows)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < last)[:, None] & kept[None, :]
        at = row[:, None] * channels + column[None, :]
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        added = (row < last * adds)[:, None] & kept[None, :]
        other = tl.load(residual + at, mask=added, other=0.0).to(tl.float32)
        z = (value - mean[None, :]) * scale + offset + other
        tl.store(y + at, _bounded(z, low, high).to(y.dtype.element_ty), mask=inside)


@jit(counts=("rows", "groups", "reach", "adds"), unaligned=("weight", "bias", "mean", "variance"))
def normalize_known(  # type: ignore[no-untyped-def]
    x, residual, y, weight, bias, mean, variance, rows, groups, reach, adds, epsilon, low, high,
    VECTOR: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """`normalize` by statistics that are known already."""
    channels = groups * VECTOR
    column = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    kept = column < channels
    inverse = 1.0 / tl.sqrt(tl.load(variance + column, mask=kept, other=0.0) + epsilon)
    scale = (tl.load(weight + column, mask=kept, other=0.0).to(tl.float32) * inverse)[None, :]
    offset = tl.load(bias + column, mask=kept, other=0.0).to(tl.float32)[None, :]
    middle = tl.load(mean + column, mask=kept, other=0.0)[None, :]
    first = tl.program_id(1) * reach
    last = tl.minimum(first + reach, rows)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < last)[:, None] & kept[None, :]
        at = row[:, None] * channels + column[None, :]
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        added = (row < last * adds)[:, None] & kept[None, :]
        other = tl.load(residual + at, mask=added, other=0.0).to(tl.float32)
        z = (value - middle) * scale + offset + other
        tl.store(y + at, _bounded(z, low, high).to(y.dtype.element_ty), mask=inside)


@jit(counts=("rows", "groups", "adds"), unaligned=("weight", "bias"))
def normalize_whole(  # type: ignore[no-untyped-def]
    x, residual, y, weight, bias, saved, rows, groups, adds, epsilon, low, high,
    VECTOR: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """`moments` and `normalize` of all rows, which one tile contains."""
    channels = groups * VECTOR
    column = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    kept = column < channels
    row = tl.arange(0, ROWS)
    inside = (row < rows)[:, None] & kept[None, :]
    at = row[:, None] * channels + column[None, :]
    every = rows.to(tl.float32)
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    added = (row < rows * adds)[:, None] & kept[None, :]
    other = tl.load(residual + at, mask=added, other=0.0).to(tl.float32)
    shift = tl.load(x + column, mask=kept, other=0.0).to(tl.float32)  # a large mean would cost digits
    value = tl.where(inside, value - shift[None, :], 0.0)
    mean = tl.sum(value, 0) / every
    value = tl.where(inside, value - mean[None, :], 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(value * value, 0) / every + epsilon)
    tl.store(saved + column, shift + mean, mask=kept)
    tl.store(saved + channels + column, inverse, mask=kept)
    scale = tl.load(weight + column, mask=kept, other=0.0).to(tl.float32) * inverse
    offset = tl.load(bias + column, mask=kept, other=0.0).to(tl.float32)
    z = value * scale[None, :] + offset[None, :] + other
    tl.store(y + at, _bounded(z, low, high).to(y.dtype.element_ty), mask=inside)


@jit(counts=("rows", "groups", "span", "parts", "adds"), unaligned=("weight", "bias"))
def gradient_sums(  # type: ignore[no-untyped-def]
    dy, x, y, masked, weight, bias, saved, partial, rows, groups, span, parts, adds, low, high,
    VECTOR: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The sums of the gradient behind the activation, and of its products with the normalized values, for
    each part of `span` rows: partial [2, parts, channels]. With a residual, the activation's mask is found in
    y, and the gradient is written to `masked`. Without, the mask follows from x."""
    channels = groups * VECTOR
    column = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    kept = column < channels
    mean = tl.load(saved + column, mask=kept, other=0.0)[None, :]
    inverse = tl.load(saved + channels + column, mask=kept, other=0.0)
    scale = (tl.load(weight + column, mask=kept, other=0.0).to(tl.float32) * inverse)[None, :]
    offset = tl.load(bias + column, mask=kept, other=0.0).to(tl.float32)[None, :]
    part = tl.program_id(1)
    last = tl.minimum(part * span + span, rows)
    sums = tl.zeros([ROWS, CHANNELS], tl.float32)
    products = tl.zeros([ROWS, CHANNELS], tl.float32)
    for start in range(part * span, last, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < last)[:, None] & kept[None, :]
        at = row[:, None] * channels + column[None, :]
        gradient = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        apart = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - mean
        added = (row < last * adds)[:, None] & kept[None, :]
        seen = tl.load(y + at, mask=added, other=0.0).to(tl.float32)
        z = tl.where(adds > 0, seen, apart * scale + offset)
        gradient = tl.where((z <= low) | (z >= high), 0.0, gradient)
        tl.store(masked + at, gradient.to(masked.dtype.element_ty), mask=added)
        sums += gradient
        products += gradient * apart
    at = part * channels + column
    inverse = tl.load(saved + channels + column, mask=kept, other=0.0)  # again, to need fewer registers
    tl.store(partial + at, tl.sum(sums, 0), mask=kept)
    tl.store(partial + parts * channels + at, tl.sum(products, 0) * inverse, mask=kept)


@jit(counts=("rows", "groups", "parts", "reach"), unaligned=("weight", "bias"))
def gradient(  # type: ignore[no-untyped-def]
    dy, x, dx, weight, bias, saved, partial, found, rows, groups, parts, reach, low, high,
    VECTOR: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The gradient of `reach` rows of x. found [2, channels]: the gradients of the weight and the bias."""
    channels = groups * VECTOR
    column = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    kept = column < channels
    mean = tl.load(saved + column, mask=kept, other=0.0)[None, :]
    inverse = tl.load(saved + channels + column, mask=kept, other=0.0)
    scale = tl.load(weight + column, mask=kept, other=0.0).to(tl.float32) * inverse
    offset = tl.load(bias + column, mask=kept, other=0.0).to(tl.float32)[None, :]
    sums = _total_of(partial, column, channels, parts, PARTS, CHANNELS)
    products = _total_of(partial + parts * channels, column, channels, parts, PARTS, CHANNELS)
    if tl.program_id(1) == 0:
        tl.store(found + column, products, mask=kept)
        tl.store(found + channels + column, sums, mask=kept)
    every = rows.to(tl.float32)
    sums = (sums / every)[None, :]
    slope = (products / every * scale * inverse)[None, :]
    scale = scale[None, :]
    first = tl.program_id(1) * reach
    last = tl.minimum(first + reach, rows)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < last)[:, None] & kept[None, :]
        at = row[:, None] * channels + column[None, :]
        gradient = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        apart = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - mean
        z = apart * scale + offset
        gradient = tl.where((z <= low) | (z >= high), 0.0, gradient)
        own = scale * (gradient - sums) - slope * apart
        tl.store(dx + at, own.to(dx.dtype.element_ty), mask=inside)


@jit(counts=("rows", "groups", "adds"), unaligned=("weight", "bias"))
def gradient_whole(  # type: ignore[no-untyped-def]
    dy, x, y, masked, dx, weight, bias, saved, found, rows, groups, adds, low, high,
    VECTOR: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """`gradient_sums` and `gradient` of all rows, which one tile contains."""
    channels = groups * VECTOR
    column = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    kept = column < channels
    row = tl.arange(0, ROWS)
    inside = (row < rows)[:, None] & kept[None, :]
    at = row[:, None] * channels + column[None, :]
    every = rows.to(tl.float32)
    mean = tl.load(saved + column, mask=kept, other=0.0)[None, :]
    inverse = tl.load(saved + channels + column, mask=kept, other=0.0)
    scale = tl.load(weight + column, mask=kept, other=0.0).to(tl.float32) * inverse
    offset = tl.load(bias + column, mask=kept, other=0.0).to(tl.float32)[None, :]
    gradient = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
    apart = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - mean
    added = (row < rows * adds)[:, None] & kept[None, :]
    seen = tl.load(y + at, mask=added, other=0.0).to(tl.float32)
    z = tl.where(adds > 0, seen, apart * scale[None, :] + offset)
    gradient = tl.where((z <= low) | (z >= high), 0.0, gradient)
    tl.store(masked + at, gradient.to(masked.dtype.element_ty), mask=added)
    sums = tl.sum(gradient, 0)
    products = tl.sum(gradient * apart, 0) * inverse
    tl.store(found + column, products, mask=kept)
    tl.store(found + channels + column, sums, mask=kept)
    slope = products / every * scale * inverse
    own = scale[None, :] * (gradient - (sums / every)[None, :]) - slope[None, :] * apart
    tl.store(dx + at, own.to(dx.dtype.element_ty), mask=inside)
