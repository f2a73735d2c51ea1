"""What an audit finds: one verdict a training sample, and how much noise there is in all."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import final

import numpy as np
from numpy.typing import NDArray

from narl.errors import DataError

Numbers = NDArray[np.float64]
Classes = NDArray[np.int64]
Flags = NDArray[np.bool_]

_OF_ALL = ("class_names", "noise", "contradicted")  # the other parts of an audit have an entry a sample


@final
@dataclass(frozen=True, eq=False)
class NoiseEstimate:
    """How many labels are wrong, and how classes are taken for one another.

    The intervals allow for doubtful labels and for the draw; not for a classifier that is sure and mistaken.

    Args:
        rate: share of the labels that are wrong.
        low: lower end of the rate's interval.
        high: upper end.
        matrix: probability of every given label by true class, ``(c, c)``: rows true, columns given; rows sum to one.
        matrix_low: lower ends, ``(c, c)``.
        matrix_high: upper ends, ``(c, c)``.

    Example:
        >>> sure = np.eye(2)
        >>> NoiseEstimate(0.0, 0.0, 0.1, sure, sure, sure).matrix.trace()
        np.float64(2.0)
    """

    rate: float
    low: float
    high: float
    matrix: Numbers
    matrix_low: Numbers
    matrix_high: Numbers


@final
@dataclass(frozen=True, eq=False)
class Verdicts:
    """What a training run says of the labels that it was given; one entry a training sample, in the run's order.

    Args:
        ids: the samples' names, as the data set and the run's record have them: ``(N,)``.
        given: the given labels, class indices ``(N,)``.
        suggested: the most likely classes.
        confidence: probabilities of the suggested classes.
        score: from 0 to 1; low: the label is likely wrong.
        wrong: which labels are held for wrong.
        probability: that the label is wrong, calibrated on a clean set; None without one.
        margin: how far the label stood above the best other class; negative: the classifier contradicts it.
        family: task family of the given label's class; −1 where the method has none.
        class_names: of the classes, in order.
        noise: how much of it there is in all.
        contradicted: share of the clean labels, which are right, that the classifier contradicts all the same; None
            without a clean set.

    Example:
        >>> sure = np.eye(2)
        >>> verdicts = Verdicts(
        ...     ids=np.array(["a", "b"]), given=np.array([0, 1]), suggested=np.array([0, 0]),
        ...     confidence=np.array([0.9, 0.8]), score=np.array([0.9, 0.2]), wrong=np.array([False, True]),
        ...     probability=None, margin=np.array([2.0, -1.0]), family=np.array([0, 0]), class_names=("cat", "dog"),
        ...     noise=NoiseEstimate(0.0, 0.0, 0.1, sure, sure, sure))
        >>> len(verdicts), verdicts.ids[verdicts.order()].tolist()
        (2, ['b', 'a'])
    """

    ids: NDArray[np.str_]
    given: Classes
    suggested: Classes
    confidence: Numbers
    score: Numbers
    wrong: Flags
    probability: Numbers | None
    margin: Numbers
    family: Classes
    class_names: tuple[str, ...]
    noise: NoiseEstimate
    contradicted: float | None = None

    def __post_init__(self) -> None:
        """Refuse parts that don't fit together."""
        columns = (entry.name for entry in fields(self) if entry.name not in _OF_ALL)
        lengths = {name: len(getattr(self, name)) for name in columns if getattr(self, name) is not None}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{count} {name}" for name, count in lengths.items())
            raise DataError(f"the parts of an audit differ in length ({shown}): give one of each a sample")

    def __len__(self) -> int:
        """How many samples."""
        return len(self.ids)

    def order(self) -> NDArray[np.intp]:
        """Rows from the most suspicious label to the least; equal scores in the run's order."""
        return np.argsort(self.score, kind="stable")
