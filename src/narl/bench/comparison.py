"""Ours beside the paper's: finished trainings as rows, a cell of a table each, and as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from narl.bench import choosing, paper, protocols, transfer, verdicts
from narl.bench.asked import difference
from narl.bench.cells import Task
from narl.bench.others import beside_published
from narl.bench.protocol import Protocol
from narl.bench.runs import Run
from narl.bench.tables import Table, model_title
from narl.bench.verdicts import Row
from narl.errors import UnknownNameError, nearest

_PARTS = {part.name for parts in protocols.BUNDLES.values() for part in parts}
_ALONE = [name for name in protocols.PROTOCOLS if name not in _PARTS]
NAMES = tuple(sorted([*_ALONE, *protocols.BUNDLES], key=lambda name: (not name.startswith("table"), name)))

_NOT_RUN = "–"
_HOW_TO_READ = "Test accuracy, %: mean of the last five epochs ± standard deviation over seeds"


def rows(
    table: str | Protocol, runs: Iterable[Run], schedule: str | None = None, *, variants: bool = False
) -> list[Row]:
    """A row for every cell of a table, run or not.

    Args:
        table: its name, one of :data:`NAMES`; or a table of one's own.
        runs: finished trainings, of this table and of others.
        schedule: ``"short"`` or ``"paper"``; None: all that a data set has runs of, the paper's where it has none.
        variants: add rows for cells with options, tuned or with clean samples held out, as far as they have been run;
            of the table ``transfer`` tuned ones are always there.

    Returns:
        ``dataset``, ``noise``, ``rate``, ``schedule``, ``method``, ``last5_mean``, ``last5_std``, ``best_mean`` (in per
        cent, None where it was not run; no deviation over one seed), ``seeds`` (how many), ``paper``, ``paper_std`` (in
        per cent, None where there is none), ``model``, ``heldout_mean`` and ``heldout_std`` (on clean samples that were
        not learned from). Rows of table4, whose trainings are tested on two data sets, also have ``metric``:
        ``"top1"``, the accuracy, or ``"top5"``.

    Example:
        >>> row = rows("table1", [])[0]
        >>> row["dataset"], row["noise"], row["rate"], row["method"], row["last5_mean"], row["seeds"], row["paper"]
        ('CIFAR-10', 'symmetric', 0.0, 'CE', None, 0, 93.11)
    """
    parts = _protocols(table)
    if len(parts) > 1:
        asked = [part for part in parts if schedule is None or schedule in part.schedule_names]
        all_runs = list(runs)
        return [row for part in asked for row in rows(part, all_runs, schedule, variants=variants)]
    (protocol,) = parts
    if schedule is not None:
        protocol.check_schedule(schedule)
    own = [run for run in runs if belongs(run, protocol) and difference(run, protocol) is None]
    found = []
    for dataset in dict.fromkeys(task.dataset for task in protocol.tasks):
        there = [run for run in own if run.cell.task.dataset == dataset]
        trained = [one for one in protocol.schedule_names if any(run.cell.schedule == one for run in there)]
        for chosen in [schedule] if schedule else trained or [protocol.schedule_names[-1]]:
            of_schedule = [run for run in there if run.cell.schedule == chosen]
            found += _of(protocol, dataset, chosen, of_schedule, variants)
    return found


def stale(table: str | Protocol, runs: Iterable[Run]) -> list[str]:
    """What has changed in a table since some of its cells were trained, a sentence a cell; these are not shown."""
    there = list(runs)
    changes = (difference(run, part) for part in _protocols(table) for run in there if belongs(run, part))
    return [change for change in changes if change is not None]


def belongs(run: Run, protocol: Protocol) -> bool:
    """Whether a run is of a table: one of its cells, or a variant of one."""
    cell = run.cell
    return cell.task in protocol.tasks and cell.model == protocol.model and cell.schedule in protocol.schedule_names


def _protocols(table: str | Protocol) -> tuple[Protocol, ...]:
    """What a name stands for: one table, or several that are shown together."""
    if isinstance(table, Protocol):
        return (table,)
    if table not in NAMES:
        raise UnknownNameError(f"no table is called {table!r}: {nearest(table, NAMES)}")
    return protocols.parts(table)


def _of(protocol: Protocol, dataset: str, schedule: str, runs: Sequence[Run], variants: bool) -> list[Row]:
    """The rows of a data set and schedule, a task after the other."""
    cells: dict[tuple[Task, str], list[Run]] = {}
    for run in (run for run in runs if _fits(run, protocol)):
        cells.setdefault((run.cell.task, run.cell.label), []).append(run)
    order = _in_pairs(protocol.methods)
    always = {f"{method}, tuned" for method in order} if protocol.shipped else set()  # what adjusters are to do without
    found = []
    for task in (task for task in protocol.tasks if task.dataset == dataset):
        further = {label for of_task, label in cells if of_task == task and label not in order}
        further = further if variants else further & always
        for method in sorted([*order, *further], key=lambda label: _rank(label, order)):
            trained = cells.get((task, method), [])
            for measure in protocol.measures or (None,):
                found.append(_row(protocol, task, schedule, method, trained, measure))
    return found


def _fits(run: Run, protocol: Protocol) -> bool:
    """Whether a method is of a table's kind: what was learned elsewhere is beside what needs no clean samples."""
    if protocol.shipped:
        return run.cell.method in protocol.methods
    return run.cell.method in protocol.methods or run.cell.method not in protocols.TRANSFERRED


