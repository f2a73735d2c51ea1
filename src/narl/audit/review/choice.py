"""In which order samples are worth a person's time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from narl.audit.verdicts import Verdicts
from narl.errors import UnknownNameError, nearest

_Cost = Callable[[Verdicts, np.random.Generator], NDArray[np.float64]]


def order(verdicts: Verdicts, how: str = "informative", *, seed: int = 0) -> NDArray[np.int64]:
    """Rows of the verdicts in the order in which people see them.

    A sample's class is the suggested one where the label is held for wrong, else the given one: what it will probably
    turn out to be. The classes take turns, so that a clean set soon has some of each. Turns are equal, but for the
    first order, where a class has as many as the square root of its size: most wrong labels may hide in one class.

    Args:
        verdicts: of N samples.
        how: what comes first in every class. ``"informative"``: labels of all scores, evenly from the first answer on,
            so that the answers stand for the data that the next run learns from. ``"doubtful"``: where wrong and right
            are about equally likely, so that the answer tells most of the label itself. ``"suspicious"``: where the
            label is most likely wrong. ``"random"``: any, which makes the share of wrong labels among the answers an
            honest estimate for each class.
        seed: of what is drawn.

    Returns:
        Every row once, ``(N,)``.

    Raises:
        UnknownNameError: there is no such order.
    """
    if how not in ORDERS:
        raise UnknownNameError(f"no order is called {how!r}: {nearest(how, ORDERS)}")
    cost = ORDERS[how](verdicts, np.random.default_rng(seed))
    classes = probable(verdicts)
    by_class = np.lexsort((cost, classes))  # stable: equal costs stay in the run's order
    sorted_classes = classes[by_class]
    counts = np.bincount(sorted_classes, minlength=len(verdicts.class_names))
    turn = np.arange(len(classes)) - (np.cumsum(counts) - counts)[sorted_classes]
    often = np.sqrt(counts) if how == "informative" else np.ones(len(counts))
    return by_class[np.lexsort((sorted_classes, turn / np.maximum(often, 1)[sorted_classes]))].astype(np.int64)


def probable(verdicts: Verdicts) -> NDArray[np.int64]:
    """What samples will probably turn out to be: suggested classes where labels are held for wrong, ``(N,)``."""
    return np.where(verdicts.wrong, verdicts.suggested, verdicts.given)


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


def _informative(verdicts: Verdicts, draw: np.random.Generator) -> NDArray[np.float64]:
    return evenly(np.nan_to_num(verdicts.score, nan=0.5), probable(verdicts), draw.random())


def evenly(values: NDArray[np.float64], groups: NDArray[np.int64], begin: float = 0.0) -> NDArray[np.float64]:
    """When to take each value so that, however many are taken, they are spread evenly over their group.

    A value's place among those of its group is written in binary and read backwards (van der Corput's sequence): every
    half of a group is entered before a quarter is entered twice.

    Args:
        values: ``(N,)``; their order alone counts.
        groups: the group of each, a number, ``(N,)``.
        begin: where in a group to begin, from 0 to below 1.

    Returns:
        From 0 to 1, the earlier the smaller, ``(N,)``; all different within a group.

    Example:
        >>> np.argsort(evenly(np.arange(8.0), np.zeros(8, dtype=np.int64))).tolist()
        [0, 4, 2, 6, 1, 5, 3, 7]
    """
    rows = np.lexsort((values, groups))
    own = groups[rows]
    counts = np.bincount(own)
    place = np.arange(len(own)) - (np.cumsum(counts) - counts)[own]
    place = (place + (begin * counts[own]).astype(np.int64)) % counts[own]
    when = np.zeros(len(own))
    for bit in range(int(place.max(initial=0)).bit_length()):
        when[rows] += (place >> bit & 1) * 0.5 ** (bit + 1)
    return when


def _doubtful(verdicts: Verdicts, draw: np.random.Generator) -> NDArray[np.float64]:
    return np.abs(doubt(verdicts) - 0.5)


def _suspicious(verdicts: Verdicts, draw: np.random.Generator) -> NDArray[np.float64]:
    return np.nan_to_num(verdicts.score, nan=0.5)


def _random(verdicts: Verdicts, draw: np.random.Generator) -> NDArray[np.float64]:
    return draw.random(len(verdicts))


ORDERS: Final[Mapping[str, _Cost]] = {
    "informative": _informative,
    "doubtful": _doubtful,
    "suspicious": _suspicious,
    "random": _random,
}
