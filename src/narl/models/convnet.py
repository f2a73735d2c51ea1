"""A small convolutional network for small images and short runs."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from narl.models.building import at_least, build, conv3x3, pooled_head


def _network(num_classes: int, in_channels: int, width: int) -> nn.Sequential:
    """Convolution, BatchNorm, ReLU, four times; pool, head."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    before = in_channels
    for number, (channels, stride) in enumerate(((width, 1), (width, 2), (2 * width, 1), (2 * width, 2)), start=1):
        layers[f"layer{number}"] = nn.Sequential(conv3x3(before, channels, stride), nn.BatchNorm2d(channels), nn.ReLU())
        before = channels
    return nn.Sequential(layers | pooled_head(before, num_classes))


def convnet(
    num_classes: int = 10, in_channels: int = 3, width: int = 32, *, generator: torch.Generator | None = None
) -> nn.Sequential:
    r"""Four 3x3 convolutions with BatchNorm, for 8x8 digits or 28x28 clothes on a processor without a GPU.

    .. math:: \text{channels}\; w,\ w,\ 2w,\ 2w \quad\text{at strides}\; 1,\ 2,\ 1,\ 2

    The strides halve the image, not a pool, so that images of any size pass, down to one pixel. 66,410 parameters at
    ten classes, three channels and the default width.

    Args:
        num_classes: c, at least 2.
        in_channels: of the images; 1 for grey ones.
        width: w, channels of the first two layers.
        generator: source of the initial weights; None means torch's global random state.

    Returns:
        A model from images ``(N, in_channels, H, W)`` of any size to logits ``(N, c)``.

    Raises:
        OptionError: a size that is too small or no whole number.

    Example:
        >>> model = convnet(num_classes=10, in_channels=1, generator=torch.Generator().manual_seed(0))
        >>> model(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
        >>> sum(p.numel() for p in convnet().parameters())
        66410

    Reference: Ioffe, Szegedy. Batch normalization: accelerating deep network training by reducing internal covariate
    shift. ICML 2015.
    """
    at_least(2, num_classes=num_classes)
    at_least(1, in_channels=in_channels, width=width)
    return build(lambda: _network(num_classes, in_channels, width), generator)
