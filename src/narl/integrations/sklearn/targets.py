"""What goes with X: labels, weights, and the samples whose labels are right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from narl.data.clean import split
from narl.data.overlap import shared
from narl.data.samples import Inputs, Samples
from narl.errors import CleanBatchError, DataError, LabelError, OptionError
from narl.integrations.sklearn import inputs as reading

Classes = NDArray[Any]
Indices = NDArray[np.int64]


def labels_of(y: Any, estimator: Any, name: str = "y") -> NDArray[Any]:
    """One label a sample, ``(N,)``, or words about what was given instead."""
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import assert_all_finite, column_or_1d

    if y is None:
        raise LabelError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")
    shape = reading.shape_of(y)
    if len(shape) == 2 and shape[1] > 1:
        raise LabelError(
            f"{name} should be a 1d array of labels, got an array of shape {shape}: if it has a column for each class "
            f"(one-hot), give {name}.argmax(axis=1)"
        )
    found = column_or_1d(y, warn=True)
    if found.dtype.kind == "O" and (missing := [row for row, label in enumerate(found) if _is_nothing(label)]):
        raise LabelError(
            f"{name} has no label in {len(missing)} of {len(found)} rows (counted from 0: {missing[0]}"
            f"{', …' if len(missing) > 1 else ''}): fill them in or leave these rows out"
        )
    if found.dtype.kind == "f":
        assert_all_finite(found, input_name=name)
    check_classification_targets(found)
    return np.asarray(found)


def _is_nothing(label: Any) -> bool:
    """None, NaN, and pandas' NA, which has no truth."""
    is_nan = isinstance(label, float) and label != label
    return label is None or is_nan or type(label).__name__ in ("NAType", "NaTType")


def classes_of(y: NDArray[Any]) -> Classes:
    """The different labels, in order."""
    try:
        return np.unique(y)
    except TypeError:
        kinds = sorted({type(label).__name__ for label in y.tolist()})
        raise LabelError(
            f"y mixes labels of types {', '.join(kinds)}, which have no order: write all of them alike, y.astype(str)"
        ) from None


def indices_of(y: NDArray[Any], classes: Classes, name: str) -> Indices:
    """Class indices ``(N,)``."""
    known = {label: index for index, label in enumerate(classes.tolist())}
    try:
        return np.fromiter((known[label] for label in y.tolist()), np.int64, len(y))
    except KeyError as error:
        shown = ", ".join(map(repr, list(known)[:8])) + (", …" if len(known) > 8 else "")
        raise LabelError(
            f"{name} has the label {error.args[0]!r}, which is none of the classes ({shown}): correct it, or leave "
            "such samples out"
        ) from None


def weights_of(sample_weight: Any, count: int) -> NDArray[np.float64] | None:
    """Weights ``(N,)`` with a mean of one; None where all samples count alike."""
    if sample_weight is None:
        return None
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.ndim == 0:
        weights = np.full(count, float(weights))
    if weights.ndim != 1:
        raise OptionError(f"sample_weight must be 1D, one number a sample, got shape {weights.shape}")
    if len(weights) != count:
        raise OptionError(f"sample_weight has {len(weights)} numbers for {count} samples: give one a sample")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise OptionError("sample_weight holds negative or infinite numbers, or NaN: give 0 or more")
    if not weights.any():
        raise OptionError("every sample_weight is zero: leave some samples to train on")
    return None if (weights == weights[0]).all() else weights / weights.mean()


def check_two_classes(labels: Indices, weights: NDArray[np.float64] | None) -> None:
    """Refuse weights that leave samples of one class only."""
    if weights is not None and len(np.unique(labels[weights > 0])) < 2:
        raise OptionError("sample_weight leaves samples of one class only: a classifier needs two classes or more")


@final
@dataclass(frozen=True, eq=False)
class Clean:
    """Samples whose labels are right: M inputs, and their classes ``(M,)``."""

    inputs: Inputs
    labels: Indices


