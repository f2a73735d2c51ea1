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


def from_cleanlab(
    table: Mapping[str, Sequence[Any]], class_names: Sequence[str], labels: str | None = None
) -> Verdicts:
    """Verdicts from cleanlab's table of label issues.

    Args:
        table: columns by name, such as a data frame's: ``is_label_issue``, ``given_label``, ``predicted_label``, and
            ``label_quality`` (CleanLearning) or ``label_score`` (Datalab). Labels are class indices or names; ``id`` is
            optional.
        class_names: of the classes, in order.
        labels: what the table's labels are, ``"indices"`` (CleanLearning) or ``"names"`` (Datalab); None: whichever
            they can be.

    Returns:
        One verdict a row. Cleanlab says nothing about margins, which are NaN; the confidence is the score, or for
        issues what the score leaves.

    Raises:
        DataError: a column that is missing, a value that is not what it should be, or labels that may be indices as
            well as names and would be other classes then.

    Example:
        >>> table = {"is_label_issue": [False, True], "label_score": [0.9, 0.1], "given_label": ["no", "yes"],
        ...          "predicted_label": ["no", "no"]}
        >>> from_cleanlab(table, ["no", "yes"]).suggested.tolist()
        [0, 0]
    """
    if not isinstance(table, Mapping) and not hasattr(table, "columns"):
        raise DataError(
            f"cleanlab's table is a {type(table).__name__}: give its columns by name, such as pandas.read_csv(...)"
        )
    names = tuple(map(str, class_names))
    quality = next((name for name in _SCORES if name in table), _SCORES[0])
    for column in ("is_label_issue", quality, "given_label", "predicted_label"):
        if column not in table:
            raise DataError(f"there is no column {column!r} of cleanlab's label issues: {nearest(column, table)}")
    given, predicted = _classes(table, names, labels)
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


def _classes(table: Mapping[str, Sequence[Any]], names: tuple[str, ...], labels: str | None) -> tuple[Classes, Classes]:
    """The given and the predicted classes, ``(N,)`` each."""
    if labels not in (None, *_READINGS):
        raise DataError(f"labels are said to be {labels!r}: say 'indices', 'names', or nothing")
    columns = {column: [str(value) for value in table[column]] for column in ("given_label", "predicted_label")}
    found: list[tuple[Classes, Classes]] = []
    refused: list[DataError] = []
    for reading in _READINGS if labels is None else (labels,):
        try:
            given, predicted = (_READINGS[reading](values, names, column) for column, values in columns.items())
            found.append((given, predicted))
        except DataError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    if any((one != other).any() for one, other in zip(found[0], found[-1], strict=True)):
        raise DataError(
            f"labels such as {columns['given_label'][0]!r} may be classes by their number, from 0, or by their name: "
            "say labels='indices' (CleanLearning's tables, narl's own) or labels='names' (Datalab's)"
        )
    return found[0]


def _named(values: Sequence[str], names: tuple[str, ...], column: str) -> Classes:
    numbers = {name: number for number, name in enumerate(names)}
    for row, text in enumerate(values):
        if text not in numbers:
            raise DataError(f"{column} in row {row} is {text!r}, which is no class: {nearest(text, names)}")
    return np.array([numbers[text] for text in values], dtype=np.int64)


def _numbered(values: Sequence[str], names: tuple[str, ...], column: str) -> Classes:
    whole = [text.removesuffix(".0") for text in values]  # pandas makes floats of whole numbers beside a gap
    for row, text in enumerate(whole):
        if not text.isdecimal() or int(text) >= len(names):
            raise DataError(f"{column} in row {row} is {values[row]!r}: classes are numbered 0 to {len(names) - 1}")
    return np.array([int(text) for text in whole], dtype=np.int64)


_READINGS = {"names": _named, "indices": _numbered}


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
