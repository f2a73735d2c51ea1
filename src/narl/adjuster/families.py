"""Task families: classes grouped by how many samples they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from narl.errors import ClassCountsError, OptionError

Counts = Sequence[int] | Sequence[float] | npt.NDArray[np.generic] | Tensor


@dataclass(frozen=True, eq=False)
class Families:
    """Classes grouped by their number of samples, small classes first.

    Each family has its own head in the adjuster. Because families are in ascending order of class size, head 0 means
    "small classes" on every data set.

    Args:
        of_class: the family of every class, ``(c,)``, int64.
        centres: mean class size of every family in use, ascending.

    Example:
        >>> families = Families.from_counts([500, 20, 510, 90])
        >>> families.of_class.tolist(), families.centres.tolist()
        ([2, 0, 2, 1], [20.0, 90.0, 505.0])
    """

    of_class: Tensor
    centres: Tensor

    @classmethod
    def from_counts(cls, counts: Counts, k: int = 3) -> Families:
        """K-means on the class sizes, solved exactly.

        In one dimension clusters are intervals, so dynamic programming finds the optimum: no restarts, no random
        state. Classes of equal size always share a family. With fewer distinct sizes than ``k``, each is a family of
        its own and the remaining ones stay unused.

        Args:
            counts: number of samples of every class, ``(c,)``, by the given labels. Zero is allowed.
            k: the largest number of families.

        Returns:
            The families, at most ``k``.

        Example:
            >>> Families.from_counts([5000] * 10).of_class.unique().tolist()
            [0]
        """
        if k < 1:
            raise OptionError(f"k = {k} families are too few: use 1 or more")
        sizes, inverse, weights = np.unique(checked_counts(counts), return_inverse=True, return_counts=True)
        starts = _best_intervals(sizes, weights.astype(np.float64), min(k, len(sizes)))
        family = np.searchsorted(starts, np.arange(len(sizes)), side="right") - 1
        centres = np.bincount(family, weights * sizes) / np.bincount(family, weights)
        return cls(torch.from_numpy(family[inverse.reshape(-1)]).long(), torch.from_numpy(centres))

    @classmethod
    def nearest(cls, counts: Counts, sizes: Sequence[float]) -> Families:
        r"""To every class the family whose size is nearest to its own, both as multiples of the mean class.

        .. math:: k(j) = \arg\min_k \left| \log \frac{n_j}{\bar n} - \log s_k \right|

        K-means would part classes however alike they are, and what was learned for small ones would serve those that
        are small by accident.

        Args:
            counts: number of samples of every class, ``(c,)``. Zero is allowed.
            sizes: of the families, ascending, as multiples of the mean class.

        Returns:
            As many families as there are sizes; some may have no class.

        Example:
            >>> Families.nearest([480, 505, 515, 500], [0.6, 1.0, 1.4]).of_class.tolist()
            [1, 1, 1, 1]
            >>> Families.nearest([300, 700, 500, 500], [0.6, 1.0, 1.4]).of_class.tolist()
            [0, 2, 1, 1]
        """
        given = checked_counts(counts)
        mean = given.mean() or 1.0
        apart = np.abs(np.log(np.maximum(given / mean, 1e-9))[:, None] - np.log(np.asarray(sizes)))
        return cls(torch.from_numpy(apart.argmin(axis=1)).long(), torch.as_tensor(sizes).double() * mean)


def uneven(counts: Counts) -> bool:
    r"""Whether class sizes differ by more than chance would make them.

    .. math:: \sum_k \frac{(n_k - \bar n)^2}{\bar n} > (c - 1) + 3 \sqrt{2 (c - 1)}

    The left side is Pearson's statistic for even classes, the right side its mean and three standard deviations. Where
    classes are even, families sort them by accident, and each head learns from a part of the samples only.

    Args:
        counts: number of samples of every class, ``(c,)``.

    Example:
        >>> uneven([118, 125, 130, 121]), uneven([11_800, 12_500, 13_000, 12_100]), uneven([20, 90, 500])
        (False, True, True)
    """
    sizes = checked_counts(counts)
    mean, freedom = sizes.mean(), len(sizes) - 1
    if mean == 0:
        return False
    return bool(((sizes - mean) ** 2).sum() / mean > freedom + 3 * np.sqrt(2 * freedom))


def checked_counts(counts: Counts) -> npt.NDArray[np.float64]:
    """Class counts as float64 ``(c,)``, or an error that says what is wrong with them."""
    named = getattr(counts, "index", None)
    if hasattr(counts, "sort_index") and not np.array_equal(np.asarray(named), np.arange(len(counts))):  # of pandas
        raise ClassCountsError(
            "the class counts have an index that is not 0, 1, 2, … in this order, as value_counts() leaves it, and may "
            "go to other classes: put them in the order of the classes and give counts.to_numpy()"
        )
    try:
        values = counts.detach().cpu().double().numpy() if isinstance(counts, Tensor) else np.asarray(counts)
    except ValueError:  # rows of different lengths
        values = np.empty((0, 0))
    if values.ndim != 1 or len(values) < 2 or values.dtype.kind not in "iuf":
        raise ClassCountsError(
            f"class counts must be one number a class, two classes or more, got shape {values.shape} of "
            f"{values.dtype}: numpy.bincount(labels, minlength=num_classes) makes them"
        )
    sizes = values.astype(np.float64)
    if not np.isfinite(sizes).all() or (sizes < 0).any():
        wrong = int(np.flatnonzero(~np.isfinite(sizes) | (sizes < 0))[0])
        raise ClassCountsError(f"class {wrong} has {values[wrong]} samples: counts must be finite and 0 or more")
    return sizes


def _best_intervals(sizes: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], k: int) -> npt.NDArray[np.int64]:
    """Where each of k intervals of the sorted sizes begins, for the smallest within-interval sum of squares."""
    n = len(sizes)
    centred = sizes - np.average(sizes, weights=weights)  # sums of squares lose fewer digits around zero
    mass = np.concatenate([[0.0], np.cumsum(weights)])
    first = np.concatenate([[0.0], np.cumsum(weights * centred)])
    second = np.concatenate([[0.0], np.cumsum(weights * centred**2)])
    best = np.concatenate([[0.0], np.full(n, np.inf)])  # best[j]: cost of the first j sizes
    origin = np.zeros((k, n + 1), dtype=np.int64)
    for cluster in range(k):
        previous, best = best, np.full(n + 1, np.inf)
        for end in range(cluster + 1, n + 1):
            begin = np.arange(cluster, end)
            spread = second[end] - second[begin] - (first[end] - first[begin]) ** 2 / (mass[end] - mass[begin])
            cost = previous[begin] + np.maximum(spread, 0.0)
            choice = int(cost.argmin())
            best[end], origin[cluster, end] = cost[choice], begin[choice]
    starts = np.empty(k, dtype=np.int64)
    end = n
    for cluster in reversed(range(k)):
        end = starts[cluster] = origin[cluster, end]
    return starts
