"""Tables in files: a label column, and images, texts, or numbers and categories."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from narl.data import columns as roles
from narl.data.class_labels import ClassLabels, Words, from_words, shortened
from narl.data.column_questions import NO_COMMAS, has_comma, listed
from narl.data.columns import Columns
from narl.data.raw_table import Chunks, RawTable, as_number, collect, is_missing
from narl.data.samples import ImageFiles, Inputs, Table, Texts
from narl.data.source import Found, Layout, Request, first_missing, string_array
from narl.data.table_files import SUFFIXES, chunks_of
from narl.errors import DataError, NarlWarning

TEST_NAMES = ("test", "val", "valid", "validation", "dev")
"""What the test part may be called, in order of preference."""


@final
class TableFile(Layout):
    """A table file, or a folder with one called ``train`` and perhaps one called ``test``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def matches(self, path: Path) -> bool:
        """By the ending of the file, or of the file called ``train``."""
        if path.is_dir():
            return self._part(path, ("train",)) is not None
        return SUFFIXES.get(path.suffix.lower()) == self.name

    def parts(self, path: Path) -> frozenset[str]:
        """Those of a folder."""
        if not path.is_dir():
            return frozenset()
        named = {"train": ("train",), "test": TEST_NAMES}
        return frozenset(part for part, names in named.items() if self._part(path, names) is not None)

    def read(self, path: Path, request: Request) -> Found:
        """The rows of the file."""
        if path.is_dir():
            names = ("train",) if request.part == "train" else TEST_NAMES
            file = self._part(path, names)
            if file is None:
                raise DataError(f"{path} has no {self.name} file called {names[0]}: add one, or name the file itself")
            path = file
        return read_table(chunks_of(path, self.name), request, source=str(path), folder=path.parent)

    def _part(self, folder: Path, names: Collection[str]) -> Path | None:
        for name in names:
            for suffix, layout in SUFFIXES.items():
                if layout == self.name and (folder / f"{name}{suffix}").is_file():
                    return folder / f"{name}{suffix}"
        return None


def read_table(
    chunks: Chunks,
    request: Request,
    *,
    source: str,
    folder: Path,
    class_names: Mapping[str, tuple[str, ...]] | None = None,
) -> Found:
    """The samples of a table.

    Args:
        chunks: its rows.
        request: what is wanted.
        source: where it comes from, for messages.
        folder: where image paths start.
        class_names: names of the classes of columns whose classes are known beforehand.
    """
    strict = request.part == "train" and request.labelled and request.classes is None
    table, columns = _load(chunks, request, source, folder, strict)
    if strict:
        _doubt_header(table)
    known = class_names or {}
    labels = true_labels = None
    if columns.label and request.labelled:
        labels = _labels(table, columns.label, known, request)
    if columns.true_label and request.labelled:
        true_labels = _labels(table, columns.true_label, known, request)
    if labels is not None and true_labels is not None:
        labels, true_labels = _together(table, columns, labels, true_labels)
    inputs = _inputs(table, columns, folder, request)
    ids, columns = _ids(table, columns, given=request.columns.id is not None and strict)
    return Found(inputs, ids, labels, true_labels, columns)


def _load(chunks: Chunks, request: Request, source: str, folder: Path, strict: bool) -> tuple[RawTable, Columns]:
    columns = request.columns
    _, first = next(chunks(), (0, {}))
    words = roles.kept_as_words(columns, first, labelled=request.labelled)
    while True:  # once more where a column of numbers turned out to be the label, as in texts with a column of 0 and 1
        table = collect(chunks, source, words=words, skip=columns.ignore, flags=request.labelled)
        resolved = roles.resolve(
            table,
            columns,
            folder=folder,
            labelled=request.labelled,
            optional=request.optional,
            strict=strict,
            true_labels=request.true_labels,
        )
        wanted = {resolved.label, resolved.true_label, resolved.id, resolved.text, resolved.image, *resolved.categories}
        late = {name for name in wanted if name in table.numbers}
        if not late:
            return table, resolved
        words |= {name for name in late if name is not None}


