"""What a table trains: data sets, noise, models, schedules and methods, as data."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from narl.bench.cells import SCHEDULES, TUNING, Cell, Task
from narl.errors import ConfigError, OptionError, UnknownNameError, nearest
from narl.train import methods as registry

BY_KIND = "auto"
CLEAN = 1000
# Of narl.train.Settings: what the paper's tables have in common.
TRAINING = {
    "batch_size": 100,
    "clean_batch_size": 100,
    "optimizer": "sgd",
    "learning_rate": 0.1,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "schedule": "step",
    "augment": "crop+flip",
}


@final
@dataclass(frozen=True)
class Schedule:
    """How long, and when the learning rate falls to a tenth.

    Args:
        epochs: passes over the training samples.
        milestones: epochs after which the learning rate is divided by ten.
    """

    epochs: int
    milestones: tuple[int, ...]


SHORT = Schedule(60, (40, 50))


@final
@dataclass(frozen=True)
class Protocol:
    """One table.

    Args:
        name: as the command line says it.
        title: what it shows.
        tasks: its columns.
        methods: its rows.
        model: the classifier; ``"auto"``: narl's own choice for the kind of data.
        schedules: the paper's, by data set; none for a table of one's own.
        own: the only schedule of a table of one's own, called as the table; None: the paper's, and a short one.
        clean: samples of the clean set, taken out of every method's training set; 0: none.
        training: settings of the trainings, where they are not narl's defaults.
        modules: to be imported first: they register losses or methods of one's own.
        shared: whether the trainings of a row learn one adjuster together: see :mod:`narl.bench.adjusters`.
        shipped: whether T-* are about the adjusters that narl ships: once it does, results of others do not count.
        audited: whether results say how well the wrong labels are found: see :mod:`narl.bench.audits`.
        lengths: epochs of the short schedule by method, where all are to take the same time rather than as many epochs.
        short: the short schedule of all other methods.
        also: data sets that are tested on as well: columns of their own.
        metrics: what is shown of each data set: ``"top1"``: accuracy; ``"top5"``: labels among the five most probable.
        tuning: how long candidates are trained that fixed losses' hyperparameters are chosen from
            (:mod:`narl.bench.tuning`); None: as long as what is chosen, within its own run.
    """

    name: str
    title: str
    tasks: tuple[Task, ...]
    methods: tuple[str, ...]
    model: str
    schedules: dict[str, Schedule]
    own: Schedule | None = None
    clean: int = CLEAN
    training: dict[str, Any] = field(default_factory=lambda: dict(TRAINING))
    modules: tuple[str, ...] = ()
    shared: bool = False
    shipped: bool = False
    audited: bool = False
    lengths: dict[str, int] = field(default_factory=dict)
    short: Schedule = SHORT
    also: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("top1",)
    tuning: Schedule | None = None

    @property
    def measures(self) -> tuple[tuple[str, str], ...]:
        """Data set and metric of its columns, where that is what they are; empty: they are kinds of noise.

        Example:
            >>> from narl.bench.protocols import get
            >>> get("table4").measures[-1], get("table1").measures
            (('ILSVRC12', 'top5'), ())
        """
        if not self.also and self.metrics == ("top1",):
            return ()
        tested = (*dict.fromkeys(task.dataset for task in self.tasks), *self.also)
        return tuple((dataset, metric) for dataset in tested for metric in self.metrics)

    @property
    def schedule_names(self) -> tuple[str, ...]:
        """The schedules that it has, the usual one first."""
        return SCHEDULES if self.own is None else (self.name,)

    def schedule(self, name: str, dataset: str, method: str = "") -> Schedule:
        """The schedule of that name for a data set, and a method where that matters.

        Example:
            >>> from narl.bench.protocols import get
            >>> get("table1").schedule("paper", "CIFAR-100")
            Schedule(epochs=150, milestones=(80, 120))
        """
        if name == self.tuning_name and self.tuning is not None:
            return self.tuning
        self.check_schedule(name)
        if self.own is not None:
            return self.own
        if name == "short":
            falls = self.training.get("schedule") == "step" and method not in self.lengths
            return Schedule(self.lengths.get(method, self.short.epochs), self.short.milestones if falls else ())
        return self.schedules[dataset]

    @property
    def tuning_name(self) -> str:
        """What the schedule is called that hyperparameters are chosen by; tables of one's own share it with no other.

        Example:
            >>> from narl.bench.protocols import get
            >>> get("cifar10n").tuning_name
            'tuning'
        """
        return TUNING if self.own is None else f"{self.name}-{TUNING}"

    def check_schedule(self, name: str) -> None:
        """Refuse a schedule that cells of the table cannot be asked for with."""
        if name not in self.schedule_names:
            raise UnknownNameError(f"{self.name} has no schedule {name!r}: {nearest(name, self.schedule_names)}")

    def cells(
        self,
        *,
        schedule: str | None = None,
        seeds: Sequence[int] = (0,),
        methods: Sequence[str] = (),
        tasks: Sequence[str] = (),
        tune: bool = False,
    ) -> list[Cell]:
        """The cells that are asked for, seed by seed, so that a whole table is there before it gets more exact.

        Args:
            schedule: one of :attr:`schedule_names`; None: the first.
            seeds: one training each.
            methods: some of the rows; empty: all.
            tasks: some of the columns, by data set, noise or both: ``"CIFAR-10"``, ``"symmetric-0.4"``; empty: all.
            tune: choose the hyperparameters of fixed losses on the clean set.

        Example:
            >>> from narl.bench.protocols import get
            >>> [cell.slug for cell in get("table1").cells(methods=["ce"], tasks=["cifar-10/asymmetric"])]
            ['cifar-10/asymmetric-0.2/resnet32-short/ce-seed0', 'cifar-10/asymmetric-0.4/resnet32-short/ce-seed0']
        """
        wanted = [_named(name, self.methods, "method") for name in methods] or list(self.methods)
        chosen = schedule or self.schedule_names[0]
        self.check_schedule(chosen)
        return [
            Cell(task, self.model, chosen, method, seed, tune=tune and _tunable(method))
            for seed in seeds
            for task in self._chosen(tasks)
            for method in wanted
        ]

    def _chosen(self, wanted: Sequence[str]) -> list[Task]:
        for one in wanted:
            if not any(fits(one, task) for task in self.tasks):
                known = ", ".join(task.slug for task in self.tasks)
                raise OptionError(f"{self.name} has no task {one!r}: it has {known}")
        return [task for task in self.tasks if not wanted or any(fits(one, task) for one in wanted)]


def _tunable(method: str) -> bool:
    """Whether narl has it, and it has hyperparameters to choose."""
    try:
        return bool(registry.get(method).grid())
    except UnknownNameError:
        return False


def fits(wanted: str, task: Task) -> bool:
    """Whether a task is meant: by its data set, its noise, or both, with or without the rate.

    Example:
        >>> task = Task("CIFAR-10", "symmetric", 0.4)
        >>> [fits(name, task) for name in ("cifar-10", "symmetric", "cifar-10/symmetric-0.4", "symmetric-0.2")]
        [True, True, True, False]
    """
    dataset, _, noise = task.slug.partition("/")
    own, kind = wanted.lower().rstrip("/"), noise.split("-")[0]
    return own in (task.dataset.lower(), dataset, noise, task.slug, kind, f"{dataset}/{kind}")


def _named(name: str, known: Sequence[str], what: str) -> str:
    for one in known:
        if one.lower() == name.lower():
            return one
    raise UnknownNameError(f"no {what} is called {name!r} here: {nearest(name, known)}")


def to_json(protocol: Protocol) -> dict[str, Any]:
    """As plain values."""
    return asdict(protocol)


def from_json(values: Mapping[str, Any]) -> Protocol:
    """From what :func:`to_json` gave.

    Example:
        >>> from narl.bench.protocols import get
        >>> from_json(to_json(get("table2"))) == get("table2")
        True
    """
    given = dict(values)
    schedules, own = {name: _schedule(one) for name, one in given.pop("schedules").items()}, given.pop("own")
    tuning = given.pop("tuning")
    return Protocol(
        tasks=tuple(Task(**task) for task in given.pop("tasks")),
        methods=tuple(given.pop("methods")),
        schedules=schedules,
        own=None if own is None else _schedule(own),
        short=_schedule(given.pop("short")),
        modules=tuple(given.pop("modules")),
        also=tuple(given.pop("also")),
        metrics=tuple(given.pop("metrics")),
        tuning=None if tuning is None else _schedule(tuning),
        **given,
    )


def import_modules(names: Sequence[str]) -> None:
    """Import what a table wants imported; modules may be in the folder that narl is called in."""
    if names and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(
                f"the module {name!r} cannot be imported ({error}): install it, or call narl from its folder"
            ) from error


def _schedule(values: Mapping[str, Any]) -> Schedule:
    return Schedule(values["epochs"], tuple(values["milestones"]))
