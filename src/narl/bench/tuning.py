"""Fixed losses' hyperparameters, chosen on the clean set by short trainings that are cells of their own.

``narl train --tune`` trains every candidate as long as the run itself, one after the other. Where that is hours of a
GPU, a table has a short schedule for it: candidates are then cells like any other, which can be stacked, stopped and
kept, and what is chosen is trained once, at full length.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from narl.bench import runs
from narl.bench.asked import asked_of, candidate_values, difference
from narl.bench.cells import Cell
from narl.bench.protocol import Protocol
from narl.bench.runs import Run
from narl.errors import OptionError
from narl.train.tuning import best

_LAST = 2  # epochs whose mean counts


def is_apart(cell: Cell, protocol: Protocol) -> bool:
    """Whether a cell's hyperparameters are chosen by cells of their own."""
    return cell.tune and protocol.tuning is not None


def candidates(cell: Cell, protocol: Protocol) -> list[Cell]:
    """The short trainings that a cell's hyperparameters are chosen by; none where the cell has no need of them.

    Example:
        >>> from narl.bench.protocols import get
        >>> table = get("transfer-tinyimagenet")
        >>> (cell,) = table.cells(methods=["SL"], tasks=["symmetric-0.4"], tune=True)
        >>> found = candidates(cell, table)
        >>> len(found), found[-1].slug
        (6, 'tinyimagenet-32/symmetric-0.4/resnet32-tuning/sl-gamma1=6.0-gamma2=0.1-seed0')
    """
    if not is_apart(cell, protocol):
        return []
    if not protocol.clean or protocol.training.get("train_on_clean"):
        raise OptionError(
            f"--tune needs clean samples to validate on that are not trained on, and {protocol.name} has none: say how "
            'many are taken out, such as "clean": 100, and leave out train_on_clean'
        )
    values, given = candidate_values(cell, protocol), dict(cell.options)
    if twice := given.keys() & values[0].keys():
        raise OptionError(f"--tune chooses {', '.join(sorted(twice))}, which is also given: leave one of the two out")
    schedule = protocol.tuning_name
    return [replace(cell, schedule=schedule, tune=False, options=tuple({**given, **one}.items())) for one in values]


def lacking(cell: Cell, protocol: Protocol, results: Path) -> str | None:
    """Why a cell cannot be chosen yet, by the first candidate that does not count; None: it can, or need not be."""
    for one in candidates(cell, protocol):
        path = one.result(results)
        if not path.exists():
            return f"it is chosen by short trainings, of which {one.slug} has no result"
        change = difference(runs.read_file(path), protocol)
        if change is not None:
            return (
                f"it is chosen by short trainings, and the table has changed since {path} ({change}): remove that file"
            )
    return None


def scores(cell: Cell, protocol: Protocol, results: Path) -> list[dict[str, Any]]:
    """``options``, ``clean_accuracy`` and ``clean_loss`` of every candidate; none where the cell has no need of them.

    The score is the mean over the last two epochs on the clean samples; the test set is not looked at.

    Raises:
        OptionError: one has no result that counts.
    """
    reason = lacking(cell, protocol, results)
    if reason is not None:
        raise OptionError(f"{cell.slug} cannot be trained: {reason}")
    found, given = [], dict(cell.options)
    for one in candidates(cell, protocol):
        curves = runs.read_file(one.result(results)).curves
        means = {f"clean_{name}": _mean(curves[f"heldout_{name}"]) for name in ("accuracy", "loss")}
        found.append({"options": {name: value for name, value in one.options if name not in given}, **means})
    return found


def trained_already(cell: Cell, protocol: Protocol, results: Path, found: list[dict[str, Any]]) -> Run | None:
    """The result of a tuned cell whose choice is what the table trains untuned: it is that training; None: it is not.

    Args:
        cell: that is tuned.
        protocol: its table.
        results: folder of the results.
        found: what :func:`scores` gave.
    """
    path = replace(cell, tune=False).result(results)
    run = runs.read_file(path) if path.exists() else None
    if run is None or difference(run, protocol) is not None:
        return None
    values = best(found)
    if {name: run.settings["options"].get(name) for name in values} != values:
        return None
    return with_scores(replace(run, cell=cell, asked=asked_of(cell, protocol)), found)


def with_scores(run: Run, found: list[dict[str, Any]]) -> Run:
    """A result that says what it was chosen from."""
    return replace(run, settings={**run.settings, "tuning": found})


def _mean(curve: list[float | None]) -> float:
    return statistics.fmean(value for value in curve[-_LAST:] if value is not None)
