"""What all families of models share: checked sizes, the 3x3 convolution, weights that come from one generator."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable
from typing import SupportsIndex

import torch
from torch import nn

from narl.errors import OptionError


def at_least(minimum: int, **sizes: object) -> None:
    """Refuse sizes that are not whole numbers of at least ``minimum``.

    Args:
        minimum: smallest value that makes sense.
        sizes: the values, by the names that the user knows them under.

    Raises:
        OptionError: the first size that does not fit.

    Example:
        >>> at_least(1, width=0)
        Traceback (most recent call last):
        narl.errors.OptionError: width must be a whole number of at least 1, got 0
    """
    for name, value in sizes.items():
        if not isinstance(value, SupportsIndex) or operator.index(value) < minimum:
            raise OptionError(f"{name} must be a whole number of at least {minimum}, got {value!r}")


def proper_share(**shares: float) -> None:
    """Refuse shares that are not in ``[0, 1)``.

    Args:
        shares: the values, by the names that the user knows them under.

    Raises:
        OptionError: the first share that does not fit.

    Example:
        >>> proper_share(dropout=1.5)
        Traceback (most recent call last):
        narl.errors.OptionError: dropout must lie in [0, 1), got 1.5
    """
    for name, value in shares.items():
        if not isinstance(value, int | float) or not 0 <= value < 1:
            raise OptionError(f"{name} must lie in [0, 1), got {value!r}")


def conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    """A 3x3 convolution that keeps the image size at stride 1; no bias, because BatchNorm follows it.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        stride: 2 halves the image, rounding up.

    Returns:
        ``(N, in_channels, H, W)`` to ``(N, out_channels, ⌈H / stride⌉, ⌈W / stride⌉)``.

    Example:
        >>> conv3x3(3, 16, stride=2)(torch.zeros(1, 3, 5, 8)).shape
        torch.Size([1, 16, 3, 4])
    """
    return nn.Conv2d(in_channels, out_channels, kernel_size=3, stride=stride, padding=1, bias=False)


def pooled_head(features: int, num_classes: int) -> OrderedDict[str, nn.Module]:
    """The end of every image model: the mean over the image, then one linear layer.

    Args:
        features: channels that reach the pool.
        num_classes: c.

    Returns:
        Named layers, ``(N, features, H, W)`` to logits ``(N, c)`` for any image size.

    Example:
        >>> list(pooled_head(64, 10))
        ['pool', 'flatten', 'head']
    """
    return OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), head=nn.Linear(features, num_classes))


def build(make: Callable[[], nn.Sequential], generator: torch.Generator | None) -> nn.Sequential:
    r"""Make a model whose every random number comes from ``generator``.

    .. math:: W \sim \mathcal N(0,\ 2 / n_\text{in}), \qquad b = 0

    for convolutions and linear layers, with :math:`n_\text{in}` the inputs of one output unit; BatchNorm and LayerNorm
    begin as the identity. Embeddings of d numbers are drawn from :math:`\mathcal N(0, 1/d)`, vectors of length about
    1; only that of index 0, which stands for padding and the unknown, begins at zero. Torch's layers draw weights when
    they are constructed, so they are constructed without storage first: nothing is drawn twice, and with a generator
    the global random state is not touched.

    Args:
        make: constructs the layers; knows convolutions, linear layers, embeddings, BatchNorm, LayerNorm and layers
            without a state.
        generator: also decides the device; None means torch's global random state and default device.

    Returns:
        The model in training mode.

    Raises:
        TypeError: a layer with weights or buffers that it does not know, and so would leave uninitialised.

    Example:
        >>> layers = lambda: nn.Sequential(nn.Linear(2, 3))
        >>> first, second = (build(layers, torch.Generator().manual_seed(0)) for _ in range(2))
        >>> torch.equal(first[0].weight, second[0].weight)
        True

    Reference: He, Zhang, Ren, Sun. Delving deep into rectifiers: surpassing human-level performance on ImageNet
    classification. ICCV 2015.
    """
    with torch.device("meta"):
        model = make()
    model.to_empty(device=torch.get_default_device() if generator is None else generator.device)
    for module in model.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5, generator=generator)
            nn.init.zeros_(module.weight[0])
        elif isinstance(module, nn.BatchNorm2d | nn.LayerNorm):
            module.reset_parameters()
        elif any(True for _ in module.parameters(recurse=False)) or any(True for _ in module.buffers(recurse=False)):
            raise TypeError(f"build() does not know how a {type(module).__name__} begins: add it, or it keeps garbage")
    return model
