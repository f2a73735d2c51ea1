"""What label noise costs: the risks' inequalities of Theorem 1, for symmetric and for class-dependent noise."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor

from narl.errors import NoiseError, OptionError
from narl.theory.sums import Bounds, checked_num_classes


def excess_risk_bound(bounds: Bounds, num_classes: int, rate: float) -> float:
    r"""How much worse on noisy labels the best classifier for clean labels can be, under symmetric noise.

    With f* the minimiser of the clean risk R and f̂ that of the noisy risk :math:`R^\eta`, over any set of classifiers,

    .. math:: 0 \le R^\eta(f^*) - R^\eta(\hat f) \le \frac{\eta\,(C_U - C_L)}{c - 1},

    because :math:`R^\eta(f) = \big(1 - \tfrac{\eta c}{c - 1}\big) R(f) + \tfrac{\eta}{c - 1} E\,S(f)`.

    Args:
        bounds: of the loss, from :func:`bounds` or :func:`noise_aware_bounds`.
        num_classes: c, at least 2.
        rate: η, the share of labels that moved to one of the other classes, below 1 - 1/c. The paper writes ≤, but at
            equality a label says nothing and the bound of :func:`clean_risk_gap_bound` divides by zero.

    Returns:
        The right-hand side.

    Example:
        >>> from narl.theory import bounds
        >>> round(excess_risk_bound(bounds("gce", 10, q=0.7), 10, rate=0.4), 4)
        0.0632

    Reference: Theorem 1 of the paper.
    """
    c, rate = checked_num_classes(num_classes), checked_rate(rate, num_classes)
    return rate * _checked_gap(bounds) / (c - 1) if rate else 0.0


def clean_risk_gap_bound(bounds: Bounds, num_classes: int, rate: float) -> float:
    r"""How much worse on clean labels the best classifier for noisy labels can be, under symmetric noise.

    .. math:: 0 \le R(\hat f) - R(f^*) \le \frac{\eta\,(C_U - C_L)}{c - 1 - \eta c}

    Args:
        bounds: of the loss, from :func:`bounds` or :func:`noise_aware_bounds`.
        num_classes: c, at least 2.
        rate: η, as for :func:`excess_risk_bound`.

    Returns:
        The right-hand side.

    Example:
        >>> from narl.theory import bounds
        >>> round(clean_risk_gap_bound(bounds("gce", 10, q=0.7), 10, rate=0.4), 4)
        0.1137

    Reference: Theorem 1 of the paper.
    """
    c, rate = checked_num_classes(num_classes), checked_rate(rate, num_classes)
    return rate * _checked_gap(bounds) / (c - 1 - rate * c) if rate else 0.0


def asymmetric_excess_risk_bound(
    bounds: Bounds, class_rates: Sequence[float] | Tensor, class_priors: Sequence[float] | Tensor | None = None
) -> float:
    r"""How much worse on noisy labels the best classifier for clean labels can be, under class-dependent noise.

    .. math:: 0 \le R^\eta(f^*) - R^\eta(\hat f) \le (C_U - C_L)\; E[1 - \eta_y]

    With :math:`\eta_{yj}` the share of class y that moves to j and :math:`\eta_y = \sum_{j \ne y} \eta_{yj}`, a
    sample's expected loss is

    .. math:: (1 - \eta_y)\,\ell(f, y) + \sum_{j \ne y} \eta_{yj}\,\ell(f, j)
              = (1 - \eta_y)\, S(f) - \sum_{j \ne y} (1 - \eta_y - \eta_{yj})\,\ell(f, j).

    From f̂ to f* the first term grows by at most :math:`(1 - \eta_y)(C_U - C_L)`, and the second adds nothing if

    - :math:`\eta_{yj} \le 1 - \eta_y`: no wrong class gets more of class y than stays, so all weights are ≥ 0; and
    - :math:`R(f^*) = 0`: every loss here is zero at :math:`p_y = 1` only and falls with p, so at f* a wrong label has
      probability 0 and the largest loss there is, :math:`\ell(f^*, j) \ge \ell(\hat f, j)`.

    Zero clean risk cannot be dropped. MAE has gap 0, but with clean labels (0.6, 0.4, 0) at one x and 0.4 of class 0
    moving to class 1, f* says class 0 and f̂ class 1, and the difference is 0.28.

    Args:
        bounds: of the loss, from :func:`bounds`.
        class_rates: :math:`\eta_y` of every class, ``(c,)``, each below 1 - 1/c (else some wrong class gets more than
            stays). That :math:`\eta_{yj} \le 1 - \eta_y` is for the caller to know.
        class_priors: the share of each class among the clean labels, ``(c,)``; equal shares if omitted.

    Returns:
        The right-hand side.

    Example:
        >>> from narl.theory import bounds
        >>> round(asymmetric_excess_risk_bound(bounds("gce", 3, q=0.7), [0.4, 0.0, 0.2]), 4)
        0.4462

    Reference: Zhang, Sabuncu. Generalized cross entropy loss for training deep neural networks with noisy labels.
    NeurIPS 2018, Theorem 2 (for GCE; the argument is the same for any bounded loss).
    """
    rates = torch.as_tensor(class_rates, dtype=torch.float64)
    if rates.dim() != 1 or len(rates) < 2:
        raise NoiseError(
            f"class_rates has shape {tuple(rates.shape)}: give one noise rate a class, two or more classes"
        )
    c = len(rates)
    rates = torch.tensor([checked_rate(rate, c) for rate in rates.tolist()], dtype=torch.float64)
    priors = torch.full_like(rates, 1 / c) if class_priors is None else torch.as_tensor(class_priors).to(rates)
    if priors.shape != rates.shape:
        raise OptionError(
            f"class_priors has shape {tuple(priors.shape)}, but there are {c} class rates: give {c} shares"
        )
    if not bool((priors >= 0).all()) or abs(float(priors.sum()) - 1) > 1e-6:
        raise OptionError(f"class_priors is {priors.tolist()}: shares are at least 0 and sum to 1; divide by their sum")
    return _checked_gap(bounds) * float((priors * (1 - rates)).sum())


def checked_rate(rate: float, num_classes: int) -> float:
    """A rate of symmetric noise with which labels still say something, or one clear error."""
    if not isinstance(rate, Real) or not 0 <= rate <= 1:
        raise NoiseError(f"rate is {rate!r}, but a noise rate is a share from 0 to 1: write 0.4 for 40 %")
    if num_classes - 1 - rate * num_classes <= 1e-12 * num_classes:
        raise NoiseError(
            f"rate is {rate!r}, but with {num_classes} classes the theory ends below 1 - 1/{num_classes} = "
            f"{1 - 1 / num_classes:.4g}, where a wrong class can be as frequent as the right one: give a smaller rate"
        )
    return float(rate)


def _checked_gap(bounds: Bounds) -> float:
    if not bounds.lower <= bounds.upper:
        raise OptionError(
            f"the lower bound {bounds.lower:g} is above the upper bound {bounds.upper:g}, so no such loss exists: "
            "if they come from printed_bounds, use bounds() instead"
        )
    return bounds.gap
