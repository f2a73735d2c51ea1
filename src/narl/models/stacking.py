"""Several models of one kind as one: narrow layers leave most of a GPU idle, side by side they fill it.

The joint model has the layers of its parts, each as wide as all of theirs together: convolutions in groups, batch
normalisation over all channels, linear layers as a batch of matrix products. No value of one part reaches another.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from narl.errors import OptionError
from narl.models.preact import PreActBlock
from narl.models.resnet import BasicBlock, ZeroPaddedShortcut


def joined(models: Sequence[nn.Module]) -> nn.Module:
    """The models as one, with copies of their weights under the same names.

    Every parameter and buffer holds those of the parts one after the other, along its first dimension.

    Args:
        models: of one architecture.

    Returns:
        From the parts' inputs side by side, ``(N, R·C, …)``, to their logits side by side, ``(N, R·c)``.

    Raises:
        OptionError: a layer that cannot be stacked, or models that differ.

    Example:
        >>> one, other = nn.Linear(2, 3), nn.Linear(2, 3)
        >>> x = torch.randn(5, 2)
        >>> both = joined([one, other])(torch.cat([x, x], dim=1))
        >>> torch.allclose(both, torch.cat([one(x), other(x)], dim=1))
        True
    """
    if len({(str(model), _shapes(model)) for model in models}) > 1:
        raise OptionError("models of several kinds cannot be stacked: give models of one architecture")
    return _joined(models)


def piece(whole: Tensor, number: int, like: Tensor) -> Tensor:
    """The part of a joint parameter or buffer that belongs to one of the models; a view.

    Args:
        whole: the joint one.
        number: of the model.
        like: the model's own.
    """
    return whole.narrow(0, number * len(like), len(like)) if like.dim() else whole[number]


def _shapes(model: nn.Module) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((name, tuple(tensor.shape)) for name, tensor in model.state_dict().items())


def _joined(models: Sequence[nn.Module]) -> nn.Module:
    first, kind = models[0], type(models[0])
    if kind in _MAKERS:
        return _MAKERS[kind](models)
    if kind not in _TRANSPARENT:
        raise OptionError(f"a {kind.__name__} cannot be stacked")
    whole = copy.copy(first)
    whole._modules = {name: _joined([model.get_submodule(name) for model in models]) for name in first._modules}
    return whole


def _convolution(parts: Sequence[nn.Module]) -> nn.Module:
    first: Any = parts[0]
    if first.padding_mode != "zeros":
        raise OptionError(f"a convolution with padding_mode {first.padding_mode!r} cannot be stacked")
    count = len(parts)
    whole = nn.Conv2d(
        count * first.in_channels,
        count * first.out_channels,
        first.kernel_size,
        stride=first.stride,
        padding=first.padding,
        dilation=first.dilation,
        groups=count * first.groups,
        bias=first.bias is not None,
        device="meta",
    )
    return _filled(whole, parts)


def _normalisation(parts: Sequence[nn.Module]) -> nn.Module:
    first: Any = parts[0]
    whole = nn.BatchNorm2d(
        len(parts) * first.num_features,
        eps=first.eps,
        momentum=first.momentum,
        affine=first.affine,
        track_running_stats=first.track_running_stats,
        device="meta",
    )
    return _filled(whole, parts)


@final
class _Linear(nn.Module):
    """``(N, R·f)`` to ``(N, R·c)``, each part by its own matrix."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        first: Any = parts[0]
        self.count = len(parts)
        self.weight = nn.Parameter(torch.empty(0))
        self.bias = None if first.bias is None else nn.Parameter(torch.empty(0))

    def forward(self, x: Tensor) -> Tensor:
        apart = x.reshape(len(x), self.count, -1).transpose(0, 1)
        weights = self.weight.reshape(self.count, -1, apart.shape[2]).transpose(1, 2)
        if self.bias is None:
            found = torch.bmm(apart, weights)
        else:
            found = torch.baddbmm(self.bias.reshape(self.count, 1, -1), apart, weights)
        return found.transpose(0, 1).flatten(1)


@final
class _Shortcut(nn.Module):
    """Option A for every part: the channels of zeros stand around each part's own."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        first: Any = parts[0]
        self.count, self.stride, self.before, self.after = len(parts), first.stride, first.before, first.after

    def forward(self, x: Tensor) -> Tensor:
        seen = x[:, :, :: self.stride, :: self.stride]
        apart = seen.reshape(len(x), self.count, -1, *seen.shape[2:])
        return F.pad(apart, (0, 0, 0, 0, self.before, self.after)).flatten(1, 2)


def _filled(whole: nn.Module, parts: Sequence[nn.Module]) -> nn.Module:
    """The layer with the parts' parameters and buffers."""
    with torch.no_grad():
        for name, own in parts[0].named_parameters(recurse=False):
            values = [part.get_parameter(name).detach() for part in parts]
            setattr(whole, name, nn.Parameter(_side_by_side(values), requires_grad=own.requires_grad))
        for name, _ in parts[0].named_buffers(recurse=False):
            setattr(whole, name, _side_by_side([part.get_buffer(name) for part in parts]))
    return whole.train(parts[0].training)


def _side_by_side(tensors: Sequence[Tensor]) -> Tensor:
    """One after the other, laid out in memory as the first one is."""
    first = tensors[0]
    if not first.dim():
        return torch.stack(list(tensors))
    values = torch.cat(list(tensors))
    last = first.dim() == 4 and first.is_contiguous(memory_format=torch.channels_last)
    return values.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def _as_it_is(parts: Sequence[nn.Module]) -> nn.Module:
    return copy.copy(parts[0])


_MAKERS: dict[type[nn.Module], Callable[[Sequence[nn.Module]], nn.Module]] = {
    nn.Conv2d: _convolution,
    nn.BatchNorm2d: _normalisation,
    nn.Linear: lambda parts: _filled(_Linear(parts), parts),
    ZeroPaddedShortcut: _Shortcut,
    nn.ReLU: _as_it_is,
    nn.Identity: _as_it_is,
    nn.AdaptiveAvgPool2d: _as_it_is,
    nn.Flatten: _as_it_is,
}
# Their forward passes join what their layers give, channel by channel.
_TRANSPARENT = (nn.Sequential, BasicBlock, PreActBlock)
