"""Generalised cross entropy."""

from __future__ import annotations

from torch import Tensor

from narl.losses.inputs import over_labels
from narl.losses.spec import Hyperparameter, RobustLoss, register
from narl.losses.stable import expm1_over

_Q = Hyperparameter("q", low=1e-12, high=1.0, start=0.3, default=0.7, span=(0.01, 1.0))


def gce(logits: Tensor, targets: Tensor, q: float | Tensor) -> Tensor:
    r"""Generalised cross entropy: cross entropy as q → 0, :func:`mae` at q = 1.

    .. math:: \ell(z, y) = \frac{1 - p_y^q}{q}, \qquad q \in (0, 1]

    Args:
        logits: ``(N, c)``.
        targets: class indices ``(N,)`` or probabilities ``(N, c)``.
        q: one number or one a sample, ``(N,)``. Larger is more robust, smaller learns better.

    Returns:
        One value a sample, ``(N,)``, at least float32.

    Example:
        >>> import torch
        >>> gce(torch.zeros(2, 2), torch.tensor([0, 1]), q=torch.tensor([0.5, 1.0]))
        tensor([0.5858, 0.5000])

    Reference: Zhang, Sabuncu. Generalized cross entropy loss for training deep neural networks with noisy labels.
    NeurIPS 2018 (whose q = 0.7 is the default).
    """
    return over_labels(_curve, logits, targets, (_Q, q))


def _curve(log_p: Tensor, q: Tensor) -> Tensor:
    # (1 - exp(q log p)) / q, written so that neither q → 0 nor p → 0 divides by zero.
    return -log_p * expm1_over(q * log_p)


def _pull(log_p: Tensor, q: Tensor) -> Tensor:
    return (q * log_p).exp()


register(RobustLoss("gce", gce, (_Q,), pull=_pull))
