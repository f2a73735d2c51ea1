"""Symmetric cross entropy learning."""

from __future__ import annotations

import math

from torch import Tensor

from narl.errors import HyperparameterError
from narl.losses.inputs import over_labels
from narl.losses.spec import Hyperparameter, RobustLoss, register

_GAMMA1 = Hyperparameter("gamma1", low=0.0, high=1e6, start=0.7, default=0.1, span=(0.0, 1.0))
_GAMMA2 = Hyperparameter("gamma2", low=0.0, high=1e6, start=0.2, default=1.0, span=(0.0, 1.0))


def sl(logits: Tensor, targets: Tensor, gamma1: float | Tensor, gamma2: float | Tensor, a: float = -4.0) -> Tensor:
    r"""Symmetric cross entropy: cross entropy plus its reverse, in which log 0 is replaced by ``a``.

    .. math:: \ell(z, y) = -\gamma_1 \log p_y - \gamma_2\, a\,(1 - p_y), \qquad \gamma_1, \gamma_2 > 0,\ a < 0

    The second term is symmetric like :func:`mae`, so it carries the robustness; the first is unbounded, so no bound on
    the whole exists. A weight of exactly 0 switches a term off.

    Args:
        logits: ``(N, c)``.
        targets: class indices ``(N,)`` or probabilities ``(N, c)``.
        gamma1: weight of cross entropy, one number or one a sample, ``(N,)``.
        gamma2: weight of reverse cross entropy, likewise.
        a: what stands for log 0, negative.

    Returns:
        One value a sample, ``(N,)``, at least float32.

    Example:
        >>> import torch
        >>> sl(torch.zeros(1, 2), torch.tensor([0]), gamma1=0.0, gamma2=1.0)
        tensor([2.])

    Reference: Wang, Ma, Chen, Luo, Yi, Bailey. Symmetric cross entropy for robust learning with noisy labels. ICCV 2019
    (whose weights for CIFAR-10, 0.1 and 1, are the defaults).
    """
    if not (math.isfinite(a) and a < 0):
        raise HyperparameterError(f"a = {a} stands for log 0 and must be negative and finite: -4 is the default")

    def curve(log_p: Tensor, gamma1: Tensor, gamma2: Tensor) -> Tensor:
        return a * gamma2 * log_p.expm1() - gamma1 * log_p

    return over_labels(curve, logits, targets, (_GAMMA1, gamma1), (_GAMMA2, gamma2))


def _pull(log_p: Tensor, gamma1: Tensor, gamma2: Tensor, a: float = -4.0) -> Tensor:
    return gamma1 - a * gamma2 * log_p.exp()


register(RobustLoss("sl", sl, (_GAMMA1, _GAMMA2), pull=_pull))
