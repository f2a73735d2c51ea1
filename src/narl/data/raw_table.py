"""A table in memory: columns of numbers, and columns of words as they were written."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from narl.data.class_labels import Words
from narl.errors import DataError

Cells: TypeAlias = Sequence[Any]
Chunk: TypeAlias = tuple[int, dict[str, Cells]]
"""A number of rows and their cells, column by column."""

Chunks: TypeAlias = Callable[[], Iterator[Chunk]]
"""Starts over at every call: a table is read twice when a column turns out late to hold words."""

MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "-nan", "null", "none", "?"})
"""What is written, in any case of letters, where a value is missing."""

_KEPT = 100_000


@final
@dataclass(frozen=True, eq=False)
class RawTable:
    """A table, its columns told apart by what they hold.

    Args:
        source: what was read, for messages.
        names: all columns, in order, those that were not read among them.
        numbers: columns in which every cell is a number or missing (NaN).
        words: the others, verbatim.
        length: rows.
    """

    source: str
    names: tuple[str, ...]
    numbers: dict[str, NDArray[np.float64]]
    words: dict[str, Words]
    length: int


def collect(
    chunks: Chunks, source: str, *, words: Collection[str] = (), skip: Collection[str] = (), flags: bool = True
) -> RawTable:
    """Bring a table into memory, a chunk of rows at a time.

    Args:
        chunks: gives the rows.
        source: what is read, for messages.
        words: columns to keep verbatim, even where they hold numbers.
        skip: columns not to read.
        flags: whether messages may name flags of the command line.
    """
    as_words = set(words)
    while True:
        columns: dict[str, _Column] = {}
        names: dict[str, None] = {}
        length = 0
        for count, cells in chunks():
            names.update(dict.fromkeys(cells))
            for name in cells:
                if name not in columns and name not in skip:
                    columns[name] = _Column(name, source, as_words=name in as_words, before=length, flags=flags)
            for name, column in columns.items():
                column.add(cells.get(name) or (None,) * count)
            length += count
        late = {name for name, column in columns.items() if column.late}
        if not late:
            break
        as_words |= late
    if not length:
        raise DataError(f"{source} has no rows: give a table with a header and one row a sample")
    numbers = {name: column.numbers() for name, column in columns.items() if not column.as_words}
    texts = {name: column.words() for name, column in columns.items() if column.as_words}
    return RawTable(source, tuple(names), numbers, texts, length)


class _Column:
    """A column as it grows: numbers as long as all cells are, words from then on."""

    def __init__(self, name: str, source: str, *, as_words: bool, before: int, flags: bool) -> None:
        self.name, self.source = name, source
        self.as_words = as_words
        self._way_out = f"leave the column out{f' with --ignore {argument(name)}' if flags else ''}"
        self.late = False
        self._numbers: list[NDArray[np.float64]] = []
        self._words: list[Words] = []
        self._known: dict[str, str] = {}
        self._rows = 0
        if before:
            self.add((None,) * before)

    def add(self, cells: Cells) -> None:
        if not self.late:
            values = None if self.as_words else _as_numbers(cells)
            if values is not None:
                self._numbers.append(values)
            else:
                self._become_words()
                self._words.append(self._as_words(cells))
        self._rows += len(cells)

    def numbers(self) -> NDArray[np.float64]:
        return np.concatenate(self._numbers)

    def words(self) -> Words:
        return np.concatenate(self._words)

    def _become_words(self) -> None:
        self.as_words = True
        # Numbers that were read already are no longer there as they were written, so the table is read again;
        # missing values are the same either way.
        self.late = any(not np.isnan(part).all() for part in self._numbers)
        self._words.extend(np.full(len(part), "", dtype=object) for part in self._numbers)
        self._numbers = []

    def _as_words(self, cells: Cells) -> Words:
        known = self._known
        values = np.empty(len(cells), dtype=object)
        for row, cell in enumerate(cells):
            word = cell if type(cell) is str else self._word(cell, self._rows + row)
            # One object a distinct value: a million rows of few categories are a million pointers.
            values[row] = known.setdefault(word, word) if len(known) < _KEPT else known.get(word, word)
        return values

    def _word(self, cell: Any, row: int) -> str:
        if cell is None:
            return ""
        if isinstance(cell, bool):
            return "true" if cell else "false"
        if isinstance(cell, (int, float)):
            return "" if cell != cell else str(cell)
        if isinstance(cell, (str, np.str_)):
            return str(cell)
        if hasattr(cell, "isoformat") or hasattr(cell, "as_tuple"):  # dates, times and decimal numbers
            return str(cell)
        raise DataError(
            f"{self.source}: column {self.name!r} holds a {type(cell).__name__} in row {row} (counted from 0): "
            f"write numbers or text, or {self._way_out}"
        )


def is_missing(word: str) -> bool:
    """Whether a cell says that its value is missing.

    Example:
        >>> is_missing("N/A"), is_missing("0")
        (True, False)
    """
    return len(word) < 8 and word.strip().lower() in MISSING


def argument(name: str) -> str:
    """A column's name as one would type it on the command line.

    Example:
        >>> argument("age"), argument("my age")
        ('age', "'my age'")
    """
    return name if name.isidentifier() else repr(name)


def as_number(word: str) -> float | None:
    """The number that is written in a cell; None for anything else."""
    try:
        return None if "_" in word else float(word)
    except ValueError:
        return None


def _as_numbers(cells: Cells) -> NDArray[np.float64] | None:
    kinds = set(map(type, cells))
    if not kinds <= {str, int, float, type(None)}:
        return None
    with np.errstate(over="ignore"):
        try:
            if kinds <= {int, float}:
                return np.fromiter(map(float, cells), np.float64, len(cells))
            if kinds == {str} and "_" not in "".join(cells):  # Python would read 1_000 as a number
                return np.fromiter(map(float, cells), np.float64, len(cells))
        except (ValueError, OverflowError):
            pass
        return _with_missing(cells)


def _with_missing(cells: Cells) -> NDArray[np.float64] | None:
    values = np.empty(len(cells), dtype=np.float64)
    for row, cell in enumerate(cells):
        if cell is None or (isinstance(cell, str) and is_missing(cell)):
            values[row] = math.nan
            continue
        try:
            number = as_number(cell) if isinstance(cell, str) else float(cell)
        except OverflowError:
            number = None
        if number is None:
            return None
        values[row] = number
    return values
