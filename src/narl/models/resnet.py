"""Residual networks for small images: ResNet-32 with option A shortcuts, ResNet-34 with projections."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from narl.models.building import at_least, build, conv3x3, pooled_head


@final
class ZeroPaddedShortcut(nn.Module):
    """Option A: every ``stride``-th pixel, with channels of zeros before and after. No parameters.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output; half of the new ones stand in front.
        stride: of the block that it bridges.

    Example:
        >>> x = torch.arange(1.0, 10.0).reshape(1, 1, 3, 3)
        >>> ZeroPaddedShortcut(1, 3, stride=2)(x)[0, :, 0]
        tensor([[0., 0.],
                [1., 3.],
                [0., 0.]])
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (out_channels - in_channels) // 2
        self.after = out_channels - in_channels - self.before

    def forward(self, x: Tensor) -> Tensor:
        """``(N, in_channels, H, W)`` to ``(N, out_channels, ⌈H / stride⌉, ⌈W / stride⌉)``."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


def projection(in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    """Option B: a learned 1x1 convolution with BatchNorm.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        stride: of the block that it bridges.

    Returns:
        ``(N, in_channels, H, W)`` to ``(N, out_channels, ⌈H / stride⌉, ⌈W / stride⌉)``.

    Example:
        >>> projection(16, 32, stride=2)(torch.zeros(1, 16, 7, 7)).shape
        torch.Size([1, 32, 4, 4])
    """
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(out_channels)
    )


@final
class BasicBlock(nn.Module):
    r"""Two 3x3 convolutions and a shortcut around them.

    .. math:: x \mapsto \operatorname{relu}(F(x) + S(x))

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        stride: of the first convolution.
        shortcut: makes S from the three numbers above where the shapes differ; elsewhere S is the identity.

    Example:
        >>> BasicBlock(16, 32, 2, ZeroPaddedShortcut)(torch.zeros(1, 16, 8, 8)).shape
        torch.Size([1, 32, 4, 4])
    """

    def __init__(
        self, in_channels: int, out_channels: int, stride: int, shortcut: Callable[[int, int, int], nn.Module]
    ) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            conv3x3(in_channels, out_channels, stride),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
            conv3x3(out_channels, out_channels),
            nn.BatchNorm2d(out_channels),
        )
        same_shape = stride == 1 and in_channels == out_channels
        self.shortcut = nn.Identity() if same_shape else shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """``(N, in_channels, H, W)`` to ``(N, out_channels, ⌈H / stride⌉, ⌈W / stride⌉)``."""
        return F.relu(self.residual(x) + self.shortcut(x))


def _network(
    widths: tuple[int, ...],
    depths: tuple[int, ...],
    shortcut: Callable[[int, int, int], nn.Module],
    num_classes: int,
    in_channels: int,
) -> nn.Sequential:
    """Stem, one stage a width (each but the first halves the image), pool, head."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        stem=nn.Sequential(conv3x3(in_channels, widths[0]), nn.BatchNorm2d(widths[0]), nn.ReLU())
    )
    before = widths[0]
    for number, (width, depth) in enumerate(zip(widths, depths, strict=True), start=1):
        layers[f"stage{number}"] = nn.Sequential(
            BasicBlock(before, width, 1 if number == 1 else 2, shortcut),
            *(BasicBlock(width, width, 1, shortcut) for _ in range(depth - 1)),
        )
        before = width
    return nn.Sequential(layers | pooled_head(before, num_classes))


def resnet32(num_classes: int = 10, in_channels: int = 3, *, generator: torch.Generator | None = None) -> nn.Sequential:
    r"""ResNet-32 for 32x32 images: three stages of five blocks, 16, 32 and 64 wide, option A shortcuts.

    .. math:: 1 + 3 \cdot 5 \cdot 2 + 1 = 32 \text{ layers with weights}

    The network of the paper's tables on CIFAR. 464,154 parameters at ten classes and three channels.

    Args:
        num_classes: c, at least 2.
        in_channels: of the images; 1 for grey ones.
        generator: source of the initial weights; None means torch's global random state.

    Returns:
        A model from images ``(N, in_channels, H, W)`` of any size to logits ``(N, c)``.

    Raises:
        OptionError: a size that is too small or no whole number.

    Example:
        >>> model = resnet32(num_classes=10, generator=torch.Generator().manual_seed(0))
        >>> model(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
        >>> sum(p.numel() for p in model.parameters())
        464154

    Reference: He, Zhang, Ren, Sun. Deep residual learning for image recognition. CVPR 2016, section 4.2.
    """
    at_least(2, num_classes=num_classes)
    at_least(1, in_channels=in_channels)
    return build(
        lambda: _network((16, 32, 64), (5, 5, 5), ZeroPaddedShortcut, num_classes, in_channels),
        generator,
    )


def resnet34(num_classes: int = 10, in_channels: int = 3, *, generator: torch.Generator | None = None) -> nn.Sequential:
    r"""ResNet-34 for 32x32 images: stages of 3, 4, 6 and 3 blocks, 64 to 512 wide, projection shortcuts.

    .. math:: 1 + (3 + 4 + 6 + 3) \cdot 2 + 1 = 34 \text{ layers with weights, projections not counted}

    The stages are those of the ImageNet network; the stem is one 3x3 convolution at stride 1 without max-pooling, as
    small images want it. 21,282,122 parameters at ten classes and three channels.

    Args:
        num_classes: c, at least 2.
        in_channels: of the images; 1 for grey ones.
        generator: source of the initial weights; None means torch's global random state.

    Returns:
        A model from images ``(N, in_channels, H, W)`` of any size to logits ``(N, c)``.

    Raises:
        OptionError: a size that is too small or no whole number.

    Example:
        >>> model = resnet34(num_classes=100, generator=torch.Generator().manual_seed(0))
        >>> model(torch.zeros(2, 3, 16, 16)).shape
        torch.Size([2, 100])

    Reference: He, Zhang, Ren, Sun. Deep residual learning for image recognition. CVPR 2016, table 1.
    """
    at_least(2, num_classes=num_classes)
    at_least(1, in_channels=in_channels)
    return build(
        lambda: _network((64, 128, 256, 512), (3, 4, 6, 3), projection, num_classes, in_channels),
        generator,
    )
