"""What noise really did to the labels, counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from narl.errors import LabelError
from narl.noise.labels import AnyLabels, class_count, read


@final
@dataclass(frozen=True, eq=False)  # arrays have no single answer to ==
class Realised:
    """How labels moved.

    Args:
        matrix: the share of each class that got each label, ``(c, c)``. Each row sums to 1, but the row of a class
            without samples is all zero: nothing is known of it, and such a matrix is refused as a transition matrix.
        rate: the share of labels that changed.
        counts: the number of samples by true and noisy label, ``(c, c)``.

    Example:
        >>> realised([0, 0, 1], [0, 1, 1]).counts
        array([[1, 1],
               [0, 1]])
    """

    matrix: NDArray[np.float64]
    rate: float
    counts: NDArray[np.int64]


def realised(labels: AnyLabels, noisy: AnyLabels, num_classes: int | None = None) -> Realised:
    r"""Count how labels moved.

    .. math:: n_{yj} = |\{i : y_i = y,\, \tilde y_i = j\}|, \qquad \hat T_{yj} = n_{yj} / \textstyle\sum_k n_{yk}

    Args:
        labels: true class indices ``(N,)``; a list, a numpy array or a torch tensor.
        noisy: noisy class indices ``(N,)``, of the same or another kind.
        num_classes: the number of classes c; None: the largest label of both plus one.

    Returns:
        A :class:`Realised` with ``matrix``, ``rate`` and ``counts``.

    Example:
        >>> found = realised([0, 0, 1, 1], [0, 1, 1, 1])
        >>> found.rate
        0.25
        >>> found.matrix
        array([[0.5, 0.5],
               [0. , 1. ]])
    """
    true, given = read(labels), read(noisy, "noisy")
    if len(true) != len(given):
        raise LabelError(
            f"labels have {len(true)} samples and noisy have {len(given)}: give both for the same samples, in one order"
        )
    if not len(true):
        raise LabelError("labels are empty, so there is no rate to count: give at least one sample")
    c = max(class_count(labels, num_classes), class_count(noisy, num_classes, "noisy"))
    counts = np.bincount(true * c + given, minlength=c * c).reshape(c, c)
    matrix = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return Realised(matrix=matrix, rate=float(np.mean(true != given)), counts=counts)
