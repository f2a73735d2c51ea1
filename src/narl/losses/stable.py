"""Quotients that are 0/0 at zero, with derivatives of every order that survive it."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

_NEAR_ZERO = 0.1
_TERMS = {torch.float64: 17}  # 0.1 ** 17 is below float64's rounding; float32 needs 8


def expm1_over(x: Tensor) -> Tensor:
    r"""``(exp(x) - 1) / x``, 1 at zero.

    Args:
        x: any shape.

    Returns:
        Same shape.

    Example:
        >>> expm1_over(torch.tensor([0.0, 1.0]))
        tensor([1.0000, 1.7183])
    """
    return _quotient(x, torch.expm1, lambda k: 1 / math.factorial(k + 1))


def log1p_over(x: Tensor) -> Tensor:
    r"""``log(1 + x) / x``, 1 at zero.

    Args:
        x: any shape, above -1.

    Returns:
        Same shape.

    Example:
        >>> log1p_over(torch.tensor([0.0, 1.0]))
        tensor([1.0000, 0.6931])
    """
    return _quotient(x, torch.log1p, lambda k: (-1) ** k / (k + 1))


def _quotient(x: Tensor, function: Callable[[Tensor], Tensor], coefficient: Callable[[int], float]) -> Tensor:
    # Autograd of function(x) / x cancels catastrophically near zero, more with every order; the power series does not.
    near = x.abs() < _NEAR_ZERO
    small = torch.where(near, x, 0.0)
    series = torch.zeros_like(x)
    for k in reversed(range(_TERMS.get(x.dtype, 8))):
        series = series * small + coefficient(k)
    far = torch.where(near, 1.0, x)
    return torch.where(near, series, function(far) / far)
