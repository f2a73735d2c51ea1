"""One image file: every mode becomes the pixels one sees, and what is broken is named."""

from __future__ import annotations

import io
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from narl.data import image_files
from narl.data.image_files import decode, probe, unreadable
from narl.errors import DataError

GRADIENT = np.arange(24, dtype=np.uint8).reshape(2, 4, 3) * 10


def save(path: Path, image: Image.Image, **options: Any) -> Path:
    image.save(path, **options)
    return path


def test_rgb_is_exact(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", Image.fromarray(GRADIENT))
    np.testing.assert_array_equal(decode(path, None, 3), GRADIENT.transpose(2, 0, 1))
    assert decode(path, None, 3).flags.c_contiguous
    assert probe(path) == (4, 2, "RGB")
    np.testing.assert_array_equal(decode(io.BytesIO(path.read_bytes()), None, 3), GRADIENT.transpose(2, 0, 1))


def test_grey(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", Image.fromarray(GRADIENT[..., 0]))
    np.testing.assert_array_equal(decode(path, None, 1), GRADIENT[None, ..., 0])
    np.testing.assert_array_equal(decode(path, None, 3), np.broadcast_to(GRADIENT[..., 0], (3, 2, 4)))


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F"])
@pytest.mark.parametrize("channels", [1, 3])
def test_white_is_white_in_every_mode(tmp_path: Path, mode: str, channels: int) -> None:
    if mode in ("I;16", "I"):
        image = Image.fromarray(np.full((6, 5), 65535, dtype=np.uint16 if mode == "I;16" else np.int32))
    elif mode == "F":
        image = Image.fromarray(np.ones((6, 5), dtype=np.float32))
    else:
        image = Image.new("RGB", (5, 6), "white").convert(mode)
    suffix = ".tif" if mode in ("CMYK", "YCbCr", "F", "I") else ".png"
    path = save(tmp_path / f"white{suffix}", image)
    pixels = decode(path, None, channels)
    assert pixels.shape == (channels, 6, 5)
    assert pixels.dtype == np.uint8
    assert pixels.min() == 255


def test_transparency_shows_white(tmp_path: Path) -> None:
    clear = save(tmp_path / "clear.png", Image.new("RGBA", (2, 2), (0, 0, 0, 0)))
    assert decode(clear, None, 3).min() == 255
    palette = Image.new("P", (2, 2), 0)
    palette.putpalette([0, 0, 0, 200, 0, 0])
    assert decode(save(tmp_path / "p.png", palette, transparency=0), None, 3).min() == 255
    assert decode(save(tmp_path / "b.png", palette, transparency=b"\0\xff"), None, 3).min() == 255


def test_sixteen_bits_keep_the_upper_eight(tmp_path: Path) -> None:
    values = np.array([[0, 255, 256, 40000, 65535]], dtype=np.uint16)
    path = save(tmp_path / "deep.png", Image.fromarray(values))
    assert decode(path, None, 1).tolist() == [[[0, 0, 1, 156, 255]]]


def test_orientation(tmp_path: Path) -> None:
    image = Image.fromarray(GRADIENT)
    exif = image.getexif()
    exif[0x0112] = 6  # turn by 90 degrees
    path = save(tmp_path / "turned.png", image, exif=exif)
    assert decode(path, None, 3).shape == (3, 4, 2)
    np.testing.assert_array_equal(decode(path, None, 3), np.rot90(GRADIENT, -1).transpose(2, 0, 1))


@pytest.mark.parametrize(("width", "height"), [(60, 20), (20, 60), (20, 20), (3, 9)])
def test_the_middle_square(tmp_path: Path, width: int, height: int) -> None:
    image = Image.fromarray(np.random.default_rng(2).integers(0, 255, (height, width, 3), np.uint8))
    scale = 10 / min(width, height)
    whole = image.resize((round(width * scale), round(height * scale)), Image.Resampling.BILINEAR)
    left, top = (whole.width - 10) // 2, (whole.height - 10) // 2
    expected = np.asarray(whole.crop((left, top, left + 10, top + 10)), dtype=int)
    found = decode(save(tmp_path / "a.png", image), 10, 3).transpose(1, 2, 0)
    assert abs(found - expected).max() <= 1


def test_large_jpegs_are_scaled_to_the_same(tmp_path: Path) -> None:
    ramp = np.linspace(0, 255, 400).astype(np.uint8)[None, :].repeat(400, axis=0)
    path = save(tmp_path / "a.jpg", Image.fromarray(ramp), quality=95)
    exact = np.asarray(Image.open(path).resize((25, 25), Image.Resampling.BOX), dtype=float)
    assert abs(decode(path, 25, 1)[0] - exact).max() < 8


def bomb() -> bytes:
    """A PNG of a few bytes that claims to be 20,000 × 20,000 pixels."""
    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 0, 0, 0, 0)
    chunks = [b"IHDR" + header, b"IDAT" + zlib.compress(b"\0")]
    written = [struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    good = save(
        tmp_path / "good.jpg", Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))
    )
    content = good.read_bytes()
    bad = {
        "truncated.jpg": content[: len(content) // 2],
        "empty.jpg": b"",
        "text.png": b"not an image",
        "bomb.png": bomb(),
    }
    for name, data in bad.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=name) as caught:
            decode(tmp_path / name, 8, 3)
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="more than 89,478,485 pixels"):
        probe(tmp_path / "bomb.png")
    with pytest.raises(DataError, match=r"no image .*lost\.png"):
        decode(tmp_path / "lost.png", 8, 3)
    paths = [good, *(tmp_path / name for name in bad), good, tmp_path / "lost.png"]
    found = unreadable(paths * 20, workers=2)
    assert [index for index, _ in found] == [i for i in range(len(paths) * 20) if i % 7 not in (0, 5)]
    assert all(Path(paths[index % 7]).name in reason for index, reason in found)


def test_the_limit_holds_below_pillows_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "a.png", Image.new("L", (20, 20)))
    monkeypatch.setattr(image_files, "MAX_PIXELS", 399)
    with pytest.raises(DataError, match="more than 399 pixels"):
        decode(path, 8, 1)


def test_damaged_bytes_never_escape(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    noise = Image.fromarray(random.integers(0, 255, (16, 16, 3), np.uint8))
    for suffix in (".png", ".jpg", ".gif", ".webp", ".tif", ".bmp", ".ppm"):
        content = save(tmp_path / f"a{suffix}", noise).read_bytes()
        for _ in range(30):
            damaged = bytearray(content)
            for position in random.integers(0, len(content), 4):
                damaged[position] = random.integers(256)
            path = tmp_path / f"damaged{suffix}"
            path.write_bytes(damaged)
            with suppress(DataError):
                assert decode(path, 8, 3).shape == (3, 8, 8)
