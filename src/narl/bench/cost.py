"""What a training step costs: rows that ``benchmarks/cost.py`` has measured, and tables of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from narl.bench.tables import Table, model_title
from narl.errors import ResultsError

FILES = "cost-*.json"
_NEEDED: dict[str, tuple[type, ...]] = {
    "device": (str,),
    "model": (str,),
    "batch": (int,),
    "precision": (str,),
    "method": (str,),
    "every": (int, type(None)),
    "ratio": (int, float),
    "ms": (int, float),
    "peak_mb": (int, float, type(None)),
}
_MORE: dict[str, tuple[type, ...]] = {
    "kind": (str,),
    "engine": (str,),
    "rounds": (int,),
    "ratio_range": (list,),
    "gradient_error": (int, float, type(None)),
    "gradient_cosine": (int, float, type(None)),
    "environment": (dict,),
}
_NOTHING = "–"


def read(folder: Path) -> list[dict[str, Any]]:
    """All rows of a folder of results.

    Args:
        folder: with files ``cost-*.json``, each a list of rows.

    Returns:
        The rows as they are in the files, in the order of the files' names.

    Raises:
        ResultsError: where there are none, or a file holds something else.

    Example:
        >>> import tempfile
        >>> row = {"device": "cpu", "model": "mlp", "batch": 10, "precision": "float32", "method": "CE", "every": None}
        >>> row |= {"ratio": 1, "ms": 2, "peak_mb": 3}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "cost-cpu-mlp.json").write_text(json.dumps([row]))
        ...     read(Path(folder))[0]["ms"]
        2
    """
    if not folder.is_dir():
        raise ResultsError(f"there is no folder {folder}: run this where narl's results are, or give --results FOLDER")
    paths = sorted(folder.glob(FILES))
    if not paths:
        raise ResultsError(f"{folder} has no {FILES}: make one with python benchmarks/cost.py --out FILE")
    return [row for path in paths for row in _rows(path)]


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # no UTF-8 and no JSON are ValueErrors
        raise ResultsError(f"{path} cannot be read as JSON ({error}): restore it or measure it again") from error
    if not isinstance(found, list) or not found:
        raise ResultsError(f"{path} is no list of rows: restore it, or make it with python benchmarks/cost.py")
    for number, row in enumerate(found):
        wrong = _wrong(row)
        if wrong:
            raise ResultsError(f"{path}, row {number}: {wrong}; make it with python benchmarks/cost.py")
    return found


def _wrong(row: object) -> str:
    """What is wrong with a row, nothing if nothing is."""
    if not isinstance(row, dict):
        return f"a row is a {type(row).__name__}, not an object"
    missing = [key for key in _NEEDED if key not in row]
    if missing:
        return f"{missing[0]!r} is missing"
    for key, kinds in {**_NEEDED, **_MORE}.items():
        if key in row and (not isinstance(row[key], kinds) or isinstance(row[key], bool)):
            return f"{key!r} is {row[key]!r}, not {' or '.join(kind.__name__ for kind in kinds)}"
    if row["every"] is not None and row["every"] < 1:
        return f"'every' is {row['every']}, below 1"
    span = row.get("ratio_range", [0, 0])
    if len(span) != 2 or not all(isinstance(end, int | float) for end in span):
        return f"'ratio_range' is {span!r}, not two numbers"
    return ""


def tables(rows: Iterable[dict[str, Any]]) -> list[Table]:
    """One table a machine, model, batch size, precision and engine; a row a method, a column a value of ``every``.

    Args:
        rows: as :func:`read` gives them.

    Returns:
        The tables, in the order in which their rows come.

    Example:
        >>> shared = {"device": "cpu", "model": "mlp", "batch": 10, "precision": "float32", "peak_mb": 7}
        >>> plain = {**shared, "method": "CE", "every": None, "ratio": 1, "ms": 2}
        >>> print(tables([plain, {**shared, "method": "A-GCE", "every": 1, "ratio": 3.5, "ms": 7}])[0].text())
        mlp, batch 10, float32, cpu
        method   ms  every = 1  peak MB
        CE      2.0       1.00        7
        A-GCE   7.0       3.50        7
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        how = (row["model"], row["batch"], row["precision"], row.get("engine"))
        where = (row["device"], str(row.get("environment", {})))
        groups.setdefault((*how, *where), []).append(row)
    return [_table(group) for group in groups.values()]


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    first = rows[0]
    table = {(row["method"], row["every"]): row for row in rows if not _is_check(row)}
    steps = sorted({every for _, every in table if every is not None})
    has_error = any(row.get("gradient_error") is not None for row in rows)
    has_range = any("ratio_range" in row for row in rows)
    heading = ["method", "ms", *(f"every = {every}" for every in steps)]
    heading += ["range at 1"] * has_range + ["peak MB"] + ["gradient error", "cosine"] * has_error
    lines = []
    for method in dict.fromkeys(name for name, _ in table):
        plain, whole = table.get((method, None)), table.get((method, 1))
        shown = plain or whole or next(row for (name, _), row in table.items() if name == method)
        cells = [method, _number((plain or whole or {}).get("ms"), 1)]
        cells += [_number((plain or table.get((method, every), {})).get("ratio"), 2) for every in steps]
        if has_range:
            cells.append(_range((whole or {}).get("ratio_range")))
        cells.append(_number(shown["peak_mb"], 0))
        if has_error:
            error = shown.get("gradient_error")
            cells += [_NOTHING if error is None else f"{error:.0e}", _number(shown.get("gradient_cosine"), 4)]
        lines.append(tuple(cells))
    hardware = first.get("environment", {}).get("device", first["device"])
    engine = f", {first['engine']} steps" if "engine" in first else ""
    title = f"{model_title(first['model'])}, batch {first['batch']}, {first['precision']}, {hardware}{engine}"
    return Table(title, tuple(heading), tuple(lines), _notes(rows))


def _is_check(row: dict[str, Any]) -> bool:
    """Whether the row is a whole run, measured in order to check a derived one."""
    return row.get("kind") == "run"


def _notes(rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    notes = []
    rounds = {row["rounds"] for row in rows if "rounds" in row and not _is_check(row)}
    if rounds:
        notes.append(f"Medians of {', '.join(map(str, sorted(rounds)))} rounds.")
    for row in filter(_is_check, rows):
        notes.append(f"{row['method']} at every = {row['every']}, measured as a run: {row['ratio']:.2f}.")
    where = rows[0].get("environment", {})
    versions = ", ".join(f"{key} {value}" for key, value in where.items() if key not in ("device", "narl"))
    if versions:
        notes.append(f"{versions[0].upper()}{versions[1:]}.")
    return tuple(notes)


def _number(value: float | None, digits: int) -> str:
    return _NOTHING if value is None else f"{value:.{digits}f}"


def _range(span: Sequence[float] | None) -> str:
    return _NOTHING if span is None else f"{span[0]:.2f} … {span[1]:.2f}"
