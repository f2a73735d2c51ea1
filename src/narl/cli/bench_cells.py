"""Which cells ``narl bench run`` is asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from narl.errors import OptionError, nearest

if TYPE_CHECKING:
    from narl.bench.cells import Cell, Task
    from narl.bench.protocols import Protocol
    from narl.bench.work import Place


@final
@dataclass(frozen=True)
class Wanted:
    """Which cells of a table are asked for."""

    schedule: str | None
    seeds: int
    methods: tuple[str, ...]
    tasks: tuple[str, ...]
    tune: bool
    options: tuple[str, ...]
    heldout: float


def check_names(tables: list[Protocol], wanted: Wanted) -> None:
    """Refuse a task or method that none of several tables has; of one, the table itself says so."""
    from narl.bench import protocols

    for name in wanted.tasks if len(tables) > 1 else ():
        if not any(protocols.fits(name, task) for table in tables for task in table.tasks):
            raise OptionError(f"none of these tables has a task {name!r}: narl bench run TABLE --dry-run names them")
    for name in wanted.methods if len(tables) > 1 else ():
        known = {method.lower() for table in tables for method in table.methods}
        if name.lower() not in known:
            raise OptionError(f"none of these tables has a method {name!r}: {nearest(name.lower(), known)}")


def cells_of(protocol: Protocol, place: Place, wanted: Wanted, several: bool) -> list[Cell]:
    """What was asked for; where nobody named tasks, those whose data is given. Of several tables each has a part."""
    from narl.bench import protocols

    tasks, methods = wanted.tasks, wanted.methods
    if several:
        tasks = tuple(one for one in tasks if any(protocols.fits(one, task) for task in protocol.tasks))
        methods = tuple(one for one in methods if one.lower() in [method.lower() for method in protocol.methods])
        if (wanted.tasks and not tasks) or (wanted.methods and not methods):
            return []
    if not tasks and not any(not name for name, _ in place.sources):
        given = {name.lower() for name, _ in place.sources}
        tasks = tuple(dict.fromkeys(task.slug for task in protocol.tasks if task.images.lower() in given))
        if not tasks:
            raise OptionError(
                f"{protocol.name} is about {_datasets(protocol.tasks)}: give one of them with --data NAME=PATH"
            )
    cells = protocol.cells(
        schedule=wanted.schedule, seeds=range(wanted.seeds), methods=methods, tasks=tasks, tune=wanted.tune
    )
    datasets = {cell.task.images for cell in cells}
    if len(datasets) > 1 and any(not name for name, _ in place.sources):
        raise OptionError(
            f"{protocol.name} is about {', '.join(sorted(datasets))}: say which the data is, --data NAME=PATH, or "
            "choose with --tasks"
        )
    for cell in cells:
        place.source(cell.task)  # one that is nowhere is known now
    return [
        replace(cell, options=_options(cell.method, wanted.options), heldout=_heldout(cell, wanted.heldout))
        for cell in cells
    ]


def _heldout(cell: Cell, share: float) -> float:
    """Methods that learn from no clean sample hold all of them out anyway."""
    from narl.errors import UnknownNameError
    from narl.train import methods

    try:
        return share if methods.get(cell.method).uses_clean else 0.0
    except UnknownNameError:
        return 0.0


def _datasets(tasks: tuple[Task, ...]) -> str:
    return ", ".join(dict.fromkeys(task.images for task in tasks))


def _options(method: str, pairs: tuple[str, ...]) -> tuple[tuple[str, object], ...]:
    from narl.cli.train import read_options

    try:
        return tuple(sorted(read_options(method, list(pairs)).items())) if pairs else ()
    except OptionError as error:
        raise OptionError(f"{error}; --methods names those that have it") from error
