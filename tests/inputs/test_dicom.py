"""DICOM files that pydicom writes are read back, and every property is compared with a float64 reference."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.pixels import apply_windowing, convert_color_space
from pydicom.sequence import Sequence
from pydicom.uid import ExplicitVRLittleEndian, JPEGLosslessSV1, RLELossless, SecondaryCaptureImageStorage

from fedmt.config import load_config
from fedmt.config.dumping import dump_config
from fedmt.core.errors import FedmtError
from fedmt.data import ImageOptions, read_folder, read_images, read_manifest
from fedmt.data.sources import read_source
from fedmt.data.specs import SourceSpec
from fedmt.inputs import Images, from_json, to_json
from fedmt.inputs.images import ImageSpec, asking
from fedmt.inputs.images.dicom import windowed
from fedmt.inputs.images.files import files_below, passed_over
from fedmt.inputs.images.looking import look_at_images

SECRET = "Mustermann^Erika"
RNG = np.random.default_rng(0)


def dataset(values: NDArray[Any], bits: int, **elements: Any) -> Dataset:
    """A data set with the stored values [H, W] or [H, W, 3], and a patient who must not be revealed."""
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    data.SOPClassUID, data.SOPInstanceUID = SecondaryCaptureImageStorage, "1.2.3"
    data.PatientName, data.PatientID, data.InstitutionName = SECRET, "4711", "Charite"
    data.Rows, data.Columns = values.shape[:2]
    data.SamplesPerPixel = 1 if values.ndim == 2 else 3
    data.PhotometricInterpretation = "MONOCHROME2" if values.ndim == 2 else "RGB"
    if values.ndim == 3:
        data.PlanarConfiguration = 0
    data.BitsAllocated, data.BitsStored, data.HighBit = 8 * values.dtype.itemsize, bits, bits - 1
    data.PixelRepresentation = int(values.dtype.kind == "i")
    data.PixelData = values.tobytes()
    for name, value in elements.items():
        setattr(data, name, value)
    return data


def write(path: Path, data: Dataset) -> Path:
    data.save_as(path, enforce_file_format=True)
    return path


def read(path: Path, **options: Any) -> NDArray[np.uint8]:
    return read_images([path], ["list.csv, line 2"], ImageOptions(**options))[0].numpy()


def eight(shown: NDArray[np.float64]) -> NDArray[np.uint8]:
    return np.rint(255 * np.clip(shown, 0, 1)).astype(np.uint8)


def linear(values: NDArray[Any], center: float, width: float) -> NDArray[np.float64]:
    """PS3.3 C.11.2.1.2.1, case by case as printed there, scaled to [0, 1]."""
    x = values.astype(np.float64)
    between = ((x - (center - 0.5)) / (width - 1) + 0.5) * 1.0
    low, high = center - 0.5 - (width - 1) / 2, center - 0.5 + (width - 1) / 2
    return np.where(x <= low, 0.0, np.where(x > high, 1.0, between))


@pytest.mark.parametrize(
    ("dtype", "bits"), [("u1", 8), ("u2", 10), ("u2", 12), ("u2", 16), ("i1", 8), ("i2", 12), ("i2", 16)]
)
def test_without_a_window_the_stored_bits_are_the_range(tmp_path: Path, dtype: str, bits: int) -> None:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if dtype[0] == "i" else (0, 2**bits - 1)
    values = RNG.integers(low, high, (5, 7), dtype=np.dtype(f"<{dtype}"), endpoint=True)
    values[0, :2] = low, high
    found = read(write(tmp_path / "a.dcm", dataset(values, bits)))
    assert np.array_equal(found[0], eight((values.astype(np.float64) - low) / (high - low)))
    assert found[0, 0, 0] == 0 and found[0, 0, 1] == 255


def test_unused_bits_are_not_looked_at(tmp_path: Path) -> None:
    """An old scanner stores its overlay in the four bits above the twelve."""
    values = RNG.integers(0, 4096, (4, 6), dtype=np.uint16)
    found = read(write(tmp_path / "a.dcm", dataset(values | 0x5000, 12)))
    assert np.array_equal(found[0], eight(values / 4095))


@pytest.mark.parametrize("slope", [1.0, 2.5, -0.5])
def test_rescaled_by_slope_and_intercept(tmp_path: Path, slope: float) -> None:
    values = RNG.integers(-2048, 2048, (5, 7), dtype=np.int16)
    data = dataset(values, 12, RescaleSlope=slope, RescaleIntercept=-1024)
    rescaled = values * slope - 1024
    ends = sorted((-2048 * slope - 1024, 2047 * slope - 1024))
    assert np.array_equal(
        read(write(tmp_path / "a.dcm", data))[0], eight((rescaled - ends[0]) / np.ptp(ends))
    )
    data.WindowCenter, data.WindowWidth = 40, 400
    assert np.array_equal(read(write(tmp_path / "b.dcm", data))[0], eight(linear(rescaled, 40, 400)))


def test_modality_lookup_table(tmp_path: Path) -> None:
    table = Dataset()
    table.LUTDescriptor, table.ModalityLUTType = [256, 0, 16], "US"
    table.LUTData = [int(65535 * (i / 255) ** 2) for i in range(256)]
    table["LUTData"].VR = "US"
    table["LUTDescriptor"].VR = "US"
    values = RNG.integers(0, 256, (5, 7), dtype=np.uint8)
    path = write(tmp_path / "a.dcm", dataset(values, 8, ModalityLUTSequence=Sequence([table])))
    assert np.array_equal(read(path)[0], eight(np.array(table.LUTData)[values] / 65535))
    shown = linear(np.array(table.LUTData)[values], 20000, 30000)
    assert np.array_equal(read(path, window=(20000, 30000))[0], eight(shown))


def test_voi_lookup_table_where_there_is_no_window(tmp_path: Path) -> None:
    table = Dataset()
    table.LUTDescriptor, table.LUTData = [256, 0, 12], [4095 - 16 * i for i in range(256)]
    table["LUTData"].VR = "US"
    table["LUTDescriptor"].VR = "US"
    values = RNG.integers(0, 256, (5, 7), dtype=np.uint8)
    data = dataset(values, 8, VOILUTSequence=Sequence([table]))
    assert np.array_equal(
        read(write(tmp_path / "a.dcm", data))[0], eight(np.array(table.LUTData)[values] / 4095)
    )
    data.WindowCenter, data.WindowWidth = 100, 50
    assert np.array_equal(read(write(tmp_path / "b.dcm", data))[0], eight(linear(values, 100, 50)))


def test_the_window_of_the_config_goes_before_the_file_s_first(tmp_path: Path) -> None:
    values = RNG.integers(0, 4096, (5, 7), dtype=np.uint16)
    path = write(tmp_path / "a.dcm", dataset(values, 12, WindowCenter=[700, 40], WindowWidth=[900, 80]))
    assert np.array_equal(read(path)[0], eight(linear(values, 700, 900)))
    assert np.array_equal(read(path, window=(2000, 1000))[0], eight(linear(values, 2000, 1000)))


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
def test_window_functions_are_those_of_pydicom(tmp_path: Path, function: str) -> None:
    values = RNG.integers(0, 4096, (9, 11), dtype=np.uint16)
    data = dataset(values, 12, WindowCenter=1500.5, WindowWidth=777, VOILUTFunction=function)
    expected = apply_windowing(values, data) / 4095
    assert np.allclose(
        windowed(values.astype(np.float64), 1500.5, 777, function), expected, atol=1e-12, rtol=0
    )
    assert np.array_equal(read(write(tmp_path / "a.dcm", data))[0], eight(expected))


def test_a_window_of_width_one_is_a_threshold() -> None:
    assert windowed(np.array([4.0, 4.5, 5.0]), 5, 1).tolist() == [0, 0, 1]


@pytest.mark.parametrize("window", [None, (2000.0, 900.0)])
def test_monochrome1_is_inverted(tmp_path: Path, window: tuple[float, float] | None) -> None:
    values = RNG.integers(0, 4096, (5, 7), dtype=np.uint16)
    path = write(tmp_path / "a.dcm", dataset(values, 12, PhotometricInterpretation="MONOCHROME1"))
    shown = values / 4095 if window is None else linear(values, *window)
    assert np.array_equal(read(path, window=window)[0], eight(1 - shown))


@pytest.mark.parametrize("planar", [0, 1])
def test_color(tmp_path: Path, planar: int) -> None:
    values = RNG.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    data = dataset(values, 8, PlanarConfiguration=planar)
    if planar:
        data.PixelData = values.transpose(2, 0, 1).tobytes() + b"\0"
    path = write(tmp_path / "a.dcm", data)
    assert np.array_equal(read(path), values.transpose(2, 0, 1))
    assert np.array_equal(read(path, window=(10, 20)), values.transpose(2, 0, 1))
    assert read(path, channels=1).shape == (1, 5, 7)


def test_ybr_becomes_rgb(tmp_path: Path) -> None:
    values = RNG.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    stored = convert_color_space(values, "RGB", "YBR_FULL")
    data = dataset(np.ascontiguousarray(stored), 8, PhotometricInterpretation="YBR_FULL")
    y, b, r = (stored[..., i].astype(np.float64) for i in range(3))
    b, r = b - 128, r - 128  # PS3.3 C.7.6.3.1.2
    expected = np.stack([y + 1.402 * r, y - 0.344136 * b - 0.714136 * r, y + 1.772 * b])
    found = read(write(tmp_path / "a.dcm", data)).astype(np.float64)
    assert np.abs(found - np.clip(expected, 0, 255)).max() <= 1


def test_sixteen_bit_color_and_a_palette(tmp_path: Path) -> None:
    values = RNG.integers(0, 65536, (5, 7, 3), dtype=np.uint16)
    found = read(write(tmp_path / "a.dcm", dataset(values, 16)))
    assert np.array_equal(found, eight(values.transpose(2, 0, 1) / 65535))
    places = RNG.integers(0, 4, (5, 7), dtype=np.uint8)
    data = dataset(places, 8, PhotometricInterpretation="PALETTE COLOR")
    tables = RNG.integers(0, 65536, (3, 256), dtype=np.uint16)
    for name, table in zip(("Red", "Green", "Blue"), tables, strict=True):
        setattr(data, f"{name}PaletteColorLookupTableDescriptor", [256, 0, 16])
        data[f"{name}PaletteColorLookupTableDescriptor"].VR = "US"
        setattr(data, f"{name}PaletteColorLookupTableData", table.tobytes())
    assert np.array_equal(read(write(tmp_path / "b.dcm", data)), eight(tables[:, places] / 65535))


def test_compressed_without_loss(tmp_path: Path) -> None:
    values = RNG.integers(0, 4096, (16, 16), dtype=np.uint16)
    data = dataset(values, 12)
    data.compress(RLELossless)
    assert np.array_equal(read(write(tmp_path / "a.dcm", data))[0], eight(values / 4095))


def test_resized_as_other_images(tmp_path: Path) -> None:
    values = RNG.integers(0, 256, (8, 24), dtype=np.uint8)
    Image.fromarray(values).save(tmp_path / "a.png")
    dicom = read(write(tmp_path / "a.dcm", dataset(values, 8)), size=(4, 4), channels=3)
    assert np.array_equal(dicom, read(tmp_path / "a.png", size=(4, 4), channels=3))


# -- what is rejected -----------------------------------------------------------------------------


def error_of(path: Path, **options: Any) -> str:
    with pytest.raises(FedmtError) as error:
        read(path, **options)
    assert str(error.value).startswith(f"list.csv, line 2: DICOM file '{path}': ")
    assert SECRET.split("^")[0] not in str(error.value)
    return str(error.value)


def test_several_frames_are_refused(tmp_path: Path) -> None:
    data = dataset(np.zeros((4, 6), np.uint8), 8, NumberOfFrames=3)
    data.PixelData = bytes(3 * 24)
    assert "it has 3 frames, but a sample is one image" in error_of(write(tmp_path / "a.dcm", data))


@pytest.mark.filterwarnings("ignore:The number of bytes")
@pytest.mark.parametrize("width", [3, 6])
def test_frames_that_the_header_does_not_state_are_refused(tmp_path: Path, width: int) -> None:
    """With three columns, the frames would be read as an image in color."""
    data = dataset(np.zeros((4, width), np.uint8), 8)
    data.PixelData = bytes(3 * 4 * width)
    assert "pixels of more frames than its header says" in error_of(write(tmp_path / "a.dcm", data))


def test_a_slope_of_zero_is_refused(tmp_path: Path) -> None:
    data = dataset(np.zeros((4, 6), np.uint8), 8, RescaleSlope=0, RescaleIntercept=0)
    assert "its rescaling or window cannot be used (rescale slope 0.0)" in error_of(
        write(tmp_path / "a.dcm", data)
    )


def test_no_pixels(tmp_path: Path) -> None:
    data = dataset(np.zeros((4, 6), np.uint8), 8)
    del data.PixelData
    assert "it has no pixels" in error_of(write(tmp_path / "a.dcm", data))


def test_no_decoder_says_what_to_install(tmp_path: Path) -> None:
    data = dataset(np.zeros((4, 6), np.uint8), 8)
    data.file_meta.TransferSyntaxUID = JPEGLosslessSV1
    data.PixelData = (
        b"\xfe\xff\x00\xe0\x00\x00\x00\x00\xfe\xff\x00\xe0\x04\x00\x00\x00abcd\xfe\xff\xdd\xe0\0\0\0\0"
    )
    data["PixelData"].VR, data["PixelData"].is_undefined_length = "OB", True
    said = error_of(write(tmp_path / "a.dcm", data))
    assert "it is compressed (JPEG Lossless" in said and "pip install 'pylibjpeg[all]'" in said


def test_damaged_files(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.dcm", dataset(np.zeros((40, 60), np.uint8), 8)).read_bytes()
    (tmp_path / "short.dcm").write_bytes(whole[:-200])
    assert "its pixels cannot be decoded" in error_of(tmp_path / "short.dcm")
    (tmp_path / "other.dcm").write_bytes(b"GIF89a" + bytes(300))
    assert "it is not a DICOM file" in error_of(tmp_path / "other.dcm")
    (tmp_path / "bad.dcm").write_bytes(whole[:200] + SECRET.encode() + whole[200:400])
    error_of(tmp_path / "bad.dcm")


def test_a_window_that_cannot_be(tmp_path: Path) -> None:
    data = dataset(np.zeros((4, 6), np.uint8), 8, WindowCenter=5, WindowWidth=0)
    path = write(tmp_path / "a.dcm", data)
    assert "window center 5 and width 0" in error_of(path)
    assert read(path, window=(5, 10)).shape == (1, 4, 6)
    (tmp_path / "c.toml").write_text("[images]\nwindow = [5, 0]\n")
    with pytest.raises(FedmtError, match=r"line 2: images.window.1: .* greater than or equal to 1"):
        load_config(tmp_path / "c.toml")


def test_without_pydicom_the_extra_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        write(tmp_path / f"{name}.dcm", dataset(np.zeros((4, 6), np.uint8), 8))
    for module in [m for m in sys.modules if m.split(".")[0] == "pydicom"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    with pytest.raises(FedmtError) as error:
        read_folder(tmp_path, ImageOptions(), labeled=False)
    assert str(error.value).endswith("install it with `pip install 'fedmt[dicom]'`.")
    assert str(error.value).count("\n") == 0


# -- where it is read -----------------------------------------------------------------------------


def test_folders_manifests_prediction_and_init_take_dcm_as_any_image(tmp_path: Path) -> None:
    for name in ("benign", "malignant"):
        (tmp_path / name).mkdir()
        values = RNG.integers(0, 256, (6, 6), dtype=np.uint8)
        write(tmp_path / name / "1.DCM", dataset(values, 8))
        Image.fromarray(values).save(tmp_path / name / "2.png")
    found = read_folder(tmp_path, ImageOptions())
    assert torch.equal(found.samples[0], found.samples[1]) and torch.equal(found.samples[2], found.samples[3])
    assert found.notes == ()
    (tmp_path / "cases.csv").write_text("image,label\nbenign/1.DCM,b\nmalignant/1.DCM,m\n")
    table = read_manifest(tmp_path / "cases.csv", ImageOptions())
    assert torch.equal(table.samples, found.samples[::2])
    items = asking.find_files([tmp_path / "benign"])
    (batch,) = asking.read_files(items, (1, 6, 6))
    assert torch.equal(batch.samples, found.samples[:2])
    assert torch.equal(next(asking.batches(tmp_path / "benign" / "1.DCM", (1, 6, 6))), found.samples[:1])
    seen = look_at_images([tmp_path / "benign" / "1.DCM"])
    assert seen.sizes == ((6, 6),) and not seen.color


def test_files_without_the_ending_are_told_in_folders_and_read_where_they_are_named(tmp_path: Path) -> None:
    values = RNG.integers(0, 256, (6, 6), dtype=np.uint8)
    for name in ("IM000001", "1.2.840.5", "DICOMDIR", "a.dcm"):
        write(tmp_path / name, dataset(values, 8))
    (tmp_path / "notes.txt").write_text("none")
    found, others = files_below(tmp_path)
    assert [path.name for path in found] == ["a.dcm"]
    assert passed_over(others).endswith(
        "DICOM files are read only if their names end in .dcm. Rename the 2 that do not."
    )
    assert np.array_equal(read(tmp_path / "IM000001"), values[None])


def test_scans_that_use_few_grays_get_a_note(tmp_path: Path) -> None:
    write(tmp_path / "a.dcm", dataset(RNG.integers(0, 2000, (6, 6), dtype=np.int16), 16))
    (note,) = read_folder(tmp_path, ImageOptions(), labeled=False).notes
    assert "span " in note and "window = [center, width]" in note
    assert read_folder(tmp_path, ImageOptions(window=(1000, 2000)), labeled=False).notes == ()


def test_the_cache_notices_another_window(tmp_path: Path) -> None:
    values = RNG.integers(0, 4096, (6, 6), dtype=np.uint16)
    path = write(tmp_path / "a.dcm", dataset(values, 12))
    options = {"cache": tmp_path / "cache", "memory_limit": 1}
    for window in (None, (1000.0, 500.0), (1000.0, 900.0), None):
        expected = values / 4095 if window is None else linear(values, *window)
        assert np.array_equal(read(path, window=window, **options)[0], eight(expected))
    assert len(list((tmp_path / "cache").iterdir())) == 3


def test_the_window_goes_with_the_model(tmp_path: Path) -> None:
    """A model that was trained through a window also predicts through it: here, over Flower, and later."""
    values = RNG.integers(0, 4096, (6, 6), dtype=np.uint16)
    path = write(tmp_path / "a.dcm", dataset(values, 12))
    spec = SourceSpec(source="folder", path=tmp_path)
    found = read_source(spec, ImageSpec(window=(1000, 900)), None, "center 'a'")
    assert found.input == Images((1, 6, 6), (1000, 900))
    same = from_json(to_json(found.input))
    assert same == found.input and same.signature()["window"] == [1000, 900]
    (asked,) = same.batches([path])
    assert torch.equal(asked, found.samples)
    assert torch.equal(next(iter(same.read(same.find([path], None, [])))).samples, found.samples)
    elsewhere = same.reading(tmp_path / "cache")
    assert isinstance(elsewhere, ImageSpec) and elsewhere.window == (1000, 900)
    assert "window" not in to_json(Images((1, 6, 6)))
    assert "window" not in dump_config(_config(tmp_path, ""))
    assert "window" in dump_config(_config(tmp_path, "[images]\nwindow = [40, 400]\n"))


def _config(folder: Path, more: str) -> Any:
    text = "[benchmark]\ndata = {source = 'fashion_mnist'}\nwanted = 'garment'\nspaces = {}\nper_class = 1\n"
    (folder / "c.toml").write_text(text + more)
    return load_config(folder / "c.toml")


def test_nothing_of_the_patient_is_parsed_or_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    from fedmt.inputs.images import dicom

    data = dataset(np.zeros((4, 6), np.uint8), 8, PatientBirthDate="19600101", PatientComments=SECRET)
    path = write(tmp_path / "a.dcm", data)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        parsed = dicom._parsed(path, "x")
        found = read_folder(tmp_path, ImageOptions(), labeled=False)
    assert {element.keyword for element in parsed} <= set(dicom.TAGS)
    words = [*capfd.readouterr(), caplog.text, *(str(w.message) for w in said), *found.notes]
    assert not any(part in text for text in words for part in ("Mustermann", "Erika", "4711", "1960"))
