"""Samples with given labels, perhaps true ones, and ids that stay the same: what every source is read into."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from narl.errors import DataError

Rows: TypeAlias = NDArray[np.int64]
Labels: TypeAlias = NDArray[np.int64]
AnyInputs = TypeVar("AnyInputs", bound="Inputs")
Value = TypeVar("Value")

_DIGEST_BYTES = 16
_MOST_READ = 10_000
_A_TASK = 500


class Inputs(ABC):
    """What a classifier looks at, one entry a sample: images, texts or rows of a table.

    ``kind`` is ``"image"``, ``"text"`` or ``"table"``; it decides the default model and what can be mixed.
    """

    kind: ClassVar[str]

    @abstractmethod
    def __len__(self) -> int:
        """How many samples."""

    @abstractmethod
    def take(self: AnyInputs, rows: Rows) -> AnyInputs:
        """These rows, in this order."""

    @abstractmethod
    def digests(self) -> list[bytes]:
        """A fingerprint of every sample's content: equal content, equal fingerprint."""

    @abstractmethod
    def fingerprint(self) -> bytes:
        """One of all of them, in this order: to notice that the data has changed."""


@final
@dataclass(frozen=True, eq=False)
class Images(Inputs):
    """Images of one size, held in memory.

    Args:
        pixels: ``(N, H, W, C)`` with one or three channels, uint8, or float32 with values as the model shall see them
            before standardisation.

    Example:
        >>> len(Images(np.zeros((2, 8, 8, 1), dtype=np.uint8)).take(np.array([1])))
        1
    """

    kind: ClassVar[str] = "image"
    pixels: NDArray[Any]

    def __len__(self) -> int:
        """How many images."""
        return len(self.pixels)

    def take(self, rows: Rows) -> Images:
        """These images, in this order."""
        taken = Images(self.pixels[rows])
        known = vars(self).get("_digests")
        if known is not None:
            vars(taken)["_digests"] = known[rows]
        return taken

    def digests(self) -> list[bytes]:
        """Fingerprints of the pixels; made once, also for those that are taken from here afterwards."""
        return [digest.tobytes() for digest in self._digests]

    @cached_property
    def _digests(self) -> NDArray[np.uint8]:
        joined = b"".join(_digest(np.ascontiguousarray(image).data) for image in self.pixels)
        return np.frombuffer(joined, np.uint8).reshape(len(self.pixels), _DIGEST_BYTES)

    def fingerprint(self) -> bytes:
        """Of all pixels."""
        return _digest(np.ascontiguousarray(self.pixels).data)


@final
@dataclass(frozen=True, eq=False)
class ImageFiles(Inputs):
    """Images in files, decoded when they are needed.

    Args:
        root: the folder that the paths start from.
        paths: relative to the root, one a sample.

    Example:
        >>> ImageFiles(Path("photos"), np.array(["cat/1.jpg", "dog/2.jpg"])).path(1).as_posix()
        'photos/dog/2.jpg'
    """

    kind: ClassVar[str] = "image"
    root: Path
    paths: NDArray[np.str_]

    def __len__(self) -> int:
        """How many files."""
        return len(self.paths)

    def take(self, rows: Rows) -> ImageFiles:
        """These files, in this order."""
        return ImageFiles(self.root, self.paths[rows])

    def path(self, row: int) -> Path:
        """Where an image is."""
        return self.root / str(self.paths[row])

    def digests(self) -> list[bytes]:
        """Fingerprints of the files' bytes."""
        return in_threads(self._digest_file, range(len(self)))

    def fingerprint(self) -> bytes:
        """Of all sizes, and of the contents of files evenly spread, so that 200,000 are not all read."""
        some = self.take(np.unique(np.linspace(0, len(self) - 1, min(len(self), _MOST_READ)).astype(np.int64)))
        sizes = in_threads(self._size, range(len(self)))
        return _digest(np.array(sizes, dtype=np.int64).tobytes() + b"".join(some.digests()))

    def _size(self, row: int) -> int:
        try:
            return self.path(row).stat().st_size
        except OSError as error:
            raise DataError(f"image {self.path(row)} cannot be read: {error.strerror or error}") from error

    def _digest_file(self, row: int) -> bytes:
        try:
            return _digest(self.path(row).read_bytes())
        except OSError as error:
            raise DataError(f"image {self.path(row)} cannot be read: {error.strerror or error}") from error


@final
@dataclass(frozen=True, eq=False)
class Texts(Inputs):
    """Texts, held in memory.

    Args:
        texts: one a sample.

    Example:
        >>> first, second = Texts(np.array(["Who  is it?", "Who is it?"], dtype=object)).digests()
        >>> first == second
        True
    """

    kind: ClassVar[str] = "text"
    texts: NDArray[np.object_]

    def __len__(self) -> int:
        """How many texts."""
        return len(self.texts)

    def take(self, rows: Rows) -> Texts:
        """These texts, in this order."""
        return Texts(self.texts[rows])

    def digests(self) -> list[bytes]:
        """Fingerprints of the texts; runs of white space count as one space."""
        return [_digest(" ".join(str(text).split()).encode()) for text in self.texts]

    def fingerprint(self) -> bytes:
        """Of all texts."""
        return _digest(json.dumps(self.texts.tolist()).encode())


