"""Images to tensors: one size, one number of channels, standardised by the training images."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from narl.data.encoder import Encoder
from narl.data.samples import ImageFiles, Images, Inputs, Rows
from narl.errors import DataError, OptionError

_LARGEST_DEFAULT = 64
_PROBED = 200
# Standardisation needs two digits: more images would only cost time, above all where they must be decoded.
_MEASURED = {Images: 5_000, ImageFiles: 2_000}
_CHUNK = 256
_GREY_MODES = frozenset({"1", "L", "LA", "La", "I", "F", "I;16", "I;16L", "I;16B", "I;16N"})
_GREY_WEIGHTS = (0.299, 0.587, 0.114)


@final
class ImageEncoder(Encoder):
    """Images as ``(N, C, H, W)``: bytes until :meth:`finish` standardises them.

    .. math:: x' = (x / s - \\mu) / \\sigma

    with the mean and standard deviation of each channel over the training images and s = 255 for bytes, 1 for images
    of floating type. Of other images the central square is taken and resized.

    Args:
        image_size: side of the square.
        channels: 1 or 3.
        mean: one a channel, after division by ``s``.
        std: one a channel, likewise.
        floating: whether the images' values are floats, as they were given, or bytes.

    Example:
        >>> encoder = ImageEncoder.fit(Images(np.zeros((2, 8, 8, 3), dtype=np.uint8)))
        >>> encoder.shape
        {'in_channels': 3, 'image_size': 8}
        >>> encoder.encode(Images(np.zeros((1, 16, 8, 1), dtype=np.uint8))).shape
        torch.Size([1, 3, 8, 8])
    """

    kind: ClassVar[str] = "image"

    def __init__(
        self, image_size: int, channels: int, mean: tuple[float, ...], std: tuple[float, ...], *, floating: bool
    ) -> None:
        if channels not in (1, 3) or len(mean) != channels or len(std) != channels or min(std) <= 0:
            raise DataError(f"images need 1 or 3 channels with a mean and a positive std each, got {mean} and {std}")
        self.image_size, self.channels, self.mean, self.std = image_size, channels, mean, std
        self.floating = floating
        self._constants: dict[torch.device, tuple[Tensor, Tensor]] = {}

    @classmethod
    def fit(cls, inputs: Images | ImageFiles, image_size: int | None = None) -> ImageEncoder:
        """The encoder for training images like these.

        Args:
            inputs: the training images; at most 2,000 files, spread evenly, are decoded for the mean and std.
            image_size: None: the images' own if they share a square one, at most 64; 64 for files of several sizes.

        Returns:
            The encoder.
        """
        if image_size is not None and image_size < 1:
            raise OptionError(f"image_size is {image_size}, but images need a side of at least one pixel: try 32")
        own_size, channels = _measure_size(inputs)
        size = own_size if image_size is None else image_size
        floating = isinstance(inputs, Images) and inputs.pixels.dtype != np.uint8
        raw = cls(size, channels, (0.0,) * channels, (1.0,) * channels, floating=floating)
        mean, std = _measure_values(raw, inputs.take(_spread(len(inputs), _MEASURED[type(inputs)])))
        return cls(size, channels, mean, std, floating=floating)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> ImageEncoder:
        """The encoder that wrote this state."""
        mean, std = tuple(map(float, state["mean"])), tuple(map(float, state["std"]))
        return cls(int(state["image_size"]), int(state["channels"]), mean, std, floating=bool(state["floating"]))

    def state(self) -> dict[str, Any]:
        """Everything that was fitted."""
        return {
            "kind": self.kind,
            "image_size": self.image_size,
            "channels": self.channels,
            "mean": list(self.mean),
            "std": list(self.std),
            "floating": self.floating,
        }

    @property
    def shape(self) -> dict[str, Any]:
        """Channels and side of the images."""
        return {"in_channels": self.channels, "image_size": self.image_size}

    def encode(self, inputs: Inputs) -> Tensor:
        """The images, ``(N, C, H, W)``, uint8; float32 if they were given as floats.

        Files are decoded one after the other: :func:`narl.data.pools.make_pool` decodes in parallel.
        """
        if isinstance(inputs, ImageFiles):
            self._check_type(floating=False)
            return self._decode(inputs)
        if not isinstance(inputs, Images):
            raise self.refuse(inputs)
        pixels = inputs.pixels
        if pixels.ndim != 4 or pixels.shape[3] not in (1, 3):
            raise DataError(f"images have shape {pixels.shape}: they must be (N, H, W, C) with 1 or 3 channels")
        self._check_type(floating=pixels.dtype != np.uint8)
        encoded = np.empty((len(pixels), self.channels, self.image_size, self.image_size), self._dtype)
        for start in range(0, len(pixels), _CHUNK):
            part = np.ascontiguousarray(pixels[start : start + _CHUNK].transpose(0, 3, 1, 2), dtype=self._dtype)
            if self.floating and not np.isfinite(part).all():
                row = start + int((~np.isfinite(part)).any(axis=(1, 2, 3)).argmax())
                raise DataError(f"image {row} (counted from 0) holds NaN or infinity: correct it or leave it out")
            encoded[start : start + _CHUNK] = self._fitted(torch.from_numpy(part)).numpy()
        return torch.from_numpy(encoded)

    def finish(self, x: Tensor) -> Tensor:
        """A batch ``(N, C, H, W)`` standardised, float32."""
        if x.device not in self._constants:
            scale = 1.0 if self.floating else 255.0
            centre = torch.tensor(self.mean, dtype=torch.float64).mul(scale).view(-1, 1, 1)
            factor = torch.tensor(self.std, dtype=torch.float64).mul(scale).reciprocal().view(-1, 1, 1)
            self._constants[x.device] = (centre.to(x.device, torch.float32), factor.to(x.device, torch.float32))
        centre, factor = self._constants[x.device]
        return (x - centre) * factor

    @property
    def _dtype(self) -> type[np.generic]:
        return np.float32 if self.floating else np.uint8

    def _check_type(self, *, floating: bool) -> None:
        if floating != self.floating:
            given, wanted = ("floats", "bytes") if floating else ("bytes", "floats")
            raise DataError(
                f"these images hold {given} but the training images held {wanted}, whose scale differs: "
                f"give images of {wanted} as for training"
            )

    def _decode(self, inputs: ImageFiles) -> Tensor:
        from narl.data.image_files import decode

        encoded = np.empty((len(inputs), self.channels, self.image_size, self.image_size), np.uint8)
        for row in range(len(inputs)):
            encoded[row] = decode(inputs.path(row), self.image_size, self.channels)
        return torch.from_numpy(encoded)

    def _fitted(self, x: Tensor) -> Tensor:
        """Images ``(N, C, H, W)`` in the encoder's channels and size."""
        if self.channels == 3 and x.shape[1] == 1:
            x = x.expand(-1, 3, -1, -1)
        elif self.channels == 1 and x.shape[1] == 3:
            x = _like(sum(x[:, c : c + 1].float() * weight for c, weight in enumerate(_GREY_WEIGHTS)), x)
        height, width = x.shape[2:]
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        square = x[:, :, top : top + side, left : left + side]
        if side == self.image_size:
            return square
        size = (self.image_size, self.image_size)
        resized = functional.interpolate(square.float(), size, mode="bilinear", antialias=True, align_corners=False)
        return _like(resized, x)