def _row(
    protocol: Protocol, task: Task, schedule: str, method: str, runs: Sequence[Run], measure: tuple[str, str] | None
) -> Row:
    dataset, metric = measure or (task.dataset, "top1")
    number = paper.number(protocol.name, replace(task, dataset=dataset), method, metric)
    reached = [found for run in runs if (found := run.reached(dataset, metric)) is not None]
    last5_mean, last5_std = verdicts.over_seeds([last5 for last5, _ in reached])
    return {
        "dataset": dataset,
        "noise": task.noise,
        "rate": task.rate,
        "schedule": schedule,
        "method": method,
        "last5_mean": last5_mean,
        "last5_std": last5_std,
        "best_mean": verdicts.over_seeds([best for _, best in reached])[0],
        "seeds": len(reached),
        "paper": None if number is None else number.mean,
        "paper_std": None if number is None else number.std,
        "model": protocol.model,
        **choosing.heldout(runs),
        **({} if measure is None else {"metric": metric}),
    }


def _column(row: Row) -> tuple[Any, ...]:
    """What the column of a row is about: a noise and its rate; or, where the row has a metric, a data set and that."""
    return (row["dataset"], row["metric"]) if "metric" in row else (row["noise"], row["rate"])


def _heading(first: str, second: Any) -> str:
    if isinstance(second, str):
        return f"{first}, top {second.removeprefix('top')}"
    return first if second is None else f"{first} {second:g}"


def _in_pairs(methods: Sequence[str]) -> list[str]:
    """The methods with each adjusted one right after its fixed form, where that is there."""
    first = [method for method in methods if verdicts.fixed_form(method) not in methods]
    return [one for method in first for one in [method, *(m for m in methods if verdicts.fixed_form(m) == method)]]


def _rank(label: str, order: Sequence[str]) -> tuple[int, str]:
    """Variants come after the method that they are of; methods that the table has not, at the end."""
    method = label.partition(", ")[0]
    return (order.index(method) if method in order else len(order), label)


def tables(table: str | Protocol, found: Sequence[Row]) -> list[Table]:
    """A table a data set and schedule: methods are rows, kinds and rates of noise are columns.

    Args:
        table: as for :func:`rows`.
        found: what :func:`rows` gave.

    Returns:
        The tables. A cell has ours and then, in brackets, the paper's. Marks say whether an adjusted loss is ahead of
        its fixed form. For CIFAR-10N, what others have published follows.

    Example:
        >>> shown = tables("figure5", rows("figure5", []))[0]
        >>> shown.columns, shown.rows[1]
        (('method', 'asymmetric 0.6'), ('A-GCE', '–'))
    """
    of_dataset = {task.dataset: part for part in _protocols(table) for task in part.tasks}
    trained_on = {name: dataset for dataset, part in of_dataset.items() for name in part.also}
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in found:
        dataset: str = row["dataset"]
        groups.setdefault((trained_on.get(dataset, dataset), row["schedule"]), []).append(row)
    made = [one for group, of_group in groups.items() for one in _tables(of_dataset[group[0]], *group, of_group)]
    if table == protocols.TRANSFER:
        return [transfer.reached(found), *made]
    return [*made, *beside_published(found)]


