"""What is asked about the columns that are not clear: one line for all of a table, so that one answer is enough."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from narl.data.class_labels import shortened
from narl.data.raw_table import RawTable, argument, as_number, is_missing

_COMMAS = re.compile(r"[+-]?[0-9][0-9.]*,[0-9][0-9.,]*", re.ASCII)

NO_COMMAS = "commas in numbers are not read, write 3.5 and 1234"
"""The way out for numbers such as 3,5 and 1,234."""


@final
@dataclass(frozen=True)
class Answers:
    """How the questions can be answered.

    Args:
        flags: on the command line; False, for samples to predict: only in the data.
        true_label: with ``--true-label``, too.
        text: with ``--text``, too.
    """

    flags: bool = True
    true_label: bool = True
    text: bool = True


def has_comma(word: str) -> bool:
    """Whether it is a number written with a comma, which is not read as one.

    Example:
        >>> has_comma("3,5"), has_comma("-1,234.5"), has_comma("3.5"), has_comma("3, 5")
        (True, True, False, False)
    """
    return _COMMAS.fullmatch(word.strip()) is not None


def listed(names: Sequence[str]) -> str:
    """Names of columns as one would type them for a flag.

    Example:
        >>> listed(["age", "income"]), listed(["my age"])
        ('age,income', "'my age'")
    """
    return ",".join(names) if all(name.isidentifier() for name in names) else argument(",".join(names))


def question(table: RawTable, kinds: Mapping[str, str], folder: Path, answers: Answers) -> str:
    """About all columns of a table that are not clear.

    Args:
        table: what was read.
        kinds: the columns in question and what is the matter: ``"label"``, ``"lost image"``, ``"commas"`` or
            ``"mixed"``; all others could be several things.
        folder: where image paths start.
        answers: the ways to answer.
    """
    asked: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        asked.setdefault(kind if kind in _ASKED else "", []).append(name)
    parts = [ask(table, asked[kind], folder, answers) for kind, ask in _ASKED.items() if kind in asked]
    return "; ".join(parts)


def _label(table: RawTable, names: Sequence[str], folder: Path, answers: Answers) -> str:
    several = len(names) > 1
    truth = f"--true-label {'for one of them' if several else argument(names[0])}, " if answers.true_label else ""
    inputs = "those that are inputs" if several else f"{argument(names[0])} if it is an input"
    return (
        f"{_columns(names)} {_verb(names, 'look', 'looks')} like labels too: say {truth}--ignore {listed(names)}, or "
        f"--numbers/--categories {inputs}"
    )


def _lost(table: RawTable, names: Sequence[str], folder: Path, answers: Answers) -> str:
    lost = _first(table, names[0])[1]
    return (
        f"{_columns(names)} {_verb(names, 'name', 'names')} images, but there is no {folder / lost}: mend the paths, "
        f"or {_leave_out(names, answers)}"
    )


def _commas(table: RawTable, names: Sequence[str], folder: Path, answers: Answers) -> str:
    row, word = next((row, word) for row, word in enumerate(table.words[names[0]]) if has_comma(word))
    return (
        f"{_columns(names)} {_verb(names, 'hold', 'holds')} numbers with commas ({_at(names, row, word)}): "
        f"{NO_COMMAS}, or {_as_categories(names, answers)}"
    )


def _mixed(table: RawTable, names: Sequence[str], folder: Path, answers: Answers) -> str:
    row, word = next((row, word) for row, word in _filled(table, names[0]) if as_number(word) is None)
    hint = f"; {NO_COMMAS}" if has_comma(word) else ""
    return (
        f"{_columns(names)} {_verb(names, 'mix', 'mixes')} numbers and words ({_at(names, row, word)}{hint}): mend the "
        f"cells, or {_as_categories(names, answers)}"
    )


def _unclear(table: RawTable, names: Sequence[str], folder: Path, answers: Answers) -> str:
    first = _first(table, names[0])[1]
    example = f" ({shortened([first])}, …{f'; {NO_COMMAS}' if has_comma(first) else ''})" if len(names) == 1 else ""
    could = "text, categories" if answers.text else "categories"
    text = f"--text {'for one of them' if len(names) > 1 else argument(names[0])}, "
    way = _leave_out(names, answers)
    if answers.flags:
        way = f"say {text if answers.text else ''}--categories {listed(names)} or --ignore {listed(names)}"
    return f"{_columns(names)}{example} could be {could} or nothing to learn from: {way}"


_ASKED: dict[str, Callable[[RawTable, Sequence[str], Path, Answers], str]] = {
    "label": _label,
    "lost image": _lost,
    "commas": _commas,
    "mixed": _mixed,
    "": _unclear,
}


def _columns(names: Sequence[str]) -> str:
    return f"column {names[0]!r}" if len(names) == 1 else f"columns {', '.join(map(repr, names))}"


def _verb(names: Sequence[str], several: str, one: str) -> str:
    return one if len(names) == 1 else several


def _leave_out(names: Sequence[str], answers: Answers) -> str:
    if answers.flags:
        return f"say --ignore {listed(names)}"
    return f"leave the {_verb(names, 'columns', 'column')} out"


def _as_categories(names: Sequence[str], answers: Answers) -> str:
    if answers.flags:
        return f"say --categories {listed(names)} or --ignore {listed(names)}"
    return _leave_out(names, answers)


def _at(names: Sequence[str], row: int, word: str) -> str:
    of = f" of {names[0]!r}" if len(names) > 1 else ""
    return f"row {row}{of}, counted from 0, has {shortened([word])}"


def _first(table: RawTable, name: str) -> tuple[int, str]:
    return _filled(table, name)[0]


def _filled(table: RawTable, name: str) -> list[tuple[int, str]]:
    return [(row, word) for row, word in enumerate(table.words[name]) if not is_missing(word)]
