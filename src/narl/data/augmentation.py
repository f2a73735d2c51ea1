"""Random changes of training images that leave their class as it is: whole batches at once, on any device."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Generator, Tensor

from narl.data.pixels import Draws, each, floats, grey, like, limited, warped
from narl.data.random_operations import operated
from narl.errors import DataError, UnknownNameError, nearest

_JITTER = 0.4
_AREA = (0.35, 1.0)
_RATIO = (3 / 4, 4 / 3)
_DEGREES = 15.0
_OPERATIONS = 2


class Augmentation(Protocol):
    """Random changes of a batch of images."""

    def __call__(self, x: Tensor, generator: Generator, rows: slice | None = None, total: int = 0) -> Tensor:
        """Images like ``x``, ``(N, C, H, W)``; if they are rows of a batch with ``total`` images, those of it."""
        ...


def names() -> tuple[str, ...]:
    """The augmentations that :func:`get` knows, to be joined with ``+``.

    Example:
        >>> names()
        ('none', 'crop', 'flip', 'cutout', 'colour', 'resized-crop', 'rotate', 'strong')
    """
    return tuple(_AUGMENTATIONS)


def get(name: str) -> Augmentation:
    """One or more augmentations, one after the other.

    Args:
        name: such as ``"crop+flip"``; ``"none"`` changes nothing.

    Returns:
        A function of images ``(N, C, H, W)``, bytes or floats, and a CPU generator. It gives images of the same
        shape, type and device; every image gets its own random numbers, which are all that crosses to the device.
        A process that has only some rows of a batch also names them and the batch's size.

    Example:
        >>> augment = get("crop+flip")
        >>> augment(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3, 32, 32])
    """
    steps = []
    for part in name.split("+"):
        if part.strip() not in _AUGMENTATIONS:
            raise UnknownNameError(f"augmentation {part.strip()!r} is unknown: {nearest(part.strip(), names())}")
        steps.append(_AUGMENTATIONS[part.strip()])

    def augment(x: Tensor, generator: Generator, rows: slice | None = None, total: int = 0) -> Tensor:
        if x.dim() != 4:
            raise DataError(f"augmentation {name!r} is for images (N, C, H, W), got shape {tuple(x.shape)}: use 'none'")
        draws = Draws(generator, 0, len(x), len(x)) if rows is None else Draws(generator, rows.start, len(x), total)
        for step in steps if len(x) else ():
            x = step(x, draws)
        return x

    return _nothing if name.strip() == "none" else augment


def view(name: str, usual: str) -> Augmentation:
    """What makes a view of training images: the usual augmentation, and others after it.

    Args:
        name: ``"usual"``, or as for :func:`get`: what comes after the usual.
        usual: what training images get anyway, as for :func:`get`.

    Returns:
        The augmentation.

    Example:
        >>> augment = view("strong", usual="crop+flip")
        >>> augment(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3, 32, 32])
    """
    return get("+".join(part for part in (usual, name) if part not in ("usual", "none")) or "none")


def _nothing(x: Tensor, generator: Generator, rows: slice | None = None, total: int = 0) -> Tensor:
    return x


def crop(x: Tensor, draws: Draws) -> Tensor:
    """Images moved by a few pixels, the edges filled by reflection.

    Equal to padding by reflection with an eighth of the side (4 pixels of 32) and a random crop.

    Args:
        x: ``(N, C, H, W)``.
        draws: random numbers.

    Returns:
        ``(N, C, H, W)``.
    """
    number, channels, height, width = x.shape
    moves = torch.stack([draws.integers(-_pad(side), _pad(side) + 1) + _pad(side) for side in (height, width)])
    down, across = moves.to(x.device, non_blocking=True)
    rows, columns = _reflected(height, width, x.device)[down], _reflected(width, 1, x.device)[across]
    flat = (rows[:, :, None] + columns[:, None, :]).view(number, 1, height * width)
    return x.reshape(number, channels, height * width).gather(2, flat.expand(-1, channels, -1)).view_as(x)


def _pad(side: int) -> int:
    """By how many pixels an image moves at most."""
    return min(max(1, side // 8), side - 1)


@functools.lru_cache(maxsize=64)
def _reflected(side: int, stride: int, device: torch.device) -> Tensor:
    """Where the line begins that lies at each place once an image has moved by −pad … pad, ``(2 pad + 1, side)``.

    Looked up rather than computed: a dozen small operations for every batch would keep a GPU's host busy.
    """
    moves = torch.arange(-_pad(side), _pad(side) + 1)
    places = (moves[:, None] + torch.arange(side)).abs()
    return (((side - 1) - ((side - 1) - places).abs()) * stride).to(device)


def flip(x: Tensor, draws: Draws) -> Tensor:
    """Left and right exchanged in half of the images.

    Args:
        x: ``(N, C, H, W)``.
        draws: random numbers.

    Returns:
        ``(N, C, H, W)``.
    """
    chosen = draws.uniform() < 0.5
    return torch.where(each(chosen, x), x.flip(3), x)


def cutout(x: Tensor, draws: Draws) -> Tensor:
    """A square of half the side replaced by the image's mean colour; its centre may lie anywhere in the image.

    Args:
        x: ``(N, C, H, W)``.
        draws: random numbers.

    Returns:
        ``(N, C, H, W)``.

    Reference: DeVries, Taylor. Improved regularization of convolutional neural networks with cutout. 2017.
    """
    rows, columns = (_stretch(side, draws).to(x.device, non_blocking=True) for side in x.shape[2:])
    inside = rows[:, None, :, None] & columns[:, None, None, :]
    mean = like(floats(x).mean(dim=(2, 3), keepdim=True), x)
    return torch.where(inside, mean, x)


def _stretch(side: int, draws: Draws) -> Tensor:
    """Which places lie in a stretch of half the side around a random place, ``(N, side)``."""
    start = draws.integers(0, side).unsqueeze(1) - side // 4
    places = torch.arange(side)
    return (places >= start) & (places < start + side // 2)


def colour(x: Tensor, draws: Draws) -> Tensor:
    """Brightness, contrast and saturation changed, each by a factor from 0.6 to 1.4.

    Bytes stay within 0 … 255; floats have no known limits and get none.

    Args:
        x: ``(N, C, H, W)``; grey images have no saturation to change.
        draws: random numbers.

    Returns:
        ``(N, C, H, W)``.
    """
    factors = 1 + _JITTER * (2 * draws.uniform(3) - 1)
    brightness, contrast, saturation = (each(factor, x) for factor in factors)
    values = limited(floats(x) * brightness, x)
    values = limited(torch.lerp(grey(values).mean(dim=(2, 3), keepdim=True), values, contrast.to(values)), x)
    if x.shape[1] == 3:
        values = limited(torch.lerp(grey(values).expand_as(values), values, saturation.to(values)), x)
    return like(values, x)


def resized_crop(x: Tensor, draws: Draws) -> Tensor:
    """A random part of the image, 0.35 to 1 of its area and slightly stretched, enlarged to its size.

    Args:
        x: ``(N, C, H, W)``.
        draws: random numbers.

    Returns:
        ``(N, C, H, W)``.

    Reference: Szegedy, Liu, Jia, Sermanet, Reed, Anguelov, Erhan, Vanhoucke, Rabinovich. Going deeper with
    convolutions. CVPR 2015.
    """
    area, ratio, right, down = draws.uniform(4)
    area = _AREA[0] + (_AREA[1] - _AREA[0]) * area
    stretch = torch.exp(0.5 * (math.log(_RATIO[0]) + (math.log(_RATIO[1]) - math.log(_RATIO[0])) * ratio))
    width, height = (area.sqrt() * stretch).clamp(max=1), (area.sqrt() / stretch).clamp(max=1)
    none = torch.zeros_like(width)
    # In the units of an affine grid: the image spans -1 … 1, so a part of width w may be centred within ±(1 - w).
    across = torch.stack([width, none, (1 - width) * (2 * right - 1)], dim=1)
    along = torch.stack([none, height, (1 - height) * (2 * down - 1)], dim=1)
    return warped(x, torch.stack([across, along], dim=1), "border")


def rotate(x: Tensor, draws: Draws) -> Tensor:
    """Images turned about their centre by up to 15 degrees, the corners filled by reflection.

    Args:
        x: ``(N, C, H, W)``.
        draws: random numbers.

    Returns:
        ``(N, C, H, W)``.
    """
    angles = math.radians(_DEGREES) * (2 * draws.uniform() - 1)
    cos, sin, none = angles.cos(), angles.sin(), torch.zeros(len(x))
    height, width = x.shape[2:]  # an affine grid measures both sides in halves of themselves
    across = torch.stack([cos, -sin * (height / width), none], dim=1)
    along = torch.stack([sin * (width / height), cos, none], dim=1)
    return warped(x, torch.stack([across, along], dim=1), "reflection")


def strong(x: Tensor, draws: Draws) -> Tensor:
    """Two random operations out of thirteen, each of random strength, then cutout: the image is hard to recognise.

    The operations are those of :data:`narl.data.random_operations.OPERATIONS`: of colour and of shape, or none.

    Args:
        x: ``(N, C, H, W)``.
        draws: random numbers.

    Returns:
        ``(N, C, H, W)``.

    Reference: Cubuk, Zoph, Shlens, Le. RandAugment: practical automated data augmentation with a reduced search space.
    NeurIPS 2020.
    """
    return cutout(operated(x, draws, _OPERATIONS), draws)


_AUGMENTATIONS: dict[str, Callable[[Tensor, Draws], Tensor]] = {
    "none": lambda x, _: x,
    "crop": crop,
    "flip": flip,
    "cutout": cutout,
    "colour": colour,
    "resized-crop": resized_crop,
    "rotate": rotate,
    "strong": strong,
}
