"""Views: compared with Pillow and numpy where they have an equivalent, and pure functions of their numbers.

Pillow works on bytes, and rounds or truncates after every step, whereas `strong` keeps floats. So results may
differ by a gray level or two, but never by more than the `levels` stated at each comparison.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from fedmt.inputs.images import augment
from fedmt.inputs.images.augment import (
    GEOMETRIC,
    OPERATIONS,
    PHOTOMETRIC,
    WEAK_NUMBERS,
    Augmentation,
    strong,
    weak,
)

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**32)
SIZES = [(1, 28, 28), (3, 32, 32), (3, 17, 24), (1, 9, 5), (3, 1, 7)]
units = st.floats(0, 1, exclude_max=True, width=32)


def pictures(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Bytes [B, C, H, W] that are smooth over the image, so that levels are spread unevenly, with noise."""
    rng = np.random.default_rng(seed)
    height, width = shape[2:]
    y, x = np.mgrid[:height, :width] / max(height, width)
    phase = rng.uniform(0, 2 * np.pi, (*shape[:2], 2, 1, 1))
    wave = np.sin(5 * x + phase[:, :, 0]) * np.cos(4 * y + phase[:, :, 1])
    return np.clip(120 + 90 * wave + rng.normal(0, 15, shape), 0, 255).astype(np.uint8)


def as_float(images: np.ndarray) -> Tensor:
    return torch.from_numpy(images).float() / 255


def only(name: str) -> Augmentation:
    return Augmentation(operations=(name,), count=1, cutout=0)


def applied(name: str, images: np.ndarray, magnitude: float, positive: bool = True) -> np.ndarray:
    """Applies one operation with one magnitude to bytes [B, C, H, W]. Returns gray levels as floats."""
    row = torch.tensor([0.5, magnitude, 0.9 if positive else 0.1, 0.0, 0.0, 0.0])
    result = strong(as_float(images), row.expand(len(images), -1), only(name))
    assert result.shape == images.shape and result.dtype == torch.float32
    return result.numpy() * 255


def to_pillow(image: np.ndarray) -> Image.Image:
    return Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0)))


def from_pillow(image: Image.Image) -> np.ndarray:
    values = np.asarray(image).astype(np.float64)
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)


# -- weak -------------------------------------------------------------------------------------------------


@quick
@given(
    seeds, st.sampled_from([*SIZES, (3, 1, 1)]), st.sampled_from([0.0, 0.125, 0.3, 1.0]), st.booleans(),
    units, units, units,
)  # fmt: skip
def test_weak_is_flip_then_reflected_crop(
    seed: int, size: tuple[int, ...], share: float, flip: bool, mirror: float, down: float, right: float
) -> None:
    image = pictures(seed, (1, *size))[0]
    height, width = size[1:]
    reach_y, reach_x = min(round(height * share), height - 1), min(round(width * share), width - 1)
    expected = image[:, :, ::-1] if flip and mirror >= 0.5 else image
    expected = np.pad(expected, [(0, 0), (reach_y, reach_y), (reach_x, reach_x)], mode="reflect")
    # A number just below 1 may round to 1 in the product, which gives the last shift.
    top = min(int(np.float32(down) * (2 * reach_y + 1)), 2 * reach_y)
    left = min(int(np.float32(right) * (2 * reach_x + 1)), 2 * reach_x)
    expected = expected[:, top : top + height, left : left + width]
    uniforms = torch.tensor([[mirror, down, right]])
    found = weak(torch.from_numpy(image)[None], uniforms, Augmentation(flip=flip, crop=share))
    assert found.dtype == torch.float32 and found.shape == (1, *size)
    np.testing.assert_allclose(found.numpy()[0] * 255, expected, atol=1e-4)


def test_weak_reaches_every_shift_evenly() -> None:
    """Each of the 2 * reach + 1 shifts in each direction is equally frequent, including those at the ends."""
    image = torch.arange(16, dtype=torch.uint8).view(1, 1, 1, 16)
    numbers = torch.full((1000, WEAK_NUMBERS), 0.2)
    numbers[:, 2] = torch.arange(1000) / 1000
    views = weak(image.expand(1000, 1, 1, 16), numbers, Augmentation(crop=0.125)) * 255
    # The pixel in the middle shows the shift.
    values, counts = views[:, 0, 0, 8].round().int().unique(return_counts=True)
    assert values.tolist() == [6, 7, 8, 9, 10] and counts.tolist() == [200] * 5


