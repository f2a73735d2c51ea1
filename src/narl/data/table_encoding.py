"""Rows of a table to tensors: numbers standardised, categories numbered, columns found by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from narl.data.encoder import Encoder
from narl.data.samples import Inputs, Table
from narl.errors import DataError, nearest

UNKNOWN = 0
LARGEST_NUMBER = 10.0
_FENCE = 10.0
_MOST_LEVELS = 10_000
_CHUNK = 1 << 15


@final
@dataclass(frozen=True, eq=False)
class TableEncoder(Encoder):
    r"""Rows as ``(N, d + k)``: d numbers, then the codes of k categories.

    .. math:: x' = \operatorname{clip}\big((x - \mu) / \sigma,\, -10,\, 10\big)

    with the training mean and standard deviation of the column, in float64. Values more than ten interquartile ranges
    outside the quartiles don't count for them (no value of a bell-shaped column lies there), so that a few wild ones
    neither squeeze the rest of a heavy-tailed column together nor reach the model as more than 10. A column that was
    constant in training is 0. A category's code is its place among the sorted training levels, from 1 on; 0 stands
    for levels that training did not see, and for the rarest where a column has more than 10,000. A missing value
    (the empty string) is a level like any other.

    Args:
        number_names: the number columns, in the order of the encoded ones.
        mean: of every number column.
        std: likewise; 0 for a constant column.
        category_names: the category columns, in order.
        levels: of every category column, sorted.

    Example:
        >>> table = Table(np.array([[1], [3]], np.float32), np.array([["b"], ["a"]], object), ("width",), ("colour",))
        >>> encoder = TableEncoder.fit(table)
        >>> encoder.shape
        {'numbers': 1, 'cardinalities': [3]}
        >>> encoder.encode(table)
        tensor([[-1.,  2.],
                [ 1.,  1.]])
    """

    kind: ClassVar[str] = "table"
    number_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    category_names: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        """Refuse parts that don't fit together."""
        if not len(self.number_names) == len(self.mean) == len(self.std):
            raise DataError("a table encoder needs a mean and a std for every number column")
        if len(self.category_names) != len(self.levels):
            raise DataError("a table encoder needs the levels of every category column")

    @classmethod
    def fit(cls, inputs: Table) -> TableEncoder:
        """The encoder for a training table like this."""
        _check_finite(inputs.numbers, inputs.number_names)
        moments = [_moments(column) for column in inputs.numbers.T]
        return cls(
            number_names=tuple(inputs.number_names),
            mean=tuple(mean for mean, _ in moments),
            std=tuple(std for _, std in moments),
            category_names=tuple(inputs.category_names),
            levels=tuple(_levels(column) for column in inputs.categories.T[: len(inputs.category_names)]),
        )

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> TableEncoder:
        """The encoder that wrote this state."""
        return cls(
            number_names=tuple(map(str, state["number_names"])),
            mean=tuple(map(float, state["mean"])),
            std=tuple(map(float, state["std"])),
            category_names=tuple(map(str, state["category_names"])),
            levels=tuple(tuple(map(str, levels)) for levels in state["levels"]),
        )

    def state(self) -> dict[str, Any]:
        """Everything that was fitted."""
        return {
            "kind": self.kind,
            "number_names": list(self.number_names),
            "mean": list(self.mean),
            "std": list(self.std),
            "category_names": list(self.category_names),
            "levels": [list(levels) for levels in self.levels],
        }

    @property
    def shape(self) -> dict[str, Any]:
        """How many numbers, and how many codes every category has, the unknown among them."""
        return {"numbers": len(self.number_names), "cardinalities": [len(levels) + 1 for levels in self.levels]}

    def encode(self, inputs: Inputs) -> Tensor:
        """The rows, ``(N, d + k)``, float32.

        Raises:
            DataError: a training column is missing or of another type, or a number is not finite. Columns that
                training did not have are ignored.
        """
        if not isinstance(inputs, Table):
            raise self.refuse(inputs)
        numbers = _places(self.number_names, inputs.number_names, inputs.category_names, "numbers")
        categories = _places(self.category_names, inputs.category_names, inputs.number_names, "categories")
        _check_finite(inputs.numbers, inputs.number_names)
        d = len(numbers)
        encoded = np.empty((len(inputs), d + len(categories)), np.float32)
        mean, std = np.array(self.mean), np.array(self.std)
        factor = np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)
        for start in range(0, len(inputs) if d else 0, _CHUNK):  # float64 for a part at a time
            part = (inputs.numbers[start : start + _CHUNK, numbers].astype(np.float64) - mean) * factor
            encoded[start : start + _CHUNK, :d] = np.clip(part, -LARGEST_NUMBER, LARGEST_NUMBER)
        for place, (column, levels) in enumerate(zip(categories, self.levels, strict=True), start=d):
            codes = {level: code for code, level in enumerate(levels, start=1)}
            words = map(str, inputs.categories[:, column].tolist())
            encoded[:, place] = np.fromiter((codes.get(word, UNKNOWN) for word in words), np.float32, len(inputs))
        return torch.from_numpy(encoded)

    def unseen(self, inputs: Table) -> dict[str, int]:
        """How many values of each category column are none of its training levels, where there are any.

        A missing value counts unless values were missing in training, too. Of a column with more than 10,000 levels
        the rarest count as unseen.

        Example:
            >>> def towns(*names: str) -> Table:
            ...     return Table(np.empty((len(names), 0)), np.array([[name] for name in names], object), (), ("town",))
            >>> TableEncoder.fit(towns("Bonn", "Jena")).unseen(towns("Bonn", "Rome", ""))
            {'town': 2}
        """
        places = _places(self.category_names, inputs.category_names, inputs.number_names, "categories")
        found = {}
        for name, place, levels in zip(self.category_names, places, self.levels, strict=True):
            counts = Counter(map(str, inputs.categories[:, place].tolist()))
            for level in levels:
                counts.pop(level, None)
            if counts:
                found[name] = sum(counts.values())
        return found


