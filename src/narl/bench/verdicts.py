"""Whether an adjusted loss beats its fixed form, judged against the spread over seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

Row: TypeAlias = dict[str, Any]
Pair: TypeAlias = tuple[Row, Row]

AHEAD, AHEAD_WITHIN, LEVEL, BEHIND_WITHIN, BEHIND, ONE_SEED = "▲", "△", "=", "▽", "▼", "¹"
_EXPLAINED = (
    "▲ ahead of its fixed form, ▼ behind it, beyond seed noise; △ ▽ within it; = the same; ¹ one seed: not judged.",
    "Beyond seed noise: Student's t of the difference over its pooled standard error, two-sided, 5 % for each cell.",
)
_ONE_SEED_EXPLAINED = ("¹ one seed: not judged against its fixed form.",)

# Student's t, 97.5 %, from two degrees of freedom on. Beyond the last it is used further: a little too strict.
_T = (4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120)
_DIGITS = 4  # of a per cent: more are dust of the arithmetic
_NOTHING = 1e-9  # rows hold means that were rounded: no difference is smaller


def over_seeds(shares: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and standard deviation in per cent; no mean of nothing, no deviation of one.

    Example:
        >>> over_seeds([0.86, 0.88]), over_seeds([0.5]), over_seeds([])
        ((87.0, 1.4142), (50.0, None), (None, None))
    """
    values = np.array(shares) * 100
    mean = round(float(values.mean()), _DIGITS) if len(values) else None
    return mean, round(float(values.std(ddof=1)), _DIGITS) if len(values) > 1 else None


def fixed_form(method: str) -> str | None:
    """The loss that a method adjusts, None if it adjusts none.

    Example:
        >>> fixed_form("A-GCE"), fixed_form("T-JS"), fixed_form("MW-Net")
        ('GCE', 'JS', None)
    """
    return method[2:] if method[:2] in ("A-", "T-") else None


def mark(adjusted: Row, fixed: Row) -> str:
    """How two cells compare, in one sign.

    Args:
        adjusted: with ``last5_mean``, ``last5_std`` and ``seeds``.
        fixed: the same of the fixed form; both have been run.

    Example:
        >>> ours = {"last5_mean": 88.0, "last5_std": 0.2, "seeds": 3}
        >>> mark(ours, {"last5_mean": 87.0, "last5_std": 0.2, "seeds": 3})
        '▲'
        >>> mark(ours, {"last5_mean": 88.1, "last5_std": 0.2, "seeds": 3})
        '▽'
    """
    first, second = adjusted["seeds"], fixed["seeds"]
    if min(first, second) < 2:
        return ONE_SEED
    ahead = difference((adjusted, fixed))
    if abs(ahead) < _NOTHING:
        return LEVEL
    freedom = first + second - 2
    variance = ((first - 1) * adjusted["last5_std"] ** 2 + (second - 1) * fixed["last5_std"] ** 2) / freedom
    error = math.sqrt(variance * (1 / first + 1 / second))
    beyond = abs(ahead) > _T[min(freedom - 2, len(_T) - 1)] * error
    if ahead > 0:
        return AHEAD if beyond else AHEAD_WITHIN
    return BEHIND if beyond else BEHIND_WITHIN


def difference(pair: Pair) -> float:
    """Adjusted minus fixed, in points."""
    return float(pair[0]["last5_mean"] - pair[1]["last5_mean"])


def pairs(rows: Iterable[Row], how: str = "") -> list[Pair]:
    """Adjusted methods with their fixed forms on the same task, model and schedule, where both have been run.

    Args:
        rows: of a comparison.
        how: what is not the default about the fixed form: ``"tuned"``; empty: nothing.
    """
    run = {(*_place(row), row["method"]): row for row in rows if row["seeds"]}
    found = []
    for (*place, method), row in run.items():
        fixed = fixed_form(method)
        other = None if fixed is None else run.get((*place, f"{fixed}, {how}" if how else fixed))
        if other is not None:
            found.append((row, other))
    return found


def summary(found: Sequence[Pair], against: str = "fixed") -> str:
    """What the pairs say together, in a sentence; empty where there are none.

    Example:
        >>> ours = {"last5_mean": 88.0, "last5_std": None, "seeds": 1}
        >>> summary([(ours, {**ours, "last5_mean": 87.5})])
        'Adjusted against fixed, 1 cell: 1 with one seed (1 ahead, 0 behind). Mean difference +0.50.'
    """
    if not found:
        return ""
    marks = [mark(*pair) for pair in found]
    counts, told = Counter(marks), []
    judged = len(found) - counts[ONE_SEED]
    if judged:
        within = judged - counts[AHEAD] - counts[BEHIND]
        said = f"{counts[AHEAD]} ahead and {counts[BEHIND]} behind beyond seed noise, {within} within it"
        told.append(f"{said} ({counts[AHEAD_WITHIN]} ahead, {counts[BEHIND_WITHIN]} behind)")
    if counts[ONE_SEED]:
        single = [difference(pair) for pair, sign in zip(found, marks, strict=True) if sign == ONE_SEED]
        ahead, behind = sum(gap >= _NOTHING for gap in single), sum(gap <= -_NOTHING for gap in single)
        told.append(f"{counts[ONE_SEED]} with one seed ({ahead} ahead, {behind} behind)")
    mean = sum(map(difference, found)) / len(found)
    cells = "1 cell" if len(found) == 1 else f"{len(found)} cells"
    return f"Adjusted against {against}, {cells}: {'; '.join(told)}. Mean difference {mean:+.2f}."


def explained(found: Sequence[Pair]) -> tuple[str, ...]:
    """What the marks of these pairs mean, a sentence each."""
    if not found:
        return ()
    return _ONE_SEED_EXPLAINED if {mark(*pair) for pair in found} == {ONE_SEED} else _EXPLAINED


def _place(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("dataset", "noise", "rate", "schedule", "model", "metric"))
