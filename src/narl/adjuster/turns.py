"""Which snapshot of an adjuster serves when."""

from __future__ import annotations

from collections.abc import Sequence

from narl.adjuster.network import Adjuster
from narl.errors import OptionError


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
