"""Batch normalisation with its backward and its tangent pass written out.

torch's own has all three as well, but the tangent comes in the weights' precision whatever the inputs' is, in many
small operations. Here each pass has the fewest reductions over the batch that it can have: two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    r"""What ``torch.nn.functional.batch_norm`` computes, in float32 at least, given out in the input's precision.

    .. math:: y = w \hat x + b, \quad \hat x = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}}, \qquad
              \dot{\hat x} = \frac{1}{\sqrt{\sigma^2 + \epsilon}}
              \big(\dot x - \overline{\dot x} - \hat x\, \overline{\dot x \hat x}\big)

    Takes the same arguments in the same order; can be differentiated once, in either mode or in both.

    Example:
        >>> x = torch.randn(8, 3, 4, 4)
        >>> ours = batch_norm(x, None, None, training=True)
        >>> torch.allclose(ours, torch.nn.functional.batch_norm(x, None, None, training=True), atol=1e-5)
        True
    """
    lifted = torch.promote_types(input.dtype, torch.float32)
    scale = input.new_ones(input.shape[1], dtype=lifted) if weight is None else weight
    shift = input.new_zeros(input.shape[1], dtype=lifted) if bias is None else bias
    if not training and running_mean is not None and running_var is not None:
        rate = scale.to(lifted) * torch.rsqrt(running_var.to(lifted) + eps)
        centred = input.to(lifted) - _along(running_mean.to(lifted), input)
        return (centred * _along(rate, input) + _along(shift.to(lifted), input)).to(input.dtype)
    values, mean, variance = _Normalised.apply(input, scale, shift, eps)  # type: ignore[no-untyped-call]
    if training and running_mean is not None and running_var is not None:
        count = input.numel() // input.shape[1]
        with torch.no_grad():
            unbiased = variance.detach() * (count / max(count - 1, 1))
            running_mean.mul_(1 - momentum).add_(mean.detach().to(running_mean.dtype), alpha=momentum)
            running_var.mul_(1 - momentum).add_(unbiased.to(running_var.dtype), alpha=momentum)
    return values  # type: ignore[no-any-return]


class _Normalised(Function):
    """``(x, w, b, ε) → (y, μ, σ²)``; the last two are for the running statistics, without derivatives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        lifted = torch.promote_types(x.dtype, torch.float32)
        variance, mean = torch.var_mean(x.to(lifted), dim=_but_channels(x), correction=0)
        rate = torch.rsqrt(variance + eps)
        ctx.save_for_backward(x, weight, mean, rate)
        ctx.save_for_forward(x, weight, mean, rate)
        ctx.mark_non_differentiable(mean, variance)
        ctx.set_materialize_grads(False)
        normalised = (x.to(lifted) - _along(mean, x)) * _along(rate, x)
        values = normalised * _along(weight.to(lifted), x) + _along(bias.to(lifted), x)
        return values.to(x.dtype), mean, variance

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        slope = slopes[0]
        if slope is None:
            return None, None, None, None
        x, weight, mean, rate = ctx.saved_tensors
        normalised = (x.to(rate.dtype) - _along(mean, x)) * _along(rate, x)
        slope = slope.to(rate.dtype)
        count = x.numel() // x.shape[1]
        by_bias = slope.sum(_but_channels(x))
        by_weight = (slope * normalised).sum(_but_channels(x))
        part = slope - _along(by_bias / count, x) - normalised * _along(by_weight / count, x)
        by_x = part * _along(weight.to(rate.dtype) * rate, x)
        return by_x.to(x.dtype), by_weight.to(weight.dtype), by_bias.to(weight.dtype), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, None, None]:
        along_x, along_weight, along_bias = tangents[:3]
        x, weight, mean, rate = ctx.saved_tensors
        normalised = (x.to(rate.dtype) - _along(mean, x)) * _along(rate, x)
        result = torch.zeros_like(normalised)
        if along_x is not None:
            along_x = along_x.to(rate.dtype)
            dims = _but_channels(x)
            centred = along_x - _along(along_x.mean(dims), x)
            spread = normalised * _along((along_x * normalised).mean(dims), x)
            result = (centred - spread) * _along(weight.to(rate.dtype) * rate, x)
        if along_weight is not None:
            result = result + normalised * _along(along_weight.to(rate.dtype), x)
        if along_bias is not None:
            result = result + _along(along_bias.to(rate.dtype), x)
        return result.to(x.dtype), None, None


def _but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _along(values: Tensor, x: Tensor) -> Tensor:
    """One value a channel, shaped to go with ``x``."""
    return values.view(1, -1, *[1] * (x.dim() - 2))
