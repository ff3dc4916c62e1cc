from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedmt.core.errors import FedmtError
from fedmt.core.progress import heard_by
from fedmt.data import ImageOptions, read_images
from fedmt.inputs.images import decoding as images

RNG = np.random.default_rng(0)


def write(path: Path, height: int = 6, width: int = 8, channels: int = 3) -> Path:
    shape = (height, width) if channels == 1 else (height, width, channels)
    Image.fromarray(RNG.integers(0, 256, shape, dtype=np.uint8)).save(path)
    return path


def read(*paths: Path, **options: Any) -> torch.Tensor:
    where = [f"list.csv, line {i}" for i in range(2, len(paths) + 2)]
    return read_images(paths, where, ImageOptions(**options))


def error_of(*paths: Path, **options: Any) -> str:
    with pytest.raises(FedmtError) as error:
        read(*paths, **options)
    return str(error.value)


def test_png_round_trip(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (3, 6, 8, 3), dtype=np.uint8)
    paths = [tmp_path / f"{i}.png" for i in range(3)]
    for path, image in zip(paths, pixels, strict=True):
        Image.fromarray(image).save(path)
    result = read(*paths)
    assert result.dtype == torch.uint8
    assert torch.equal(result, torch.from_numpy(pixels).permute(0, 3, 1, 2))


def test_gray_stays_gray_until_one_image_has_color(tmp_path: Path) -> None:
    gray, color = write(tmp_path / "g.png", channels=1), write(tmp_path / "c.png")
    assert read(gray).shape == (1, 1, 6, 8)
    assert read(gray, color).shape == (2, 3, 6, 8)
    assert read(gray, color, channels=1).shape == (2, 1, 6, 8)


def test_resized_around_the_centre_with_the_aspect_ratio_kept(tmp_path: Path) -> None:
    image = np.zeros((8, 24), dtype=np.uint8)
    image[:, 8:16] = 200
    Image.fromarray(image).save(tmp_path / "wide.png")
    result = read(tmp_path / "wide.png", size=(4, 4))
    assert result.shape == (1, 1, 4, 4) and (result > 170).all()  # all 0 outside, but for the filter's reach


def test_resizing_is_antialiased(tmp_path: Path) -> None:
    checks = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    Image.fromarray(checks).save(tmp_path / "checks.png")
    result = read(tmp_path / "checks.png", size=(8, 8)).float()
    assert ((result - 127.5).abs() < 8).all()


def test_large_jpeg(tmp_path: Path) -> None:
    Image.new("RGB", (640, 480), (200, 100, 50)).save(tmp_path / "a.jpg", quality=95)
    result = read(tmp_path / "a.jpg", size=(16, 16))
    assert result.shape == (1, 3, 16, 16)
    assert (result.float().mean((0, 2, 3)) - torch.tensor([200.0, 100.0, 50.0])).abs().max() < 4


def test_exif_orientation(tmp_path: Path) -> None:
    image = Image.new("L", (8, 4))
    image.paste(255, (0, 0, 4, 4))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be rotated by 90 degrees clockwise for viewing
    image.save(tmp_path / "turned.png", exif=exif)
    result = read(tmp_path / "turned.png")
    assert result.shape == (1, 1, 8, 4)
    assert (result[0, 0, :4] == 255).all() and (result[0, 0, 4:] == 0).all()


def test_palette_alpha_16_bit_bilevel_and_cmyk(tmp_path: Path) -> None:
    red = Image.new("RGB", (4, 4), (255, 0, 0))
    red.quantize(4).save(tmp_path / "palette.png")
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    Image.new("LA", (4, 4), (0, 255)).save(tmp_path / "la.png")
    Image.fromarray(np.full((4, 4), 0x80FF, dtype=np.uint16)).save(tmp_path / "deep.png")
    Image.new("1", (4, 4), 1).save(tmp_path / "bilevel.png")
    Image.new("CMYK", (4, 4), (0, 255, 255, 0)).save(tmp_path / "cmyk.tif")
    names = ["palette.png", "clear.png", "la.png", "deep.png", "bilevel.png", "cmyk.tif"]
    result = read(*(tmp_path / name for name in names), channels=3)
    expected = [(255, 0, 0), (255, 255, 255), (0, 0, 0), (128, 128, 128), (255, 255, 255), (255, 0, 0)]
    assert (result.float() - torch.tensor(expected)[:, :, None, None]).abs().max() <= 2
    assert read(tmp_path / "deep.png").shape == (1, 1, 4, 4)


