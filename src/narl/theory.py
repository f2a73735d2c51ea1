r"""How far from symmetric a loss is, and what that costs under label noise: the paper's theorems, checked.

A loss whose sum over all labels, :math:`S(z) = \sum_{j=1}^c \ell(z, j)`, is the same for every prediction is not misled
by symmetric noise. For the others, noise costs at most a multiple of :math:`C_U - C_L`, the room in which S moves.
:func:`bounds` gives the right ends of that room, :func:`printed_bounds` the paper's.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import SupportsIndex

import torch
from torch import Tensor

from narl import losses
from narl.checks import at_least_float32, can_read, check_logits
from narl.errors import HyperparameterError, LogitsError, NoiseError, OptionError, UnknownNameError, nearest

__all__ = [
    "Bounds",
    "adjusted_gce_bounds",
    "asymmetric_excess_risk_bound",
    "bounds",
    "clean_risk_gap_bound",
    "excess_risk_bound",
    "noise_aware_bounds",
    "positive_margins",
    "printed_bounds",
]


@dataclass(frozen=True)
class Bounds:
    """The ends between which a loss, summed over all labels, stays.

    Args:
        lower: the paper's C_L.
        upper: the paper's C_U; infinite for an unbounded loss.

    Example:
        >>> Bounds(9.0, 10.5).gap
        1.5
    """

    lower: float
    upper: float

    @property
    def gap(self) -> float:
        """C_U - C_L, 0 for a symmetric loss."""
        return self.upper - self.lower


def bounds(loss: str, num_classes: int, **hyperparameters: float) -> Bounds:
    r"""The smallest and the largest sum of a loss over all labels, over all predictions.

    .. math:: C_L = \inf_z \sum_{j=1}^c \ell(z, j), \qquad C_U = \sup_z \sum_{j=1}^c \ell(z, j)

    Both are tight. Write :math:`\ell(z, j) = \phi(p_j)`. For CE, GCE, SL and JS, φ is convex, so :math:`C_L = c\,
    \phi(1/c)`, the uniform prediction, and :math:`C_U = (c - 1)\,\phi(0)`, a vertex of the simplex; for JS,
    :math:`\phi(0) = 1 + \pi_1 \log \pi_1 / (\pi_2 \log \pi_2)`. MAE and RCE are symmetric.

    PolySoft is its ceiling :math:`M = (d - 1)\lambda/d` up to :math:`p = e^{-\lambda}`, then concave, then convex. The
    sum is least for a uniform prediction on k of the c classes, and k is one of the two integers around
    :math:`e^{\lambda - d/(d-1)}`, or the end of 1 … c next to it:

    .. math:: C_L = \min_k\; (c - k) M + k\,\phi(1/k)

    It is largest at the uniform prediction (and then :math:`cM` if :math:`\lambda \le \log c`), or where one class has
    more than the others and these share the rest evenly (slightly above :math:`(c - 1) M` for large λ).

    Args:
        loss: ``"ce"``, ``"mae"``, ``"gce"``, ``"rce"`` (the reverse cross entropy in SL), ``"sl"``, ``"polysoft"`` or
            ``"js"``; case is ignored.
        num_classes: c, at least 2.
        hyperparameters: as the loss takes them, ``a`` for ``"rce"`` and ``"sl"``; the loss's defaults if omitted.

    Returns:
        C_L and C_U.

    Example:
        >>> bounds("gce", 10, q=1.0).gap
        0.0
        >>> bounds("ce", 10).upper
        inf
        >>> round(bounds("polysoft", 10, lam=2.4, d=2.0).lower, 3)
        10.786

    Reference: Theorem 1 of the paper, corrected.
    """
    return _evaluate(_RIGHT, "no bound is known for a loss called", loss, num_classes, hyperparameters)


def printed_bounds(loss: str, num_classes: int, **hyperparameters: float) -> Bounds:
    r"""The bounds as the paper prints them in Theorem 1; :func:`bounds` gives the right ones.

    .. math:: \text{PolySoft:}\quad C_L = \frac{c(d-1)\log c}{d}, \qquad C_U = \frac{c(d-1)\lambda}{d}

    Those of GCE, RCE and JS are right and tight (for RCE the paper says only that they are equal). Of PolySoft's,

    - C_L fails for :math:`\lambda < c \log c / (c - 1)`: with c = 10, λ = 2.4, d = 2 it is 11.513, but a prediction
      that is sure of one class has the sum (c - 1)(d - 1)λ/d = 10.8. For λ < log c it even exceeds C_U. It holds, but
      is loose, for :math:`\lambda \ge 1 + \log c`; in between d decides (c = 10, λ = 2.6: it holds for 2, not for 3).
    - C_U holds. It is tight for :math:`\lambda \le \log c` and loose above: 30 against 27.02 for c = 10, λ = 6, d = 2.

    Args:
        loss: ``"gce"``, ``"rce"``, ``"polysoft"`` or ``"js"``.
        num_classes: c, at least 2.
        hyperparameters: as for :func:`bounds`.

    Returns:
        The printed C_L and C_U. Where they fail, ``gap`` is too small, or negative.

    Example:
        >>> round(printed_bounds("polysoft", 10, lam=2.4, d=2.0).lower, 3)
        11.513

    Reference: Theorem 1 of the paper.
    """
    return _evaluate(_PRINTED, "Theorem 1 prints no bounds for a loss called", loss, num_classes, hyperparameters)


def noise_aware_bounds(loss: str, num_classes: int, *, tight: bool = False, **hyperparameters: float) -> Bounds:
    r"""The bounds of Theorem 2: of a loss whose hyperparameters are ideal for every label.

    Ideal means: the one label with positive margin, k, is taken for the right one, the others for wrong. GCE and JS
    become cross entropy on k and MAE on the others; then, with :math:`p_k > 1/c` the largest probability,

    .. math:: \sum_j \ell(z, j) = c - 2 + p_k - \log p_k \in \Big[c - 1,\; c - 2 + \frac1c + \log c\Big),

    both ends tight. JS comes near MAE only as :math:`1/|\log \pi_2|`, so a real adjuster's sum may pass the upper end
    by :math:`(c - 1)/|\log \pi_2|`. For PolySoft the others' λ goes to 0 and their loss with it; what remains is φ(p_k)
    of :func:`bounds`. The paper prints 0 and its ceiling :math:`(d-1)\lambda/d`; the latter is reached only for
    :math:`\lambda \le \log c`, and the tight upper end is φ(1/c).

    SL has no such bounds: cross entropy is unbounded and SL only adds to it.

    Args:
        loss: ``"gce"``, ``"js"`` or ``"polysoft"``.
        num_classes: c, at least 2.
        tight: PolySoft's tight upper end instead of the printed one. The other losses' are the same.
        hyperparameters: PolySoft's ``lam`` and ``d`` of the label with positive margin; none for the other losses.

    Returns:
        C_L and C_U.

    Example:
        >>> round(noise_aware_bounds("gce", 10).gap, 4)
        1.4026
        >>> noise_aware_bounds("polysoft", 10, lam=6.0, d=2.0).upper
        3.0
        >>> round(noise_aware_bounds("polysoft", 10, lam=6.0, d=2.0, tight=True).upper, 4)
        1.8608

    Reference: Theorem 2 of the paper.
    """
    if loss.lower() == "sl":
        raise OptionError(
            "noise-aware SL has no bounds: its cross entropy is unbounded whatever its weights; "
            'ask for bounds("rce", ...), the part of SL that is bounded'
        )
    table = _NOISE_AWARE_TIGHT if tight else _NOISE_AWARE
    return _evaluate(table, "Theorem 2 has no bounds for a loss called", loss, num_classes, hyperparameters)


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
        >>> round(excess_risk_bound(bounds("gce", 10, q=0.7), 10, rate=0.4), 4)
        0.0632

    Reference: Theorem 1 of the paper.
    """
    c, rate = _checked_num_classes(num_classes), _checked_rate(rate, num_classes)
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
        >>> round(clean_risk_gap_bound(bounds("gce", 10, q=0.7), 10, rate=0.4), 4)
        0.1137

    Reference: Theorem 1 of the paper.
    """
    c, rate = _checked_num_classes(num_classes), _checked_rate(rate, num_classes)
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
    rates = torch.tensor([_checked_rate(rate, c) for rate in rates.tolist()], dtype=torch.float64)
    priors = torch.full_like(rates, 1 / c) if class_priors is None else torch.as_tensor(class_priors).to(rates)
    if priors.shape != rates.shape:
        raise OptionError(
            f"class_priors has shape {tuple(priors.shape)}, but there are {c} class rates: give {c} shares"
        )
    if not bool((priors >= 0).all()) or abs(float(priors.sum()) - 1) > 1e-6:
        raise OptionError(f"class_priors is {priors.tolist()}: shares are at least 0 and sum to 1; divide by their sum")
    return _checked_gap(bounds) * float((priors * (1 - rates)).sum())


def positive_margins(logits: Tensor) -> Tensor:
    r"""How many labels of each prediction have a positive margin: one where the largest logit is unique, else none.

    .. math:: \#\{i : m(z, i) > 0\}, \qquad m(z, i) = z_i - \max_{j \ne i} z_j

    Args:
        logits: ``(N, c)``.

    Returns:
        0 or 1 a sample, ``(N,)``, int64.

    Example:
        >>> positive_margins(torch.tensor([[0.0, 2.0, 1.0], [2.0, 2.0, 1.0]]))
        tensor([1, 0])

    Reference: Proposition 1 of the paper.
    """
    check_logits(logits)
    first, second = logits.topk(2, dim=1).values.unbind(dim=1)
    return (first > second).long()


def adjusted_gce_bounds(probabilities: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    r"""Bounds of the sum over all labels of GCE with a q for every label.

    .. math:: \frac{c - 1 - (c-1)^{1 - q_{\min}} (1 - p_j)^{q_{\min}}}{q_{\max}} + \frac{1 - p_j^{q_j}}{q_j}
              \;\le\; \sum_i \frac{1 - p_i^{q_i}}{q_i} \;\le\;
              \frac{c - 2 + p_j}{q_{\min}} + \frac{1 - p_j^{q_j}}{q_j}

    j is the label with positive margin; :math:`q_{\min}` and :math:`q_{\max}` are over the others. The paper calls the
    left side C_U and the right side C_L; it is the other way round. The remark after it prints :math:`c - 1 + (c -
    1)^{1-q_{\min}}…` in C_U - C_L, where the sign is minus: as printed, the gap at q = 1 is :math:`2 p_j - 2 \le 0`
    instead of 0. Where several labels share the largest probability the first is j; the inequality holds for any j.

    Args:
        probabilities: ``(N, c)``, rows that sum to 1.
        q: each label's q in (0, 1], ``(N, c)``.

    Returns:
        Lower and upper bound, each ``(N,)``, at least float32.

    Example:
        >>> lower, upper = adjusted_gce_bounds(torch.tensor([[0.8, 0.1, 0.1]]), torch.tensor([[0.2, 0.9, 1.0]]))
        >>> lower, upper
        (tensor([1.9665]), tensor([2.2182]))

    Reference: Proposition 2 of the paper.
    """
    p = at_least_float32(probabilities)
    _check_adjusted(p, q)
    q = q.to(p)
    c = p.shape[1]
    top = p.argmax(dim=1, keepdim=True)
    own_p, own_q = p.gather(1, top).squeeze(1), q.gather(1, top).squeeze(1)
    rest = p.scatter(1, top, 0.0).sum(dim=1)  # 1 - p_j without its rounding
    least, most = q.scatter(1, top, math.inf).amin(dim=1), q.scatter(1, top, 0.0).amax(dim=1)
    own = -torch.expm1(own_q * own_p.log()) / own_q
    lower = own - (c - 1) * torch.expm1(least * (rest / (c - 1)).log()) / most
    return lower, own + (c - 1 - rest) / least


def _ce(c: int) -> Bounds:
    return Bounds(c * math.log(c), math.inf)


def _mae(c: int) -> Bounds:
    return Bounds(c - 1.0, c - 1.0)


def _gce(c: int, q: float) -> Bounds:
    return Bounds(-c * math.expm1(-q * math.log(c)) / q, (c - 1) / q)


def _rce(c: int, a: float) -> Bounds:
    return Bounds(-a * (c - 1), -a * (c - 1))


def _sl(c: int, gamma1: float, gamma2: float, a: float) -> Bounds:
    symmetric = -gamma2 * a * (c - 1)
    return Bounds(gamma1 * c * math.log(c) + symmetric, math.inf if gamma1 > 0 else symmetric)


def _js(c: int, pi1: float) -> Bounds:
    label = torch.tensor([0])
    uniform = losses.js(torch.zeros(1, c, dtype=torch.float64), label, pi1)
    wrong = losses.js(torch.tensor([[0.0, 1e30]], dtype=torch.float64), label, pi1)  # a vertex, seen from another label
    return Bounds(c * float(uniform), (c - 1) * float(wrong))


def _polysoft(c: int, lam: float, d: float) -> Bounds:
    # S = cM - Σ ψ(p_j), where ψ = M - φ rises from 0: flat up to e^-λ, then convex, then concave. With s = 1 / (d - 1)
    # its slope is ψ' = t^s / p, t = 1 + log p / λ. Two places a > b have one slope if, with t_a = e^θ t_b,
    # -log b = λ - sθ / (e^θ - 1) and a = e^(sθ) b.
    #
    # Largest Σ ψ: k coordinates a in the concave part, all equal; at most one, b, in the convex part; the rest 0. Where
    # ka + b = 1, equal slopes mean sθ / (e^θ - 1) + log(k e^(sθ) + 1) = λ. The left side rises with θ, so there is one
    # such place at most; Σ ψ falls at b = 0, so it is a minimum, and an end wins: uniform on k or k + 1 classes.
    # k ψ(1/k) = M k (1 - log k / λ)^κ has a logarithm concave in log k, with its top at λ - κ.
    kappa, s = d / (d - 1), 1 / (d - 1)
    k = math.exp(min(max(lam - kappa, 0.0), math.log(c)))
    supports = (max(math.floor(k), 1), min(math.ceil(k), c))
    lower = min((c - k) * lam / kappa + k * _polysoft_curve(math.log(k), lam, d) for k in supports)

    # Smallest Σ ψ: at most one coordinate a in the concave part, the others equal, b. Where a + (c - 1) b = 1, equal
    # slopes mean E(θ) = sθ / (e^θ - 1) + log(e^(sθ) + c - 1) = λ. E is convex, so it has two roots at most; Σ ψ rises
    # towards a = 1, so the larger root is a minimum, and the other one a maximum between it and the uniform prediction.
    low, high = 0.0, lam / s  # E(λ / s) > λ
    while low < (theta := (low + high) / 2) < high:
        decay, fall = math.exp(-theta), -math.expm1(-theta)
        share = 1 / (1 + (c - 1) * math.exp(-s * theta))
        value = s * theta * decay / fall + s * theta - math.log(share)
        slope = decay / fall * (1 - theta / fall) + share  # E' / s
        low, high = (low, theta) if value > lam and slope > 0 else (theta, high)
    # Without a root this is E's lowest point, which leads to some prediction too, and that cannot exceed the supremum.
    even = max(lam - s * high * math.exp(-high) / -math.expm1(-high), math.log(c))  # -log b
    odd = -math.log1p(-(c - 1) * math.exp(-even))
    one_odd = _polysoft_curve(odd, lam, d) + (c - 1) * _polysoft_curve(even, lam, d)
    return Bounds(lower, max(c * _polysoft_curve(math.log(c), lam, d), one_odd))


def _polysoft_curve(cross_entropy: float, lam: float, d: float) -> float:
    ceiling = (d - 1) * lam / d
    if cross_entropy >= lam:
        return ceiling
    return -ceiling * math.expm1(d / (d - 1) * math.log1p(-cross_entropy / lam))


def _printed_polysoft(c: int, lam: float, d: float) -> Bounds:
    share = c * (d - 1) / d
    return Bounds(share * math.log(c), share * lam)


def _aware_mixture(c: int) -> Bounds:
    return Bounds(c - 1.0, c - 2 + 1 / c + math.log(c))


def _aware_polysoft(c: int, lam: float, d: float) -> Bounds:
    return Bounds(0.0, (d - 1) * lam / d)


def _tight_polysoft(c: int, lam: float, d: float) -> Bounds:
    return Bounds(0.0, _polysoft_curve(math.log(c), lam, d))


_A = losses.Hyperparameter("a", low=-sys.float_info.max, high=-math.ulp(0.0), start=-4.0, default=-4.0)
_GCE, _JS = losses.get("gce").hyperparameters, losses.get("js").hyperparameters
_POLYSOFT, _SL = losses.get("polysoft").hyperparameters, (*losses.get("sl").hyperparameters, _A)

_Table = Mapping[str, tuple[Callable[..., Bounds], tuple[losses.Hyperparameter, ...]]]
_RIGHT: _Table = {
    "ce": (_ce, ()),
    "mae": (_mae, ()),
    "gce": (_gce, _GCE),
    "rce": (_rce, (_A,)),
    "sl": (_sl, _SL),
    "polysoft": (_polysoft, _POLYSOFT),
    "js": (_js, _JS),
}
_PRINTED: _Table = {**{name: _RIGHT[name] for name in ("gce", "rce", "js")}, "polysoft": (_printed_polysoft, _POLYSOFT)}
_NOISE_AWARE: _Table = {
    "gce": (_aware_mixture, ()),
    "js": (_aware_mixture, ()),
    "polysoft": (_aware_polysoft, _POLYSOFT),
}
_NOISE_AWARE_TIGHT: _Table = {**_NOISE_AWARE, "polysoft": (_tight_polysoft, _POLYSOFT)}


def _evaluate(table: _Table, problem: str, loss: str, num_classes: int, given: Mapping[str, float]) -> Bounds:
    if loss.lower() not in table:
        raise UnknownNameError(f"{problem} {loss!r}: {nearest(loss, table)}")
    function, specs = table[loss.lower()]
    known = [spec.name for spec in specs]
    for name in given:
        if name not in known:
            hint = nearest(name, known) if known else "it takes none here, leave it out"
            raise HyperparameterError(f"{loss} has no hyperparameter {name!r}: {hint}")
    values = {spec.name: given.get(spec.name, spec.default) for spec in specs}
    for spec in specs:
        value = values[spec.name]
        if not isinstance(value, Real) or not spec.low <= value <= spec.high:
            raise HyperparameterError(
                f"{spec.name} = {value!r} is not a number in its range [{spec.low:g}, {spec.high:g}]: "
                f"choose one inside; {spec.default:g} is the default"
            )
    return function(_checked_num_classes(num_classes), **{name: float(value) for name, value in values.items()})


def _checked_num_classes(num_classes: SupportsIndex) -> int:
    try:
        count = operator.index(num_classes)
    except TypeError:
        count = 0
    if count < 2:
        raise OptionError(f"num_classes is {num_classes!r}, but it counts the classes: give an int from 2 on")
    return count


def _checked_rate(rate: float, num_classes: int) -> float:
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


def _check_adjusted(p: Tensor, q: Tensor) -> None:
    if p.dim() != 2 or not p.is_floating_point() or p.shape[1] < 2:
        raise LogitsError(
            f"probabilities have shape {tuple(p.shape)} and type {p.dtype}: give floats of shape (N, c), one row a "
            "sample, two or more classes"
        )
    if can_read(p) and not bool(((p >= 0).all(dim=1) & ((p.double().sum(dim=1) - 1).abs() <= 1e-2)).all()):
        raise LogitsError("probabilities must be at least 0 and sum to 1 in every row: pass logits.softmax(dim=1)")
    if q.shape != p.shape:
        raise HyperparameterError(
            f"q has shape {tuple(q.shape)} but the probabilities {tuple(p.shape)}: give one q a sample and label"
        )
    if can_read(q) and not bool(((q >= _GCE[0].low) & (q <= _GCE[0].high)).all()):
        raise HyperparameterError(
            f"q = {float(q.min()):g} … {float(q.max()):g} is outside its range [{_GCE[0].low:g}, {_GCE[0].high:g}]: "
            f"choose values inside; {_GCE[0].default:g} is the default"
        )
