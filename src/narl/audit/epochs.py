"""How much every epoch of a training has to say about the labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from narl.audit.threshold import threshold
from narl.audit.verdicts import Numbers

_BINS = 200  # of margins, to look for two groups
_LEAST = 0.1  # variance between groups that an epoch is credited with at least
_LOOKED_AT = 50_000  # samples that the weights are found on
_ROUNDS = 3
_SMALL, _GROWTH = 0.05, 1.25  # a small group of wrong labels, and how much it may grow in a round
_REACH = 0.1  # of the cut in a round: it may be bolder than the one that holds labels for wrong
_FEWEST = 10  # labels of a group that say how it is spread


def weights_of(margins: NDArray[np.floating]) -> Numbers:
    r"""How much every epoch counts: as much as it helps to tell the contradicted labels from the others.

    The first weights are those of :func:`clearness`. The score that they give, :math:`\sum_t w_t x_{ti}` with
    :math:`x = \tanh(m / \mu)` and the epoch's mean size of margins :math:`\mu`, parts the labels into two groups
    (:func:`narl.audit.threshold.threshold`). With the groups' means :math:`\nu^-, \nu^+` and the covariance S within
    them, Fisher's discriminant says which average of the epochs parts them best:

    .. math::
        w = \operatorname*{arg\,min}_{w \ge 0} \; \tfrac12 w^\top (S + \bar s I)\, w - w^\top (\nu^+ - \nu^-),
        \qquad \bar s = \tfrac1T \operatorname{tr} S

    which is done three times. Epochs that say the same share their weight, noisy ones get little, and epochs that have
    learned wrong labels by heart, hardly any. No epoch counts against what it says. The rounds are to tell the same
    labels apart more sharply: one that makes a small lower group much larger is not taken, as happens where hardly a
    label is wrong and the groups are hard and easy samples.

    Args:
        margins: ``(T, N)``, NaN where there is none. At most 50,000 samples are looked at: may be a memory map.

    Returns:
        ``(T,)``, at least 0, one of them above.

    Example:
        >>> draws, wrong = np.random.default_rng(0), np.arange(400) < 100
        >>> truth = np.where(wrong, -3.0, 3.0)
        >>> unsure, sure, by_heart = truth + 9 * draws.normal(size=400), truth + draws.normal(size=400), np.abs(truth)
        >>> weights_of(np.stack([unsure, sure, by_heart])).round(2).tolist()
        [0.06, 0.94, 0.0]

    Reference: Fisher. The use of multiple measurements in taxonomic problems. Annals of Eugenics 1936. Here the groups
    are those that the score itself makes.
    """
    step = max(-(-margins.shape[1] // _LOOKED_AT), 1)
    x = _measured(np.asarray(margins[:, ::step], dtype=np.float64))
    weights = _shares(clearness(x))
    wrong = _contradicted(weights, x)
    for _ in range(_ROUNDS):
        if min(wrong.sum(), (~wrong).sum()) < _FEWEST:
            break  # one group only: nothing to learn from
        found = _discriminant(x, wrong)
        if not found.any():
            break
        after = _contradicted(_shares(found), x)
        if wrong.mean() < _SMALL and after.sum() > _GROWTH * wrong.sum():
            break
        weights, wrong = _shares(found), after
    return weights


def clearness(x: Numbers) -> Numbers:
    r"""How clearly the values of each epoch fall into two groups.

    .. math:: w_t = b_t^2 + 0.1^2, \qquad b_t = \max_c \; p_c (1 - p_c) (\nu_c^+ - \nu_c^-)^2

    where a cut c parts an epoch's values into a share p below it, with mean ν⁻, and the rest, with mean ν⁺: b is the
    variance between the groups, which Otsu's threshold makes largest. Early epochs contradict labels here and there,
    with small margins; late ones that have learned wrong labels by heart contradict hardly any. Both have one broad
    group, and count less. The second term is for data without wrong labels: there no epoch has two groups but those of
    the first, unsure epochs, which must not count alone.

    Args:
        x: ``(T, N)``, from -1 to 1, NaN where there is no value.

    Returns:
        ``(T,)``, above 0.

    Example:
        >>> clearness(np.array([[0.9, 0.9, 0.9, -0.9], [0.9, 0.9, 0.8, 0.7]])).round(2).tolist()
        [0.38, 0.01]

    Reference: Otsu. A threshold selection method from gray-level histograms. IEEE Trans. SMC 1979.
    """
    return np.array([_between(epoch[~np.isnan(epoch)]) for epoch in x]) ** 2 + _LEAST**2


def scale_of(margins: NDArray[np.floating]) -> float:
    """The mean size of an epoch's margins, by which they are measured.

    Example:
        >>> scale_of(np.array([3.0, -1.0, np.nan]))
        2.0
    """
    values = np.asarray(margins, dtype=np.float64)
    known = np.abs(values[~np.isnan(values)])
    return max(float(known.mean()), 1e-12) if len(known) else 1.0


def _measured(margins: Numbers) -> Numbers:
    scales = np.array([scale_of(epoch) for epoch in margins])
    return np.asarray(np.tanh(margins / scales[:, None]), dtype=np.float64)


def _shares(weights: Numbers) -> Numbers:
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def _averaged(weights: Numbers, x: Numbers) -> Numbers:
    """The score of every sample, by the epochs that it has a value in; 0 for one without."""
    known = ~np.isnan(x)
    counted = weights @ known
    total = weights @ np.where(known, x, 0.0)
    return np.divide(total, counted, out=np.zeros(x.shape[1]), where=counted > 0)


def _contradicted(weights: Numbers, x: Numbers) -> NDArray[np.bool_]:
    """The labels that the score of these weights puts into the lower group, ``(N,)``."""
    score = _averaged(weights, x)
    return score < threshold((1 + score) / 2, _REACH) * 2 - 1


def _discriminant(x: Numbers, wrong: NDArray[np.bool_]) -> Numbers:
    """The weights at least 0 that part the two groups best, ``(T,)``; all 0 if no epoch does."""
    from scipy.optimize import nnls

    within, means = np.zeros((len(x), len(x))), []
    for group in (wrong, ~wrong):
        values = x[:, group]
        known = ~np.isnan(values)
        mean = np.where(known, values, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
        apart = np.where(known, values - mean[:, None], 0.0)
        within += apart @ apart.T / x.shape[1]
        means.append(mean)
    within += max(np.trace(within) / len(x), 1e-12) * np.eye(len(x))
    # With S = L Lᵀ this is the least-squares problem |Lᵀ w - L⁻¹ d|.
    root = np.linalg.cholesky(within)
    return np.asarray(nnls(root.T, np.linalg.solve(root, means[1] - means[0]))[0], dtype=np.float64)


def _between(values: Numbers) -> float:
    """The largest variance between two groups that a cut makes of values from -1 to 1."""
    if not len(values):
        return 0.0
    counts, edges = np.histogram(values, bins=_BINS, range=(-1, 1))
    sums = np.bincount(np.digitize(values, edges[1:-1]), values, minlength=_BINS)
    below, low = counts.cumsum()[:-1] / len(values), sums.cumsum()[:-1] / len(values)
    parted = (below > 0) & (below < 1)
    p, low, mean = below[parted], low[parted], sums.sum() / len(values)
    return float(((low - p * mean) ** 2 / (p * (1 - p))).max(initial=0.0))
