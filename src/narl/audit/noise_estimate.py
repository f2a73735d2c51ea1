"""How much noise there is in all, and from which class to which."""

from __future__ import annotations

import math

import numpy as np

from narl.audit.verdicts import Classes, Flags, NoiseEstimate, Numbers

_NORMAL = 1.6448536269514722  # nine times in ten within
_SURE, _DOUBTFUL = 0.25, 0.75


def wilson(found: Numbers, total: Numbers) -> tuple[Numbers, Numbers]:
    """Wilson's interval of a share, nine times in ten; from 0 to 1 where there was nothing to count.

    Args:
        found: how many were found.
        total: among so many.

    Example:
        >>> low, high = wilson(np.array([5.0]), np.array([10.0]))
        >>> low.round(3).tolist(), high.round(3).tolist()
        ([0.269], [0.731])

    Reference: Wilson. Probable inference, the law of succession, and statistical inference. JASA 1927.
    """
    n = np.maximum(total, 1e-12)
    share, z2 = found / n, _NORMAL**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    reach = _NORMAL * np.sqrt((share * (1 - share)).clip(0) / n + z2 / (4 * n**2)) / (1 + z2 / n)
    low, high = np.minimum(middle - reach, share).clip(0, 1), np.maximum(middle + reach, share).clip(0, 1)
    nothing = total <= 0
    return np.where(nothing, 0.0, low), np.where(nothing, 1.0, high)


def estimate(score: Numbers, wrong: Flags, given: Classes, rival: Classes, num_classes: int) -> NoiseEstimate:
    """Count what is held for wrong.

    The intervals add up two kinds of doubt: labels with a score from a quarter to three quarters are counted as right
    for one end and as wrong for the other, and to both comes the chance of the draw, by Wilson's interval. That the
    classifier is wrong about a label and sure of it is not in them.

    Args:
        score: low where the label is likely wrong, one half at the border, ``(N,)``.
        wrong: which labels are held for wrong, ``(N,)``.
        given: the labels, ``(N,)``.
        rival: what they would be if they were wrong, ``(N,)``.
        num_classes: c.

    Example:
        >>> found = estimate(np.array([0.9, 0.1, 0.8, 0.95]), np.array([False, True, False, False]),
        ...                  np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0]), 2)
        >>> found.rate, found.matrix.round(2).tolist()
        (0.25, [[1.0, 0.0], [0.33, 0.67]])
    """
    count = np.array([float(len(score))])
    low, _ = wilson(np.array([float(_sure(score, wrong).sum())]), count)
    _, high = wilson(np.array([float(_possible(score, wrong).sum())]), count)
    joint = _joint(wrong, given, rival, num_classes)
    totals = joint.sum(axis=1, keepdims=True)
    matrix = np.where(totals > 0, joint / np.maximum(totals, 1), np.eye(num_classes))
    fewest, most = (_joint(flags(score, wrong), given, rival, num_classes) for flags in (_sure, _possible))
    least, largest = np.minimum(fewest, most).clip(max=totals), np.maximum(fewest, most).clip(max=totals)
    return NoiseEstimate(
        rate=float(wrong.mean()),
        low=float(low[0]),
        high=float(high[0]),
        matrix=matrix,
        matrix_low=np.minimum(wilson(least, np.broadcast_to(totals, least.shape))[0], matrix),
        matrix_high=np.maximum(wilson(largest, np.broadcast_to(totals, least.shape))[1], matrix),
    )


def _sure(score: Numbers, wrong: Flags) -> Flags:
    return wrong & (score < _SURE)


def _possible(score: Numbers, wrong: Flags) -> Flags:
    return wrong | (score < _DOUBTFUL)


def _joint(wrong: Flags, given: Classes, rival: Classes, num_classes: int) -> Numbers:
    """How often a true class has a given label, ``(c, c)``."""
    true = np.where(wrong, rival, given)
    counts = np.bincount(true * num_classes + given, minlength=num_classes**2).astype(np.float64)
    return counts.reshape(num_classes, num_classes)


def priors(wrong: Flags, given: Classes, rival: Classes, num_classes: int) -> Numbers:
    """Shares of the true classes, ``(c,)``.

    Example:
        >>> priors(np.array([False, True]), np.array([0, 0]), np.array([1, 1]), 2).tolist()
        [0.5, 0.5]
    """
    true = np.where(wrong, rival, given)
    counts = np.bincount(true, minlength=num_classes)
    shares: Numbers = counts / max(math.fsum(counts), 1)
    return shares
