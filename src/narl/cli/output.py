"""Results in files and on standard output: tables by the ending of their name, JSON for programs."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from narl.atomic import replacing
from narl.errors import MissingExtraError, NarlError, OptionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Columns: TypeAlias = Mapping[str, Any]  # sequences, or arrays


def print_json(result: object) -> None:
    """Print a result for a program to read: NaN and infinity become null, numpy's numbers plain ones.

    Example:
        >>> print_json({"rate": 0.5, "loss": float("nan")})
        {
          "rate": 0.5,
          "loss": null
        }
    """
    print(json.dumps(_for_json(result), indent=2, allow_nan=False))


def check_new(
    path: Path, *, overwrite: bool = False, endings: Collection[str] | None = None, source: Path | None = None
) -> None:
    """Refuse a place where no file can or should be written, before the work begins.

    Args:
        path: the file to be written.
        overwrite: whether a file that is there may be replaced.
        endings: what its name may end in; None: those of :func:`write_table`.
        source: what the work reads, which is never replaced.

    Raises:
        OptionError: with the reason and the way out.
    """
    _check_ending(path, TABLES if endings is None else endings)
    try:
        if not path.parent.is_dir():
            raise OptionError(f"the folder {path.parent} does not exist: make it, or choose another one")
        if path.is_dir():
            raise OptionError(f"{path} is a folder: give the name of a file in it")
        if path.exists():
            if source is not None and source.exists() and path.samefile(source):
                raise OptionError(f"{path} is what is read, and would be lost: choose another name")
            if not overwrite:
                raise OptionError(f"{path} exists already: choose another name, or replace it with --overwrite")
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror or error}; choose another name") from error
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OptionError(f"nothing can be written to the folder {path.parent}: choose another one")


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which gets its name when all of it is on the disk; before that, nothing of it is seen.

    Raises:
        OptionError: where it cannot be written. What was there before is then still there.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with writing(Path(folder, "a.csv")) as file:
        ...         _ = file.write(b"id,label")
        ...     Path(folder, "a.csv").read_text()
        'id,label'
    """
    try:
        with replacing(path) as file:
            yield file
    except OSError as error:
        if isinstance(error, NarlError):
            raise
        reason = error.strerror or error
        raise OptionError(f"{path} could not be written: {reason}; choose another place, or make room") from error


def write_predictions(
    path: Path, ids: Sequence[str], labels: Sequence[str], probabilities: NDArray[Any], classes: Sequence[str]
) -> None:
    """Write what a classifier says about each sample.

    The columns are ``id``, ``label`` (the class's name), ``probability`` (of that class), and ``p:NAME`` for each
    class. Text formats have probabilities to seven significant digits; Parquet has them as they are.

    Args:
        path: ending in .csv, .tsv, .jsonl or .parquet.
        ids: of the samples, N of them.
        labels: their predicted classes by name.
        probabilities: ``(N, c)``.
        classes: name of each class.

    Raises:
        OptionError: for another ending, or where nothing can be written.
        MissingExtraError: for Parquet without pyarrow.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "out.csv")
        ...     write_predictions(path, ["a"], ["dog, small"], np.array([[0.25, 0.75]]), ["cat", "dog, small"])
        ...     print(path.read_text())
        id,label,probability,p:cat,"p:dog, small"
        a,"dog, small",0.75,0.25,0.75
    """
    import numpy as np

    position = {name: index for index, name in enumerate(classes)}
    rows, chosen = np.arange(len(labels)), [position[label] for label in labels]
    by_class = {f"p:{name}": probabilities[:, index] for name, index in position.items()}
    write_table(path, {"id": ids, "label": labels, "probability": probabilities[rows, chosen], **by_class})


def write_table(path: Path, columns: Columns) -> None:
    """Write a table, all of it or nothing.

    Cells are written as they are. A text that begins with ``=``, ``+``, ``-`` or ``@`` is not changed, as pandas does
    not change it either: what is read back is what was there, but a spreadsheet may take such a cell for a formula.

    Args:
        path: ending in .csv, .tsv, .jsonl or .parquet.
        columns: by name, all of one length: texts, whole numbers, or an array of floats.

    Raises:
        OptionError: for another ending, or where nothing can be written.
        MissingExtraError: for Parquet without pyarrow.
    """
    _check_ending(path, TABLES)
    with writing(path) as file:
        TABLES[path.suffix.lower()](file, columns)


def _check_ending(path: Path, endings: Collection[str]) -> None:
    if path.suffix.lower() not in endings:
        raise OptionError(f"{path} would be in a format that is not known: let the name end in {', '.join(endings)}")


def _for_json(value: Any) -> Any:
    value = value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _for_json(entry) for key, entry in value.items()}
    return [_for_json(entry) for entry in value] if isinstance(value, list | tuple) else value


def csv_line(cells: Sequence[str], delimiter: str = ",") -> str:
    r"""A line of a CSV file, with quotes where a cell needs them.

    Example:
        >>> csv_line(["a", 'b "c" d', "e,f", ""])
        'a,"b ""c"" d","e,f",\n'
    """
    return delimiter.join(map(_quoted, cells, repeat(delimiter))) + "\n"


# Not csv.writer: it leaves a lone carriage return without quotes, which readers take for the end of a row.
_SPECIAL = re.compile(r'["\r\n]')


def _quoted(cell: str, delimiter: str) -> str:
    if delimiter in cell or _SPECIAL.search(cell) or cell != cell.strip():
        return '"' + cell.replace('"', '""') + '"'
    return cell


def _rows(columns: Columns) -> Iterator[tuple[Any, ...]]:
    return zip(*map(_rounded, columns.values()), strict=True)


def _rounded(values: Sequence[Any]) -> list[Any]:
    listed: list[Any] = values.tolist() if hasattr(values, "tolist") else list(values)
    return [float(f"{value:.7g}") for value in listed] if _are_floats(values) else listed


def _are_floats(values: Sequence[Any]) -> bool:
    dtype = getattr(values, "dtype", None)
    return dtype is not None and dtype.kind == "f"


def _csv(file: BinaryIO, columns: Columns, delimiter: str = ",") -> None:
    file.write(csv_line([*columns], delimiter).encode("utf-8", "surrogateescape"))
    for row in _rows(columns):
        # surrogateescape: a file name that is no UTF-8 is written with the bytes that it has on the disk
        file.write(csv_line([*map(str, row)], delimiter).encode("utf-8", "surrogateescape"))


def _tsv(file: BinaryIO, columns: Columns) -> None:
    _csv(file, columns, "\t")


def _jsonl(file: BinaryIO, columns: Columns) -> None:
    for row in _rows(columns):
        line = json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False)
        file.write(line.encode("utf-8", "backslashreplace") + b"\n")  # a lone surrogate's JSON is Python's escape


def _parquet(file: BinaryIO, columns: Columns) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError(
            "writing Parquet needs pyarrow: pip install 'narl[tables]', or let the name end in .csv"
        ) from error
    try:
        arrays = {name: pyarrow.array(cells if _are_floats(cells) else [*cells]) for name, cells in columns.items()}
        parquet.write_table(pyarrow.table(arrays), file)
    except UnicodeEncodeError as error:
        raise OptionError(
            f"{error.object[:40]!a} is no UTF-8, which Parquet needs: let the name of the output end in .csv"
        ) from error


TABLES: Mapping[str, Callable[[BinaryIO, Columns], None]] = {
    ".csv": _csv,
    ".tsv": _tsv,
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}