def _doubt_header(table: RawTable) -> None:
    """Say so if what names the columns looks like a sample: numbers, broken ones among them, and one word at most."""
    numbers = [value for name in table.names if (value := as_number(name)) is not None]
    if len(numbers) >= 2 and len(numbers) >= len(table.names) - 1 and not all(value.is_integer() for value in numbers):
        warnings.warn(
            f"{table.source}: the first line is taken for names of columns ({shortened(table.names)}): if it is a "
            "sample, put a line of names before it",
            NarlWarning,
            stacklevel=3,
        )


def _labels(table: RawTable, name: str, known: Mapping[str, tuple[str, ...]], request: Request) -> ClassLabels:
    where = f"{table.source}: label column {name!r}"
    words = table.words[name]
    if name not in known:
        return from_words(_without_nan(words, request), where, typed=request.classes is not None)
    names = known[name]
    indices = np.fromiter((int(word) if word else -1 for word in words), np.int64, len(words))
    if ((indices < 0) | (indices >= len(names))).any():
        row = int(np.argmax((indices < 0) | (indices >= len(names))))
        raise DataError(
            f"{where} has no label in row {row} (counted from 0): leave this part out, or fill the labels in"
        )
    used, positions = np.unique(indices, return_inverse=True)
    if len(used) == len(names) or request.part == "test":
        return ClassLabels(indices, names)
    return ClassLabels(positions.astype(np.int64), tuple(names[index] for index in used))  # the others have no sample


def _without_nan(words: Words, request: Request) -> Words:
    """Labels, empty where NaN is written: nobody calls a class so. Other words for nothing, as None, may be classes."""
    nothing = {word for word in set(words.tolist()) if word.strip().lower() in ("nan", "-nan")}
    nothing -= set(request.classes or ())
    return np.array(["" if word in nothing else word for word in words], dtype=object) if nothing else words


def _together(
    table: RawTable, columns: Columns, labels: ClassLabels, true_labels: ClassLabels
) -> tuple[ClassLabels, ClassLabels]:
    """Both with the same class names: a class may be in one of the columns only."""
    if labels.names == true_labels.names:
        return labels, true_labels
    where = f"{table.source}: label columns {columns.label!r} and {columns.true_label!r}"
    words = [np.array(each.names, dtype=object)[each.indices] for each in (labels, true_labels)]
    both = from_words(np.concatenate(words), where)
    return (
        ClassLabels(both.indices[: table.length], both.names),
        ClassLabels(both.indices[table.length :], both.names),
    )


def _inputs(table: RawTable, columns: Columns, folder: Path, request: Request) -> Inputs:
    if columns.image:
        return _images(table, columns.image, folder, check_files=request.check_files)
    if columns.text:
        return _texts(table, columns.text, flags=request.labelled)
    _check_numbers(table, columns.numbers, flags=request.labelled)
    numbers = np.empty((table.length, len(columns.numbers)), dtype=np.float64)
    for index, name in enumerate(columns.numbers):
        numbers[:, index] = table.numbers[name]
    categories = np.empty((table.length, len(columns.categories)), dtype=object)
    for index, name in enumerate(columns.categories):
        words = table.words[name]
        level = {word: "" if is_missing(word) else word for word in set(words.tolist())}
        categories[:, index] = [level[word] for word in words]
    return Table(numbers, categories, columns.numbers, columns.categories)


def _images(table: RawTable, name: str, folder: Path, *, check_files: bool) -> ImageFiles:
    words = table.words[name]
    empty = [row for row, word in enumerate(words) if is_missing(word)]
    if empty:
        raise DataError(
            f"{table.source}: image column {name!r} is empty in row {empty[0]} (counted from 0): fill it in or leave "
            "the row out"
        )
    paths = string_array(words, f"{table.source}: image column {name!r}")
    lost = first_missing(folder, words) if check_files else None
    if lost is not None:
        raise DataError(
            f"there is no image {folder / lost} (row {words.tolist().index(lost)} of {table.source}, counted from 0): "
            "mend the path, or leave it out (training and prediction do so with --skip-unreadable)"
        )
    return ImageFiles(folder, paths)


