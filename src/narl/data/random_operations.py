"""Random operations on images, another one for each image of a batch, the whole batch at once.

Images that get the same operation are brought side by side, so each operation works on its own images only, and all
operations of shape are one affine map. The draws are made on the host: nothing waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from narl.data.pixels import Draws, each, floats, grey, like, limited, warped

_FACTOR = 0.9
_BITS = 4.0
_DEGREES, _SHEAR, _MOVE = 30.0, 0.3, 0.3
_CENTRE = 5.0  # of the 3 x 3 kernel that blurs, whose other weights are 1


def operated(x: Tensor, draws: Draws, times: int = 1) -> Tensor:
    """Images changed by one random operation each, once or several times.

    Args:
        x: ``(N, C, H, W)``, bytes or floats.
        draws: random numbers.
        times: operations one after the other.

    Returns:
        ``(N, C, H, W)``.

    Example:
        >>> x = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
        >>> operated(x, Draws(torch.Generator().manual_seed(0), 0, 2, 2)).shape
        torch.Size([2, 3, 8, 8])
    """
    values = limited(floats(x), x)
    for _ in range(times):
        chosen = draws.integers(0, len(OPERATIONS))
        strength, side = draws.uniform(2)
        values = _one_each(values, x, chosen, strength * torch.where(side < 0.5, -1.0, 1.0))
    return like(values, x)


def _one_each(values: Tensor, x: Tensor, chosen: Tensor, amounts: Tensor) -> Tensor:
    """Each image changed by its operation, with an amount from -1 to 1."""
    order = chosen.argsort(stable=True)
    counts = torch.bincount(chosen, minlength=len(OPERATIONS)).tolist()
    # What is small goes over in one piece and is limited once: of a batch's work, starting it is what costs.
    there, back = torch.stack([order, order.argsort()]).to(values.device, non_blocking=True)
    amounts = amounts[order]
    shapes = counts[-len(_MAPS) :]
    sizes = [*counts[: len(_COLOURS) + 1], sum(shapes)]
    beside = values[there]
    parts = list(torch.split(beside, sizes))
    given = [torch.split(numbers, sizes) for numbers in (each(amounts, values), *_limits(beside, x))]
    for number, operation in enumerate(_COLOURS.values(), start=1):
        if len(parts[number]):
            parts[number] = operation(parts[number], *(numbers[number] for numbers in given))
    if len(parts[-1]):
        matrices = _matrices(amounts[len(x) - sum(shapes) :], shapes, *x.shape[2:])
        parts[-1] = warped(parts[-1], matrices.to(values.device, non_blocking=True), "reflection")
    return limited(torch.cat(parts)[back], x)


def _limits(values: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The darkest and the brightest that a pixel can be, ``(N, 1, 1, 1)``: of floats, what is in the image."""
    if x.dtype == torch.uint8:
        none = values.new_zeros(1, 1, 1, 1).expand(len(values), 1, 1, 1)
        return none, values.new_full((1, 1, 1, 1), 255.0).expand(len(values), 1, 1, 1)
    return values.amin(dim=(1, 2, 3), keepdim=True), values.amax(dim=(1, 2, 3), keepdim=True)


