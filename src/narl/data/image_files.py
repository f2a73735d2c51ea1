"""One image file: its size, its pixels, or why it cannot be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from narl.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm")
"""Files with these endings count as images."""

MAX_PIXELS = 89_478_485
"""Larger images are refused: a small file can unfold to gigabytes."""

ImagePath: TypeAlias = "str | PathLike[str] | BinaryIO"
"""Where an image is; a stream is called by its ``name`` in messages."""

_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
_CHUNK = 64
_LEAVE_OUT = "leave it out (training and prediction do so with --skip-unreadable)"


def decode(path: ImagePath, size: int | None, channels: int) -> NDArray[np.uint8]:
    """The pixels of an image, upright as its EXIF orientation says.

    Transparent parts are laid on white, 16-bit values lose their lower 8 bits.

    Args:
        path: the file, or a stream of its bytes.
        size: the shorter side is scaled to it and the middle square is cut out; None: as it is.
        channels: 3 for RGB, 1 for grey.

    Returns:
        ``(channels, H, W)``, uint8.

    Raises:
        DataError: the file is missing, damaged, no image, or too large.

    Example:
        >>> import tempfile, PIL.Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     PIL.Image.new("L", (40, 20), 7).save(f"{folder}/grey.png")
        ...     decode(f"{folder}/grey.png", 10, 3).shape
        (3, 10, 10)
    """
    with _opened(path) as image:
        if size is not None:
            image.draft(None, (size, size))
        pixels = _square(_plain(_upright(image), channels), size)
        array = np.asarray(pixels, dtype=np.uint8)
        return np.ascontiguousarray(array.transpose(2, 0, 1) if array.ndim == 3 else array[None])


def probe(path: ImagePath) -> tuple[int, int, str]:
    """Width, height and Pillow mode of an image, from its header only.

    Raises:
        DataError: the file is missing, no image, or too large.
    """
    with _opened(path) as image:
        return (*image.size, image.mode)


def unreadable(paths: Sequence[ImagePath], workers: int | None = None) -> list[tuple[int, str]]:
    """Which images cannot be decoded, found by decoding all of them.

    Args:
        paths: the files.
        workers: threads; None: as many as Python's thread pool takes.

    Returns:
        Index and reason of every bad one, in order.
    """
    starts = range(0, len(paths), _CHUNK)
    with ThreadPoolExecutor(workers) as pool:
        found = pool.map(lambda start: _reasons(start, paths[start : start + _CHUNK]), starts)
        return [bad for chunk in found for bad in chunk]


def is_image(name: str) -> bool:
    """Whether a file name ends like an image's.

    Example:
        >>> is_image("cat.JPG"), is_image("notes.txt")
        (True, False)
    """
    return name.lower().endswith(SUFFIXES)


def _reasons(start: int, paths: Sequence[ImagePath]) -> list[tuple[int, str]]:
    bad = []
    for index, path in enumerate(paths, start):
        try:
            with _opened(path) as image:
                image.load()
        except DataError as error:
            bad.append((index, str(error)))
    return bad


@contextmanager
def _opened(path: ImagePath) -> Iterator[Image]:
    import PIL.Image

    name = fspath(path) if isinstance(path, (str, PathLike)) else getattr(path, "name", "in memory")
    try:
        with PIL.Image.open(path, formats=_FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise PIL.Image.DecompressionBombError
            yield image
    except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning):
        raise DataError(
            f"image {name} has more than {MAX_PIXELS:,} pixels, which could fill the memory: make it smaller "
            f"or {_LEAVE_OUT}"
        ) from None
    except FileNotFoundError:
        raise DataError(f"there is no image {name}: check the path") from None
    except PIL.UnidentifiedImageError:
        raise DataError(f"image {name} is empty or no image at all: replace it or {_LEAVE_OUT}") from None
    except (
        Exception
    ) as error:  # what a damaged file makes of a decoder: OSError, SyntaxError, struct.error, zlib.error, …
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"image {name} cannot be read ({reason}): replace it or {_LEAVE_OUT}") from error


def _upright(image: Image) -> Image:
    from PIL import ImageOps

    return ImageOps.exif_transpose(image)


def _plain(image: Image, channels: int) -> Image:
    """In RGB or grey, whatever it was."""
    import PIL.Image

    if image.mode.startswith(("I", "F")):
        image = PIL.Image.fromarray(_eight_bits(np.asarray(image), image.mode))
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = PIL.Image.alpha_composite(PIL.Image.new("RGBA", image.size, "white"), image)
    wanted = "RGB" if channels == 3 else "L"
    return image if image.mode == wanted else image.convert(wanted)


def _eight_bits(values: NDArray[Any], mode: str) -> NDArray[np.uint8]:
    scaled: NDArray[Any]
    if mode == "F":
        finite = np.nan_to_num(values.astype(np.float32), posinf=0, neginf=0)
        scaled = finite if finite.max(initial=0) > 1 else finite * 255
    else:
        scaled = values.astype(np.int64) >> 8
    return np.asarray(np.clip(scaled, 0, 255), dtype=np.uint8)


def _square(image: Image, size: int | None) -> Image:
    import PIL.Image

    if size is None or image.size == (size, size):
        return image
    width, height = image.size
    # The middle square is cut while scaling: one pass, and nothing outside it is computed.
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side)
    return image.resize((size, size), PIL.Image.Resampling.BILINEAR, box=box)