def _texts(table: RawTable, name: str, *, flags: bool) -> Texts:
    words = table.words[name]
    missing = {word for word in set(words.tolist()) if is_missing(word)}
    rows = [row for row, word in enumerate(words) if word in missing] if missing else []
    if len(rows) == table.length:
        way = "name another with --text" if flags else "fill it in"
        raise DataError(f"{table.source}: text column {name!r} is empty: {way}")
    if rows:
        warnings.warn(
            f"{table.source}: text column {name!r} is empty in {len(rows)} of {table.length} rows "
            f"(counted from 0: {', '.join(map(str, rows[:5]))}{', …' if len(rows) > 5 else ''})",
            NarlWarning,
            stacklevel=2,
        )
        words = words.copy()
        words[rows] = ""
    return Texts(words)


def _check_numbers(table: RawTable, names: Sequence[str], *, flags: bool) -> None:
    """Refuse cells that are no numbers; of several such columns all are named."""
    wordy = [name for name in names if name in table.words]
    if wordy:
        words = enumerate(table.words[wordy[0]])
        row, word = next((row, word) for row, word in words if not is_missing(word) and as_number(word) is None)
        hint = f" ({NO_COMMAS})" if has_comma(word) else ""
        way = f"give numbers in column {wordy[0]!r}"
        if flags:
            way = f"mend it, or say --categories {listed(wordy)} or --ignore {listed(wordy)}"
        raise DataError(
            f"{table.source}: number column {wordy[0]!r} has {shortened([word])} in row {row} (counted from 0)"
            f"{_likewise(wordy)}: {way}{hint}"
        )
    largest = np.finfo(np.float32).max
    bad = {name: rows for name in names if (rows := ~(np.abs(table.numbers[name]) <= largest)).any()}
    if bad:
        name, rows = next(iter(bad.items()))
        row, count = int(np.argmax(rows)), int(rows.sum())
        what = "no number" if np.isnan(table.numbers[name][row]) else "an infinite or too large number"
        out = f"leave the {'columns' if len(bad) > 1 else 'column'} out with --ignore {listed(list(bad))}"
        raise DataError(
            f"{table.source}: column {name!r} has {what} in row {row} (counted from 0; {count} such "
            f"row{'s' if count > 1 else ''}){_likewise(list(bad))}: fill it in, or "
            f"{out if flags else 'leave such rows out'}"
        )


def _likewise(names: Sequence[str]) -> str:
    return f", likewise {', '.join(map(repr, names[1:]))}" if len(names) > 1 else ""


def _ids(table: RawTable, columns: Columns, *, given: bool) -> tuple[NDArray[np.str_], Columns]:
    numbered = np.arange(table.length).astype(f"U{len(str(table.length))}")
    if columns.id is None:
        return numbered, columns
    words = table.words[columns.id]
    if "" in set(words.tolist()) or len(set(words.tolist())) < table.length:
        if given:
            raise DataError(_id_trouble(table, columns.id, words))
        return numbered, replace(columns, id=None, ignore=(*columns.ignore, columns.id))
    return string_array(words, f"{table.source}: id column {columns.id!r}"), columns


def _id_trouble(table: RawTable, name: str, words: Words) -> str:
    start, end = f"{table.source}: id column {name!r}", "(counted from 0): make ids unique, or name another with --id"
    seen: dict[str, int] = {}
    for row, word in enumerate(words):
        if not word:
            return f"{start} is empty in row {row} {end}"
        if word in seen:
            return f"{start} has {shortened([word])} in rows {seen[word]} and {row} {end}"
        seen[word] = row
    raise AssertionError("called for ids that are fine")
