"""Residual networks with the activation before the convolution: PreAct ResNet-18 for small images."""

from __future__ import annotations

from collections import OrderedDict
from typing import final

import torch
from torch import Tensor, nn

from narl.models.building import at_least, build, conv3x3, pooled_head


@final
class PreActBlock(nn.Module):
    r"""BatchNorm and ReLU before each of two 3x3 convolutions, and a shortcut that nothing is applied to afterwards.

    .. math:: x \mapsto F(a) + S(x) \quad\text{or}\quad F(a) + S(a), \qquad a = \operatorname{relu}(\mathrm{BN}(x))

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        stride: of the first convolution.
        opens_stage: the shortcut leaves after the first activation (the right form), and is a 1x1 convolution where
            the shapes differ. All other blocks have the left form with S the identity.

    Example:
        >>> PreActBlock(64, 128, stride=2, opens_stage=True)(torch.zeros(1, 64, 8, 8)).shape
        torch.Size([1, 128, 4, 4])
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1, *, opens_stage: bool = False) -> None:
        super().__init__()
        self.opens_stage = opens_stage
        self.activation = nn.Sequential(nn.BatchNorm2d(in_channels), nn.ReLU())
        self.residual = nn.Sequential(
            conv3x3(in_channels, out_channels, stride),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
            conv3x3(out_channels, out_channels),
        )
        same_shape = stride == 1 and in_channels == out_channels
        self.shortcut = nn.Identity() if same_shape else nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``(N, in_channels, H, W)`` to ``(N, out_channels, ⌈H / stride⌉, ⌈W / stride⌉)``."""
        activated = self.activation(x)
        shortcut: Tensor = self.shortcut(activated if self.opens_stage else x)
        residual: Tensor = self.residual(activated)
        return residual + shortcut


def _network(num_classes: int, in_channels: int) -> nn.Sequential:
    """A bare convolution, four stages of two blocks, the activation that the last block lacks, pool, head."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=conv3x3(in_channels, 64))
    before = 64
    for number, width in enumerate((64, 128, 256, 512), start=1):
        layers[f"stage{number}"] = nn.Sequential(
            PreActBlock(before, width, stride=1 if number == 1 else 2, opens_stage=True), PreActBlock(width, width)
        )
        before = width
    layers["activation"] = nn.Sequential(nn.BatchNorm2d(before), nn.ReLU())
    return nn.Sequential(layers | pooled_head(before, num_classes))


def preact_resnet18(
    num_classes: int = 10, in_channels: int = 3, *, generator: torch.Generator | None = None
) -> nn.Sequential:
    r"""Pre-activation ResNet-18 for 32x32 images: four stages of two blocks, 64 to 512 wide.

    .. math:: 1 + 4 \cdot 2 \cdot 2 + 1 = 18 \text{ layers with weights, projections not counted}

    The form of the paper's appendix: the first activation comes before the paths part, and the last block is followed
    by BatchNorm and ReLU before the pool. 11,172,170 parameters at ten classes and three channels. The code that goes
    round for CIFAR leaves that last BatchNorm out and so has 2 · 512 fewer: 11,171,146.

    Args:
        num_classes: c, at least 2.
        in_channels: of the images; 1 for grey ones.
        generator: source of the initial weights; None means torch's global random state.

    Returns:
        A model from images ``(N, in_channels, H, W)`` of any size to logits ``(N, c)``.

    Raises:
        OptionError: a size that is too small or no whole number.

    Example:
        >>> model = preact_resnet18(num_classes=10, generator=torch.Generator().manual_seed(0))
        >>> model(torch.zeros(2, 3, 16, 16)).shape
        torch.Size([2, 10])
        >>> sum(p.numel() for p in model.parameters())
        11172170

    Reference: He, Zhang, Ren, Sun. Identity mappings in deep residual networks. ECCV 2016.
    """
    at_least(2, num_classes=num_classes)
    at_least(1, in_channels=in_channels)
    return build(lambda: _network(num_classes, in_channels), generator)
