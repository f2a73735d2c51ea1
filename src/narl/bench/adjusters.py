"""Adjusters to take away: one is learned from many tasks at once, each with a classifier of its own.

The tasks of a row of such a table are trained side by side (:mod:`narl.train.engine.stack`), and θ moves by the mean of
their hypergradients. A row is trained whole or not at all: its trainings stop together, and go on together from the
newest checkpoint that all of them have.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from narl.bench import work
from narl.bench.cells import Cell
from narl.bench.protocols import Protocol
from narl.bench.runs import Run
from narl.bench.stopping import Asked, Latch
from narl.bench.work import Place
from narl.errors import OptionError
from narl.train.courses import driven_as_one
from narl.train.engine.stack import Stack
from narl.train.run_folder import RunFolder

SNAPSHOTS = 3


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
    courses = [work.training(cell, table, kept, latch, stack, until) for cell, table in cells.items()]
    return driven_as_one(courses, stack, latch.look)


def _reopen(cell: Cell, place: Place) -> None:
    """Let a training go on that had ended when a kill came, before the others of its row had."""
    folder = place.work / cell.slug
    if (folder / "config.json").exists():
        with RunFolder.open(folder).lock():
            (folder / "summary.json").unlink(missing_ok=True)
            cell.result(place.results).unlink(missing_ok=True)


def collect(row: Sequence[Cell], place: Place, out: Path) -> list[Path]:
    """Copy what a row has learned to where it is wanted.

    Args:
        row: that has been trained.
        place: where it was.
        out: folder for the snapshots; made if it is missing.

    Returns:
        The files, in order: ``gce-0.safetensors``, the adjuster before it was trained, and the snapshots;
        options and a seed above 0 are in the name.
    """
    first = place.work / row[0].slug
    made = [first / f"adjuster-{number}.safetensors" for number in range(SNAPSHOTS + 1)]
    missing = [path for path in made if not path.exists()]
    if missing:
        results = row[0].result(place.results)
        raise OptionError(
            f"there is no {missing[0]}: the run's folder was removed; remove the row's results, {results} and those of "
            "its other tasks, to learn it anew"
        )
    out.mkdir(parents=True, exist_ok=True)
    name = Path(row[0].slug).name.removeprefix("a-").removesuffix("-seed0")
    found = [out / f"{name}-{number}.safetensors" for number in range(SNAPSHOTS + 1)]
    for source, target in zip(made, found, strict=True):
        shutil.copyfile(source, target)
    return found