def clean_of(clean: Any, estimator: Any, inputs: Inputs, labels: Indices, classes: Classes) -> Clean:
    """The clean set, as it was given to ``fit``.

    Args:
        clean: ``(X, y)``, or which of the training samples are clean, ``(N,)`` of booleans.
        estimator: that is fitted, to read X.
        inputs: the training samples.
        labels: their classes, ``(N,)``.
        classes: the labels that they stand for.
    """
    mask = _mask(clean, len(labels))
    if mask is not None:
        chosen, own = inputs.take(np.flatnonzero(mask)), labels[mask]
    else:
        X, y = _pair(clean)
        try:
            chosen = reading.read(estimator, X, reset=False)
        except ValueError as error:
            raise DataError(f"the clean samples do not fit X ({error}): give clean=(X, y) with X like that") from error
        own = indices_of(labels_of(y, estimator, "y of clean"), classes, "y of clean")
        if len(own) != len(chosen):
            raise DataError(f"clean has {len(chosen)} samples and {len(own)} labels: give one label a sample")
    check_every_class(own, classes, "the clean set")
    return Clean(chosen, own)


def check_every_class(labels: Indices, classes: Classes, name: str) -> None:
    """Refuse a clean set in which a class is missing."""
    missing = np.setdiff1d(np.arange(len(classes)), labels)
    if len(missing):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise DataError(
            f"{name} has no sample of class {classes.tolist()[missing[0]]!r}{more}: give one or more of every class, "
            "or fit without a clean set"
        )


def parts_of(
    clean: Clean | None, *, learned_from: bool, heldout: float | None, classes: Classes, seed: int
) -> tuple[Clean | None, Clean | None]:
    """What a loss is learned from, and what chooses the epoch.

    Args:
        clean: all of it.
        learned_from: whether the method learns from clean samples; else all of them choose the epoch.
        heldout: share that early stopping looks at; None without it.
        classes: of the labels.
        seed: decides which.
    """
    if clean is None:
        if heldout is not None:
            raise OptionError(
                "early_stopping looks at samples whose labels are right, and there are none: give fit(X, y, "
                "clean=(X_checked, y_checked)), or leave early_stopping out"
            )
        return None, None
    if not learned_from:
        return None, clean
    if heldout is None:
        return clean, None
    names = tuple(map(str, classes.tolist()))
    samples = Samples(clean.inputs, clean.labels, names, np.arange(len(clean.labels)).astype(np.str_))
    learn, kept = split(samples, float(heldout), seed=seed)
    check_every_class(learn.labels, classes, "what early_stopping leaves of the clean set")
    return Clean(learn.inputs, learn.labels), Clean(kept.inputs, kept.labels)


def known_of(inputs: Inputs, clean: Clean | None) -> Indices:
    """The right classes of those samples that are clean ones, or copies of one; −1 of the others. ``(N,)``."""
    known = np.full(len(inputs), -1, dtype=np.int64)
    if clean is not None:
        pairs = np.array(shared(inputs, clean.inputs), dtype=np.int64).reshape(-1, 2)
        known[pairs[:, 0]] = clean.labels[pairs[:, 1]]
        if (known >= 0).all():
            raise DataError("all training samples are clean ones too, so nothing is left to train on: give others as X")
    return known


def _mask(clean: Any, count: int) -> NDArray[np.bool_] | None:
    if isinstance(clean, (tuple, list)) and len(clean) == 2 and count != 2:
        return None
    found: NDArray[Any] = np.asarray(clean) if not isinstance(clean, tuple) else np.empty(0)
    if found.dtype != np.bool_:
        return None
    if found.shape != (count,):
        raise CleanBatchError(
            f"clean is an array of booleans of shape {found.shape} for {count} samples: give one a sample, True where "
            "the label is right, or clean=(X, y)"
        )
    if not found.any():
        raise CleanBatchError("clean marks none of the samples: mark those whose labels are right, or leave it out")
    return found


def _pair(clean: Any) -> tuple[Any, Any]:
    if not isinstance(clean, (tuple, list)) or len(clean) != 2:
        what = f"a {type(clean).__name__}" + (f" of {len(clean)}" if isinstance(clean, (tuple, list)) else "")
        raise CleanBatchError(
            f"clean is {what}: give clean=(X, y), samples whose labels are right, or an array of booleans that says "
            "which of the training samples are such"
        )
    return clean[0], clean[1]
