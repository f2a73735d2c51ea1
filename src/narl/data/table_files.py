"""CSV, JSONL and Parquet files, read a chunk of rows at a time."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

from narl.data.class_labels import shortened
from narl.data.raw_table import Chunk, Chunks, as_number
from narl.data.source import as_utf8
from narl.errors import DataError, MissingExtraError

SUFFIXES = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
"""Endings of table files and the layouts they mean."""

_ROWS = 8192
_BLOCK = 2**20
_INDEX = ("", "Unnamed: 0")  # what pandas calls the index that it writes


def chunks_of(path: Path, layout: str) -> Chunks:
    """The rows of a table file.

    Args:
        path: the file.
        layout: ``"csv"``, ``"tsv"``, ``"jsonl"`` or ``"parquet"``.
    """
    readers = {"csv": _csv, "tsv": _tsv, "jsonl": _jsonl, "parquet": _parquet}
    return lambda: readers[layout](path)


def _csv(path: Path) -> Iterator[Chunk]:
    return _delimited(path, None)


def _tsv(path: Path) -> Iterator[Chunk]:
    return _delimited(path, "\t")


def _delimited(path: Path, delimiter: str | None) -> Iterator[Chunk]:
    with _text(path, newline="") as file:
        first = file.readline()
        rows = csv.reader(chain([first], file), delimiter=delimiter or _delimiter(first), strict=True)
        try:
            names = _header(next(rows, []), path)
            while held := list(islice(rows, _ROWS)):
                if set(map(len, held)) != {len(names)}:
                    held = _even(held, len(names), path, delimiter)
                if held:
                    yield _by_column(names, held)
        except csv.Error as error:
            raise DataError(_csv_reason(path, rows.line_num, error)) from error


def _even(rows: list[list[str]], width: int, path: Path, delimiter: str | None) -> list[list[str]]:
    """The rows without empty lines; one of another width is looked up in the file for its line."""
    filled = [row for row in rows if row]
    if all(len(row) == width for row in filled):
        return filled
    with _text(path, newline="") as file:
        first = file.readline()
        reader = csv.reader(chain([first], file), delimiter=delimiter or _delimiter(first), strict=True)
        count = next(len(row) for row in reader if row and len(row) != width)
        raise DataError(
            f"{path}, line {reader.line_num}: {count} column{'s' if count != 1 else ''} where the header has {width}: "
            "put fields that hold the delimiter in quotes, or mend the line"
        )


def _by_column(names: list[str | None], rows: list[list[str]]) -> Chunk:
    cells = zip(names, zip(*rows, strict=True), strict=True)
    return len(rows), {name: column for name, column in cells if name is not None}


@contextmanager
def _text(path: Path, *, newline: str) -> Iterator[TextIO]:
    """A file of UTF-8 text, or an error that says that it is none."""
    _refuse_binary(path)
    try:
        with path.open(encoding="utf-8-sig", newline=newline) as file:
            yield file
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise DataError(f"{path} is not UTF-8 (byte 0x{byte:02x}): {as_utf8(path)}") from error


def _refuse_binary(path: Path) -> None:
    with path.open("rb") as file:
        line = 1
        while block := file.read(_BLOCK):
            if b"\0" in block:
                line += block[: block.index(b"\0")].count(b"\n")
                hint = "so it is no text file: save it as UTF-8"
                if block[:2] in (b"\xff\xfe", b"\xfe\xff"):
                    hint = f"it looks like UTF-16: {as_utf8(path, 'utf-16')}"
                raise DataError(f"{path}, line {line}: a NUL character, {hint}")
            line += block.count(b"\n")


def _delimiter(header: str) -> str:
    if "," in header:
        return ","
    return max(";\t|", key=header.count) if any(mark in header for mark in ";\t|") else ","


def _header(row: list[str], path: Path) -> list[str | None]:
    if not row:
        raise DataError(f"{path} is empty: give a table with a header and one row a sample")
    names: list[str | None] = [name.strip() or f"column {index}" for index, name in enumerate(row, 1)]
    if row[0].strip() in _INDEX and len(row) > 1:
        names[0] = None
    if all(as_number(name) is not None for name in row):
        raise DataError(f"{path} starts with numbers ({shortened(row)}): add a first line that names the columns")
    twice = [name for index, name in enumerate(names) if name is not None and name in names[:index]]
    if twice:
        raise DataError(f"{path} has two columns called {shortened(twice[:1])}: rename one")
    return names


def _csv_reason(path: Path, line: int, error: csv.Error) -> str:
    if "field larger" in str(error):
        return (
            f"{path}, line {line}: a field of more than {csv.field_size_limit():,} characters, perhaps a quote that is "
            "never closed: close it, or keep long texts in JSONL or Parquet"
        )
    return f"{path}, line {line}: {error}: close every quote, and double quotes inside quoted fields"


def _jsonl(path: Path) -> Iterator[Chunk]:
    # Only a line feed ends a line: JSON strings may hold every other line separator as it is.
    with _text(path, newline="\n") as file:
        lines = enumerate(file, 1)
        while held := list(islice(lines, _ROWS)):
            rows = [_json_object(line, number, path) for number, line in held if not line.isspace()]
            if not rows:
                continue
            names = dict.fromkeys(chain.from_iterable(rows))
            yield len(rows), {name: [row.get(name) for row in rows] for name in names}


def _json_object(line: str, number: int, path: Path) -> dict[str, Any]:
    try:
        row = json.loads(line)
        if "\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        reason = str(error).partition(":")[0] if isinstance(error, ValueError) else "nested too deeply"
        raise DataError(f"{path}, line {number}: no JSON ({reason}): write one object a line") from error
    if not isinstance(row, dict):
        raise DataError(f"{path}, line {number}: a JSON {type(row).__name__}, not an object: write one object a line")
    return row


def _parquet(path: Path) -> Iterator[Chunk]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("reading Parquet files needs pyarrow: pip install 'narl[tables]'") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_ROWS):
                if batch.num_rows:
                    yield arrow_chunk(batch)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path} cannot be read as Parquet ({reason}): write it again") from error


def arrow_chunk(batch: Any) -> Chunk:
    """A record batch or table of pyarrow as rows; the index that pandas writes is left out."""
    names = [name for name in batch.schema.names if not name.startswith("__index_level_")]
    twice = [name for index, name in enumerate(names) if name in names[:index]]
    if twice:
        raise DataError(f"two columns are called {shortened(twice[:1])}: rename one")
    return batch.num_rows, {name: batch.column(name).to_pylist() for name in names}
