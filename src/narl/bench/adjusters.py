"""Adjusters to take away: one is learned from many tasks at once, each with a classifier of its own.

The tasks of a row of such a table are trained side by side (:mod:`narl.train.engine.stack`), and θ moves by the mean of
their hypergradients. Tasks may be of several data sets; those with fewer steps make them at even distances, so that all
are equally far at any time and end together. A row is trained whole or not at all: its trainings stop together, and go
on together from the newest checkpoint that all of them have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from narl.adjuster import packs
from narl.adjuster.packs import Pack
from narl.bench import work
from narl.bench.cells import Cell
from narl.bench.protocol import Protocol
from narl.bench.runs import Run
from narl.bench.stopping import Asked, Latch, Located
from narl.bench.work import Place
from narl.errors import OptionError
from narl.train.adjusters import load_adjusters, numbered
from narl.train.courses import driven_as_one
from narl.train.engine.stack import Stack
from narl.train.run_folder import RunFolder


def shared(protocol: Protocol) -> Protocol:
    """The same table, with one adjuster for each row; its trainings are kept apart from the table's own.

    Example:
        >>> from narl.bench import protocols
        >>> shared(protocols.get("adjusters")).name, shared(protocols.get("figure6")).schedule_names
        ('adjusters', ('figure6-adjusters',))
    """
    if protocol.shared:
        return protocol
    own = protocol.own or next(iter(protocol.schedules.values()))
    return replace(protocol, name=f"{protocol.name}-adjusters", own=own, schedules={}, shared=True)


def rows(cells: Iterable[Cell]) -> list[tuple[Cell, ...]]:
    """The cells that learn one adjuster together: those of a method, its options and a seed."""
    found: dict[object, list[Cell]] = {}
    for cell in cells:
        key = (cell.model, cell.schedule, cell.method, cell.seed, cell.options, cell.heldout)
        found.setdefault(key, []).append(cell)
    return [tuple(row) for row in found.values()]


def learn(cells: Mapping[Cell, Protocol], place: Place, asked: Asked) -> list[Run | None]:
    """Learn one adjuster from all cells, from where an earlier try was stopped.

    Args:
        cells: a whole row, each with its table.
        place: where to.
        asked: who may want to stop.

    Returns:
        How each task's training ended; None for all if they were stopped.
    """
    if not all(cell.result(place.results).exists() for cell in cells):
        for cell in cells:
            _reopen(cell, place)
    until = work.common_checkpoint([place.work / cell.slug for cell in cells]) or (0, 0)
    stack, latch, kept = Stack(shared=True), Latch(asked), replace(place, discard=False)
    seen = [Located(cell.slug, latch) for cell in cells]
    courses = [work.training(*pair, kept, one, stack, until) for pair, one in zip(cells.items(), seen, strict=True)]
    return driven_as_one(courses, stack, [one.at for one in seen], latch.look)


def _reopen(cell: Cell, place: Place) -> None:
    """Let a training go on that had ended when a kill came, before the others of its row had."""
    folder = place.work / cell.slug
    if (folder / "config.json").exists():
        with RunFolder.open(folder).lock():
            (folder / "summary.json").unlink(missing_ok=True)
            cell.result(place.results).unlink(missing_ok=True)


def collect(row: Sequence[Cell], place: Place, out: Path) -> Path:
    """Put what a row has learned into one file, where it is wanted.

    Args:
        row: that has been trained.
        place: where it was.
        out: folder for the file; made if it is missing.

    Returns:
        The file, ``gce.safetensors``: the adjuster before it was trained and its snapshots, which know when they were
        taken, and the names of the trainings; options and a seed above 0 are in the name.
    """
    first = place.work / row[0].slug
    made = numbered(first)
    if not made:
        results = row[0].result(place.results)
        raise OptionError(
            f"there is no {first / 'adjuster-0.safetensors'}: the run's folder was removed; remove the row's results, "
            f"{results} and those of its other tasks, to learn it anew"
        )
    out.mkdir(parents=True, exist_ok=True)
    name = Path(row[0].slug).name.removeprefix("a-").removesuffix("-seed0")
    pack = Pack(
        tuple(load_adjusters([str(first)])), trained_on=_in_words(row), about={"cells": [cell.slug for cell in row]}
    )
    packs.write(out / f"{name}.safetensors", pack)
    return out / f"{name}.safetensors"


def _in_words(row: Sequence[Cell]) -> str:
    """The tasks of a row, those of a data set and noise together.

    Example:
        >>> from narl.bench import protocols
        >>> _in_words(rows(protocols.get("adjusters").cells())[0])
        'CIFAR-10 symmetric 0.2, 0.4, 0.6; CIFAR-10 asymmetric 0.2, 0.4, 0.6; CIFAR-10 instance 0.2, 0.4, 0.6'
    """
    found: dict[str, list[str]] = {}
    for task in (cell.task for cell in row):
        found.setdefault(f"{task.dataset} {task.noise}", []).extend([] if task.rate is None else [f"{task.rate:g}"])
    return "; ".join(f"{kind} {', '.join(rates)}".strip() for kind, rates in found.items())
