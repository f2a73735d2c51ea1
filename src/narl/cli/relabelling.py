"""Other labels in a copy of a file, the old ones beside them, and nothing else changed."""

from __future__ import annotations

import codecs
import csv
import json
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from narl.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from narl.data.samples import Samples

Rows: TypeAlias = "NDArray[np.int64]"

TRUE_LABEL = "true_label"


def relabel(source: Path, file: BinaryIO, label: str, samples: Samples, noisy: NDArray[np.int64]) -> None:
    """Write a copy of a file with other labels.

    A label that changes is written as it stands in the first sample of its new class, so that its type and spelling
    are those of the file. All the rest is kept: in CSV, TSV and JSONL byte for byte.

    Args:
        source: ending in one of :data:`FORMATS`.
        file: where the copy goes.
        label: the column, or the array, of the labels.
        samples: what was read from the source, in its order.
        noisy: the new labels, class indices ``(N,)``.

    Raises:
        DataError: for a source that has changed since it was read.
    """
    FORMATS[source.suffix.lower()](source, file, label, samples, noisy)


def true_name(source: Path, label: str) -> str:
    """What the column, or the array, of the old labels is called: as narl reads it.

    Example:
        >>> true_name(Path("a.csv"), "species"), true_name(Path("a.npz"), "y"), true_name(Path("a.npz"), "y_train")
        ('true_label', 'y_true', 'y_true_train')
    """
    if source.suffix.lower() != ".npz":
        return TRUE_LABEL
    part = re.search(r"_train$|^train_", label)
    return "y_true" if part is None else "y_true_train"


def _written_rows(samples: Samples, noisy: NDArray[np.int64]) -> Rows:
    """For each sample the row in which its new label stands written, ``(N,)``; the reader sees that there is one."""
    import numpy as np

    count = len(samples)
    first = np.full(len(samples.classes), -1)
    first[samples.labels[::-1]] = np.arange(count)[::-1]
    rows: Rows = np.where(noisy == samples.labels, np.arange(count), first[noisy])
    return rows


def _check(source: Path, words: Sized, samples: Samples) -> None:
    if len(words) != len(samples):
        raise DataError(
            f"{source} has {len(words)} rows, but {len(samples)} were read before: leave it alone meanwhile"
        )


# CSV and TSV


def _csv(source: Path, file: BinaryIO, label: str, samples: Samples, noisy: NDArray[np.int64]) -> None:
    delimiter = _delimiter(source, label)
    cells: list[str] = []
    known: dict[str, str] = {}
    for _, fields, column in _records(source, delimiter, label):
        cells.append(known.setdefault(fields[column], fields[column]))
    cells = cells[1:]
    _check(source, cells, samples)
    new = iter(_written_rows(samples, noisy).tolist())
    file.write(_mark(source))
    for number, (ending, fields, column) in enumerate(_records(source, delimiter, label)):
        old = fields[column]
        if number:
            fields[column] = cells[next(new)]
        line = delimiter.join([*fields, old if number else TRUE_LABEL])
        file.write((line + ending).encode())


def _delimiter(source: Path, label: str) -> str:
    """The delimiter by which the header has a column of this name."""
    delimiters = "\t" if source.suffix.lower() == ".tsv" else ",;\t|"
    for delimiter in delimiters:
        with source.open(encoding="utf-8-sig", newline="") as lines:
            if label in _names(next(csv.reader(lines, delimiter=delimiter), [])):
                return delimiter
    raise DataError(f"{source} has no column {label!r} any more: leave it alone meanwhile")


def _names(header: Sequence[str]) -> list[str]:
    return [name.strip() or f"column {index}" for index, name in enumerate(header, 1)]


def _records(source: Path, delimiter: str, label: str) -> Iterator[tuple[str, list[str], int]]:
    """Every row's line ending, its fields as they are written, quotes and all, and which of them is the label."""
    column = -1
    held: list[str] = []
    with source.open(encoding="utf-8-sig", newline="") as lines:

        def remembered() -> Iterator[str]:
            for line in lines:
                held.append(line)
                yield line

        before = ""  # empty lines, which belong to no row
        for row in csv.reader(remembered(), delimiter=delimiter, strict=True):
            raw = "".join(held)
            held.clear()
            if not row:
                before += raw
                continue
            column = _names(row).index(label) if column < 0 else column
            text = raw.rstrip("\r\n")
            fields = _fields(text, delimiter)
            fields[0], before = before + fields[0], ""
            yield raw[len(text) :], fields, column