def test_without_flip_no_number_mirrors() -> None:
    images = torch.from_numpy(pictures(0, (64, 3, 8, 9)))
    numbers = torch.rand(64, WEAK_NUMBERS, generator=torch.Generator().manual_seed(0))
    still = weak(images, numbers, Augmentation(flip=False, crop=0))
    assert torch.equal(still, images.float() / 255)
    flipped = weak(images, numbers, Augmentation(flip=True, crop=0))
    mirrored = (flipped == still.flip(3)).flatten(1).all(1)
    assert ((flipped == still).flatten(1).all(1) ^ mirrored).all()
    assert mirrored.tolist() == (numbers[:, 0] >= 0.5).tolist()


# -- strong: shapes, range, purity ------------------------------------------------------------------------


@quick
@given(
    seeds,
    st.sampled_from(SIZES),
    st.integers(0, 3),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([0, 0.5, 1]),
)
def test_views_keep_shape_and_range(
    seed: int, size: tuple[int, ...], count: int, strength: float, cutout: float
) -> None:
    options = Augmentation(count=count, strength=strength, cutout=cutout)
    rng = torch.Generator().manual_seed(seed)
    images = torch.from_numpy(pictures(seed, (8, *size)))
    images[0], images[1] = 0, 255  # flat pictures, for which contrast and histograms have no range
    kept = images.clone()
    base = weak(images, torch.rand(8, WEAK_NUMBERS, generator=rng), options)
    assert torch.equal(images, kept)
    before = base.clone()
    numbers = torch.rand(8, options.strong_numbers, generator=rng)
    view = strong(base, numbers, options)
    assert torch.equal(base, before)
    for result in (base, view):
        assert result.shape == images.shape and result.dtype == torch.float32
        assert result.isfinite().all()
        assert result.min() >= 0 and result.max() <= 1 + 1e-6  # bilinear weights sum to 1 up to rounding


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-24])
def test_the_ends_of_the_numbers_are_fine(name: str, number: float) -> None:
    for flat in (0, 77, 255):
        images = torch.full((1, 3, 6, 7), flat / 255)
        view = strong(images, torch.full((1, 6), number), only(name))
        assert view.isfinite().all() and view.min() >= 0 and view.max() <= 1 + 1e-6


