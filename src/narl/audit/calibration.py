"""From scores to probabilities, by way of samples whose labels are right."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from narl.audit.verdicts import Classes, Numbers
from narl.errors import DataError


def calibrated(
    score: Numbers, matrix: Numbers, priors: Numbers, clean_logits: NDArray[np.floating], clean_labels: Classes
) -> Numbers:
    r"""The probability that a label is wrong, for every score.

    What the classifier says of clean samples shows how often it would find a wrong label, and how often it would take
    a right one for wrong: a clean sample of class k is given every label a with the weight

    .. math:: \frac{\pi_k}{n_k} T_{ka}

    (:math:`\pi` the classes' shares, :math:`n_k` the clean samples of class k, T the transition matrix), and is
    judged by its margin. These pretended labels are as noisy as the real ones; how often they are wrong falls with
    their margin, and isotonic regression says how. A score stands for the margin of the same rank. So the
    probabilities fall with the score, and depend on its order alone: it does not matter that the classifier was trained
    on the one samples and not on the others.

    Args:
        score: low where the label is likely wrong, ``(N,)``.
        matrix: estimated transition matrix, rows true, ``(c, c)``.
        priors: estimated shares of the true classes, ``(c,)``.
        clean_logits: of samples that were not trained on, ``(M, c)``.
        clean_labels: their labels, which are right, ``(M,)``.

    Returns:
        ``(N,)``, away from 0 and 1 by half a clean sample.

    Example:
        >>> logits = np.array([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
        >>> noise, halves = np.array([[0.75, 0.25], [0.25, 0.75]]), np.array([0.5, 0.5])
        >>> calibrated(np.array([0.1, 0.7, 0.8, 0.9]), noise, halves, logits, np.array([0, 0, 1, 1])).tolist()
        [0.9, 0.1, 0.1, 0.1]

    Reference: Zadrozny, Elkan. Transforming classifier scores into accurate multiclass probability estimates. KDD 2002.
    """
    from sklearn.isotonic import IsotonicRegression

    count, num_classes = clean_logits.shape
    sizes = np.bincount(clean_labels, minlength=num_classes)
    weights = (priors / np.maximum(sizes, 1))[clean_labels, None] * matrix[clean_labels]
    sample, label = np.nonzero(weights)
    if not len(sample):
        raise DataError("the clean samples are all of classes that no label was found to be of: give some of others")
    margin, weight = _margins(clean_logits)[sample, label], weights[sample, label]
    falls = IsotonicRegression(increasing=False, out_of_bounds="clip")
    falls.fit(margin, (clean_labels[sample] != label).astype(np.float64), sample_weight=weight)
    order = np.argsort(margin, kind="stable")
    ranks = (weight[order].cumsum() - weight[order] / 2) / weight.sum()
    found = falls.predict(np.interp(_ranks(score), ranks, margin[order]))
    least = 0.5 / (count + 1)
    return np.asarray(found, dtype=np.float64).clip(least, 1 - least)


def _margins(logits: NDArray[np.floating]) -> Numbers:
    """The margin that each sample would have with each label, ``(M, c)``."""
    z = logits.astype(np.float64)
    second, first = np.partition(z, -2, axis=1)[:, -2:].T
    is_best = np.arange(z.shape[1]) == z.argmax(axis=1)[:, None]
    return np.asarray(z - np.where(is_best, second[:, None], first[:, None]), dtype=np.float64)


def _ranks(values: Numbers) -> Numbers:
    """Where every value stands among all, from 0 to 1; equal ones at the same place."""
    ordered = np.sort(values)
    below, up_to = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return np.asarray((below + up_to) / (2 * max(len(values), 1)), dtype=np.float64)