def _tables(protocol: Protocol, dataset: str, schedule: str, found: Sequence[Row]) -> list[Table]:
    columns = list(dict.fromkeys(map(_column, found)))
    by_cell = {(row["method"], *_column(row)): row for row in found}
    compared = verdicts.pairs(found)
    marks = {(one["method"], *_column(one)): verdicts.mark(one, fixed) for one, fixed in compared}
    order = _in_pairs(protocol.methods)
    # A variant may have been run in some columns only, and be found late: the order is that of all columns together.
    methods = sorted(dict.fromkeys(row["method"] for row in found), key=lambda label: _rank(label, order))
    lines = [
        (method, *(_cell(by_cell.get((method, *column)), marks.get((method, *column), "")) for column in columns))
        for method in methods
    ]
    ranked = [row for row in found if row["method"] in order]
    best = "best" if len(ranked) == len(found) else "best, no variants"
    for words, value in ((best, "last5_mean"), ("paper's best", "paper")):
        names = [_best(ranked, column, value) for column in columns]
        if any(name != _NOT_RUN for name in names):
            lines.append((words, *names))
    length = protocol.schedule(schedule, dataset)
    falls = f", ÷10 at {' and '.join(map(str, length.milestones))}" if length.milestones else ""
    long = f"{length.epochs} epochs{falls}"
    if protocol.lengths and schedule == "short":
        long = "as many epochs as fit the same time"
    long = long if protocol.own else f"{schedule} schedule ({long})"
    title = f"{protocol.title}: {dataset}, {model_title(protocol.model)}, {long}"
    heading = ("method", *(_heading(*column) for column in columns))
    whole = Table(title, heading, tuple(lines), tuple(_notes(protocol, dataset, schedule, found)))
    chosen_by = [row for row in found if not protocol.measures or _column(row) == protocol.measures[0]]
    return [whole, *choosing.table(title, chosen_by, methods)]


def _cell(row: Row | None, mark: str) -> str:
    if row is None:
        return _NOT_RUN
    ours = _NOT_RUN if row["last5_mean"] is None else f"{row['last5_mean']:.1f}"
    spread = "" if row["last5_std"] is None else f"±{row['last5_std']:.1f}"
    theirs = "" if row["paper"] is None else f" ({row['paper']:.1f})"
    return f"{ours}{spread}{mark}{theirs}"


def _best(found: Sequence[Row], column: tuple[Any, ...], value: str) -> str:
    """Who has the highest number in a column that is whole."""
    there = [row for row in found if _column(row) == column]
    if any(row[value] is None for row in there):
        return _NOT_RUN  # who is the best of some says little
    highest = max((row[value] for row in there), default=None)
    names = [row["method"] for row in there if row[value] == highest]
    return (" ".join(names) if len(names) < 3 else f"{len(names)} methods") or _NOT_RUN


def _notes(protocol: Protocol, dataset: str, schedule: str, found: Sequence[Row]) -> list[str]:
    seeds = [row["seeds"] for row in found if row["seeds"]]
    theirs = any(row["paper"] is not None for row in found)
    brackets = f"; in brackets the paper's{paper.aside(dataset)}" if theirs else ""
    notes = [f"{_HOW_TO_READ}{brackets}. {_NOT_RUN}: not run."]
    if "top5" in protocol.metrics:
        notes.append("Top 5: the label is among the five most probable classes.")
    how = []
    if seeds:
        how.append(f"Seeds: {min(seeds)}{f' to {max(seeds)}' if min(seeds) < max(seeds) else ''}.")
    if theirs and schedule == "short" and not protocol.measures:  # of table 4 it does not say
        how.append(f"The paper trained for {protocol.schedules[dataset].epochs} epochs.")
    notes.append(" ".join(how))
    compared, tuned = verdicts.pairs(found), verdicts.pairs(found, "tuned")
    notes += [*verdicts.explained(compared), verdicts.summary(compared, "fixed, untuned")]
    notes.append(verdicts.summary(tuned, "fixed, tuned on the clean set"))
    if protocol.tuning is not None and any(row["method"].endswith(", tuned") for row in found):
        notes.append(f"Tuned: by trainings of {protocol.tuning.epochs} epochs each.")
    missing = sum(row["seeds"] == 0 for row in found)
    if missing:
        notes.append(f"Not run: {missing} of {len(found)} cells.")
    notes += [f"Misprint in the paper: {said}" for said in paper.errata(protocol.name, dataset)]
    return [note for note in notes if note]
