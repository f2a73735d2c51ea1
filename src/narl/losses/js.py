"""Jensen-Shannon divergence loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from narl.losses.inputs import over_labels
from narl.losses.spec import Hyperparameter, RobustLoss, register
from narl.losses.stable import log1p_over

_EDGE = 1e-12
_PI1 = Hyperparameter("pi1", low=_EDGE, high=1 - _EDGE, start=0.3, default=0.5, span=(0.01, 0.99))
_SMALLEST_LOG_P = -80.0  # exp of its negative is still a float32


def js(logits: Tensor, targets: Tensor, pi1: float | Tensor) -> Tensor:
    r"""Jensen-Shannon divergence between label and prediction: cross entropy as π₁ → 0, :func:`mae` as π₁ → 1.

    .. math:: \ell(z, y) = \frac{\pi_1 \mathrm{KL}(e_y \| m) + \pi_2 \mathrm{KL}(p \| m)}{-\pi_2 \log \pi_2},
              \qquad m = \pi_1 e_y + \pi_2 p,\quad \pi_2 = 1 - \pi_1

    The limit at 1 is approached slowly, with an error that falls as :math:`1 / |\log(1 - \pi_1)|`. For probability
    targets it is the expected loss of a label drawn from them, as for every other loss here, not the divergence from
    the mixed target.

    Args:
        logits: ``(N, c)``.
        targets: class indices ``(N,)`` or probabilities ``(N, c)``.
        pi1: the label's weight in the mixture, one number or one a sample, ``(N,)``. Larger is more robust.

    Returns:
        One value a sample, ``(N,)``, at least float32.

    Example:
        >>> import torch
        >>> js(torch.zeros(1, 2), torch.tensor([0]), pi1=0.5)
        tensor([0.6226])

    Reference: Englesson, Azizpour. Generalized Jensen-Shannon divergence loss for learning with noisy labels.
    NeurIPS 2021.
    """
    return over_labels(_curve, logits, targets, (_PI1, pi1))


def _curve(log_p: Tensor, pi1: Tensor) -> Tensor:
    # With u = 1 - p_y and m_y = π₁ + π₂ p_y, the divergence is u + (m_y log m_y - π₂ p_y log p_y) / (π₂ log π₂).
    # Numerator and denominator both vanish at either end of π₁'s range. Each half of the range has a form of the same
    # quotient in which the vanishing factor has been cancelled by hand.
    p = log_p.exp()
    u = -log_p.expm1()
    towards_ce = pi1 < 0.5

    label = torch.where(towards_ce, pi1, 0.25)
    odds = label * torch.expm1(-log_p.clamp(min=_SMALLEST_LOG_P))  # m_y / p_y - 1
    rise = u * (torch.log(p + label * u) + log1p_over(odds)) + p * log_p
    near_ce = u - rise / ((1 - label) * log1p_over(-label))

    prediction = torch.where(towards_ce, 0.5, (1 - pi1).clamp(min=_EDGE / 2))
    mixed = prediction * u  # 1 - m_y
    near_mae = u - (u * (1 - mixed) * log1p_over(-mixed) + p * log_p) / torch.log(prediction)
    return torch.where(towards_ce, near_ce, near_mae)


def _pull(log_p: Tensor, pi1: Tensor) -> Tensor:
    log_pi2 = torch.where(pi1 < 0.5, torch.log1p(-pi1), (1 - pi1).clamp(min=_EDGE / 2).log())
    return log_p.exp() * softplus(pi1.log() - log_pi2 - log_p) / -log_pi2


register(RobustLoss("js", js, (_PI1,), pull=_pull))
