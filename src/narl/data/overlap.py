"""Samples that two data sets share, found by their content."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import final

import numpy as np

from narl.data.content import common
from narl.data.samples import Inputs, Samples
from narl.errors import OverlapError

_SHOWN = 3


def shared(first: Inputs, second: Inputs) -> list[tuple[int, int]]:
    """Rows of the first set whose content is in the second, and where.

    Args:
        first: N samples.
        second: M samples. Images in memory and in files are compared by their pixels, two files by their bytes, tables
            by the columns they share if one has all columns of the other, texts up to white space. Sets of different
            kinds share nothing.

    Returns:
        A pair (row of the first, its first place in the second) for every such row of the first, in order. Samples
        that are twice in one set only are not shared.

    Raises:
        DataError: a file that cannot be read.

    Example:
        >>> from narl.data.samples import Texts
        >>> train, test = np.array(["a b", "c", "d"], object), np.array(["d", "a  b"], object)
        >>> shared(Texts(train), Texts(test))
        [(0, 1), (2, 0)]
    """
    mine, theirs = common(first, second)
    numbers, places = np.unique(theirs, return_index=True)
    if not len(numbers):
        return []
    found = np.minimum(np.searchsorted(numbers, mine), len(numbers) - 1)
    rows = np.flatnonzero(numbers[found] == mine)
    return list(zip(rows.tolist(), places[found[rows]].tolist(), strict=True))


@final
@dataclass(frozen=True)
class Overlap:
    """What two sets share.

    Args:
        first: name of the first set.
        second: name of the second.
        ids: ids of the samples in the first and in the second set, a pair a sample of the first.
    """

    first: str
    second: str
    ids: tuple[tuple[str, str], ...]

    def __len__(self) -> int:
        """How many samples of the first set are in the second."""
        return len(self.ids)

    def describe(self) -> str:
        """The overlap in words.

        Example:
            >>> Overlap("train", "test", (("a.png", "x.png"),)).describe()
            "1 sample of train is also in test ('a.png' is 'x.png' there)"
        """
        noun, verb = ("sample", "is") if len(self) == 1 else ("samples", "are")
        shown = ", ".join(f"{mine!r} is {theirs!r}" for mine, theirs in self.ids[:_SHOWN])
        more = ", …" if len(self) > _SHOWN else ""
        return f"{len(self)} {noun} of {self.first} {verb} also in {self.second} ({shown} there{more})"


def overlaps(sets: Mapping[str, Samples], together: Collection[str] = ()) -> list[Overlap]:
    """What any two of the sets share.

    Args:
        sets: samples by the name of the set, in order.
        together: names of those that may share samples with each other, such as several test sets.

    Returns:
        An entry for every pair of sets that shares samples, in order.
    """
    found = []
    for (first, mine), (second, theirs) in combinations(sets.items(), 2):
        if first in together and second in together:
            continue
        rows = shared(mine.inputs, theirs.inputs)
        if rows:
            ids = tuple((str(mine.ids[i]), str(theirs.ids[j])) for i, j in rows)
            found.append(Overlap(first, second, ids))
    return found


def check_disjoint(sets: Mapping[str, Samples], together: Collection[str] = ()) -> None:
    """Refuse sets that share samples.

    Args:
        sets: samples by the name of the set, the training set first.
        together: as for :func:`overlaps`.

    Raises:
        OverlapError: two sets share a sample; the message counts them and names the first.
    """
    found = overlaps(sets, together)
    if not found:
        return
    train = next(iter(sets))
    way_out = "--allow-overlap keeps them"
    if any(overlap.first == train for overlap in found):
        way_out = f"--drop-overlap leaves them out of {train}, {way_out}"
    if any(overlap.first != train for overlap in found):
        others = " and ".join(f"{overlap.first} or {overlap.second}" for overlap in found if overlap.first != train)
        way_out = f"take them out of {others}; {way_out}"
    raise OverlapError(f"{'; '.join(overlap.describe() for overlap in found)}: {way_out}")


def without_shared(train: Samples, others: Sequence[Samples]) -> Samples:
    """The training samples whose content is in none of the other sets.

    Args:
        train: the training set.
        others: the clean set, the test set.

    Returns:
        What is left of the training set, in its order.

    Raises:
        OverlapError: nothing is left.

    Example:
        >>> from narl.data.samples import Texts
        >>> def samples(*texts):
        ...     inputs = Texts(np.array(texts, object))
        ...     return Samples(inputs, np.zeros(len(texts), np.int64), ("any",), np.array(texts))
        >>> without_shared(samples("a", "b", "c"), [samples("b", "x")]).ids.tolist()
        ['a', 'c']
    """
    keep = np.ones(len(train), np.bool_)
    for other in others:
        keep[[row for row, _ in shared(train.inputs, other.inputs)]] = False
    if not keep.any() and len(train):
        raise OverlapError(
            f"all {len(train)} training samples are in the clean or test set too: give other data to train on"
        )
    return train if keep.all() else train.take(np.flatnonzero(keep))
