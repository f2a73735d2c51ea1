"""What the changes of images have in common: their random numbers, and pixels as numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Generator, Tensor
from torch.nn import functional

_GREY_WEIGHTS = (0.299, 0.587, 0.114)


@final
@dataclass(frozen=True)
class Draws:
    """Random numbers for the images of a batch, or for some of them that follow each other.

    They are drawn for the whole batch: an image gets the same ones whoever computes it.

    Args:
        generator: on the CPU.
        start: the first of the images.
        count: how many they are.
        total: images of the whole batch.

    Example:
        >>> whole = Draws(torch.Generator().manual_seed(0), 0, 5, 5).uniform()
        >>> torch.equal(Draws(torch.Generator().manual_seed(0), 3, 2, 5).uniform(), whole[3:])
        True
    """

    generator: Generator
    start: int
    count: int
    total: int

    def uniform(self, *kinds: int) -> Tensor:
        """Numbers from 0 to 1, ``(*kinds, N)``."""
        return self._own(torch.rand(*kinds, self.total, generator=self.generator))

    def integers(self, low: int, high: int) -> Tensor:
        """Whole numbers from ``low`` to below ``high``, ``(N,)``."""
        return self._own(torch.randint(low, high, (self.total,), generator=self.generator))

    def _own(self, drawn: Tensor) -> Tensor:
        return drawn[..., self.start : self.start + self.count]


def warped(x: Tensor, matrices: Tensor, padding: str) -> Tensor:
    """Images with their pixels taken from elsewhere in them.

    Args:
        x: ``(N, C, H, W)``.
        matrices: of an affine grid, ``(N, 2, 3)``: from a place in the new image to the place that it shows.
        padding: what lies outside: ``"border"``, ``"reflection"`` or ``"zeros"``.

    Returns:
        ``(N, C, H, W)``, of the type of ``x``.
    """
    values = floats(x)
    grid = functional.affine_grid(matrices.to(values), list(x.shape), align_corners=False)
    return like(functional.grid_sample(values, grid, mode="bilinear", padding_mode=padding, align_corners=False), x)


def each(draws: Tensor, x: Tensor) -> Tensor:
    """A number an image, where it can meet the images: ``(N,)`` to ``(N, 1, 1, 1)`` on their device."""
    return draws.to(x.device, non_blocking=True).view(-1, 1, 1, 1)


def floats(x: Tensor) -> Tensor:
    """Images as floats; those that are already stay what they are."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def limited(values: Tensor, x: Tensor) -> Tensor:
    """Values within 0 … 255 if the images are bytes; floats have no known limits."""
    return values.clamp(0, 255) if x.dtype == torch.uint8 else values


def like(values: Tensor, x: Tensor) -> Tensor:
    """Values as pixels of the images' type."""
    if x.dtype == torch.uint8:
        values = values.round().clamp(0, 255)
    return values.to(x.dtype)


def grey(values: Tensor) -> Tensor:
    """Brightness, ``(N, 1, H, W)``: of three channels as an eye sees it, of others their mean."""
    if values.shape[1] != 3:
        return values.mean(dim=1, keepdim=True)
    red, green, blue = (values[:, c : c + 1] * weight for c, weight in enumerate(_GREY_WEIGHTS))
    return red + green + blue
