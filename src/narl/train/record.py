"""What happened to every sample, epoch by epoch: margins, hyperparameters and rivals in one compact file.

``samples.npy`` is an ordinary numpy file of float16, ``(epochs so far, fields, N)``: ``numpy.load`` reads it at any
time, also with ``mmap_mode="r"``. It grows by an epoch at a time: first the values are put behind the last epoch, then
the header's shape counts them. ``samples.json`` beside it names the fields and the samples, with their given labels.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, cast, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from narl.errors import NarlError, OptionError, RunFolderError, UnknownNameError, nearest
from narl.train.writing import cannot_write, read_json, replacing, write_json

KIND = "narl samples"
FORMAT = 1
VALUES, NAMES = "samples.npy", "samples.json"
RIVAL = "rival"
"""The field of the classes that stood most against the labels."""
MOST_CLASSES = 2048
"""So many classes have numbers that float16 holds exactly."""

_HEADER_BYTES = 192  # of one length whatever the shape, so that the shape can change in place
_FIRST_OF_SHAPE = re.compile(rb"\((\d{1,18}), ")
_DTYPE = np.dtype("<f2")
_LARGEST = float(np.finfo(_DTYPE).max)


@final
class SampleRecord:
    """A few values of every sample in every epoch. Use :meth:`create` to write and :meth:`open` to read.

    Args:
        folder: of the run.
        fields: names of the values.
        ids: names of the samples, ``(N,)``.
        epochs: how many the run has at most.
        labels: the samples' given labels, class indices ``(N,)``; None in records of a time when they were not kept.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as run:
        ...     record = SampleRecord.create(run, ["margin", "q"], ["a", "b"], epochs=3)
        ...     record.write(0, {"margin": [0.5, -1.0], "q": [0.75, 0.25]})
        ...     np.load(f"{run}/samples.npy").shape, SampleRecord.open(run).read("margin").tolist()
        ((1, 2, 2), [[0.5, -1.0], [nan, nan], [nan, nan]])
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        fields: Sequence[str],
        ids: Sequence[str] | NDArray[np.str_],
        epochs: int,
        labels: Sequence[int] | NDArray[np.int64] | None = None,
    ) -> None:
        if epochs < 1 or not len(fields) or len(set(fields)) < len(fields) or not len(ids):
            raise OptionError(
                f"no record of {len(ids)} samples in {epochs} epochs with fields {', '.join(fields) or 'none'}: give "
                "at least one of each, and every field once"
            )
        self.folder = Path(folder)
        self.fields = tuple(fields)
        self.ids: NDArray[np.str_] = np.asarray(ids, dtype=np.str_)
        self.epochs = epochs
        self.labels: NDArray[np.int64] | None = None if labels is None else np.asarray(labels, dtype=np.int64)
        if self.labels is not None and self.labels.shape != self.ids.shape:
            raise OptionError(f"{len(self.ids)} samples cannot have labels of shape {self.labels.shape}: give one each")

    @classmethod
    def create(
        cls,
        folder: str | PathLike[str],
        fields: Sequence[str],
        ids: Sequence[str] | NDArray[np.str_],
        epochs: int,
        labels: Sequence[int] | NDArray[np.int64] | None = None,
    ) -> SampleRecord:
        """Begin a record, or continue the one that is there: without rivals, if it was begun without them.

        Args:
            folder: of the run.
            fields: names of the values.
            ids: names of the samples, ``(N,)``.
            epochs: how many the run has at most.
            labels: the samples' given labels, class indices ``(N,)``.

        Raises:
            RunFolderError: where there is a record of other fields or samples, or the disk is full or read-only.
        """
        record = cls(folder, fields, ids, epochs, labels)
        values, names = record.folder / VALUES, record.folder / NAMES
        if values.exists() and names.exists():
            before = cls.open(folder)
            if RIVAL not in before.fields:
                record.fields = tuple(field for field in record.fields if field != RIVAL)
            if before.fields != record.fields or not np.array_equal(before.ids, record.ids):
                raise RunFolderError(f"{values} records other samples or other values: remove it to begin a new record")
            if before.epochs != epochs:
                write_json(names, record._about(), indent=None)
            return record
        write_json(names, record._about(), indent=None)
        with replacing(values) as file:
            file.write(record._header(0))
        return record

    @classmethod
    def open(cls, folder: str | PathLike[str]) -> SampleRecord:
        """The record in a run's folder; nothing is written.

        Raises:
            RunFolderError: where there is none, or its files are damaged.
        """
        names = Path(folder) / NAMES
        try:
            about = read_json(names)
        except FileNotFoundError:
            raise RunFolderError(
                f"{folder} has no record of its samples: there is no {NAMES}; restore it, or train once more"
            ) from None
        record = cls(folder, *_checked(about, names))
        with record._file("rb") as file:
            record._present(file)
        return record

    @property
    def path(self) -> Path:
        """The file of the values."""
        return self.folder / VALUES

    @property
    def written(self) -> int:
        """How many epochs the file holds."""
        with self._file("rb") as file:
            return self._present(file)

    def write(self, epoch: int, values: Mapping[str, ArrayLike]) -> None:
        """Write an epoch's values, in place of those that may be there.

        Args:
            epoch: from 0. Epochs that were left out hold NaN.
            values: ``(N,)`` of every field. What float16 cannot hold becomes its largest number; NaN stays.

        Raises:
            RunFolderError: where the disk is full or read-only. The epochs before are then as they were.
        """
        if not 0 <= epoch < self.epochs:
            raise OptionError(f"there is no epoch {epoch} to record: epochs are 0 … {self.epochs - 1}")
        if set(values) != set(self.fields):
            raise OptionError(
                f"values of {', '.join(values)} do not fit the fields {', '.join(self.fields)}: give each"
            )
        row = np.empty((len(self.fields), len(self.ids)), dtype=_DTYPE)
        for place, field in enumerate(self.fields):
            given = np.asarray(values[field], dtype=np.float64)
            if given.shape != self.ids.shape:
                raise OptionError(f"{field} has shape {given.shape}: give one value a sample, {self.ids.shape}")
            row[place] = given.clip(-_LARGEST, _LARGEST)
        with self._file("r+b") as file:
            present = self._present(file)
            # Plain writes, not a memory map: there, a full disk would end the process.
            for missing in range(present, epoch):
                file.seek(self._offset(missing))
                file.write(np.full_like(row, np.nan).tobytes())
            file.seek(self._offset(epoch))
            file.write(row.tobytes())
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            file.write(self._header(max(present, epoch + 1)))

    def read(self, field: str, epoch: int | None = None) -> NDArray[np.float32]:
        """Read a field.

        Args:
            field: its name.
            epoch: from 0; all of them by default.

        Returns:
            ``(N,)``, or ``(epochs, N)`` for all epochs, with NaN for epochs that are not written (or were cut off).
        """
        if field not in self.fields:
            raise UnknownNameError(f"unknown field {field!r}: {nearest(field, self.fields)}")
        if epoch is not None and not 0 <= epoch < self.epochs:
            raise OptionError(f"there is no epoch {epoch} in the record: epochs are 0 … {self.epochs - 1}")
        wanted = range(self.epochs) if epoch is None else (epoch,)
        found = np.full((len(wanted), len(self.ids)), np.nan, dtype=np.float32)
        count = len(self.ids) * _DTYPE.itemsize
        with self._file("rb") as file:
            present = self._present(file)
            for row, number in enumerate(wanted):
                if number < present:
                    file.seek(self._offset(number) + self.fields.index(field) * count)
                    found[row] = np.frombuffer(file.read(count), dtype=_DTYPE)
        return found if epoch is None else found[0]

    def epochs_of(self, field: str) -> NDArray[np.float16]:
        """A field in all epochs that are written, ``(epochs, N)``: read from the disk when it is looked at.

        Args:
            field: its name.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as run:
            ...     record = SampleRecord.create(run, ["margin", "q"], ["a", "b"], epochs=3)
            ...     record.write(0, {"margin": [0.5, -1.0], "q": [0.75, 0.25]})
            ...     record.epochs_of("q").tolist()
            [[0.75, 0.25]]
        """
        if field not in self.fields:
            raise UnknownNameError(f"unknown field {field!r}: {nearest(field, self.fields)}")
        shape = (self.written, len(self.fields), len(self.ids))
        if not shape[0]:
            return np.empty((0, shape[2]), dtype=_DTYPE)
        values = np.memmap(self.path, dtype=_DTYPE, mode="r", offset=_HEADER_BYTES, shape=shape)
        return values[:, self.fields.index(field)]

    def _about(self) -> dict[str, Any]:
        """What is written beside the values."""
        about = {"kind": KIND, "format": FORMAT, "fields": self.fields, "epochs": self.epochs, "ids": self.ids.tolist()}
        return about if self.labels is None else {**about, "labels": self.labels.tolist()}

    def _offset(self, epoch: int) -> int:
        return _HEADER_BYTES + epoch * len(self.fields) * len(self.ids) * _DTYPE.itemsize

    def _header(self, epochs: int) -> bytes:
        shape = (epochs, len(self.fields), len(self.ids))
        text = repr({"descr": _DTYPE.str, "fortran_order": False, "shape": shape}).encode()
        start = b"\x93NUMPY\x01\x00" + (_HEADER_BYTES - 10).to_bytes(2, "little")
        return start + text.ljust(_HEADER_BYTES - 11) + b"\n"

    def _present(self, file: BinaryIO) -> int:
        """How many epochs the header counts and the file holds."""
        header = file.read(_HEADER_BYTES)
        counted = _FIRST_OF_SHAPE.search(header)
        epochs = int(counted[1]) if counted else 0
        if header != self._header(epochs):
            raise RunFolderError(f"{self.path} is damaged at its beginning: remove it to begin a new record")
        size = os.fstat(file.fileno()).st_size
        return min(epochs, (size - _HEADER_BYTES) // (self._offset(1) - _HEADER_BYTES))

    @contextmanager
    def _file(self, mode: str) -> Iterator[BinaryIO]:
        try:
            with cast(BinaryIO, open(self.path, mode)) as file:
                yield file
        except NarlError:
            raise
        except FileNotFoundError:
            raise RunFolderError(
                f"{self.folder} has no record of its samples: there is no {VALUES}; restore it, or train once more"
            ) from None
        except OSError as error:
            if mode != "rb":
                raise cannot_write(self.path, error) from error
            raise RunFolderError(
                f"cannot read {self.path}: {error.strerror or error}; check its permissions"
            ) from error


def _checked(about: Any, path: Path) -> tuple[list[str], list[str], int, list[int] | None]:
    """Fields, ids, epochs and labels as a file gives them: it may have been changed."""
    if not isinstance(about, dict) or about.get("kind") != KIND:
        raise RunFolderError(f"{path} is not a record of samples: give the folder of a run")
    if about.get("format") != FORMAT:
        raise RunFolderError(f"{path} has format {about.get('format')}, not {FORMAT}: upgrade narl")
    fields, ids, epochs = _names(about.get("fields")), _names(about.get("ids")), about.get("epochs")
    if not fields or len(set(fields)) < len(fields) or not ids or type(epochs) is not int or epochs < 1:
        raise RunFolderError(f"{path} is damaged: remove it to begin a new record")
    labels = about.get("labels")
    if labels is not None and not _are_labels(labels, len(ids)):
        raise RunFolderError(f"{path} is damaged: its labels are not one class a sample; restore it")
    return fields, ids, epochs, labels


def _are_labels(value: object, count: int) -> bool:
    whole = isinstance(value, list) and len(value) == count and all(type(label) is int for label in value)
    return whole and all(0 <= label < 2**31 for label in cast("list[int]", value))


def _names(value: object) -> list[str]:
    return value if isinstance(value, list) and all(isinstance(name, str) for name in value) else []
