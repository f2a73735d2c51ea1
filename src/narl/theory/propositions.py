"""Propositions 1 and 2: how many margins are positive, and the room of GCE with a q for every label."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from narl import losses
from narl.checks import at_least_float32, can_read, check_logits
from narl.errors import HyperparameterError, LogitsError

_GCE = losses.get("gce").hyperparameters


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
