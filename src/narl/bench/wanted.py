"""Which cells of one table or more somebody asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from narl.bench.cells import Cell
from narl.bench.protocol import Protocol, fits
from narl.bench.work import Place
from narl.errors import OptionError, UnknownNameError, nearest
from narl.train import methods


@final
@dataclass(frozen=True)
class Wanted:
    """What is asked for.

    Args:
        schedule: its name; None: the usual one of each table.
        seeds: how many trainings of each cell.
        methods: some of them; empty: all.
        tasks: some of them; empty: all whose data is given.
        tune: choose fixed losses' hyperparameters on the clean set.
        options: what a method is given.
        heldout: share of the clean set that is not learned from.
        each: changes of a method's options; the cells are wanted as they are, and once more with each change alone.
    """

    schedule: str | None
    seeds: int
    methods: tuple[str, ...]
    tasks: tuple[str, ...]
    tune: bool
    options: Callable[[str], tuple[tuple[str, Any], ...]]
    heldout: float
    each: tuple[Callable[[str], tuple[tuple[str, Any], ...]], ...] = ()

    def cells(self, tables: Sequence[Protocol], place: Place) -> list[list[Cell]]:
        """The cells of each table that are asked for; of several tables one may have no part in it.

        Raises:
            OptionError: a task or method that no table has, or data that is nowhere.
        """
        if len(tables) == 1:
            return [self._of(tables[0], place, self.tasks, self.methods)]
        self._check_names(tables)
        found = [self._part(table, place) for table in tables]
        if not any(found):
            datasets = ", ".join(dict.fromkeys(task.images for table in tables for task in table.tasks))
            raise OptionError(f"these tables are about {datasets}: give one of them with --data NAME=PATH")
        return found

    def _check_names(self, tables: Sequence[Protocol]) -> None:
        for name in self.tasks:
            if not any(fits(name, task) for table in tables for task in table.tasks):
                raise OptionError(
                    f"none of these tables has a task {name!r}: narl bench run TABLE --dry-run names them"
                )
        for name in self.methods:
            known = {method.lower() for table in tables for method in table.methods}
            if name.lower() not in known:
                raise OptionError(f"none of these tables has a method {name!r}: {nearest(name.lower(), known)}")

    def _part(self, table: Protocol, place: Place) -> list[Cell]:
        """What of a wish for several tables is for this one."""
        own = [method.lower() for method in table.methods]
        tasks = tuple(one for one in self.tasks if any(fits(one, task) for task in table.tasks))
        chosen = tuple(one for one in self.methods if one.lower() in own)
        if (self.tasks and not tasks) or (self.methods and not chosen):
            return []
        named = {name.lower() for name, _ in place.sources}
        if not tasks and "" not in named and not any(task.images.lower() in named for task in table.tasks):
            return []  # its data is not given, that of another one is
        return self._of(table, place, tasks, chosen)

    def _of(self, table: Protocol, place: Place, tasks: tuple[str, ...], chosen: tuple[str, ...]) -> list[Cell]:
        unnamed = any(not name for name, _ in place.sources)
        if not tasks and not unnamed:
            tasks = _given(table, place)
        cells = table.cells(
            schedule=self.schedule, seeds=range(self.seeds), methods=chosen, tasks=tasks, tune=self.tune
        )
        datasets = {cell.task.images for cell in cells}
        if len(datasets) > 1 and unnamed:
            raise OptionError(
                f"{table.name} is about {', '.join(sorted(datasets))}: say which the data is, --data NAME=PATH, or "
                "choose with --tasks"
            )
        for cell in cells:
            place.source(cell.task)  # one that is nowhere is known now
        place.further(table)
        return [
            replace(cell, options=self._options(cell.method, change), heldout=self._heldout(cell.method))
            for change in (None, *self.each)
            for cell in cells
        ]

    def _options(
        self, method: str, change: Callable[[str], tuple[tuple[str, Any], ...]] | None
    ) -> tuple[tuple[str, Any], ...]:
        changed = {} if change is None else dict(change(method))
        return tuple({**dict(self.options(method)), **changed}.items())

    def _heldout(self, method: str) -> float:
        """Methods that learn from no clean sample hold all of them out anyway."""
        try:
            return self.heldout if methods.get(method).uses_clean else 0.0
        except UnknownNameError:  # one that narl does not have yet
            return 0.0


def _given(table: Protocol, place: Place) -> tuple[str, ...]:
    """The tasks whose data is given."""
    given = {name.lower() for name, _ in place.sources}
    tasks = tuple(task.slug for task in table.tasks if task.images.lower() in given)
    if not tasks:
        datasets = ", ".join(dict.fromkeys(task.images for task in table.tasks))
        raise OptionError(f"{table.name} is about {datasets}: give one of them with --data NAME=PATH")
    return tasks


def of_given(
    tables: Sequence[Protocol],
    place: Place,
    *,
    seeds: int,
    tasks: tuple[str, ...],
    schedule: str | None = None,
    first_seed: int = 0,
) -> dict[Cell, Protocol]:
    """The cells of those tables whose data is given, each with its table, seed by seed.

    Args:
        tables: that may be about data which is not there.
        place: where data is.
        seeds: how many trainings of each cell.
        tasks: some of them; empty: all whose data is given.
        schedule: of tables that have several; None: the usual one.
        first_seed: number of the first seed.

    Raises:
        OptionError: no table is about the data, or a task is about other data.
    """
    if seeds < 1:
        raise OptionError(f"--seeds {seeds} trains nothing: give at least 1")
    given = {name.lower() for name, _ in place.sources}
    for name in tasks:
        fitting = [task for table in tables for task in table.tasks if fits(name, task)]
        if fitting and not any(task.images.lower() in given for task in fitting):
            place.source(fitting[0])  # refuses
    there = [replace(one, tasks=tuple(t for t in one.tasks if t.images.lower() in given)) for one in tables]
    own = [table for table in there if table.tasks]
    if not own:
        known = dict.fromkeys(task.images for table in tables for task in table.tasks)
        raise OptionError(f"which data set is it? Write --data NAME=PATH; known are {', '.join(known)}")
    if schedule is not None and all(table.own is not None for table in own):
        raise OptionError("--schedule is of the paper's images: leave it out, or give --data CIFAR-10=FOLDER")
    wanted = Wanted(None, seeds, (), tasks, False, lambda name: (), 0.0)
    found: dict[Cell, Protocol] = {}
    for table, cells in zip(own, wanted.cells(own, place), strict=True):
        for cell in cells:
            if schedule is not None and table.own is None:
                table.schedule(schedule, cell.task.dataset)
                cell = replace(cell, schedule=schedule)
            found[replace(cell, seed=cell.seed + first_seed)] = table
    return dict(sorted(found.items(), key=lambda pair: pair[0].seed))