def _brightness(values: Tensor, amount: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return low + (values - low) * (1 + _FACTOR * amount).to(values)


def _contrast(values: Tensor, amount: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.lerp(grey(values).mean(dim=(2, 3), keepdim=True), values, (1 + _FACTOR * amount).to(values))


def _saturation(values: Tensor, amount: Tensor, low: Tensor, high: Tensor) -> Tensor:
    if values.shape[1] != 3:
        return values  # grey has none
    return torch.lerp(grey(values).expand_as(values), values, (1 + _FACTOR * amount).to(values))


def _sharpness(values: Tensor, amount: Tensor, low: Tensor, high: Tensor) -> Tensor:
    number, channels, height, width = values.shape
    kernel = values.new_ones(1, 1, 3, 3)
    kernel[..., 1, 1] = _CENTRE
    apart = functional.pad(values.reshape(number * channels, 1, height, width), (1, 1, 1, 1), mode="replicate")
    blurred = functional.conv2d(apart, kernel / kernel.sum()).view_as(values)
    return torch.lerp(blurred, values, (1 + _FACTOR * amount).to(values))


def _spread(values: Tensor, amount: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Every channel stretched over all that there is; one that is the same everywhere stays."""
    least, most = values.amin(dim=(2, 3), keepdim=True), values.amax(dim=(2, 3), keepdim=True)
    span = most - least
    stretched = low + (values - least) / torch.where(span > 0, span, 1) * (high - low)
    return torch.where(span > 0, stretched, values)


def _posterised(values: Tensor, amount: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Fewer steps of brightness, 2⁸ to 2⁴ of them; a step's values become its lowest."""
    steps = torch.exp2(8 - torch.floor(_BITS * amount.abs() + 0.5)).to(values)
    share = (values - low) / (high - low).clamp(min=torch.finfo(values.dtype).tiny)
    return low + (high - low) * (torch.floor(share * steps).clamp(max=steps - 1) / steps)


def _solarised(values: Tensor, amount: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """What is brighter than a threshold turned into its negative."""
    threshold = high - amount.abs().to(values) * (high - low)
    return torch.where(values >= threshold, low + high - values, values)


def _matrices(amounts: Tensor, counts: list[int], height: int, width: int) -> Tensor:
    """Of an affine grid, ``(N, 2, 3)``, for images with the same map side by side."""
    found = torch.eye(2, 3).repeat(len(amounts), 1, 1)
    for write, part, of_part in zip(
        _MAPS.values(), torch.split(found, counts), torch.split(amounts, counts), strict=True
    ):
        write(part, of_part, height, width)
    return found


def _turned(matrices: Tensor, amounts: Tensor, height: int, width: int) -> None:
    angles = math.radians(_DEGREES) * amounts
    cos, sin = angles.cos(), angles.sin()  # an affine grid measures both sides in halves of themselves
    matrices[:, 0, 0], matrices[:, 0, 1] = cos, -sin * (height / width)
    matrices[:, 1, 0], matrices[:, 1, 1] = sin * (width / height), cos


def _sheared_across(matrices: Tensor, amounts: Tensor, height: int, width: int) -> None:
    matrices[:, 0, 1] = _SHEAR * amounts * (height / width)


def _sheared_along(matrices: Tensor, amounts: Tensor, height: int, width: int) -> None:
    matrices[:, 1, 0] = _SHEAR * amounts * (width / height)


def _moved_across(matrices: Tensor, amounts: Tensor, height: int, width: int) -> None:
    matrices[:, 0, 2] = 2 * _MOVE * amounts


def _moved_along(matrices: Tensor, amounts: Tensor, height: int, width: int) -> None:
    matrices[:, 1, 2] = 2 * _MOVE * amounts


_COLOURS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "brightness": _brightness,
    "contrast": _contrast,
    "saturation": _saturation,
    "sharpness": _sharpness,
    "spread": _spread,
    "posterised": _posterised,
    "solarised": _solarised,
}
_MAPS: dict[str, Callable[[Tensor, Tensor, int, int], None]] = {
    "turned": _turned,
    "sheared across": _sheared_across,
    "sheared along": _sheared_along,
    "moved across": _moved_across,
    "moved along": _moved_along,
}

OPERATIONS = ("none", *_COLOURS, *_MAPS)
"""What can happen to an image, each as likely as the others.

Brightness, contrast, saturation and sharpness change by a factor from 0.1 to 1.9; ``spread`` stretches each channel
over the whole range; ``posterised`` leaves 2⁸ to 2⁴ steps of brightness; ``solarised`` inverts what is brighter than a
random threshold. Images turn by up to 30 degrees, shear by up to 0.3, and move by up to 0.3 of their side, what comes
in from outside being their reflection.
"""
