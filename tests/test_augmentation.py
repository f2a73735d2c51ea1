"""Augmentation against loops over samples, with the same random numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from narl.data import augmentation
from narl.data.pixels import Draws
from narl.errors import DataError, UnknownNameError

NAMES = [name for name in augmentation.names() if name != "none"]


def generator(seed: int = 0) -> Generator:
    return torch.Generator().manual_seed(seed)


def images(number: int = 6, channels: int = 3, height: int = 32, width: int = 32, seed: int = 1) -> Tensor:
    return torch.randint(0, 256, (number, channels, height, width), dtype=torch.uint8, generator=generator(seed))


@pytest.mark.parametrize(
    ("height", "width", "pad"), [(32, 32, (4, 4)), (64, 40, (8, 5)), (28, 8, (3, 1)), (3, 16, (1, 2)), (1, 1, (0, 0))]
)
def test_crop_is_pad_and_crop(height: int, width: int, pad: tuple[int, int]) -> None:
    x = images(20, 3, height, width)
    result = augmentation.get("crop")(x, generator(5))
    draws = generator(5)
    tops, lefts = (torch.randint(-p, p + 1, (20,), generator=draws).tolist() for p in pad)
    for image, got, top, left in zip(x.numpy(), result.numpy(), tops, lefts, strict=True):
        padded = np.pad(image, ((0, 0), (pad[0], pad[0]), (pad[1], pad[1])), mode="reflect")
        top, left = top + pad[0], left + pad[1]
        assert np.array_equal(got, padded[:, top : top + height, left : left + width])


def test_crop_reaches_every_offset() -> None:
    x = torch.arange(32.0).expand(1, 1, 32, 32).repeat(2000, 1, 1, 1)
    moved = augmentation.get("crop")(x, generator())[:, 0, 16, 16]
    assert set(moved.tolist()) == set(range(12, 21))


def test_flip_is_flip() -> None:
    x = images(400)
    result = augmentation.get("flip")(x, generator(2))
    chosen = torch.rand(400, generator=generator(2)) < 0.5
    for image, got, flipped in zip(x, result, chosen, strict=True):
        assert torch.equal(got, torch.flip(image, [2]) if flipped else image)
    assert 150 < int(chosen.sum()) < 250


@pytest.mark.parametrize("side", [32, 7])
def test_cutout_is_a_square_of_the_mean(side: int) -> None:
    x = images(50, 3, side, side)
    result = augmentation.get("cutout")(x, generator(4))
    draws = generator(4)
    rows, columns = (torch.randint(0, side, (50,), generator=draws).tolist() for _ in range(2))
    half = side // 2
    for image, got, row, column in zip(x, result, rows, columns, strict=True):
        wanted = image.clone()
        top, left = row - half // 2, column - half // 2
        mean = image.float().mean(dim=(1, 2)).round().to(torch.uint8)
        wanted[:, max(0, top) : top + half, max(0, left) : left + half] = mean[:, None, None]
        assert torch.equal(got, wanted)


def test_colour_follows_its_formula() -> None:
    x = images(30).double() / 255
    result = augmentation.get("colour")(x, generator(6))
    factors = 0.6 + 0.8 * torch.rand(3, 30, generator=generator(6))
    for image, got, (brightness, contrast, saturation) in zip(x, result, factors.T.double(), strict=True):
        bright = image * brightness
        mean = (0.299 * bright[0] + 0.587 * bright[1] + 0.114 * bright[2]).mean()
        contrasted = contrast * bright + (1 - contrast) * mean
        grey = 0.299 * contrasted[0] + 0.587 * contrasted[1] + 0.114 * contrasted[2]
        torch.testing.assert_close(got, saturation * contrasted + (1 - saturation) * grey, atol=1e-6, rtol=0)


def test_resized_crop_is_pillow_s_box() -> None:
    ramp = torch.linspace(0, 255, 40)
    x = torch.stack([ramp.expand(40, 40), ramp[:, None].expand(40, 40)]).expand(25, 2, 40, 40)
    result = augmentation.get("resized-crop")(x, generator(7))
    area, ratio, right, down = torch.rand(4, 25, generator=generator(7)).double()
    area = 0.35 + 0.65 * area
    ratio = torch.exp(math.log(3 / 4) + (math.log(4 / 3) - math.log(3 / 4)) * ratio)
    widths, heights = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    for n in range(25):
        width, height = 40 * float(widths[n]), 40 * float(heights[n])
        left, top = (40 - width) * float(right[n]), (40 - height) * float(down[n])
        for channel in range(2):
            picture = PIL.Image.fromarray(x[n, channel].numpy())
            box = (left, top, left + width, top + height)
            wanted = np.asarray(picture.resize((40, 40), PIL.Image.Resampling.BILINEAR, box=box))
            assert np.abs(wanted - result[n, channel].numpy())[2:-2, 2:-2].max() < 0.05


def test_rotate_is_pillow_s_rotation() -> None:
    smooth = torch.linspace(0, 255, 41)[:, None] * 0.5 + torch.linspace(0, 120, 31)[None, :]
    x = smooth.expand(12, 1, 41, 31)
    result = augmentation.get("rotate")(x, generator(8))
    degrees = 15 * (2 * torch.rand(12, generator=generator(8)) - 1)
    for got, angle in zip(result, degrees, strict=True):
        picture = PIL.Image.fromarray(smooth.numpy())
        wanted = np.asarray(picture.rotate(float(angle), PIL.Image.Resampling.BILINEAR))
        assert np.abs(wanted - got[0].numpy())[12:-12, 12:-12].max() < 0.05


NAMES_STRATEGY = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("+".join)


@settings(max_examples=40, deadline=None)
@given(
    NAMES_STRATEGY, st.sampled_from([1, 3]), st.integers(1, 20), st.integers(1, 20), st.integers(0, 4), st.booleans()
)
def test_shape_type_and_values_stay(
    name: str, channels: int, height: int, width: int, number: int, bytes_: bool
) -> None:
    x = images(number, channels, height, width)
    x = x if bytes_ else x.float() / 255
    before = x.clone()
    augment = augmentation.get(name)
    result = augment(x, generator(3))
    assert torch.equal(x, before)
    assert (result.shape, result.dtype, result.device) == (x.shape, x.dtype, x.device)
    assert torch.equal(augment(x, generator(3)), result)
    assert torch.isfinite(result.float()).all()
    if "colour" not in name and "strong" not in name and number:  # everything else shows what was there
        assert result.min() >= x.min() - 1e-5
        assert result.max() <= x.max() + 1e-5


@pytest.mark.parametrize("name", [*(name for name in NAMES if name != "strong"), "crop+flip+cutout"])
def test_bytes_and_floats_agree(name: str) -> None:
    x = images() // 4 + 90  # no change of colour takes them to the limits of bytes
    as_bytes = augmentation.get(name)(x, generator()).float()
    as_floats = augmentation.get(name)(x.float(), generator())
    assert (as_bytes - as_floats).abs().max() <= 0.51


@pytest.mark.parametrize("name", ["crop", "flip", "cutout", "colour", "resized-crop", "rotate"])
def test_images_differ_from_each_other(name: str) -> None:
    x = images(1).expand(40, -1, -1, -1)
    result = augmentation.get(name)(x, generator())
    assert len({image.numpy().tobytes() for image in result}) > (1 if name == "flip" else 20)


def test_one_after_the_other() -> None:
    x = images()
    both = Draws(generator(), 0, len(x), len(x))
    wanted = augmentation.flip(augmentation.crop(x, both), both)
    assert torch.equal(augmentation.get("crop + flip")(x, generator()), wanted)
    assert augmentation.get("none")(x, generator()) is x


@given(NAMES_STRATEGY, st.integers(0, 5), st.integers(1, 4))
def test_rows_of_a_batch_get_what_the_whole_batch_would_give_them(name: str, start: int, count: int) -> None:
    x, some, draws = images(9), slice(start, start + count), generator(7)
    whole = augmentation.get(name)(x, generator(7))
    assert torch.equal(augmentation.get(name)(x[some], draws, some, len(x)), whole[some])
    after = generator(7)
    augmentation.get(name)(x, after)
    assert torch.equal(draws.get_state(), after.get_state())


@pytest.mark.parametrize("name", ["none", *NAMES])
def test_no_global_random_numbers(name: str) -> None:
    before = torch.get_rng_state()
    augmentation.get(name)(images(), generator())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("name", "hint"), [("crop+flipp", "'flip'"), ("", "known"), ("color", "'colour'")])
def test_unknown_names(name: str, hint: str) -> None:
    with pytest.raises(UnknownNameError, match=hint):
        augmentation.get(name)


def test_tables_are_refused() -> None:
    augment: Callable[[Tensor, Generator], Tensor] = augmentation.get("flip")
    with pytest.raises(DataError, match="use 'none'"):
        augment(torch.zeros(3, 4), generator())
    assert augmentation.get("none")(torch.zeros(3, 4), generator()).shape == (3, 4)