def _fields(line: str, delimiter: str) -> list[str]:
    if '"' not in line:
        return line.split(delimiter)
    field = re.compile(rf'"(?:[^"]|"")*"|[^{re.escape(delimiter)}]*')
    fields, end = [], -1
    while end < len(line):
        match = field.match(line, end + 1)
        assert match is not None  # the empty field matches everywhere
        fields.append(match.group())
        end = match.end()
    return fields


# JSONL


def _jsonl(source: Path, file: BinaryIO, label: str, samples: Samples, noisy: NDArray[np.int64]) -> None:
    tokens = [text[start:end] for text, (start, end) in _objects(source, label) if end]
    _check(source, tokens, samples)
    new = iter(_written_rows(samples, noisy).tolist())
    file.write(_mark(source))
    for text, (start, end) in _objects(source, label):
        if end:
            close = text.rindex("}")
            told = f', "{TRUE_LABEL}": {text[start:end]}'
            text = text[:start] + tokens[next(new)] + text[end:close].rstrip() + told + text[close:]
        file.write(text.encode())


def _objects(source: Path, label: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Every line, and where in it the label is written; nowhere, ``(0, 0)``, in an empty line."""
    with source.open(encoding="utf-8-sig", newline="\n") as lines:
        for line in lines:
            yield line, (0, 0) if line.isspace() else _value_span(line, label)


_SPACE = re.compile(r"[ \t\n\r]*")


def _value_span(line: str, key: str) -> tuple[int, int]:
    """Where an object's value is written; of a key that comes twice the last, as JSON's readers have it."""
    decoder = json.JSONDecoder()
    span = (0, 0)
    at = _skip(line, line.index("{") + 1)
    while line[at] == '"':
        name, at = decoder.raw_decode(line, at)
        start = _skip(line, _skip(line, at) + 1)  # over the colon
        _, end = decoder.raw_decode(line, start)
        if name == key:
            span = start, end
        at = _skip(line, end)
        if line[at] == ",":
            at = _skip(line, at + 1)
    return span


def _skip(line: str, at: int) -> int:
    match = _SPACE.match(line, at)
    return at if match is None else match.end()


# Parquet and arrays


def _parquet(source: Path, file: BinaryIO, label: str, samples: Samples, noisy: NDArray[np.int64]) -> None:
    from pyarrow import parquet

    with parquet.ParquetFile(source) as opened:
        table = opened.read()
        compression = opened.metadata.row_group(0).column(0).compression
    column = table.column(label)
    _check(source, column, samples)
    index = table.schema.get_field_index(label)
    written = column.take(_written_rows(samples, noisy))
    table = table.set_column(index, table.schema.field(index), written).append_column(TRUE_LABEL, column)
    parquet.write_table(table, file, compression="none" if compression == "UNCOMPRESSED" else compression)


def _npz(source: Path, file: BinaryIO, label: str, samples: Samples, noisy: NDArray[np.int64]) -> None:
    from narl.data.arrays import load

    old = load(source)[label]
    _check(source, old, samples)
    new = old[_written_rows(samples, noisy)]
    # The other arrays are copied as they are, unread: their bytes stay the same.
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(file, "w") as after:
        for member in before.infolist():
            if member.filename == f"{label}.npy":
                _write_array(after, member.filename, new, member.compress_type)
                _write_array(after, f"{true_name(source, label)}.npy", old, member.compress_type)
                continue
            with (
                before.open(member) as content,
                after.open(_member(member.filename, member.compress_type), "w") as copy,
            ):
                shutil.copyfileobj(content, copy)


def _write_array(archive: zipfile.ZipFile, name: str, array: NDArray[Any], compression: int) -> None:
    from numpy.lib import format as npy

    with archive.open(_member(name, compression), "w", force_zip64=True) as file:
        npy.write_array(file, array, allow_pickle=False)


def _member(name: str, compression: int) -> zipfile.ZipInfo:
    # With a fixed date, so that the same noise gives the same bytes.
    member = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    member.compress_type = compression
    return member


def _mark(source: Path) -> bytes:
    """The mark that some programs put at the beginning of UTF-8."""
    with source.open("rb") as file:
        return codecs.BOM_UTF8 if file.read(3) == codecs.BOM_UTF8 else b""


FORMATS: Mapping[str, Callable[[Path, BinaryIO, str, Samples, NDArray[np.int64]], None]] = {
    ".csv": _csv,
    ".tsv": _csv,
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".parquet": _parquet,
    ".npz": _npz,
}
