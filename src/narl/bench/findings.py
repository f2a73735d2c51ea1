"""How well wrong labels are found, where the truth is known: numbers of one way to find them.

Wrong labels are the positive class throughout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from narl.audit.verdicts import Classes, Flags, Numbers, Verdicts
from narl.train.evaluate import separation

FIRST = 100
_BINS = 15


def ranking(score: NDArray[np.floating], wrong: Flags) -> dict[str, float | None]:
    """How well a score ranks labels, low ones first.

    Args:
        score: low where the label is likely wrong, ``(N,)``.
        wrong: which labels are wrong, ``(N,)``.

    Returns:
        ``auroc``, ``ap`` (average precision), ``precision_at_k`` (among the k lowest, k being the number of wrong
        labels), ``precision_at_100`` and ``best_f1`` (of the best cut, which nobody knows); None for each where no
        label is wrong, and for ``auroc`` where all are.

    Example:
        >>> found = ranking(np.array([0.1, 0.2, 0.9, 0.8]), np.array([True, False, False, True]))
        >>> [round(found[name], 3) for name in ("auroc", "ap", "precision_at_k", "best_f1")]
        [0.75, 0.833, 0.5, 0.8]
    """
    from sklearn.metrics import average_precision_score

    names = ("auroc", "ap", "precision_at_k", f"precision_at_{FIRST}", "best_f1")
    if not wrong.any():
        return dict.fromkeys(names)
    ordered = np.sort(score)
    # Equal scores are in no order: what counts is what all of them together would be.
    hits = np.array([0, *wrong[np.argsort(score, kind="stable")].cumsum()])
    ends = np.searchsorted(ordered, ordered, side="right")
    cuts = np.unique(ends)
    values = (
        separation(score, wrong),
        average_precision_score(wrong, -score.astype(np.float64)),
        _precision(hits, ordered, int(wrong.sum())),
        _precision(hits, ordered, min(FIRST, len(wrong))),
        (2 * hits[cuts] / (cuts + wrong.sum())).max(),
    )
    return {name: None if value is None else _short(value) for name, value in zip(names, values, strict=True)}


def _precision(hits: Classes, ordered: NDArray[np.floating], count: int) -> float:
    """Share of wrong labels among so many lowest; of equal ones at the border, their mean share."""
    low, high = (int(np.searchsorted(ordered, ordered[count - 1], side)) for side in ("left", "right"))
    return float(hits[low] + (hits[high] - hits[low]) * (count - low) / (high - low)) / count


def flagging(flagged: Flags, wrong: Flags) -> dict[str, float | None]:
    """How well a set of labels that are held for wrong fits those that are.

    Example:
        >>> flagging(np.array([True, True, False]), np.array([True, False, False]))
        {'f1': 0.66667, 'precision': 0.5, 'recall': 1.0, 'flagged': 0.66667}
    """
    both, found, there = int((flagged & wrong).sum()), int(flagged.sum()), int(wrong.sum())
    return {
        "f1": _short(2 * both / (found + there)) if there else None,
        "precision": _short(both / found) if found else None,
        "recall": _short(both / there) if there else None,
        "flagged": _short(found / max(len(wrong), 1)),
    }


def suggesting(suggested: Classes, given: Classes, true: Classes) -> dict[str, float | None]:
    """How often labels are right once suggestions are taken over.

    Args:
        suggested: where nothing is suggested, the given label, ``(N,)``.
        given: the given labels, ``(N,)``.
        true: the true ones, ``(N,)``.

    Returns:
        ``suggested_accuracy``: of all labels; ``suggested_accuracy_of_wrong``: of those that were wrong.

    Example:
        >>> suggesting(np.array([0, 1, 1]), np.array([0, 0, 1]), np.array([0, 1, 0]))
        {'suggested_accuracy': 0.66667, 'suggested_accuracy_of_wrong': 0.5}
    """
    right, wrong = suggested == true, given != true
    return {
        "suggested_accuracy": _short(right.mean()),
        "suggested_accuracy_of_wrong": _short(right[wrong].mean()) if wrong.any() else None,
    }


def calibration(chance: Numbers, wrong: Flags) -> float:
    """The expected calibration error: how far chances are from frequencies, on average over fifteen bins.

    Args:
        chance: said to be the probability that the label is wrong, ``(N,)``.
        wrong: which labels are wrong, ``(N,)``.

    Example:
        >>> calibration(np.array([0.5, 0.5, 0.9, 0.9]), np.array([True, False, True, True]))
        0.05
    """
    place = np.minimum((chance * _BINS).astype(np.int64), _BINS - 1)
    sums = [np.bincount(place, values, minlength=_BINS) for values in (chance, wrong.astype(np.float64))]
    return _short(np.abs(sums[0] - sums[1]).sum() / len(wrong))


def of_verdicts(verdicts: Verdicts, true: Classes) -> dict[str, Any]:
    """All numbers of an audit.

    Args:
        verdicts: of N labels.
        true: the true ones, ``(N,)``.

    Returns:
        What :func:`ranking`, :func:`flagging` and :func:`suggesting` give; ``calibration_error`` of the probability
        (None without one) and ``uncalibrated_error`` of 1 − score; ``low`` and ``high``, the interval of the noise
        rate; ``matrix_error``, how far rows of the transition matrix are off (total variation), and
        ``matrix_covered``, the share of its cells that lie in their interval.
    """
    wrong, said = verdicts.given != true, verdicts.noise
    matrix = np.zeros_like(said.matrix)
    np.add.at(matrix, (true, verdicts.given), 1)
    there = matrix.sum(axis=1) > 0
    matrix[there] /= matrix[there].sum(axis=1, keepdims=True)
    covered = (said.matrix_low - 1e-9 <= matrix) & (matrix <= said.matrix_high + 1e-9)
    return {
        **ranking(verdicts.score, wrong),
        **flagging(verdicts.wrong, wrong),
        **suggesting(verdicts.suggested, verdicts.given, true),
        "calibration_error": None if verdicts.probability is None else calibration(verdicts.probability, wrong),
        "uncalibrated_error": calibration(1 - verdicts.score, wrong),
        "low": _short(said.low),
        "high": _short(said.high),
        "matrix_error": _short(np.abs(matrix - said.matrix)[there].sum(axis=1).mean() / 2),
        "matrix_covered": _short(covered[there].mean()),
    }


def _short(value: Any) -> float:
    """Five digits after the point."""
    return round(float(value), 5)
