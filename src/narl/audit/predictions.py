"""An audit of labels by predictions that were made elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from narl.audit import evidence
from narl.audit.judging import judge
from narl.audit.verdicts import Classes, Verdicts
from narl.errors import DataError, LabelError, LogitsError


def from_logits(
    logits: ArrayLike | Tensor,
    labels: ArrayLike | Tensor,
    *,
    class_names: Sequence[str] | None = None,
    clean: tuple[ArrayLike | Tensor, ArrayLike | Tensor] | None = None,
    ids: Sequence[str] | NDArray[np.str_] | None = None,
) -> Verdicts:
    """Which of these labels are wrong, by a classifier's predictions.

    Best are predictions for samples that the classifier was not trained on, as cross-validation gives them: a
    classifier that has learned a wrong label by heart finds nothing wrong with it.

    Args:
        logits: ``(N, c)``; logarithms of probabilities will do, and −∞ is not allowed.
        labels: the given labels, class indices ``(N,)``.
        class_names: of the classes; None: their numbers.
        clean: logits ``(M, c)`` and labels ``(M,)`` of samples whose labels are right and that the classifier was not
            trained on: with them, probabilities are calibrated.
        ids: names of the samples; None: their numbers.

    Returns:
        One verdict a sample, in order.

    Raises:
        LogitsError: logits that are none.
        LabelError: labels that don't fit them.

    Example:
        >>> verdicts = from_logits([[4.0, 0.0], [3.0, 0.0], [0.0, 5.0], [0.0, 4.0]], [0, 1, 1, 1])
        >>> verdicts.wrong.tolist(), verdicts.suggested.tolist(), verdicts.noise.rate
        ([False, True, False, False], [0, 0, 1, 1], 0.25)
    """
    scores = _logits(logits, "logits")
    given = _labels(labels, scores, "labels")
    names = tuple(map(str, range(scores.shape[1]))) if class_names is None else tuple(map(str, class_names))
    if len(names) != scores.shape[1] or len(set(names)) < len(names):
        raise DataError(
            f"{len(names)} class names, {len(set(names))} of them different, do not name the {scores.shape[1]} classes "
            "of the logits: give every class a name of its own"
        )
    own = np.arange(len(given)).astype(np.str_) if ids is None else np.asarray(ids, dtype=np.str_)
    if own.shape != given.shape:
        raise DataError(f"ids of shape {own.shape} do not name {len(given)} samples: give one id a sample")
    checked = None
    if clean is not None:
        clean_scores = _logits(clean[0], "clean logits")
        if clean_scores.shape[1] != scores.shape[1]:
            raise LogitsError(
                f"clean logits have {clean_scores.shape[1]} classes, the others {scores.shape[1]}: use one classifier"
            )
        checked = (clean_scores, _labels(clean[1], clean_scores, "clean labels"))
    found = evidence.from_logits(scores, given)
    return judge(found, ids=own, given=given, class_names=names, clean=checked)


def _array(values: ArrayLike | Tensor) -> NDArray[Any]:
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
        return np.asarray((tensor.float() if tensor.is_floating_point() else tensor).numpy())
    try:
        return np.asarray(values)
    except ValueError:  # rows of different lengths
        return np.empty((0, 0), dtype=object)


def _logits(values: ArrayLike | Tensor, name: str) -> NDArray[np.floating]:
    found = _array(values)
    if found.ndim != 2 or found.dtype.kind not in "fiu" or not len(found) or found.shape[1] < 2:
        raise LogitsError(
            f"{name} must be class scores of shape (N, c) with two classes or more, got shape {found.shape} of "
            f"{found.dtype}: give one row a sample"
        )
    scores: NDArray[np.floating] = found if found.dtype.kind == "f" else found.astype(np.float64)
    bad = int((~np.isfinite(scores)).any(axis=1).sum())
    if bad:
        raise LogitsError(
            f"{name} hold NaN or infinity in {bad} of {len(scores)} rows: leave such samples out, and add a little to "
            "probabilities before you take their logarithm"
        )
    return scores


def _labels(values: ArrayLike | Tensor, scores: NDArray[np.floating], name: str) -> Classes:
    found = _array(values)
    if found.dtype.kind not in "iu" or found.shape != (len(scores),):
        raise LabelError(
            f"{name} have shape {found.shape} and type {found.dtype}, but there are {len(scores)} samples: give one "
            "class index a sample"
        )
    labels = found.astype(np.int64)
    if labels.min() < 0 or labels.max() >= scores.shape[1]:
        raise LabelError(
            f"{name} run from {labels.min()} to {labels.max()}, but there are {scores.shape[1]} classes: renumber them "
            f"to 0 … {scores.shape[1] - 1}"
        )
    return labels
