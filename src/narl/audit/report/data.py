"""What a report shows, as plain values: the page is made of nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from narl._version import __version__
from narl.audit.doubts import doubt_of
from narl.audit.report import gallery, training
from narl.audit.verdicts import Verdicts
from narl.data.samples import Rows, Samples
from narl.train.evaluate import separation
from narl.train.run_folder import RunFolder

STEPS: Final = 1000
"""Thresholds of the slider."""

MOST_CLASSES: Final = 30
"""Larger heat maps cannot be read: of more classes, those that are confused most are drawn."""

_BINS = 50
_MOST_PAIRS = 300


def page_data(
    verdicts: Verdicts,
    *,
    title: str,
    samples: Samples | None = None,
    rows: Rows | None = None,
    folder: RunFolder | None = None,
    notes: tuple[str, ...] = (),
    most: int = gallery.MOST,
) -> dict[str, Any]:
    """All that a page shows.

    Args:
        verdicts: of all samples.
        title: what was audited.
        samples: the data set; None where it cannot be read: then no contents and no true labels are shown.
        rows: where every audited sample stands in it; None: one after another.
        folder: of the run; None for predictions made elsewhere: then no curves and settings are shown.
        notes: what a reader should know.
        most: so many samples are shown at most.

    Returns:
        Strings, numbers, lists and dicts.
    """
    if samples is not None and rows is None:
        rows = np.arange(len(verdicts))
    true = None
    if samples is not None and samples.true_labels is not None:
        true = _matched(samples.true_labels[rows], samples.classes, verdicts.class_names)
    doubt = doubt_of(verdicts)
    chosen = gallery.choose(verdicts, most)
    shown = gallery.entries(verdicts, chosen, None if samples is None else samples.inputs, rows, true)
    return {
        "title": gallery.cut(title, gallery.LONGEST_NAME),
        "narl": __version__,
        "notes": [*notes, *([f"{doubt[0].upper()}{doubt[1:]}"] if doubt else [])],
        "kind": None if samples is None else samples.kind,
        "classes": [gallery.cut(name, gallery.LONGEST_NAME) for name in verdicts.class_names],
        "samples": len(verdicts),
        "flagged": int(verdicts.wrong.sum()),
        "noise": _noise(verdicts, true),
        "by_class": _by_class(verdicts, true),
        "confusion": _confusion(verdicts),
        "scores": _scores(verdicts, true),
        "quality": _quality(verdicts, true),
        "curves": None if folder is None else training.curves(folder.metrics()),
        "hyperparameters": [] if folder is None else training.hyperparameters(folder, verdicts),
        "gallery": {"samples": shown, "chosen": len(chosen)},
        "settings": [] if folder is None else training.settings(folder),
    }


def _matched(labels: NDArray[np.int64], classes: tuple[str, ...], wanted: tuple[str, ...]) -> NDArray[np.int64] | None:
    """Labels by the audit's order of classes; None where it has other classes."""
    if classes == wanted:
        return labels
    place = {name: number for number, name in enumerate(wanted)}
    if not set(classes) <= set(place):
        return None
    return np.array([place[name] for name in classes], dtype=np.int64)[labels]


def _noise(verdicts: Verdicts, true: NDArray[np.int64] | None) -> dict[str, Any]:
    noise = verdicts.noise
    actual = None if true is None else float((true != verdicts.given).mean())
    return {"rate": noise.rate, "low": noise.low, "high": noise.high, "actual": actual}


def _by_class(verdicts: Verdicts, true: NDArray[np.int64] | None) -> list[dict[str, Any]]:
    """Of every class: how many of its samples carry another label, and how many of its labels are flagged."""
    noise, c = verdicts.noise, len(verdicts.class_names)
    counts = np.bincount(verdicts.given, minlength=c)
    flagged = np.bincount(verdicts.given[verdicts.wrong], minlength=c)
    actual = [None] * c if true is None else _shares(true, verdicts.given != true, c)
    return [
        {
            "rate": 1 - noise.matrix[number, number],
            "low": 1 - noise.matrix_high[number, number],
            "high": 1 - noise.matrix_low[number, number],
            "labels": int(counts[number]),
            "flagged": int(flagged[number]),
            "actual": actual[number],
        }
        for number in range(c)
    ]


