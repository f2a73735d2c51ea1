"""Verdicts as the columns of a table: narl's own, and those of cleanlab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from narl.audit.noise_estimate import estimate
from narl.audit.verdicts import Classes, Numbers, Verdicts
from narl.errors import DataError, nearest

_SCORES = ("label_quality", "label_score")
_TRUTHS = {"true": True, "1": True, "1.0": True, "yes": True, "false": False, "0": False, "0.0": False, "no": False}


def labels_table(
    verdicts: Verdicts, paths: Sequence[str] | None = None, *, order: NDArray[np.intp] | None = None
) -> dict[str, Any]:
    """The columns of ``labels.csv``, the most suspicious labels first.

    ``id``, ``given_label``, ``suggested_label`` (names of classes), ``wrong`` (true or false), ``score``,
    ``probability_wrong`` (NaN without a clean set), ``confidence``, ``margin``, ``family``, ``path``.

    Args:
        verdicts: of N labels.
        paths: the samples' files, N of them; None: they have none.
        order: rows in the order of the table; None: by rising score.

    Example:
        >>> from narl.audit import from_logits
        >>> verdicts = from_logits([[4.0, 0.0], [3.0, 0.0], [0.0, 5.0]], [0, 1, 1], class_names=["no", "yes"])
        >>> table = labels_table(verdicts)
        >>> table["id"], table["given_label"], table["suggested_label"], table["wrong"]
        (['1', '0', '2'], ['yes', 'no', 'yes'], ['no', 'no', 'yes'], ['true', 'false', 'false'])
    """
    rows = verdicts.order() if order is None else order
    names = verdicts.class_names
    probability = np.full(len(verdicts), np.nan) if verdicts.probability is None else verdicts.probability
    return {
        "id": verdicts.ids[rows].tolist(),
        "given_label": [names[label] for label in verdicts.given[rows].tolist()],
        "suggested_label": [names[label] for label in verdicts.suggested[rows].tolist()],
        "wrong": ["true" if wrong else "false" for wrong in verdicts.wrong[rows].tolist()],
        "score": verdicts.score[rows],
        "probability_wrong": probability[rows],
        "confidence": verdicts.confidence[rows],
        "margin": verdicts.margin[rows],
        "family": verdicts.family[rows].tolist(),
        "path": [""] * len(verdicts) if paths is None else [paths[row] for row in rows.tolist()],
    }


def to_cleanlab(verdicts: Verdicts) -> dict[str, Any]:
    """The columns of cleanlab's table of label issues, one row a sample, in the run's order.

    ``is_label_issue``, ``label_quality``, ``given_label`` and ``predicted_label`` (class indices), as
    ``CleanLearning.get_label_issues`` returns them; before them ``id``, which cleanlab does not have.

    Example:
        >>> from narl.audit import from_logits
        >>> table = to_cleanlab(from_logits([[4.0, 0.0], [3.0, 0.0], [0.0, 5.0]], [0, 1, 1]))
        >>> table["is_label_issue"], table["predicted_label"]
        (['False', 'True', 'False'], [0, 0, 1])
    """
    return {
        "id": verdicts.ids.tolist(),
        "is_label_issue": [str(bool(wrong)) for wrong in verdicts.wrong],
        "label_quality": verdicts.score,
        "given_label": verdicts.given.tolist(),
        "predicted_label": verdicts.suggested.tolist(),
    }


def from_cleanlab(table: Mapping[str, Sequence[Any]], class_names: Sequence[str]) -> Verdicts:
    """Verdicts from cleanlab's table of label issues.

    Args:
        table: columns by name, such as a data frame's or ``csv.DictReader``'s: ``is_label_issue``, ``given_label``,
            ``predicted_label``, and ``label_quality`` (CleanLearning) or ``label_score`` (Datalab). Labels are class
            indices or names; ``id`` is optional.
        class_names: of the classes, in order.

    Returns:
        One verdict a row. Cleanlab says nothing about margins, which are NaN; the confidence is the score, or for
        issues what the score leaves.

    Raises:
        DataError: a column that is missing, or a value that is not what it should be.

    Example:
        >>> table = {"is_label_issue": [False, True], "label_score": [0.9, 0.1], "given_label": ["no", "yes"],
        ...          "predicted_label": ["no", "no"]}
        >>> from_cleanlab(table, ["no", "yes"]).suggested.tolist()
        [0, 0]
    """
    names = tuple(map(str, class_names))
    quality = next((name for name in _SCORES if name in table), _SCORES[0])
    for column in ("is_label_issue", quality, "given_label", "predicted_label"):
        if column not in table:
            raise DataError(f"there is no column {column!r} of cleanlab's label issues: {nearest(column, table)}")
    given, predicted = (_classes(table[column], names, column) for column in ("given_label", "predicted_label"))
    wrong = np.array([_truth(value) for value in table["is_label_issue"]], dtype=np.bool_)
    score = _scores(table[quality], quality)
    count = len(given)
    ids = np.asarray(table["id"] if "id" in table else range(count)).astype(np.str_)
    # The class that a sample would have, were its label wrong, is known where cleanlab predicts another.
    rival = np.where(predicted != given, predicted, (given + 1) % len(names))
    return Verdicts(
        ids=ids,
        given=given,
        suggested=np.where(wrong, predicted, given),
        confidence=np.where(wrong, 1 - score, score),
        score=score,
        wrong=wrong,
        probability=None,
        margin=np.full(count, np.nan),
        family=np.full(count, -1, dtype=np.int64),
        class_names=names,
        noise=estimate(score, wrong, given, rival, len(names)),
    )


def _classes(values: Sequence[Any], names: tuple[str, ...], column: str) -> Classes:
    numbers = {name: number for number, name in enumerate(names)}
    found = []
    for row, value in enumerate(values):
        text = str(value)
        whole = text.removesuffix(".0")  # pandas makes floats of whole numbers beside a gap
        if text in numbers:
            found.append(numbers[text])
        elif whole.isdecimal() and int(whole) < len(names):
            found.append(int(whole))
        else:
            raise DataError(f"{column} in row {row} is {text!r}, which is no class: {nearest(text, names)}")
    return np.array(found, dtype=np.int64)


def _truth(value: Any) -> bool:
    try:
        return _TRUTHS[str(value).strip().lower()]
    except KeyError:
        raise DataError(f"is_label_issue is {str(value)!r}: write True or False") from None


def _scores(values: Sequence[Any], column: str) -> Numbers:
    try:
        scores = np.asarray(values).astype(np.float64)
    except ValueError as error:
        raise DataError(f"{column} has a value that is no number ({error}): give numbers from 0 to 1") from error
    if not ((scores >= 0) & (scores <= 1)).all():
        raise DataError(f"{column} has values outside 0 … 1: give cleanlab's scores as they are")
    return scores