def _places(wanted: Sequence[str], given: Sequence[str], others: Sequence[str], type_name: str) -> list[int]:
    places = {name: place for place, name in enumerate(given)}
    for name in wanted:
        if name in places:
            continue
        if name in others:
            raise DataError(f"column {name!r} held {type_name} in training and does not here: give it as {type_name}")
        raise DataError(
            f"column {name!r} is missing, the model was trained with it: {nearest(name, [*given, *others])}"
        )
    return [places[name] for name in wanted]


def _check_finite(numbers: NDArray[np.floating[Any]], names: Sequence[str]) -> None:
    # The sum is finite when all are, unless it overflows; only then is a look at each needed.
    if numbers.size and not np.isfinite(numbers.sum(dtype=np.float64)):
        bad = ~np.isfinite(numbers)
        if bad.any():
            row, column = np.argwhere(bad)[0]
            count = int(bad[:, column].sum())
            where = f"row {row}" if count == 1 else f"{count} rows, first in row {row}"
            raise DataError(
                f"column {names[column]!r} holds NaN or infinity in {where} (counted from 0): fill these values in or "
                "leave the rows out"
            )


def _moments(column: NDArray[np.floating[Any]]) -> tuple[float, float]:
    values = column.astype(np.float64)
    low, high = np.percentile(values, [25, 75])
    reach = _FENCE * (high - low)
    if reach > 0:  # otherwise more than half the values are one: the rest are all the column has to say
        values = values[(values >= low - reach) & (values <= high + reach)]
    if values.min() == values.max():  # of equal values, the mean may be off by rounding and the std above 0
        return float(values[0]), 0.0
    return float(values.mean()), float(values.std())


def _levels(column: NDArray[np.object_]) -> tuple[str, ...]:
    counts = Counter(map(str, column.tolist()))
    kept = sorted(counts, key=lambda level: (-counts[level], level))[:_MOST_LEVELS]
    return tuple(sorted(kept))