def _like(x: Tensor | float, original: Tensor) -> Tensor:
    values = cast(Tensor, x)
    return values.round().clamp(0, 255).to(torch.uint8) if original.dtype == torch.uint8 else values


def _spread(total: int, count: int) -> Rows:
    """At most ``count`` of ``total`` rows, evenly spread: sources often come class by class."""
    return np.linspace(0, total - 1, min(total, count)).astype(np.int64)


def _measure_size(inputs: Images | ImageFiles) -> tuple[int, int]:
    """Default side and number of channels."""
    if isinstance(inputs, Images):
        height, width, channels = inputs.pixels.shape[1:]
        return min(height, width, _LARGEST_DEFAULT), channels
    from narl.data.image_files import probe

    probed = [probe(inputs.path(int(row))) for row in _spread(len(inputs), _PROBED)]
    sizes = {side for width, height, _ in probed for side in (width, height)}
    channels = 1 if all(mode in _GREY_MODES for _, _, mode in probed) else 3
    return min(sizes.pop(), _LARGEST_DEFAULT) if len(sizes) == 1 else _LARGEST_DEFAULT, channels


def _measure_values(raw: ImageEncoder, sample: Images | ImageFiles) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of every channel over the sample, in float64."""
    scale = 1.0 if raw.floating else 255.0
    count, mean, squares = 0, np.zeros(raw.channels), np.zeros(raw.channels)
    for part in _encoded_chunks(raw, sample):
        values = part.astype(np.float64).transpose(1, 0, 2, 3).reshape(raw.channels, -1) / scale
        # Merged by the parallel form of the variance, which survives a mean far above the spread.
        own, number = values.mean(axis=1), values.shape[1]
        delta, total = own - mean, count + number
        squares += ((values - own[:, None]) ** 2).sum(axis=1) + delta**2 * count * number / total
        mean, count = mean + delta * number / total, total
    std = np.sqrt(squares / count)
    varies = std > 1e-7 * np.abs(mean) + 1e-12  # otherwise the channel is constant, apart from rounding
    return tuple(mean.tolist()), tuple(np.where(varies, std, 1.0).tolist())


def _encoded_chunks(raw: ImageEncoder, sample: Images | ImageFiles) -> Iterator[NDArray[Any]]:
    rows = np.arange(len(sample))
    chunks = np.array_split(rows, math.ceil(len(rows) / _CHUNK))
    if isinstance(sample, Images):
        yield from (raw.encode(sample.take(chunk)).numpy() for chunk in chunks)
        return
    with ThreadPoolExecutor() as workers:
        for chunk in chunks:
            pieces = [sample.take(piece) for piece in np.array_split(chunk, 8) if len(piece)]
            yield np.concatenate([piece.numpy() for piece in workers.map(raw.encode, pieces)])
