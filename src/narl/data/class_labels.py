"""Labels as a source writes them, turned into class indices and class names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from narl.data.samples import Labels
from narl.errors import DataError

Words = NDArray[np.object_]

_WHOLE = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,17})(?:\.0*)?", re.ASCII)
_DIGITS = re.compile(r"[0-9]+", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_WNID = re.compile(r"n[0-9]{8}(?= |$)", re.ASCII)
_SHOWN = 8


@final
@dataclass(frozen=True, eq=False)
class ClassLabels:
    """Class indices and what they stand for.

    Args:
        indices: ``(N,)``.
        names: name of each class.
    """

    indices: Labels
    names: tuple[str, ...]


def from_words(words: Sequence[str] | Words, where: str, *, typed: bool = False) -> ClassLabels:
    """Classes from written labels: whole numbers in their order, words in natural order.

    Args:
        words: one label a sample.
        where: what holds them, for messages.
        typed: the source tells words from numbers itself, so a class may be called ``"3"`` beside one called ``"A"``.

    Example:
        >>> labels = from_words(["10", "9.0", "10"], "labels.csv")
        >>> labels.names, labels.indices.tolist()
        (('9', '10'), [1, 0, 1])
    """
    distinct = dict.fromkeys(words)
    _refuse_empty(words, distinct, where)
    canonical = {word: word for word in distinct}
    whole = [word for word in distinct if _WHOLE.fullmatch(word)]
    if len(whole) == len(distinct):
        canonical = {word: _whole(word) for word in distinct}
    elif not typed and not all(_DIGITS.fullmatch(word) for word in distinct):
        numbers = [word for word in distinct if _NUMBER.fullmatch(word)]
        if len(numbers) == len(distinct):
            odd = next(word for word in distinct if not _WHOLE.fullmatch(word))
            raise DataError(
                f"{where} holds numbers that are not classes ({_at(words, odd)}): "
                "name the column of the classes, or write whole numbers or words"
            )
        if numbers:
            word = next(word for word in distinct if not _NUMBER.fullmatch(word))
            raise DataError(
                f"{where} mixes numbers and words ({_at(words, numbers[0])}, {_at(words, word)}): "
                "write all labels alike, as whole numbers or as words"
            )
    names = in_order(set(canonical.values()))
    position = {name: index for index, name in enumerate(names)}
    lookup = {word: position[name] for word, name in canonical.items()}
    return ClassLabels(np.fromiter(map(lookup.__getitem__, words), np.int64, len(words)), names)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Names in natural order: ``img2`` before ``img10``, -1 before 3.

    Example:
        >>> in_order(["img10", "img2"]), in_order(["10", "9", "-1"])
        (('img2', 'img10'), ('-1', '9', '10'))
    """
    listed = list(names)
    if all(_WHOLE.fullmatch(name) for name in listed):
        return tuple(sorted(listed, key=lambda name: (int(_whole(name)), name)))
    return tuple(sorted(listed, key=natural_key))


def natural_key(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Sort key that counts runs of digits as numbers, however long."""
    key = []
    for run in re.findall(r"[0-9]+|[^0-9]+", name):
        number = run.lstrip("0") if run.isascii() and run.isdigit() else None
        key.append((1, 0, run.casefold()) if number is None else (0, len(number), number))
    return key, name


def words_of(labels: NDArray[Any], where: str) -> Words:
    """An array of labels of any type as words."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise DataError(f"{where} has shape {labels.shape}: give one label a sample, as class indices or names")
    if labels.dtype.kind in "fc" and not np.all(np.isfinite(labels)):
        raise DataError(f"{where} has no label in row {int(np.argmin(np.isfinite(labels)))} (counted from 0): fill it")
    if labels.dtype.kind == "S":
        try:
            return np.array([word.decode() for word in labels.tolist()], dtype=object)
        except UnicodeDecodeError as error:
            raise DataError(f"{where} holds bytes that are not UTF-8: save the labels as numbers or text") from error
    if labels.dtype.kind not in "biufU":
        raise DataError(f"{where} is of type {labels.dtype}: give class indices or names")
    words = [str(label) for label in labels.tolist()]
    return np.array([word.lower() for word in words] if labels.dtype.kind == "b" else words, dtype=object)


def onto(labels: ClassLabels, classes: Sequence[str], where: str) -> Labels:
    """Class indices among ``classes``, found by name.

    Besides equal names these count as equal: ImageNet classes with the same synset id, and class numbers where
    ``classes`` has names, which stand for their position.
    """
    position = {name: index for index, name in enumerate(classes)}
    synsets = {match.group(): position[name] for name in classes if (match := _WNID.match(name))}
    numbered = all(_WHOLE.fullmatch(name) for name in labels.names) and not any(map(_WHOLE.fullmatch, classes))
    lookup = []
    used = set(np.unique(labels.indices).tolist())
    for index, name in enumerate(labels.names):
        found = position.get(name)
        if found is None and (match := _WNID.match(name)):
            found = synsets.get(match.group())
        if found is None and numbered and 0 <= int(_whole(name)) < len(classes):
            found = int(_whole(name))
        if found is None and index in used:
            raise DataError(_unknown(name, classes, where))
        lookup.append(-1 if found is None else found)
    return np.array(lookup, dtype=np.int64)[labels.indices]


def synset_of(name: str) -> str | None:
    """The synset id at the start of a class name, as in ``"n01440764 tench"``."""
    match = _WNID.match(name)
    return match.group() if match else None


def shortened(names: Sequence[str]) -> str:
    """A few of the names, for a message."""
    shown = [name if len(name) <= 40 else name[:37] + "..." for name in names[:_SHOWN]]
    return ", ".join(map(repr, shown)) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _unknown(name: str, classes: Sequence[str], where: str) -> str:
    close = difflib.get_close_matches(name, classes, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return (
        f"{where} has the class {shortened([name])}, which the training set does not have ({shortened(classes)}): "
        f"{hint}rename it, or leave such samples out"
    )


def _refuse_empty(words: Sequence[str] | Words, distinct: dict[str, None], where: str) -> None:
    blank = {word for word in distinct if not word.strip()}
    if not blank and len(words):
        return
    rows = [row for row, word in enumerate(words) if word in blank]
    if len(rows) == len(words):
        raise DataError(f"{where} is empty: give every sample a label, or name another column")
    shown = ", ".join(map(str, rows[:5])) + (", …" if len(rows) > 5 else "")
    raise DataError(
        f"{where} has no label in {len(rows)} of {len(words)} rows (counted from 0: {shown}): "
        "fill them in or leave these rows out"
    )


def _at(words: Sequence[str] | Words, word: str) -> str:
    row = next(row for row, other in enumerate(words) if other == word)
    return f"row {row} has {shortened([word])}"


def _whole(word: str) -> str:
    return str(int(word.partition(".")[0]))
