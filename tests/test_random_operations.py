"""The strong augmentation's operations against loops over pictures, pixel by pixel or by Pillow."""

from __future__ import annotations

import math

import numpy as np
import PIL.Image
import PIL.ImageEnhance
import PIL.ImageOps
import pytest
import torch
from torch import Tensor

from narl.data import augmentation, random_operations
from narl.data.pixels import Draws
from narl.data.random_operations import OPERATIONS

COUNT = 12


def images(count: int = COUNT, height: int = 12, width: int = 10, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8, generator=generator)


def drawn(name: str, count: int = COUNT, seed: int = 3) -> tuple[Tensor, Tensor]:
    """That operation for all, and random amounts from -1 to 1."""
    generator = torch.Generator().manual_seed(seed)
    return torch.full((count,), OPERATIONS.index(name)), 2 * torch.rand(count, generator=generator) - 1


def changed(name: str, x: Tensor) -> tuple[Tensor, list[float]]:
    chosen, amounts = drawn(name, len(x))
    values = random_operations._one_each(x.float(), x, chosen, amounts)
    return values, amounts.tolist()


def picture(x: Tensor) -> PIL.Image.Image:
    return PIL.Image.fromarray(x.permute(1, 2, 0).numpy())


def pixels(image: PIL.Image.Image) -> Tensor:
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float()


@pytest.mark.parametrize(
    ("name", "enhance"),
    [
        ("brightness", PIL.ImageEnhance.Brightness),
        ("contrast", PIL.ImageEnhance.Contrast),
        ("saturation", PIL.ImageEnhance.Color),
        ("sharpness", PIL.ImageEnhance.Sharpness),
    ],
)
def test_enhancements_are_pillow_s(name: str, enhance: type) -> None:
    x = images()
    found, amounts = changed(name, x)
    for image, got, amount in zip(x, found, amounts, strict=True):
        wanted = pixels(enhance(picture(image)).enhance(1 + 0.9 * amount))
        inside = (slice(None), slice(1, -1), slice(1, -1))  # Pillow does not blur the outermost pixels
        assert (got[inside] - wanted[inside]).abs().max() <= 2.5  # Pillow rounds on the way


def test_spread_posterised_and_solarised_are_pillow_s() -> None:
    x = images() // 3 + 40
    found, _ = changed("spread", x)
    for image, got in zip(x, found, strict=True):
        assert (got - pixels(PIL.ImageOps.autocontrast(picture(image)))).abs().max() <= 1.5
    x = images()
    found, amounts = changed("posterised", x)
    for image, got, amount in zip(x, found, amounts, strict=True):
        bits = 8 - math.floor(4 * abs(amount) + 0.5)
        steps = 2**bits
        wanted = (image.double() / 255 * steps).floor().clamp(max=steps - 1) / steps * 255
        torch.testing.assert_close(got.double(), wanted, rtol=0, atol=1e-3)
    found, amounts = changed("solarised", x)
    for image, got, amount in zip(x, found, amounts, strict=True):
        threshold = 255 * (1 - abs(amount))
        wanted = pixels(PIL.ImageOps.solarize(picture(image), math.ceil(threshold)))
        assert torch.equal(got, wanted)


def test_shapes_are_sampled_where_their_maps_say() -> None:
    ramp = torch.arange(24.0)
    x = torch.stack([ramp.expand(24, 24), ramp[:, None].expand(24, 24)]).expand(COUNT, 2, 24, 24)  # a pixel's place
    middle = slice(9, 15)
    down, right = torch.meshgrid(ramp[middle], ramp[middle], indexing="ij")
    down, right = down - 11.5, right - 11.5
    for name in OPERATIONS[-5:]:
        found, amounts = changed(name, x)
        for got, amount in zip(found, amounts, strict=True):
            cos, sin = math.cos(math.radians(30 * amount)), math.sin(math.radians(30 * amount))
            wanted = {
                "turned": (cos * right - sin * down, sin * right + cos * down),
                "sheared across": (right + 0.3 * amount * down, down),
                "sheared along": (right, down + 0.3 * amount * right),
                "moved across": (right + 0.3 * amount * 24, down),
                "moved along": (right, down + 0.3 * amount * 24),
            }[name]
            torch.testing.assert_close(got[0, middle, middle], wanted[0] + 11.5, rtol=0, atol=2e-3)
            torch.testing.assert_close(got[1, middle, middle], wanted[1] + 11.5, rtol=0, atol=2e-3)


def test_a_batch_is_a_loop_over_its_images() -> None:
    x = images(60)
    whole = augmentation.get("strong")(x, torch.Generator().manual_seed(9))
    generator = torch.Generator().manual_seed(9)
    draws = [(torch.randint(0, len(OPERATIONS), (60,), generator=generator), torch.rand(2, 60, generator=generator))]
    draws += [(torch.randint(0, len(OPERATIONS), (60,), generator=generator), torch.rand(2, 60, generator=generator))]
    for number in range(60):
        one = x[number : number + 1]
        values = one.float()
        for chosen, (strength, side) in draws:
            amount = strength[number] * (-1 if side[number] < 0.5 else 1)
            values = random_operations._one_each(values, one, chosen[number : number + 1], amount.reshape(1))
        state = generator.get_state()
        wanted = augmentation.cutout(values.round().clamp(0, 255).to(torch.uint8), Draws(generator, number, 1, 60))
        generator.set_state(state)
        assert torch.equal(whole[number : number + 1], wanted)


def test_all_operations_come_up_and_floats_keep_their_range() -> None:
    chosen = Draws(torch.Generator().manual_seed(0), 0, 4000, 4000).integers(0, len(OPERATIONS))
    counts = torch.bincount(chosen, minlength=len(OPERATIONS))
    assert counts.min() > 4000 / len(OPERATIONS) * 0.75
    x = torch.randn(COUNT, 1, 9, 9, generator=torch.Generator().manual_seed(2)) * 5 - 20
    for name in ("none", "spread", "posterised", "solarised"):
        found, _ = changed(name, x)
        assert found.min() >= x.min() - 1e-4
        assert found.max() <= x.max() + 1e-4
    flat = torch.full((COUNT, 3, 6, 6), 7.0)
    for name in OPERATIONS:
        assert torch.isfinite(changed(name, flat)[0]).all(), name
