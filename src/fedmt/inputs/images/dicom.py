"""DICOM files to 8-bit pictures: rescaled, windowed, MONOCHROME1 inverted (extra `dicom`, by pydicom).

A single-frame gray file goes through PS3.3's pipeline: modality lookup table (C.11.1), then the window of the
config, else that of the file, else its VOI lookup table (C.11.2), else the whole range of its stored bits.
Only the elements in `TAGS` are ever parsed. Therefore no patient's name can reach a message, a log or a
report.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedmt.core.errors import FedmtError
from fedmt.inputs.images.files import EXTENSIONS, has_dicom_mark, is_dicom_name

if TYPE_CHECKING:
    from pydicom.dataset import FileDataset

Values = NDArray[np.float64]
Window = tuple[float, float]
"""(center, width), in the units of the rescaled values, such as Hounsfield units."""

_SIZE = ("Rows", "Columns", "SamplesPerPixel", "PhotometricInterpretation", "NumberOfFrames")
_PALETTE = tuple(
    f"{kind}PaletteColorLookupTable{part}"
    for kind in ("Red", "Green", "Blue", "SegmentedRed", "SegmentedGreen", "SegmentedBlue")
    for part in ("Descriptor", "Data")
    if part == "Data" or not kind.startswith("Segmented")
)
TAGS = (
    *_SIZE, "PlanarConfiguration", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation",
    "ModalityLUTSequence", "RescaleSlope", "RescaleIntercept",
    "WindowCenter", "WindowWidth", "VOILUTFunction", "VOILUTSequence", *_PALETTE,
    "ExtendedOffsetTable", "ExtendedOffsetTableLengths",
    "PixelData", "FloatPixelData", "DoubleFloatPixelData",
)  # fmt: skip


@dataclass(frozen=True)
class Header:
    """What is known about a picture before its pixels are read."""

    height: int
    width: int
    color: bool


def is_dicom(path: Path) -> bool:
    """Whether it is DICOM, by its extension, or by its marker unless the extension is that of another image
    format. Scanners often write no extension."""
    if is_dicom_name(path.name):
        return True
    return not path.name.lower().endswith(EXTENSIONS) and has_dicom_mark(path)


def require_pydicom(path: Path, where: str) -> None:
    """Raises an error that says what to install if pydicom is missing."""
    if find_spec("pydicom") is None:
        raise FedmtError(
            f"{where}: '{path}' is a DICOM file, which pydicom reads; install it with "
            "`pip install 'fedmt[dicom]'`."
        )


def read_header(path: Path) -> Header:
    """Read from the header alone. Anything wrong with the file is reported when it is decoded."""
    from pydicom import dcmread

    found = dcmread(path, stop_before_pixels=True, specific_tags=list(_SIZE))
    return Header(int(found.Rows), int(found.Columns), not _is_gray(found))


def read_dicom(path: Path, where: str, window: Window | None) -> Image.Image:
    """The picture of a file, in mode L or RGB. `window` takes precedence over that of the file."""
    require_pydicom(path, where)
    name = f"{where}: DICOM file '{path}'"
    data = _parsed(path, name)
    _refuse_what_is_no_image(data, name)
    values = _stored(data, name)
    if not _is_gray(data):
        # A color picture has no window, because its values are meant to be displayed directly.
        return Image.fromarray(_eight_bit(values / _highest(data, values.dtype)))
    try:
        shown = _shown(values, data, window)
    except Exception as error:  # the header may contain anything
        raise FedmtError(
            f"{name}: its rescaling or window cannot be used ({_said(error)}). Correct the file, or set "
            "images.window = [center, width]."
        ) from None
    if data.PhotometricInterpretation == "MONOCHROME1":  # its smallest value is displayed as white
        shown = 1 - shown
    return Image.fromarray(_eight_bit(shown))


def windowed(values: Values, center: float, width: float, function: str = "LINEAR") -> Values:
    """Applies a window to values, giving [0, 1]: PS3.3 C.11.2.1.2 and C.11.2.1.3.

    This replaces pydicom's `apply_windowing`, which only knows the file's window and returns units of the
    stored range, which would have to be converted back.
    """
    least = 1.0 if function == "LINEAR" else 0.0
    if not (width >= least and width > 0 and np.isfinite(center)):
        raise ValueError(f"window center {center:g} and width {width:g}")
    if function == "SIGMOID":
        return np.asarray(1 / (1 + np.exp(-4 * (values - center) / width)))
    if function == "LINEAR":
        center, width = center - 0.5, width - 1
    elif function != "LINEAR_EXACT":
        raise ValueError(f"window function {function}")
    if width == 0:
        return (values > center).astype(np.float64)
    return np.clip((values - center) / width + 0.5, 0, 1)


def _shown(stored: NDArray[Any], data: FileDataset, window: Window | None) -> Values:
    """Gray values for display, in [0, 1], before MONOCHROME1 is inverted."""
    from pydicom.pixels.processing import apply_modality_lut, apply_voi

    values = np.asarray(apply_modality_lut(stored, data), dtype=np.float64)
    if window is not None:
        return windowed(values, *window)
    if _first(data.get("WindowCenter")) is not None and _first(data.get("WindowWidth")) is not None:
        function = str(data.get("VOILUTFunction") or "LINEAR").upper()
        center, width = _first(data.WindowCenter), _first(data.WindowWidth)
        return windowed(values, float(center), float(width), function)
    if data.get("VOILUTSequence"):
        depth = int(data.VOILUTSequence[0].LUTDescriptor[2])
        return apply_voi(np.rint(values).astype(np.int64), data) / (2.0**depth - 1)
    if data.get("ModalityLUTSequence"):
        low, high = 0.0, 2.0 ** int(data.ModalityLUTSequence[0].LUTDescriptor[2]) - 1
    else:
        ends = np.array(_stored_range(data), dtype=np.float64)
        low, high = sorted(np.asarray(apply_modality_lut(ends, data), dtype=np.float64).tolist())
    if not low < high:
        raise ValueError(f"rescale slope {data.get('RescaleSlope')}")
    return np.clip((values - low) / (high - low), 0, 1)


def _stored_range(data: FileDataset) -> tuple[int, int]:
    """The smallest and the largest value that the stored bits can hold."""
    bits = int(data.BitsStored)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if data.PixelRepresentation else (0, (1 << bits) - 1)


def _highest(data: FileDataset, dtype: np.dtype[Any]) -> float:
    """The largest value of a color. A palette's colors have the bits of its table."""
    if data.PhotometricInterpretation == "PALETTE COLOR":
        return float(np.iinfo(dtype).max)
    return float(_stored_range(data)[1])


