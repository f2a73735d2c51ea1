"""Lists of sample ids in files: which samples are clean, and perhaps what they are."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from narl.errors import DataError, nearest

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_LONGEST_HEADER = 4096


def is_id_file(path: str | Path) -> bool:
    """Whether a file is a list of ids, not samples: a ``.txt``, or a table with no columns but ``id`` and ``label``.

    Example:
        >>> is_id_file("clean.txt"), is_id_file("clean.npz")
        (True, False)
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in _DELIMITERS:
        return suffix == ".txt"
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            columns = {cell.strip().strip('"') for cell in file.readline(_LONGEST_HEADER).split(_DELIMITERS[suffix])}
    except OSError:
        return False  # whoever reads it says why
    return "id" in columns and columns <= {"id", "label"}


def read_id_file(path: str | Path) -> tuple[list[str], list[str] | None]:
    """Read a list of sample ids.

    Args:
        path: a ``.txt`` with one id a line, or a ``.csv`` or ``.tsv`` with a column ``id`` and perhaps one ``label``
            with class names; UTF-8.

    Returns:
        The ids, and the class names where there are any.

    Raises:
        DataError: the file cannot be read, or is no such list.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = Path(folder.name) / "clean.csv"
        >>> _ = path.write_text("id,label\\n7,cat\\n9,dog\\n")
        >>> read_id_file(path)
        (['7', '9'], ['cat', 'dog'])
        >>> folder.cleanup()
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix != ".txt" and suffix not in _DELIMITERS:
        raise DataError(f"list of ids {path} ends in {suffix!r}: give a .txt with one id a line, a .csv or a .tsv")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"list of ids {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"list of ids {path} is not UTF-8 (byte {error.start}): save it as UTF-8") from error
    if suffix == ".txt":
        ids, labels = [line.strip() for line in text.splitlines() if line.strip()], None
    else:
        ids, labels = _read_columns(path, text, _DELIMITERS[suffix])
    if not ids:
        raise DataError(f"list of ids {path} is empty: name at least one sample")
    return ids, labels


def write_id_file(ids: Sequence[str], labels: Sequence[str]) -> bytes:
    """The content of a ``.csv`` that :func:`read_id_file` reads as these ids and labels.

    Raises:
        DataError: an id or a label is no UTF-8, or begins or ends with white space, which such lists cannot hold.

    Example:
        >>> write_id_file(["7", "a,b"], ["cat", "dog"])
        b'"id","label"\\n"7","cat"\\n"a,b","dog"\\n'
    """
    for text in (*ids, *labels):
        if not text or text != text.strip():
            raise DataError(f"a list of ids cannot hold {text!r}, which begins or ends with white space: rename it")
    stream = io.StringIO(newline="")
    csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(
        [("id", "label"), *zip(ids, labels, strict=True)]
    )
    try:
        return stream.getvalue().encode()
    except UnicodeEncodeError as error:
        near = error.object[max(0, error.start - 40) : error.end]
        raise DataError(f"a list of ids cannot hold {near!a}, which is no UTF-8: rename it") from error


def _read_columns(path: Path, text: str, delimiter: str) -> tuple[list[str], list[str] | None]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    columns: list[str] = []
    found: dict[str, list[str]] = {}
    try:
        for row in reader:
            if not any(cell.strip() for cell in row):
                continue
            if not columns:
                columns = [cell.strip() for cell in row]
                found = {name: [] for name in ("id", "label") if name in columns}
                if "id" not in columns:
                    raise DataError(f"list of ids {path} has no column 'id': {nearest('id', columns)}")
                continue
            if len(row) != len(columns):
                raise DataError(
                    f"list of ids {path} has {len(row)} cells in line {reader.line_num} but {len(columns)} columns: "
                    "correct this line"
                )
            for name, cells in found.items():
                cell = row[columns.index(name)].strip()
                if not cell:
                    raise DataError(f"list of ids {path} has no {name} in line {reader.line_num}: fill it in")
                cells.append(cell)
    except csv.Error as error:
        raise DataError(f"list of ids {path} cannot be read in line {reader.line_num}: {error}") from error
    return found.get("id", []), found.get("label")