def _shares(group: NDArray[np.int64], hits: NDArray[np.bool_], c: int) -> list[float | None]:
    sizes, found = np.bincount(group, minlength=c), np.bincount(group[hits], minlength=c)
    return [float(hit / size) if size else None for hit, size in zip(found, sizes, strict=True)]


def _confusion(verdicts: Verdicts) -> dict[str, Any]:
    """The transition matrix of the classes that are confused most, and the confusions by size."""
    noise, c = verdicts.noise, len(verdicts.class_names)
    pair = (verdicts.suggested * c + verdicts.given)[verdicts.wrong]
    flagged = np.bincount(pair, minlength=c * c).reshape(c, c)
    sizes = np.bincount(verdicts.suggested, minlength=c)
    labels = np.nan_to_num(noise.matrix * sizes[:, None])  # about so many labels are confused
    np.fill_diagonal(labels, 0.0)
    weight = labels.sum(0) + labels.sum(1)
    shown = np.sort(np.argsort(-weight, kind="stable")[:MOST_CLASSES])
    part = np.ix_(shown, shown)
    biggest = np.argsort(-labels, axis=None, kind="stable")[: _MOST_PAIRS + c]
    pairs = [divmod(place, c) for place in biggest.tolist()]
    return {
        "shown": shown.tolist(),
        "matrix": _rounded(noise.matrix[part]),
        "low": _rounded(noise.matrix_low[part]),
        "high": _rounded(noise.matrix_high[part]),
        "flagged": flagged[part].tolist(),
        "pairs": [
            [
                true,
                given,
                *(float(of[true, given]) for of in (noise.matrix, noise.matrix_low, noise.matrix_high)),
                int(flagged[true, given]),
            ]
            for true, given in pairs
            if true != given
        ][:_MOST_PAIRS],
        "left_out": max(0, c * (c - 1) - _MOST_PAIRS),
    }


def _scores(verdicts: Verdicts, true: NDArray[np.int64] | None) -> dict[str, Any]:
    """The distribution of the score, and what every threshold would flag: all labels with a score below it."""
    score = verdicts.score
    edges = np.linspace(0.0, 1.0, _BINS + 1)
    thresholds = np.linspace(0.0, 1.0, STEPS + 1)
    order = verdicts.order()
    counts = np.searchsorted(score[order], thresholds, side="left")
    wanted = int(verdicts.wrong.sum())
    found: dict[str, Any] = {
        "edges": edges.tolist(),
        "all": _histogram(score, edges),
        "flagged": counts.tolist(),
        "start": _nearest(counts, wanted),
        "wrong": None,
        "hits": None,
        "total": None,
        "measured": true is not None,
    }
    if true is not None:
        found["wrong"] = _histogram(score[true != verdicts.given], edges)
        weight = (true != verdicts.given).astype(np.float64)
    elif verdicts.probability is not None:
        weight = np.nan_to_num(verdicts.probability)
    else:
        return found
    hits = np.concatenate([[0.0], np.cumsum(weight[order])])
    return {**found, "hits": np.round(hits[counts], 2).tolist(), "total": float(hits[-1])}


def _nearest(counts: NDArray[np.intp], wanted: int) -> int:
    """The step that flags as many labels as the audit; of several, that nearest to one half, where audits cut."""
    away = np.abs(counts - wanted)
    same = np.flatnonzero(away == away.min())
    return int(same[np.abs(same - STEPS // 2).argmin()])


def _histogram(values: NDArray[np.float64], edges: NDArray[np.float64]) -> list[int]:
    return [int(count) for count in np.histogram(values.clip(0.0, 1.0), edges)[0]]


def _quality(verdicts: Verdicts, true: NDArray[np.int64] | None) -> Mapping[str, float | None] | None:
    """How good the verdicts are, where the truth is known."""
    if true is None:
        return None
    mislabelled = true != verdicts.given
    both = int((mislabelled & verdicts.wrong).sum())
    flagged, wrong = int(verdicts.wrong.sum()), int(mislabelled.sum())
    right = int((verdicts.suggested == true)[mislabelled].sum())
    return {
        "auroc": separation(verdicts.score, mislabelled),
        "precision": both / flagged if flagged else None,
        "recall": both / wrong if wrong else None,
        "suggestions": right / wrong if wrong else None,
    }


def _rounded(values: NDArray[np.float64]) -> list[list[float]]:
    rounded: list[list[float]] = np.round(values, 5).tolist()
    return rounded
