"""Where scores of wrong labels end and those of right ones begin."""

from __future__ import annotations

import numpy as np

from narl.audit.verdicts import Numbers

_BINS = 200


def threshold(support: Numbers, reach: float = 0.05) -> float:
    r"""The cut that makes two groups of labels the most likely, near one half.

    The groups are taken for normal with one variance. A cut with shares :math:`p_0, p_1` below and above it and the
    variance :math:`\sigma^2` within the groups costs

    .. math:: \tfrac12 \log \sigma^2 - p_0 \log p_0 - p_1 \log p_1

    and the cheapest is taken. The limits matter where there is one group only, because hardly a label is wrong.

    Args:
        support: evidence for the labels, from 0 to 1, ``(N,)``.
        reach: how far from one half the cut may lie.

    Example:
        >>> threshold(np.array([0.05, 0.1, 0.15, 0.85, 0.9, 0.9, 0.95]))
        0.5
        >>> threshold(np.array([0.9, 0.91, 0.92]))
        0.5

    Reference: Kittler, Illingworth. Minimum error thresholding. Pattern Recognition 1986 (with two variances); Otsu.
    A threshold selection method from gray-level histograms. 1979 (without the shares).
    """
    counts, edges = np.histogram(support, bins=_BINS, range=(0, 1))
    centres = (edges[1:] + edges[:-1]) / 2
    below = counts.cumsum()[:-1] / max(len(support), 1)
    first = (counts * centres).cumsum() / max(len(support), 1)
    second = float((counts * centres**2).sum()) / max(len(support), 1)
    cuts = edges[1:-1]
    usable = (below > 0) & (below < 1) & (abs(cuts - 0.5) <= reach + 1e-9)
    if not usable.any():
        return 0.5
    p, cut, lower = below[usable], cuts[usable], first[:-1][usable]
    between = lower**2 / p + (first[-1] - lower) ** 2 / (1 - p)
    within = np.maximum(second - between, (1 / _BINS) ** 2 / 12)
    cost = np.log(within) / 2 - p * np.log(p) - (1 - p) * np.log1p(-p)
    best = cut[cost <= cost.min() + 1e-12]  # a gap between the groups: its middle
    return float(np.round((best.min() + best.max()) / 2, 6))


def centred(support: Numbers, cut: float) -> Numbers:
    r"""Support with the odds of the cut taken off, so that the cut comes to lie at one half; the order stays.

    .. math:: s' = \frac{s (1 - \tau)}{s (1 - \tau) + (1 - s) \tau}

    Example:
        >>> centred(np.array([0.0, 0.4, 1.0]), 0.4).tolist()
        [0.0, 0.5, 1.0]
    """
    return support * (1 - cut) / (support * (1 - cut) + (1 - support) * cut)