@settings(max_examples=15, deadline=None)
@given(seeds, st.sampled_from(SIZES))
def test_a_view_depends_on_its_own_image_and_numbers_alone(seed: int, size: tuple[int, ...]) -> None:
    options = Augmentation(count=2)
    rng = torch.Generator().manual_seed(seed)
    images = torch.from_numpy(pictures(seed, (7, *size)))
    few, many = (torch.rand(7, n, generator=rng) for n in (WEAK_NUMBERS, options.strong_numbers))
    base = weak(images, few, options)
    views = strong(base, many, options)
    order = torch.randperm(7, generator=rng)
    assert torch.equal(strong(base[order], many[order], options), views[order])
    for i in range(7):
        alone = weak(images[i : i + 1], few[i : i + 1], options)
        assert torch.equal(alone[0], base[i])
        torch.testing.assert_close(strong(alone, many[i : i + 1], options)[0], views[i], rtol=0, atol=2e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_cpu_and_a_gpu_choose_alike(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Applying each operation to its samples (as on a CPU) or to all (as on a GPU) is bit-identical."""
    images = torch.rand(300, channels, 12, 12, generator=torch.Generator().manual_seed(3))
    options = Augmentation(count=3)
    numbers = torch.rand(300, options.strong_numbers, generator=torch.Generator().manual_seed(4))
    on_its_own = strong(images, numbers, options)
    monkeypatch.setattr(augment, "_on_its_samples", augment._on_all_samples)
    assert torch.equal(on_its_own, strong(images, numbers, options))


@pytest.mark.parametrize("name", PHOTOMETRIC)
def test_a_sample_that_is_alone_with_its_operation_gets_the_same_bits(name: str) -> None:
    """Sharpness once rounded one image differently from two, and a later posterize moved pixels by a step."""
    images = torch.rand(9, 1, 28, 28, generator=torch.Generator().manual_seed(5))
    options = Augmentation(operations=(name,), count=1, cutout=0)
    numbers = torch.rand(9, options.strong_numbers, generator=torch.Generator().manual_seed(6))
    together = strong(images, numbers, options)
    alone = [strong(images[i : i + 1], numbers[i : i + 1], options) for i in range(9)]
    assert torch.equal(torch.cat(alone), together)


@pytest.mark.parametrize("name", OPERATIONS)
def test_memory_layout_does_not_matter(name: str) -> None:
    images = as_float(pictures(1, (2, 3, 10, 13)))
    numbers = torch.tensor([[0.5, 0.7, 0.2, 0.3, 0.4, 0.8]]).expand(2, -1)
    options = Augmentation(operations=(name,), count=1)
    channels_last = images.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(
        strong(channels_last, numbers, options), strong(images, numbers, options), rtol=0, atol=1e-6
    )


def test_every_operation_is_chosen_in_its_share() -> None:
    """The first number selects the operation: each has one of n equal parts of [0, 1)."""
    names = ("brightness", "solarize", "posterize")
    image = as_float(pictures(2, (1, 3, 12, 12)))
    options = Augmentation(operations=names, count=1, cutout=0)
    for i, choice in enumerate((0.0, 0.32, 0.34, 0.66, 0.67, 0.999)):
        row = torch.tensor([[choice, 0.6, 0.9, 0, 0, 0]])
        alone = strong(image, row, only(names[i // 2]))
        assert torch.equal(strong(image, row, options), alone)
        assert not torch.equal(alone, image)


@pytest.mark.parametrize("name", ["identity", *GEOMETRIC, "brightness", "color", "contrast", "posterize",
                                  "sharpness", "solarize"])  # fmt: skip
def test_strength_zero_changes_nothing(name: str) -> None:
    """This holds for operations with a magnitude. Autocontrast and equalize have none."""
    images = pictures(3, (2, 3, 11, 14))
    images[0, :, :4] = 255  # includes saturated pixels
    options = Augmentation(operations=(name,), count=1, strength=0, cutout=0)
    view = strong(as_float(images), torch.tensor([[0.5, 0.9, 0.9, 0, 0, 0]] * 2), options)
    torch.testing.assert_close(view, as_float(images), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [*GEOMETRIC, "brightness", "posterize", "solarize"])
def test_strength_scales_the_magnitude(name: str) -> None:
    images = as_float(pictures(4, (1, 3, 11, 14)))
    half = Augmentation(operations=(name,), count=1, strength=0.5, cutout=0)
    found = strong(images, torch.tensor([[0.5, 0.8, 0.9, 0, 0, 0]]), half)
    expected = strong(images, torch.tensor([[0.5, 0.4, 0.9, 0, 0, 0]]), only(name))
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, images, atol=0.01)


def test_operations_follow_each_other() -> None:
    """With two pixel-wise operations, the result of the first is the input of the second."""
    images = as_float(pictures(5, (3, 3, 9, 9)))
    options = Augmentation(operations=("brightness", "solarize"), count=2, cutout=0)
    first, second = [0.1, 0.8, 0.1], [0.9, 0.7, 0.1]
    both = strong(images, torch.tensor([[*first, *second, 0, 0, 0]] * 3), options)
    step = strong(images, torch.tensor([[*first, 0, 0, 0]] * 3), only("brightness"))
    step = strong(step, torch.tensor([[*second, 0, 0, 0]] * 3), only("solarize"))
    torch.testing.assert_close(both, step)


# -- strong: pixel-wise operations against Pillow ---------------------------------------------------------

# 100 x 131, because Pillow's equalize has whole steps of (pixels / 255), coarse for small images.
PILLOW_SIZES = [(1, 100, 131), (3, 131, 100)]


@pytest.mark.parametrize("size", PILLOW_SIZES)
@pytest.mark.parametrize("magnitude", [0.0, 0.1, 0.3, 0.5, 0.81, 0.999])
def test_posterize_and_solarize_are_pillows(size: tuple[int, ...], magnitude: float) -> None:
    for image in pictures(6, (2, *size)):
        bits = 8 - round(4 * magnitude)
        # Both only select among bytes, so nothing is rounded.
        found = applied("posterize", image[None], magnitude)[0]
        np.testing.assert_allclose(found, from_pillow(ImageOps.posterize(to_pillow(image), bits)), atol=1e-3)
        # Pixels strictly above 1 - magnitude are inverted: Pillow's first inverted level is the next byte.
        threshold = math.floor(255 * (1 - magnitude)) + 1
        found = applied("solarize", image[None], magnitude)[0]
        expected = from_pillow(ImageOps.solarize(to_pillow(image), threshold))
        np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.parametrize("size", [*PILLOW_SIZES, (3, 17, 24)])
def test_autocontrast_is_pillows(size: tuple[int, ...]) -> None:
    images = pictures(7, (3, *size)) // 2 + 40  # a narrow range
    for image, found in zip(images, applied("autocontrast", images, 0.5), strict=True):
        expected = from_pillow(ImageOps.autocontrast(to_pillow(image)))
        np.testing.assert_allclose(found, expected, atol=1.01)  # Pillow truncates
        assert found.min((1, 2)) == pytest.approx(0, abs=1e-3)
        assert found.max((1, 2)) == pytest.approx(255, abs=1e-3)


@pytest.mark.parametrize("size", PILLOW_SIZES)
def test_equalize_is_pillows(size: tuple[int, ...]) -> None:
    images = pictures(8, (3, *size)) // 3 + 60
    for image, found in zip(images, applied("equalize", images, 0.5), strict=True):
        expected = from_pillow(ImageOps.equalize(to_pillow(image)))
        # Pillow's step of pixels per level is a whole number, here about 50: up to 1/50 of 255 too small.
        np.testing.assert_allclose(found, expected, atol=6)


def test_equalize_by_hand() -> None:
    """Levels 10, 20, 30 hold 2, 3, 1 pixels, so 0, 2 and 5 pixels are darker. The brightest becomes white."""
    image = np.array([[[[10, 20, 20], [30, 20, 10]]]], np.uint8)
    expected = np.array([[0, 2, 2], [5, 2, 0]]) / 5 * 255
    np.testing.assert_allclose(applied("equalize", image, 0.5)[0, 0], expected, atol=1e-3)


@pytest.mark.parametrize("size", [*PILLOW_SIZES, (3, 9, 16)])
@pytest.mark.parametrize("magnitude", [0.2, 0.6, 0.999])
@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("name", ["brightness", "color", "contrast", "sharpness"])
def test_enhancers_are_pillows(size: tuple[int, ...], magnitude: float, positive: bool, name: str) -> None:
    factor = 1 + 0.9 * magnitude * (1 if positive else -1)
    enhancer = getattr(ImageEnhance, name.capitalize())
    images = pictures(9, (2, *size))
    for image, found in zip(images, applied(name, images, magnitude, positive), strict=True):
        expected = from_pillow(enhancer(to_pillow(image)).enhance(factor))
        if name == "sharpness":  # Pillow's filter does not change the border of one pixel
            found, expected = found[:, 1:-1, 1:-1], expected[:, 1:-1, 1:-1]
        # Pillow rounds the base (gray, mean, blurred) to a byte, which the factor may double, and truncates.
        np.testing.assert_allclose(found, expected, atol=2.1)


# -- strong: geometric operations against Pillow -----------------------------------------------------------


@pytest.mark.parametrize("size", [(1, 28, 28), (3, 33, 24), (1, 20, 41)])
@pytest.mark.parametrize("magnitude", [0.13, 0.5, 0.97])
@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("name", GEOMETRIC)
def test_warps_are_pillows(size: tuple[int, ...], magnitude: float, positive: bool, name: str) -> None:
    """Output to input positions, in pixels from the center: up to 30 degrees, shear 0.3, 0.3 of the side.

    Pillow's mode F is bilinear in floats, so both agree except for float32 positions.
    """
    height, width = size[1:]
    amount = magnitude * (1 if positive else -1)
    angle = math.radians(30) * amount
    a, b, c, d, e, f = {
        "rotate": (math.cos(angle), -math.sin(angle), 0, math.sin(angle), math.cos(angle), 0),
        "shear_x": (1, 0.3 * amount, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, 0.3 * amount, 1, 0),
        "translate_x": (1, 0, 0.3 * width * amount, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, 0.3 * height * amount),
    }[name]
    x0, y0 = width / 2, height / 2
    to_input = (a, b, x0 + c - a * x0 - b * y0, d, e, y0 + f - d * x0 - e * y0)
    # In the interior, all four neighbors are inside, so that what lies beyond the border does not matter.
    y, x = np.mgrid[:height, :width] + 0.5
    x_in, y_in = a * x + b * y + to_input[2], d * x + e * y + to_input[5]
    inside = (x_in > 1) & (x_in < width - 1) & (y_in > 1) & (y_in < height - 1)
    outside = (x_in < -1) | (x_in > width + 1) | (y_in < -1) | (y_in > height + 1)
    assert inside.mean() > 0.3

    images = pictures(10, (2, *size))
    found = applied(name, images, magnitude, positive)
    for image, result in zip(images, found, strict=True):
        for channel, got in zip(image, result, strict=True):
            warped = Image.fromarray(channel.astype(np.float32)).transform(
                (width, height), Image.Transform.AFFINE, to_input, Image.Resampling.BILINEAR
            )
            np.testing.assert_allclose(got[inside], np.asarray(warped)[inside], atol=0.02)
            assert (got[outside] == 0).all()


def test_two_shifts_are_one_warp() -> None:
    """Shifts right and down by whole pixels at once: nothing is blurred."""
    image = pictures(11, (1, 1, 20, 20))
    options = Augmentation(operations=("translate_x", "translate_y"), count=2, cutout=0)
    # 0.3 * 20 * 0.5 = 3 pixels, read from the right, and from above.
    row = torch.tensor([[0.1, 0.5, 0.9, 0.9, 0.5, 0.1, 0, 0, 0]])
    found = strong(as_float(image), row, options).numpy()[0, 0] * 255
    expected = np.zeros((20, 20))
    expected[3:, :-3] = image[0, 0, :-3, 3:]
    np.testing.assert_allclose(found, expected, atol=0.01)


@pytest.mark.parametrize("name", [*GEOMETRIC, "color"])
def test_gray_images_stay_what_color_ones_would_be(name: str) -> None:
    """A gray picture gives the same view with one channel or with three equal ones."""
    gray = pictures(12, (2, 1, 15, 18))
    one, three = applied(name, gray, 0.7), applied(name, gray.repeat(3, axis=1), 0.7)
    np.testing.assert_allclose(one.repeat(3, axis=1), three, atol=1e-2)


@pytest.mark.parametrize("name", PHOTOMETRIC)
def test_pixelwise_operations_do_not_move_pixels(name: str) -> None:
    """A mirrored input gives the mirrored output."""
    images = pictures(13, (2, 3, 12, 15))
    there = applied(name, images[..., ::-1].copy(), 0.7)[..., ::-1]
    # The sums of a mean or a blur have another order.
    np.testing.assert_allclose(there, applied(name, images, 0.7), atol=1e-3)


# -- cutout -----------------------------------------------------------------------------------------------


@quick
@given(
    seeds, st.sampled_from(SIZES), st.sampled_from([0.1, 0.25, 0.5, 1.0]), units, units,
    st.floats(0, 1, exclude_max=True, width=32),
)  # fmt: skip
def test_cutout_is_a_square_of_the_mean_color(
    seed: int, size: tuple[int, ...], share: float, down: float, right: float, amount: float
) -> None:
    image = as_float(pictures(seed, (1, *size)))
    options = Augmentation(operations=("identity",), count=1, cutout=share)
    view = strong(image, torch.tensor([[0.5, 0.5, 0.5, down, right, amount]]), options)
    height, width = size[1:]
    side = amount * share * min(height, width)
    # A pixel is removed if its center is within half a side of the middle, in both directions.
    rows = [i for i in range(height) if abs(i + 0.5 - down * height) < side / 2]
    columns = [i for i in range(width) if abs(i + 0.5 - right * width) < side / 2]
    largest = math.ceil(share * min(height, width))
    assert len(rows) <= largest and len(columns) <= largest
    expected = image.clone()
    # Pixels exactly on the edge may go either way in float32, so these positions are skipped.
    sure = all(
        abs(abs(i + 0.5 - middle * n) - side / 2) > 1e-4
        for middle, n in ((down, height), (right, width))
        for i in range(n)
    )
    changed = (view != image).any(1)[0]
    assert changed.any(1).sum() <= largest and changed.any(0).sum() <= largest
    if sure and rows and columns:
        block = (slice(None), slice(None), slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1))
        expected[block] = image.double().mean((2, 3), keepdim=True).float()
    if sure:
        torch.testing.assert_close(view, expected, rtol=0, atol=1e-5)


def test_cutout_zero_cuts_nothing() -> None:
    image = as_float(pictures(14, (1, 3, 8, 8)))
    options = Augmentation(operations=("identity",), count=1, cutout=0)
    assert torch.equal(strong(image, torch.full((1, 6), 0.99), options), image)


def test_cutout_reaches_the_whole_share() -> None:
    image = as_float(pictures(15, (1, 1, 16, 24)))
    options = Augmentation(operations=("identity",), count=1, cutout=0.5)
    view = strong(image, torch.tensor([[0.5, 0.5, 0.5, 0.5, 0.5, 1 - 2**-24]]), options)
    assert (view != image).sum() == 8 * 8


@pytest.mark.parametrize("size", [(28, 28), (32, 20), (1, 5), (65, 65)])
@pytest.mark.parametrize("count", [1, 2, 7, 50])
def test_the_grid_of_a_warp_is_torchs_own(size: tuple[int, int], count: int) -> None:
    maps = torch.randn(count, 2, 3, generator=torch.Generator().manual_seed(count))
    images = torch.zeros(count, 1, *size)
    expected = F.affine_grid(maps, list(images.shape), align_corners=False)
    torch.testing.assert_close(augment._affine_grid(maps, images), expected, rtol=0, atol=2e-6)


# -- mixed views --------------------------------------------------------------------------------------


def _pair(seed: int, shape: tuple[int, ...], steps: int = 3, batch: int = 4) -> tuple[Tensor, ...]:
    rng = np.random.default_rng(seed)
    own, partners = (torch.from_numpy(rng.random((steps, batch, *shape), dtype=np.float32)) for _ in "ab")
    share = torch.from_numpy(rng.beta(0.75, 0.75, size=(steps, 1, 1, 1, 1)).astype(np.float32))
    return own, partners, share, torch.from_numpy(rng.random((steps, batch, 3), dtype=np.float32))


@quick
@given(seeds, st.sampled_from(SIZES))
def test_cutmix_covers_one_rectangle_of_the_partners_share(seed: int, shape: tuple[int, ...]) -> None:
    own, partners, share, uniforms = _pair(seed, shape)
    mixed = Augmentation(cutmix=1.0).mixed(own, partners, share, uniforms).numpy()
    covered = (mixed == partners.numpy()).all(2)  # [S, B, H, W]
    assert (np.where(covered[:, :, None], partners.numpy(), own.numpy()) == mixed).all()
    side = np.sqrt(1 - share.numpy().reshape(-1))
    for step in range(len(own)):
        for image in covered[step]:
            rows, columns = image.any(1), image.any(0)
            assert (image == rows[:, None] & columns[None, :]).all()
            for line in (rows, columns):
                assert line.sum() == round(float(side[step]) * len(line)) or not image.any()
                assert np.abs(np.diff(line.astype(int))).sum() <= 2  # it is in one piece


def test_cutmix_is_chosen_for_its_share_of_the_views() -> None:
    own, partners, share, uniforms = _pair(0, (3, 32, 32), steps=40, batch=50)
    mixed = Augmentation(cutmix=0.3).mixed(own, partners, share, uniforms)
    blend = share * own + (1 - share) * partners
    blended = (mixed == blend).flatten(2).all(2)
    assert torch.equal(blended, uniforms[..., 0] >= 0.3) and 0.65 < blended.float().mean() < 0.75
    assert torch.equal(Augmentation().mixed(own, partners, share, None), blend)