def _eight_bit(shown: Values) -> NDArray[np.uint8]:
    """[0, 1] to 0 … 255."""
    # Eight bits, as for every stored image, including 16-bit PNG. The window is applied first, so they are
    # enough.
    return np.rint(255 * shown).astype(np.uint8)


def _is_gray(data: FileDataset) -> bool:
    return data.get("PhotometricInterpretation") in ("MONOCHROME1", "MONOCHROME2")


def _first(value: Any) -> Any:
    """The first of several windows. None if the element is missing or empty."""
    from pydicom.multival import MultiValue

    if isinstance(value, MultiValue | list | tuple):
        return value[0] if value else None
    return None if value == "" else value


# -- reading, and what is refused ------------------------------------------------------------------


def _parsed(path: Path, name: str) -> FileDataset:
    from pydicom import dcmread
    from pydicom.errors import InvalidDicomError

    try:
        return dcmread(path, specific_tags=list(TAGS))
    except InvalidDicomError:
        raise FedmtError(
            f"{name}: it is not a DICOM file, or it lacks the preamble with the letters DICM. Export it "
            "again or remove it."
        ) from None
    except Exception:  # pydicom's messages about a damaged file may quote the file, and so a patient
        raise FedmtError(f"{name}: its header is damaged. Copy it again or remove it.") from None


def _refuse_what_is_no_image(data: FileDataset, name: str) -> None:
    if "FloatPixelData" in data or "DoubleFloatPixelData" in data:
        raise FedmtError(
            f"{name}: it holds floating-point values. Export it with 8 to 16 bits, or remove it."
        )
    if "PixelData" not in data or not data.PixelData:
        raise FedmtError(
            f"{name}: it has no pixels, so it is not an image (a report or a plan, perhaps). Remove it or "
            "the line that names it."
        )
    missing = [tag for tag in ("Rows", "Columns", "BitsStored", "PixelRepresentation") if tag not in data]
    missing += [tag for tag in ("PhotometricInterpretation",) if not data.get(tag)]
    if missing:
        raise FedmtError(
            f"{name}: {', '.join(missing)} is missing in its header. Export it again or remove it."
        )
    frames = int(data.get("NumberOfFrames") or 1)
    if frames != 1:
        raise FedmtError(
            f"{name}: it has {frames:,} frames, but a sample is one image. Save the intended frames as "
            "single files."
        )
    # As Pillow does for other formats: a header that states too many pixels is an attack or a mistake.
    if int(data.Rows) * int(data.Columns) > 2 * (Image.MAX_IMAGE_PIXELS or np.inf):
        raise FedmtError(f"{name}: it has more pixels than is safe to decode. Make it smaller or remove it.")


def _stored(data: FileDataset, name: str) -> NDArray[Any]:
    """The stored values, [H, W] or, as RGB, [H, W, 3]; pydicom decompresses, and converts YBR to RGB."""
    from pydicom.pixels.decoders.base import get_decoder
    from pydicom.pixels.processing import apply_color_lut
    from pydicom.pixels.utils import pixel_array

    syntax = data.file_meta.get("TransferSyntaxUID")
    try:
        available = syntax is not None and get_decoder(syntax).is_available
    except NotImplementedError:
        raise FedmtError(
            f"{name}: pydicom cannot decode its transfer syntax, {syntax.name}. Export it uncompressed."
        ) from None
    if syntax is None:
        raise FedmtError(f"{name}: its header names no transfer syntax. Export it again or remove it.")
    if not available:
        raise FedmtError(
            f"{name}: it is compressed ({syntax.name}), and no decoder for that is installed. Install one "
            "with `pip install 'pylibjpeg[all]'`, or export the file uncompressed."
        )
    try:
        values = pixel_array(data)
        if values.shape[:2] != (data.Rows, data.Columns):
            # pydicom returns all frames that the pixels have room for, whatever their number in the header.
            raise ValueError("it has pixels of more frames than its header says")
        return apply_color_lut(values, data) if data.PhotometricInterpretation == "PALETTE COLOR" else values
    except Exception as error:  # damaged data can make the decoders raise almost any exception
        raise FedmtError(
            f"{name}: its pixels cannot be decoded ({_said(error)}). Copy it again or remove it."
        ) from None


def _said(error: Exception) -> str:
    """The first line of a message. Only elements of `TAGS` were parsed, none of which names a person."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