def test_floating_point_image_is_an_error(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((4, 4), dtype=np.float32)).save(tmp_path / "f.tif")
    assert "floating-point" in error_of(tmp_path / "f.tif")


@pytest.mark.parametrize(
    "damage", ["truncated.png", "truncated.jpg", "text.png", "empty.png", "missing.png", "folder.png"]
)
def test_unreadable_file_is_named_with_its_place(tmp_path: Path, damage: str) -> None:
    good, bad = write(tmp_path / "good.png"), tmp_path / damage
    if damage.startswith("truncated"):
        whole = write(bad, 60, 80).read_bytes()
        bad.write_bytes(whole[: len(whole) // 2])
    elif damage.startswith("text"):
        bad.write_text("not an image")
    elif damage.startswith("empty"):
        bad.touch()
    elif damage.startswith("folder"):
        bad.mkdir()
    message = error_of(good, bad, size=(4, 4))
    assert message.startswith("list.csv, line 3: ") and str(bad) in message


def broken(path: Path, size: tuple[int, int] = (60, 80)) -> Path:
    """A file whose header is complete, but whose end is missing."""
    whole = write(path, *size).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path


@pytest.mark.parametrize("channels", [None, 3])
@pytest.mark.parametrize("size", [None, (4, 4)])
def test_all_damaged_files_are_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: Any, channels: Any
) -> None:
    """The message names the first of them, and says whether its header or the rest is damaged."""
    monkeypatch.setattr(images, "CHUNK", 2)
    files = [broken(tmp_path / "0.png"), *(write(tmp_path / f"{i}.png") for i in range(1, 5))]
    files += [broken(tmp_path / "5.png"), tmp_path / "6.png"]
    files[6].write_text("not an image")
    message = error_of(*files, size=size, channels=channels)
    assert message.startswith("3 problems:\n") and message.count("\n") == 3
    assert [f"list.csv, line {i + 2}: " in message for i in range(7)] == [i in (0, 5, 6) for i in range(7)]


def test_of_many_damaged_files_ten_are_named(tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.png" for i in range(13)]
    for file in files:
        file.write_text("not an image")
    message = error_of(*files)
    assert message.startswith("13 problems:\n") and message.endswith("\n  and 3 more.")
    assert message.count("cannot read image") == 10


def test_a_different_size_is_told_with_what_was_damaged_before(tmp_path: Path) -> None:
    bad, one = broken(tmp_path / "bad.png"), write(tmp_path / "one.png", 6, 8)
    other, third = write(tmp_path / "other.png", 6, 9), write(tmp_path / "third.png", 6, 9)
    message = error_of(bad, one, other, third)
    assert message.startswith("2 problems:\n") and str(bad) in message
    assert f"'{other}' is 9 x 6" in message and f"'{one}' is 8 x 6" in message and str(third) not in message


@pytest.mark.parametrize(("highest", "grays"), [(4095, "16"), (255, "1"), (16383, "64")])
@pytest.mark.parametrize("ending", ["png", "tif"])
def test_sixteen_bit_images_that_use_few_bits_are_noted(
    tmp_path: Path, highest: int, grays: str, ending: str
) -> None:
    path = tmp_path / f"scan.{ending}"
    Image.fromarray(np.array([[0, highest]], dtype=np.uint16)).save(path)
    [note] = images.depth_notes([path, write(tmp_path / "8-bit.png")], "berlin")
    assert note.startswith(f"berlin: its 16-bit images only use values up to {highest} (1 files checked)")
    assert f"leaves {grays} of 256 gray levels. Scale them to 65535" in note
    bright = tmp_path / "bright.png"
    Image.fromarray(np.array([[0, 16384]], dtype=np.uint16)).save(bright)
    assert images.depth_notes([path, bright], "berlin") == ()


def test_dark_eight_bit_images_are_not_noted(tmp_path: Path) -> None:
    Image.new("L", (4, 4), 3).save(tmp_path / "dark.png")
    assert images.depth_notes([tmp_path / "dark.png"], "berlin") == ()


def test_decompression_bomb_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = write(tmp_path / "bomb.png", 20, 20)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    message = error_of(bomb)
    assert "more pixels than is safe" in message and str(bomb) in message


def test_different_sizes_need_image_size(tmp_path: Path) -> None:
    one, other = write(tmp_path / "one.png", 6, 8), write(tmp_path / "other.png", 6, 9)
    message = error_of(one, other)
    assert str(one) in message and str(other) in message
    assert "9 x 6" in message and "8 x 6" in message and "images.size" in message
    assert read(one, other, size=(6, 6)).shape == (2, 3, 6, 6)


def test_no_images_is_an_error() -> None:
    assert "No images" in error_of()


def test_large_sets_go_to_the_cache_and_are_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "CHUNK", 2)
    paths = [write(tmp_path / f"{i}.png") for i in range(5)]
    cache = tmp_path / "cache"
    in_memory = read(*paths, size=(4, 4))
    assert torch.equal(read(*paths, size=(4, 4), memory_limit=1, cache=cache), in_memory)
    with monkeypatch.context() as patch:
        patch.setattr(Image, "open", None)  # any decoding now fails
        again = read(*paths, size=(4, 4), memory_limit=1, cache=cache)
    assert torch.equal(again, in_memory)
    again[0] = 0  # copy-on-write: no crash, and the file does not change
    assert torch.equal(read(*paths, size=(4, 4), memory_limit=1, cache=cache), in_memory)

    write(paths[2])
    os.utime(paths[2], ns=(1, 1))
    changed = read(*paths, size=(4, 4), memory_limit=1, cache=cache)
    assert not torch.equal(changed[2], in_memory[2])
    assert read(*paths, size=(5, 5), memory_limit=1, cache=cache).shape == (5, 3, 5, 5)
    assert len(list(cache.iterdir())) == 3


def test_a_damaged_cache_is_written_anew(tmp_path: Path) -> None:
    path, cache = write(tmp_path / "a.png"), tmp_path / "cache"
    first = read(path, memory_limit=1, cache=cache).clone()
    [stored] = cache.iterdir()
    stored.write_bytes(stored.read_bytes()[:40])
    assert torch.equal(read(path, memory_limit=1, cache=cache), first)


def test_larger_than_memory_is_mapped_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, load = write(tmp_path / "a.png"), np.load

    def refuse(file: Path, mmap_mode: str, allow_pickle: bool) -> Any:
        if mmap_mode == "c":
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return load(file, mmap_mode="r", allow_pickle=allow_pickle)

    monkeypatch.setattr(np, "load", refuse)
    assert torch.equal(read(path, memory_limit=1, cache=tmp_path / "cache"), read(path))


def test_without_a_cache_too_large_a_set_is_an_error(tmp_path: Path) -> None:
    message = error_of(write(tmp_path / "a.png"), memory_limit=1)
    assert "cache folder" in message and "images.size" in message


class FullDisk:
    def __init__(self, file: Any) -> None:
        self.file = file

    def __enter__(self) -> FullDisk:
        self.file.__enter__()
        return self

    def __exit__(self, *args: Any) -> Any:
        return self.file.__exit__(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_leaves_no_half_written_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cache = write(tmp_path / "a.png"), tmp_path / "cache"
    temporary = tempfile.NamedTemporaryFile
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "NamedTemporaryFile", lambda **options: FullDisk(temporary(**options)))
        message = error_of(path, memory_limit=1, cache=cache)
    assert "No space left" in message and str(cache) in message
    assert list(cache.iterdir()) == []
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
    message = error_of(path, memory_limit=1, cache=cache)
    assert "are free" in message and str(cache) in message
    assert list(cache.iterdir()) == []


def test_unreadable_image_leaves_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "CHUNK", 1)
    good, bad, cache = write(tmp_path / "a.png"), tmp_path / "b.png", tmp_path / "cache"
    bad.write_text("no image")
    assert str(bad) in error_of(good, bad, memory_limit=1, cache=cache, channels=3)
    assert list(cache.iterdir()) == []


def test_cache_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    path, cache = write(tmp_path / "a.png"), tmp_path / "cache"
    cache.touch()
    assert str(cache) in error_of(path, memory_limit=1, cache=cache)


def test_decoding_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "CHUNK", 2)
    paths = [write(tmp_path / f"{i}.png") for i in range(5)]
    heard: list[tuple[str, int, int]] = []
    with heard_by(lambda *told: heard.append(told)):
        read(*paths, cache=tmp_path, memory_limit=1)
        read(*paths, cache=tmp_path, memory_limit=1)  # from the cache, so there is nothing to wait for
    assert heard == [("Decoding images", done, 5) for done in (2, 4, 5)]
    read(*paths)  # without a listener
    assert len(heard) == 3


def test_decoding_can_be_stopped_and_leaves_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "CHUNK", 2)
    paths = [write(tmp_path / f"{i}.png") for i in range(5)]

    def stop(what: str, done: int, total: int) -> None:
        if done > 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), heard_by(stop):
        read(*paths, cache=tmp_path / "cache", memory_limit=1)
    assert list((tmp_path / "cache").iterdir()) == []
