"""Which snapshot of an adjuster serves when."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from narl.adjuster.network import Adjuster
from narl.errors import OptionError

KINDS = ("image", "table", "text")
"""Of data that an adjuster can be for."""


def checked(given: Sequence[Any]) -> list[Adjuster]:
    """The same, where there is one and all are adjusters.

    Example:
        >>> len(checked([Adjuster("gce", [5, 5])]))
        1
    """
    strangers = {type(adjuster).__name__ for adjuster in given if not isinstance(adjuster, Adjuster)}
    if strangers:
        raise OptionError(f"got {', '.join(sorted(strangers))}, no adjuster: narl.Adjuster.load reads a file")
    if not given:
        raise OptionError("no adjuster given: pass one, or the snapshots of one in order")
    return list(given)


def meant_for(given: Sequence[Adjuster], data: str | None, steps: int | None = None) -> list[Adjuster]:
    """Those among adjusters for several kinds of data that serve on this one: its own; else those for any; else all.

    Its own make way for those that are for any, where there are some and the training is too short for its own. Those
    for any data always serve; in a training that is too short for what they say about the noise rate, as copies that do
    not say it.

    Args:
        given: snapshots of one adjuster, or of one for each of several kinds of data.
        data: ``"image"``, ``"table"`` or ``"text"``; None: not known.
        steps: how many the training has; None: not known, so it counts as long.

    Example:
        >>> for_any, for_tables = Adjuster("gce", [5, 5]), Adjuster("gce", [5, 5])
        >>> for_tables.data = "table"
        >>> [meant_for([for_any, for_tables], data) == [for_tables] for data in ("table", "text", None)]
        [True, False, False]
        >>> for_tables.least_steps = 600
        >>> [meant_for([for_any, for_tables], "table", steps) == [for_tables] for steps in (599, 600, None)]
        [False, True, True]
        >>> for_any.noise_rate, for_any.least_steps = "estimated", 5000
        >>> [meant_for([for_any], "image", steps)[0].noise_rate for steps in (4999, 5000, None)]
        [None, 'estimated', 'estimated']
    """
    for_any = [_as_for(steps, adjuster) for adjuster in given if adjuster.data is None]
    for_this = [adjuster for adjuster in given if adjuster.data == data]
    if for_any and steps is not None and any(steps < (adjuster.least_steps or 0) for adjuster in for_this):
        return for_any
    if for_this or for_any:
        return for_this or for_any
    kinds = sorted({str(adjuster.data) for adjuster in given})
    if len(kinds) > 1:
        way = "say which it is (data=), or give one for any"
        if data is not None:
            way = f"for {data}s give one for any data (narl.pretrained() lists what is shipped), or have the loss fixed"
        raise OptionError(f"these adjusters are for data of kind {' or '.join(kinds)}: {way}")
    return list(given)


def _as_for(steps: int | None, adjuster: Adjuster) -> Adjuster:
    """The same, or a copy that says nothing about the noise rate, where the training is too short for that."""
    if adjuster.noise_rate is None or steps is None or steps >= (adjuster.least_steps or 0):
        return adjuster
    made = copy.deepcopy(adjuster)
    made.noise_rate = None
    return made


def in_turn(given: Sequence[Adjuster], serves: str) -> tuple[list[float], list[Adjuster]]:
    """When each snapshot begins to serve, ascending from 0, and the snapshots; those that never serve are left out.

    Args:
        given: snapshots that all know when they were taken, or none of them does; these serve even shares, in order.
        serves: ``"from"`` the time on at which they were taken, or ``"until"`` then.

    Example:
        >>> snapshots = [Adjuster("gce", [5, 5]) for _ in range(4)]
        >>> in_turn(snapshots, "from")[0]
        [0.0, 0.25, 0.5, 0.75]
        >>> for number, snapshot in enumerate(snapshots):
        ...     snapshot.taken = number / 3
        >>> begins, serving = in_turn(snapshots, "from")
        >>> [round(begin, 2) for begin in begins], [snapshots.index(one) for one in serving]
        ([0.0, 0.33, 0.67], [0, 1, 2])
        >>> [snapshots.index(one) for one in in_turn(snapshots, "until")[1]]
        [1, 2, 3]
    """
    if serves not in ("from", "until"):
        raise OptionError(f"serves = {serves!r} is unknown: use 'from' or 'until' (the paper's)")
    known = [adjuster.taken for adjuster in given if adjuster.taken is not None]
    if len(known) not in (0, len(given)):
        raise OptionError("some snapshots know when they were taken and some do not: pass those of one training")
    if known:
        order = sorted(given, key=lambda adjuster: adjuster.taken or 0.0)  # sorted keeps the order of equal ones
        times = sorted(known)
    else:
        order, times = list(given), [number / len(given) for number in range(len(given))]
    begins = [0.0, *(times[1:] if serves == "from" or not known else times[:-1])]
    ends = [*begins[1:], 1.0]
    kept = [number for number in range(len(order)) if begins[number] < ends[number]]
    return [begins[number] for number in kept] or [0.0], [order[number] for number in kept] or order[-1:]


def after_fixed(
    begins: Sequence[float], serving: Sequence[Adjuster], robust_start: float
) -> tuple[list[float], list[Adjuster]]:
    """The same turns behind a beginning with the loss's fixed hyperparameters, given by an adjuster of its own.

    That beginning stands in for a snapshot of before its training, which has learned nothing: there what serves next
    follows at once.

    Args:
        begins: when each snapshot begins to serve, as :func:`in_turn` gives it.
        serving: the snapshots.
        robust_start: share of the training, from 0, at which nothing changes, to 1.

    Example:
        >>> snapshots = [Adjuster("gce", [5, 5]) for _ in range(4)]
        >>> for number, snapshot in enumerate(snapshots):
        ...     snapshot.taken = number / 3
        >>> begins, serving = after_fixed(*in_turn(snapshots, "from"), robust_start=0.2)
        >>> [round(begin, 2) for begin in begins], [snapshot.taken for snapshot in serving[:2]]
        ([0.0, 0.2, 0.67], [None, 0.3333333333333333])
    """
    if not 0 <= robust_start <= 1:
        raise OptionError(f"robust_start = {robust_start} is outside [0, 1]: give a share of the training")
    if robust_start == 0:
        return list(begins), list(serving)
    fixed = copy.deepcopy(serving[0]).begin_at()
    fixed.taken = None
    turns = [turn for turn in zip(begins, serving, strict=True) if turn[1].taken != 0]
    if robust_start == 1 or not turns:
        return [0.0], [fixed]
    last_before = max((number for number, (begin, _) in enumerate(turns) if begin <= robust_start), default=0)
    rest = turns[last_before:]
    return [0.0, robust_start, *(begin for begin, _ in rest[1:])], [fixed, *(snapshot for _, snapshot in rest)]