@final
@dataclass(frozen=True, eq=False)
class Table(Inputs):
    """Rows of a table: numbers and categories.

    Args:
        numbers: ``(N, d)``, floats, finite. float64 where they come from text: a time in seconds has ten digits.
        categories: ``(N, k)``, strings; empty for a missing value.
        number_names: names of the d number columns.
        category_names: names of the k category columns.

    Example:
        >>> Table(np.zeros((3, 1), dtype=np.float32), np.empty((3, 0), dtype=object), ("width",)).kind
        'table'
    """

    kind: ClassVar[str] = "table"
    numbers: NDArray[np.floating[Any]]
    categories: NDArray[np.object_]
    number_names: tuple[str, ...]
    category_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        """How many rows."""
        return len(self.numbers)

    def take(self, rows: Rows) -> Table:
        """These rows, in this order."""
        return replace(self, numbers=self.numbers[rows], categories=self.categories[rows])

    def digests(self) -> list[bytes]:
        """Fingerprints of the rows' values, in the order of the columns' names."""
        numbers = self.numbers[:, np.argsort(self.number_names)] + 0.0  # -0 and 0 are one number
        categories = self.categories[:, np.argsort(self.category_names)] if self.category_names else self.categories
        return [
            _digest(np.ascontiguousarray(row).tobytes() + "\x1f".join(map(str, words)).encode())
            for row, words in zip(numbers, categories, strict=True)
        ]

    def fingerprint(self) -> bytes:
        """Of all values and the columns' names."""
        words = json.dumps([self.number_names, self.category_names, self.categories.tolist()]).encode()
        return _digest(np.ascontiguousarray(self.numbers).tobytes() + words)


@final
@dataclass(frozen=True, eq=False)
class Samples:
    """Samples to train or test on.

    Args:
        inputs: what the classifier looks at.
        labels: the given labels, perhaps wrong: class indices ``(N,)``.
        classes: name of each class.
        ids: a name for every sample, unique and the same whenever the source is read: ``(N,)``.
        true_labels: the true labels where they are known, as in benchmarks: class indices ``(N,)``.

    Example:
        >>> numbers = np.zeros((3, 2), dtype=np.float32)
        >>> table = Table(numbers, np.empty((3, 0), dtype=object), ("width", "height"))
        >>> samples = Samples(table, np.array([0, 1, 1]), ("cat", "dog"), np.array(["a", "b", "c"]))
        >>> samples.take(np.array([2, 0])).ids.tolist()
        ['c', 'a']
        >>> samples.class_counts.tolist()
        [1, 2]
    """

    inputs: Inputs
    labels: Labels
    classes: tuple[str, ...]
    ids: NDArray[np.str_]
    true_labels: Labels | None = None

    def __post_init__(self) -> None:
        """Refuse parts that don't fit together."""
        lengths = {"inputs": len(self.inputs), "labels": len(self.labels), "ids": len(self.ids)}
        if self.true_labels is not None:
            lengths["true labels"] = len(self.true_labels)
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{count} {name}" for name, count in lengths.items())
            raise DataError(f"the parts of a data set differ in length ({shown}): give one of each a sample")

    def __len__(self) -> int:
        """How many samples."""
        return len(self.labels)

    @property
    def kind(self) -> str:
        """``"image"``, ``"text"`` or ``"table"``."""
        return self.inputs.kind

    @property
    def class_counts(self) -> NDArray[np.int64]:
        """Samples of every class by the given labels, ``(c,)``."""
        return np.bincount(self.labels, minlength=len(self.classes))

    def take(self, rows: Rows | Sequence[int]) -> Samples:
        """These samples, in this order."""
        chosen = np.asarray(rows, dtype=np.int64)
        return replace(
            self,
            inputs=self.inputs.take(chosen),
            labels=self.labels[chosen],
            ids=self.ids[chosen],
            true_labels=None if self.true_labels is None else self.true_labels[chosen],
        )


@final
@dataclass(frozen=True, eq=False)
class Unlabelled:
    """Samples without labels, to predict.

    Args:
        inputs: what the classifier looks at.
        ids: a name for every sample, ``(N,)``.

    Example:
        >>> len(Unlabelled(Texts(np.array(["Who is it?"], dtype=object)), np.array(["0"])))
        1
    """

    inputs: Inputs
    ids: NDArray[np.str_]

    def __len__(self) -> int:
        """How many samples."""
        return len(self.ids)


def in_threads(work: Callable[[int], Value], rows: Sequence[int]) -> list[Value]:
    """What ``work`` gives for every row, in order, done by threads that take some hundred rows at a time."""

    def some(start: int) -> list[Value]:
        return [work(row) for row in rows[start : start + _A_TASK]]

    with ThreadPoolExecutor() as workers:
        return [value for part in workers.map(some, range(0, len(rows), _A_TASK)) for value in part]


def _digest(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
