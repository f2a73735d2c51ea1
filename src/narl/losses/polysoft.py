"""Polynomial soft weighting."""

from __future__ import annotations

import torch
from torch import Tensor

from narl.losses.inputs import over_labels
from narl.losses.spec import Hyperparameter, RobustLoss, register

# Above d = 2 the loss's second derivative grows without bound towards L = λ, and the hypergradient with it: an
# adjuster stays at or below.
_LAM = Hyperparameter("lam", low=1e-3, high=1e6, start=12.0, default=6.0, span=(0.5, 20.0))
_D = Hyperparameter("d", low=1.001, high=1e6, start=1.8, default=2.0, span=(1.1, 2.0))


def polysoft(logits: Tensor, targets: Tensor, lam: float | Tensor, d: float | Tensor) -> Tensor:
    r"""Polynomial soft weighting: cross entropy that flattens out and stops at λ.

    .. math:: \ell(z, y) = \frac{(d-1)\lambda}{d} \left[ 1 - \left(1 - \frac{L}{\lambda}\right)_+^{d/(d-1)} \right],
              \qquad L = -\log p_y

    Its slope in L is the weight :math:`(1 - L/\lambda)_+^{1/(d-1)}` of self-paced learning: 1 for a sample that fits
    its label, 0 for one whose cross entropy reaches λ. Keep λ above log c: below, an untrained classifier, whose cross
    entropy is about log c everywhere, gets no gradient at all.

    Args:
        logits: ``(N, c)``.
        targets: class indices ``(N,)`` or probabilities ``(N, c)``.
        lam: λ > 0, the cross entropy above which a sample is taken for mislabelled; one number or ``(N,)``.
        d: d > 1, how late the weight falls: 2 is a straight line, ∞ a step at λ; one number or ``(N,)``.

    Returns:
        One value a sample, ``(N,)``, at least float32.

    Example:
        >>> import torch
        >>> polysoft(torch.tensor([[0.0, 0.0], [0.0, 9.0]]), torch.tensor([0, 0]), lam=4.0, d=2.0)
        tensor([0.6331, 2.0000])

    Reference: Gong, Li, Meng, Miao, Liu. Decomposition-based evolutionary multiobjective optimization to self-paced
    learning. IEEE Transactions on Evolutionary Computation 2018.
    """
    return over_labels(_curve, logits, targets, (_LAM, lam), (_D, d))


def _curve(log_p: Tensor, lam: Tensor, d: Tensor) -> Tensor:
    ceiling = (d - 1) * lam / d
    share = -log_p / lam
    below = share < 1
    share = torch.where(below, share, 0.5)  # the other branch's gradient must stay finite too
    power = d / (d - 1) * torch.log1p(-share)
    # 1 - exp(power): expm1 is exact for small powers, its derivative in torch (1 + expm1) only for those
    rising = torch.where(power > -1, -torch.expm1(power), 1 - torch.exp(power))
    return ceiling * torch.where(below, rising, 1.0)


def _pull(log_p: Tensor, lam: Tensor, d: Tensor) -> Tensor:
    return (1 + log_p / lam).clamp(min=0) ** (1 / (d - 1))


register(RobustLoss("polysoft", polysoft, (_LAM, _D), title="PolySoft", pull=_pull))
