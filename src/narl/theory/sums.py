"""The room in which a loss, summed over all labels, moves: Theorem 1's and Theorem 2's C_L and C_U."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import SupportsIndex

import torch

from narl import losses
from narl.errors import HyperparameterError, OptionError, UnknownNameError, nearest


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
    return function(checked_num_classes(num_classes), **{name: float(value) for name, value in values.items()})


def checked_num_classes(num_classes: SupportsIndex) -> int:
    """The number of classes, or an error if it is none."""
    try:
        count = operator.index(num_classes)
    except TypeError:
        count = 0
    if count < 2:
        raise OptionError(f"num_classes is {num_classes!r}, but it counts the classes: give an int from 2 on")
    return count
