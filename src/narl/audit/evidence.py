r"""For and against every label: what the epochs of a training, or one set of predictions, say of it.

The evidence for the classes of a sample is at least 0 and sums to one. Kept of it are the given label's part, the
*support*, the strongest other class, the *rival*, and how much of the rest is the rival's, its *share*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from narl.audit.epochs import scale_of
from narl.audit.verdicts import Classes, Numbers

_BLOCK = 2**22  # numbers that are worked on at once


@final
@dataclass(frozen=True, eq=False)
class Evidence:
    """What is known of N labels.

    Args:
        support: evidence for the given label, from 0 to 1, ``(N,)``.
        rival: the strongest other class, ``(N,)``.
        share: of the evidence against the label, the rival's part, from 0 to 1, ``(N,)``.
        margin: how far the label stood above the best other class, ``(N,)``.
    """

    support: Numbers
    rival: Classes
    share: Numbers
    margin: Numbers


def from_epochs(
    margins: NDArray[np.floating],
    rivals: NDArray[np.floating] | None,
    labels: Classes,
    weights: Numbers,
    num_classes: int,
) -> Evidence:
    r"""Evidence from the margins of a training, epoch by epoch.

    .. math::
        s_i = \sum_t w_t \, \frac{1 + \tanh(m_{ti} / \mu_t)}{2}, \qquad \mu_t = \frac1N \sum_i |m_{ti}|

    In every epoch a label has as much support as its margin is large among those of the epoch; what is left supports
    the epoch's rival. An epoch without a margin of a sample does not count for it.

    Args:
        margins: ``(T, N)``, NaN where there is none; every sample has one. Read in pieces: may be a memory map.
        rivals: the classes that stood against the labels, ``(T, N)``; None where that is not known.
        labels: the given labels, ``(N,)``.
        weights: of the epochs, at least 0, ``(T,)``: :func:`narl.audit.epochs.weights_of` the margins.
        num_classes: c.

    Returns:
        The evidence; without rivals, the next class stands in for them, with a share of 0.

    Example:
        >>> found = from_epochs(np.array([[3.0, -1.0], [2.0, 2.0]]), np.array([[1.0, 0.0], [2.0, 2.0]]),
        ...                     np.array([0, 1]), np.array([0.75, 0.25]), 3)
        >>> found.support.round(3).tolist(), found.rival.tolist(), found.share.round(3).tolist()
        ([0.935, 0.422], [1, 0], [0.544, 0.948])
    """
    scale = np.array([scale_of(epoch) for epoch in margins])
    used = _weights(weights)
    count = margins.shape[1]
    support, share, margin = np.empty(count), np.zeros(count), np.empty(count)
    rival = (labels + 1) % num_classes
    step = max(_BLOCK // (num_classes + 4 * len(used)), 1)
    for start in range(0, count, step):
        part = slice(start, start + step)
        m = np.asarray(margins[:, part], dtype=np.float64)
        weight = np.where(np.isnan(m), 0.0, used[:, None])
        # A sample that has no margin in any epoch that counts: the others count alike for it.
        weight = np.where(weight.sum(axis=0) > 0, weight, ~np.isnan(m))
        weight /= np.maximum(weight.sum(axis=0), 1e-300)
        m = np.nan_to_num(m, nan=0.0)
        against = weight * (1 - np.tanh(m / scale[:, None])) / 2
        support[part] = (1 - against.sum(axis=0)).clip(0, 1)
        margin[part] = (weight * m).sum(axis=0)
        if rivals is not None:
            rival[part], share[part] = _strongest(np.asarray(rivals[:, part]), against, labels[part], num_classes)
    return Evidence(support, rival, share, margin)


def from_logits(logits: NDArray[np.floating], labels: Classes) -> Evidence:
    """Evidence from predictions: the probabilities of the classes.

    Args:
        logits: ``(N, c)``, finite.
        labels: the given labels, ``(N,)``.

    Example:
        >>> found = from_logits(np.log([[0.5, 0.375, 0.125]]), np.array([0]))
        >>> found.support.round(4), found.rival, found.share.round(4), found.margin.round(4)
        (array([0.5]), array([1]), array([0.75]), array([0.2877]))
    """
    count = len(logits)
    support, share, margin = np.empty(count), np.empty(count), np.empty(count)
    rival = np.empty(count, dtype=np.int64)
    step = max(_BLOCK // logits.shape[1], 1)
    for start in range(0, count, step):
        part = slice(start, start + step)
        z = np.array(logits[part], dtype=np.float64)
        rows, own = np.arange(len(z)), labels[part]
        label = z[rows, own]
        z[rows, own] = -np.inf
        best = z.argmax(axis=1)
        top = z[rows, best]
        others = np.exp(z - top[:, None]).sum(axis=1)  # at least 1: nothing is lost however sure the classifier is
        rival[part], share[part], margin[part] = best, 1 / others, label - top
        support[part] = _sigmoid(margin[part] - np.log(others))
    return Evidence(support, rival, share, margin)


def _weights(weights: Numbers) -> Numbers:
    """Weights that sum to one; equal ones where all are 0."""
    total = float(weights.sum())
    return weights / total if total > 0 else np.full(len(weights), 1 / max(len(weights), 1))


def _strongest(
    rivals: NDArray[np.floating], against: Numbers, labels: Classes, num_classes: int
) -> tuple[Classes, Numbers]:
    """The rival with the most evidence, summed over epochs ``(T, n)``, and its share of all that has a rival."""
    known = ~np.isnan(rivals)
    epochs, samples = np.nonzero(known)
    places = samples * num_classes + rivals[epochs, samples].astype(np.int64)
    total = np.bincount(places, against[epochs, samples], minlength=len(labels) * num_classes)
    by_class = total.reshape(len(labels), num_classes)
    rows = np.arange(len(labels))
    by_class[rows, labels] = -1  # never its own rival, not even where all evidence is 0
    best = by_class.argmax(axis=1)
    whole = by_class.sum(axis=1) + 1
    share = np.divide(by_class[rows, best], whole, out=np.zeros(len(labels)), where=whole > 0)
    return best, share.clip(0, 1)


def _sigmoid(x: Numbers) -> Numbers:
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, small) / (1 + small), dtype=np.float64)
