"""Clean sets and hold-outs: samples taken out of a training set, so that none of their copies stays in it."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from narl.data.content import groups
from narl.data.id_file import read_id_file
from narl.data.samples import Labels, Rows, Samples
from narl.errors import DataError, OptionError, nearest

__all__ = ["draw_clean", "limit", "read_id_file", "split", "take_ids"]

_NEIGHBOURS = 200


def draw_clean(train: Samples, count: int, *, seed: int) -> tuple[Samples, Samples]:
    """A class-balanced clean set, drawn from the training set.

    Classes are those of the true labels where they are known, else of the given ones, for which the user vouches.
    Samples without a copy in the training set are taken first; of copies one is drawn at most, and the others leave
    the training set with it.

    Args:
        train: the training set.
        count: samples to draw, at least one a class; where it can't be divided evenly, the largest classes get one
            more.
        seed: decides which, alone.

    Returns:
        The rest and the clean set, both in the training set's order. The clean set's labels are the true ones where
        they are known.

    Raises:
        OptionError: fewer samples than classes are asked for.
        DataError: a class has too few samples.

    Example:
        >>> from narl.data.samples import Texts
        >>> texts = np.array([f"text {i}" for i in range(10)], object)
        >>> train = Samples(Texts(texts), np.arange(10) % 2, ("no", "yes"), np.arange(10).astype(str))
        >>> rest, clean = draw_clean(train, 4, seed=0)
        >>> len(rest), clean.class_counts.tolist()
        (6, [2, 2])
    """
    num_classes = len(train.classes)
    if count < num_classes:
        verb = "sample is" if count == 1 else "samples are"
        raise OptionError(
            f"{count} clean {verb} too few for {num_classes} classes: ask for at least {num_classes}, one a class"
        )
    labels = _best_labels(train)
    content = groups(train.inputs)
    order = _generator(seed, "clean").permutation(len(train))
    originals = order[np.unique(content[order], return_index=True)[1]]  # one sample of every content, at random
    place = np.empty(len(train), np.int64)
    place[order] = np.arange(len(train))
    copied = np.bincount(content)[content] > 1
    originals = originals[np.lexsort((place[originals], copied[originals]))]  # those without copies first
    available = np.bincount(labels[originals], minlength=num_classes)
    wanted = np.full(num_classes, count // num_classes)
    wanted[np.argsort(-available, kind="stable")[: count % num_classes]] += 1
    if (available < wanted).any():
        scarce = int((available < wanted).argmax())
        has = f"{available[scarce]} {'sample' if available[scarce] == 1 else 'different samples'}"
        raise DataError(
            f"class {train.classes[scarce]!r} has {has}, but {count} clean samples of {num_classes} classes need "
            f"{wanted[scarce]} of it: ask for fewer, add samples of it, or name clean samples in a file: "
            "--clean ids.txt"
        )
    chosen = np.concatenate([originals[labels[originals] == y][:n] for y, n in enumerate(wanted)])
    return _taken(train, np.sort(chosen), content)


def take_ids(train: Samples, ids: Sequence[str], labels: Sequence[str] | None = None) -> tuple[Samples, Samples]:
    """The clean set that consists of these samples of the training set.

    Args:
        train: the training set.
        ids: the samples to take out; copies of them leave the training set, too.
        labels: a class name for every id: the correct one; None: the true labels where they are known, else the given
            ones.

    Returns:
        The rest, in the training set's order, and the clean set, in the order of ``ids``.

    Raises:
        DataError: an id or a class that the training set doesn't have, or an id twice.

    Example:
        >>> from narl.data.samples import Texts
        >>> train = Samples(Texts(np.array(["a", "b"], object)), np.array([0, 1]), ("no", "yes"), np.array(["x", "y"]))
        >>> rest, clean = take_ids(train, ["y"], ["no"])
        >>> rest.ids.tolist(), clean.ids.tolist(), clean.labels.tolist()
        (['x'], ['y'], [0])
    """
    if not len(ids):
        raise DataError("the list of clean samples is empty: name at least one")
    rows = _rows_of(train, np.asarray(ids, dtype=np.str_))
    rest, clean = _taken(train, rows, groups(train.inputs))
    if labels is None:
        return rest, clean
    if len(labels) != len(ids):
        raise DataError(f"there are {len(ids)} clean ids but {len(labels)} labels: give every id one label")
    numbers = {name: number for number, name in enumerate(train.classes)}
    for sample, label in zip(ids, labels, strict=True):
        if label not in numbers:
            raise DataError(f"clean sample {sample!r} has the unknown class {label!r}: {nearest(label, numbers)}")
    corrected = np.array([numbers[label] for label in labels], np.int64)
    return rest, replace(clean, labels=corrected)


def split(samples: Samples, share: float, *, seed: int) -> tuple[Samples, Samples]:
    """A stratified hold-out: samples of every class, in proportion; equal content stays on one side.

    Args:
        samples: what to split.
        share: part of every class, by the given labels, that is held out; above 0 and below 1.
        seed: decides which, alone.

    Returns:
        The rest and the held-out samples, both in the original order. A class with at least two contents of its own
        is on both sides, one with a single sample in the rest.

    Raises:
        OptionError: ``share`` is no such number.
        DataError: no class has two different samples.

    Example:
        >>> from narl.data.samples import Texts
        >>> texts = np.array([f"text {i}" for i in range(10)], object)
        >>> samples = Samples(Texts(texts), np.arange(10) % 2, ("no", "yes"), np.arange(10).astype(str))
        >>> rest, held_out = split(samples, 0.4, seed=0)
        >>> rest.class_counts.tolist(), held_out.class_counts.tolist()
        ([3, 3], [2, 2])
    """
    if not 0 < share < 1:
        raise OptionError(f"the share to hold out is {share!r}: give a number above 0 and below 1, such as 0.1")
    content = groups(samples.inputs)
    order = _generator(seed, "split").permutation(len(samples))
    numbers, places, sizes = np.unique(content[order], return_index=True, return_counts=True)
    originals = order[np.sort(places)]  # one sample a content, in random order; it decides for its copies
    size_of = sizes[np.searchsorted(numbers, content[originals])]
    held: list[Rows] = []
    for y in range(len(samples.classes)):
        own = samples.labels[originals] == y
        held.append(originals[own][: _part(size_of[own], share)])
    chosen = np.isin(content, content[np.concatenate(held)])
    if not chosen.any():
        raise DataError("no class has two different samples, so that one could be held out: give more samples")
    return samples.take(np.flatnonzero(~chosen)), samples.take(np.flatnonzero(chosen))


def limit(samples: Samples, count: int, *, seed: int) -> Samples:
    """A random part of the samples, every class in proportion and, where there is room, with at least one.

    Args:
        samples: what to draw from.
        count: how many; all if there aren't more.
        seed: decides which, alone.

    Returns:
        The drawn samples, in the original order.

    Raises:
        OptionError: ``count`` is below 1.

    Example:
        >>> from narl.data.samples import Texts
        >>> texts = np.array([f"text {i}" for i in range(10)], object)
        >>> samples = Samples(Texts(texts), np.arange(10) // 8, ("no", "yes"), np.arange(10).astype(str))
        >>> limit(samples, 5, seed=0).class_counts.tolist()
        [4, 1]
    """
    if count < 1:
        raise OptionError(f"the number of samples is limited to {count}: give at least 1")
    if count >= len(samples):
        return samples
    parts = _proportional(samples.class_counts, count)
    order = _generator(seed, "limit").permutation(len(samples))
    chosen = [order[samples.labels[order] == y][:part] for y, part in enumerate(parts)]
    return samples.take(np.sort(np.concatenate(chosen)))


def _generator(seed: int, purpose: str) -> np.random.Generator:
    # The purpose keeps draws of one run apart: the same seed does not hold out what it would draw as clean.
    if operator.index(seed) < 0:
        raise OptionError(f"seed is {seed}, but seeds start at 0: give an int from 0 on")
    return np.random.default_rng([operator.index(seed), *purpose.encode()])


def _best_labels(samples: Samples) -> Labels:
    if samples.true_labels is None:
        return samples.labels
    return np.where(samples.true_labels >= 0, samples.true_labels, samples.labels)


def _taken(train: Samples, rows: Rows, content: Rows) -> tuple[Samples, Samples]:
    """The rest without any copy of these rows, and the rows with the best labels known."""
    left = np.flatnonzero(~np.isin(content, content[rows]))
    if not len(left):
        raise DataError("the clean set takes all samples and their copies, none is left to train on: take fewer")
    clean = train.take(rows)
    return train.take(left), replace(clean, labels=_best_labels(clean))


def _rows_of(train: Samples, ids: NDArray[np.str_]) -> Rows:
    order = np.argsort(train.ids, kind="stable")
    known = train.ids[order]
    places = np.searchsorted(known, ids)
    missing = known[np.minimum(places, len(known) - 1)] != ids
    if missing.any():
        first = int(missing.argmax())
        raise DataError(
            f"{int(missing.sum())} of {len(ids)} clean ids are not in the training set, first {str(ids[first])!r}: "
            f"{_nearby(str(ids[first]), known, int(places[first]))}"
        )
    names, counts = np.unique(ids, return_counts=True)
    if counts.max() > 1:
        raise DataError(f"clean id {str(names[counts.argmax()])!r} is listed {counts.max()} times: list it once")
    return order[places]


def _nearby(name: str, known: NDArray[Any], place: int) -> str:
    # Of perhaps a million ids those around its place in the alphabet: comparing with all would take minutes.
    window = [str(other) for other in known[max(0, place - _NEIGHBOURS) : place + _NEIGHBOURS]]
    close = difflib.get_close_matches(name, window, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"ids look like {str(known[0])!r}"


def _part(sizes: NDArray[np.int64], share: float) -> int:
    """How many contents of these sizes come nearest to the share, leaving some on both sides."""
    if len(sizes) < 2:
        return 0
    distance = np.abs(sizes.cumsum()[:-1] - share * sizes.sum())
    return int(distance.argmin()) + 1


def _proportional(counts: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """``total`` divided among classes by their counts, by largest remainders."""
    exact = counts * (total / counts.sum())
    least = (counts > 0).astype(np.int64) if total >= np.count_nonzero(counts) else np.zeros_like(counts)
    parts: NDArray[np.int64] = np.maximum(np.floor(exact).astype(np.int64), least)
    while parts.sum() < total:
        parts[np.where(parts < counts, exact - parts, -np.inf).argmax()] += 1
    while parts.sum() > total:
        parts[np.where(parts > least, parts - exact, -np.inf).argmax()] -= 1
    return parts
