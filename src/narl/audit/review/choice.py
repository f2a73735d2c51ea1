"""In which order samples are worth a person's time: all classes in turn, in each the most informative first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from narl.audit.verdicts import Verdicts
from narl.errors import UnknownNameError, nearest

_SEED: Final = 0


def order(verdicts: Verdicts, how: str = "informative") -> NDArray[np.int64]:
    """Rows of the verdicts in the order in which people see them.

    The classes take turns. A sample's class is the suggested one where the label is held for wrong, else the given one:
    what it will probably turn out to be. So after any number of answers a clean set has about as many of each class, as
    long as there are samples of it.

    Args:
        verdicts: of N samples.
        how: what comes first in every class. ``"informative"``: where wrong and right are about equally likely, so that
            the answer tells most. ``"suspicious"``: where the label is most likely wrong. ``"random"``: any, which
            makes the share of wrong labels among the answers an honest estimate for each class.

    Returns:
        Every row once, ``(N,)``.

    Raises:
        UnknownNameError: there is no such order.
    """
    if how not in ORDERS:
        raise UnknownNameError(f"no order is called {how!r}: {nearest(how, ORDERS)}")
    cost = ORDERS[how](verdicts)
    classes = np.where(verdicts.wrong, verdicts.suggested, verdicts.given)
    by_class = np.lexsort((cost, classes))  # stable: equal costs stay in the run's order
    sorted_classes = classes[by_class]
    counts = np.bincount(sorted_classes, minlength=len(verdicts.class_names))
    starts = np.cumsum(counts) - counts
    turn = np.arange(len(classes)) - starts[sorted_classes]
    return by_class[np.lexsort((sorted_classes, turn))].astype(np.int64)


def doubt(verdicts: Verdicts) -> NDArray[np.float64]:
    """How likely each label is wrong, ``(N,)``: a half is where labels begin to be held for wrong.

    The calibrated probability where there is one; else the score, stretched so that its threshold falls on a half.
    """
    if verdicts.probability is not None:
        return np.nan_to_num(verdicts.probability, nan=0.5)
    score = np.nan_to_num(verdicts.score, nan=0.5).clip(0, 1)
    if verdicts.wrong.all() or not verdicts.wrong.any():
        return 1 - score
    threshold = float((score[verdicts.wrong].max() + score[~verdicts.wrong].min()) / 2)
    if not 0 < threshold < 1:
        return 1 - score
    return np.where(score < threshold, 1 - score / threshold / 2, (1 - score) / (1 - threshold) / 2)


def _informative(verdicts: Verdicts) -> NDArray[np.float64]:
    return np.abs(doubt(verdicts) - 0.5)


def _suspicious(verdicts: Verdicts) -> NDArray[np.float64]:
    return np.nan_to_num(verdicts.score, nan=0.5)


def _random(verdicts: Verdicts) -> NDArray[np.float64]:
    return np.random.default_rng(_SEED).random(len(verdicts))


ORDERS: Final[Mapping[str, Callable[[Verdicts], NDArray[np.float64]]]] = {
    "informative": _informative,
    "suspicious": _suspicious,
    "random": _random,
}
