"""How well wrong labels are found: finished audits as rows, one a data set and way to find them, and as tables."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from narl.bench import audits
from narl.bench.cells import SCHEDULES, Cell, Task
from narl.bench.crossed import CLEANLAB
from narl.bench.runs import Run
from narl.bench.tables import Table, model_title

Row = dict[str, Any]
NUMBERS = (
    "auroc",
    "ap",
    "f1",
    "best_f1",
    "precision_at_k",
    "precision_at_100",
    "suggested_accuracy",
    "suggested_accuracy_of_wrong",
    "predicted_accuracy",
    "calibration_error",
    "uncalibrated_error",
    "flagged",
    "low",
    "high",
    "matrix_error",
    "matrix_covered",
)
# What one training run should reach.
GOALS = {
    "CIFAR-10N worst": {"auroc": 0.965, "ap": 0.94, "f1": 0.86, "suggested_accuracy": 0.84},
    "CIFAR-10N aggregate": {"auroc": 0.965, "ap": 0.76, "f1": 0.66},
}
_SHOWN = {
    "auroc": "AUROC",
    "ap": "AP",
    "f1": "F1",
    "precision_at_k": "P@k",
    "precision_at_100": "P@100",
    "suggested_accuracy": "labels right",
    "suggested_accuracy_of_wrong": "of the wrong",
    "error": "ECE",
}
_WAYS = ("narl", "AUM", CLEANLAB)  # of the tables; the other averages are in the JSON rows
_NONE = "–"


def rows(found: Iterable[Run]) -> list[Row]:
    """A row for every data set, schedule and way to find wrong labels.

    Args:
        found: finished audits.

    Returns:
        ``data``, ``method`` (``"narl, GCE"``, ``"AUM, CE"``, ``"cleanlab, 4 folds, CE"``), ``auroc``, ``ap``, ``f1``,
        ``suggested_accuracy`` and the other numbers of :data:`NUMBERS`, means over seeds with a ``…_std`` each (None
        where there is none, or one seed only); ``training_runs`` and ``seconds``, what it costs; ``rate``, how many
        labels are wrong; ``goals`` and ``reached``, where there are any and one run is all it took; ``seeds``,
        ``way``, ``loss``, ``model``, ``schedule``, ``samples``.

    Example:
        >>> cell = Cell(Task("CIFAR-10N", "worst"), "resnet32", "short", "GCE", 1)
        >>> row = rows([Run(cell, 0.8, 0.8, {}, noise_rate=0.4, audit={"narl": {"auroc": 0.97, "f1": 0.85}})])[0]
        >>> row["data"], row["method"], row["auroc"], row["training_runs"], row["reached"]
        ('CIFAR-10N worst', 'narl, GCE', 0.97, 1, {'auroc': True, 'ap': None, 'f1': False, 'suggested_accuracy': None})
    """
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in found:
        cell = run.cell
        for way in run.audit:
            key = (cell.task, cell.model, cell.schedule, cell.method, cell.options, cell.fold, way)
            groups.setdefault(key, []).append(run)
    ordered = sorted(groups, key=lambda key: (_place(key[0]), key[2], _rank(key[6], key[5]), _method(key[3]), key[4]))
    return [_row(groups[key], key[-1]) for key in ordered]


def _place(task: Task) -> tuple[int, Task]:
    known = [one for protocol in audits.ALL for one in protocol.tasks]
    return (known.index(task) if task in known else len(known), task)


def _rank(way: str, fold: tuple[int, int] | None) -> tuple[int, int, str]:
    return (0 if fold is None else fold[1], _WAYS.index(way) if way in _WAYS else len(_WAYS), way)


def _method(name: str) -> tuple[int, str]:
    return (audits.METHODS.index(name) if name in audits.METHODS else len(audits.METHODS), name)


def _row(found: Sequence[Run], way: str) -> Row:
    first = found[0]
    cell = first.cell
    values: dict[str, float | None] = {}
    for name in NUMBERS:
        own = [value for run in found if (value := run.audit[way].get(name)) is not None]
        values[name] = round(statistics.mean(own), 5) if own else None
        values[f"{name}_std"] = round(statistics.stdev(own), 5) if len(own) > 1 else None
    goals = GOALS.get(str(cell.task), {}) if cell.fold is None and way == "narl" else {}
    return {
        "data": str(cell.task),
        "method": ", ".join([way, *([] if cell.fold is None else [f"{cell.fold[1]} folds"]), _loss(cell)]),
        **values,
        "training_runs": 1 if cell.fold is None else cell.fold[1],
        "seconds": round(statistics.mean(run.seconds for run in found), 1),
        "rate": round(statistics.mean(run.noise_rate or 0.0 for run in found), 5),
        "goals": goals,
        "reached": {name: None if values[name] is None else values[name] >= goal for name, goal in goals.items()},  # type: ignore[operator]
        "seeds": len(found),
        "way": way,
        "loss": cell.method,
        "model": cell.model,
        "schedule": cell.schedule,
        "samples": first.settings.get("train_samples"),
        "environment": first.environment,
    }


def _loss(cell: Cell) -> str:
    return ", ".join([cell.method, *(f"{name} = {value}" for name, value in cell.options)])


def tables(found: Sequence[Row]) -> list[Table]:
    """A table a data set and schedule, one that compares averages of the margins, and one about cut and estimates.

    Args:
        found: what :func:`rows` gave.
    """
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in found:
        if row["rate"] > 0:
            groups.setdefault((row["data"], row["model"], row["schedule"]), []).append(row)
    of_data = [_table(*group, of_group) for group, of_group in groups.items()]
    if of_data:
        of_data[0] = replace(of_data[0], notes=(*of_data[0].notes, _HOW_TO_READ))
    return [*of_data, *averages(found), *estimates(found)]


def _table(data: str, model: str, schedule: str, found: Sequence[Row]) -> Table:
    shown = [row for row in found if row["way"] in _WAYS]
    lines = [
        (row["method"], *(_cell(row, name) for name in _SHOWN), f"{row['training_runs']}", f"{row['seconds']:.0f}")
        for row in shown
    ]
    goals = GOALS.get(data, {})
    if goals:
        lines.append(("goal, one run", *(_number(name, goals.get(name)) for name in _SHOWN), "1", _NONE))
    rate = statistics.mean(row["rate"] for row in found)
    title = f"{data}: {rate:.1%} wrong; {model_title(model)}{_length(schedule)}"
    notes = [_verdict(row) for row in shown if row["goals"]]
    seeds = sorted({row["seeds"] for row in shown})
    notes.append(f"Seeds: {' to '.join(map(str, sorted({seeds[0], seeds[-1]})))}.")
    return Table(title, ("method", *_SHOWN.values(), "runs", "seconds"), tuple(lines), tuple(notes))


def _length(schedule: str) -> str:
    """What a table's title says of its schedule.

    Example:
        >>> _length("short"), _length("audit-images-12"), _length("audit-tables")
        (', short schedule', ', 12 epochs', '')
    """
    if schedule in SCHEDULES:
        return f", {schedule} schedule"
    number = schedule.rpartition("-")[2]
    return f", {number} epochs" if number.isdecimal() else ""


def _cell(row: Row, name: str) -> str:
    """A number with its spread; the calibration error is that of what is said to be a probability."""
    if name == "error":
        name = "calibration_error" if row["calibration_error"] is not None else "uncalibrated_error"
        mark = "" if name == "calibration_error" or row[name] is None else "*"
        return _number(name, row[name]) + mark
    mark = "" if name not in row["reached"] else {True: " ✓", False: " ✗", None: ""}[row["reached"][name]]
    spread = row[f"{name}_std"]
    return _number(name, row[name]) + ("" if spread is None else f"±{_number(name, spread)}") + mark


def _number(name: str, value: float | None) -> str:
    if value is None:
        return _NONE
    return f"{100 * value:.1f}" if name.startswith("suggested") else f"{value:.3f}"


def _verdict(row: Row) -> str:
    there = {name: done for name, done in row["reached"].items() if done is not None}
    missed = [_SHOWN[name] for name, done in there.items() if not done]
    if len(there) < len(row["goals"]):
        return f"{row['method']}: not all measured."
    return f"{row['method']}: {'all goals reached' if not missed else 'not reached: ' + ', '.join(missed)}."


_HOW_TO_READ = (
    "F1: of the labels held for wrong. P@k, P@100: share of wrong labels among the k most suspicious (k: as many as "
    "are wrong) and the first hundred. Labels right: % of all labels once suggestions are taken over where a label is "
    "held for wrong; of the wrong: of those that were wrong before. ECE: calibration error of the probability, * of "
    "1 − score where there is none. runs, seconds: trainings that it takes, and how long these took. ± standard "
    "deviation over seeds. AUM holds labels below 0 for wrong and suggests none."
)


_LEARNED = ("TREC weak", "CIFAR-10 asymmetric 0.4")  # there a classifier learns the noise as it learns the task


def averages(found: Sequence[Row]) -> list[Table]:
    """Ways to rank labels from one run beside each other, each method's mean over data sets; [] without any."""
    single = [row for row in found if row["training_runs"] == 1 and row["auroc"] is not None]
    ways = list(dict.fromkeys(row["way"] for row in single))
    losses = sorted({row["loss"] for row in single}, key=_method)
    if len(ways) < 3:
        return []
    counts = {loss: sum(row["loss"] == loss and row["way"] == "narl" for row in single) for loss in losses}
    columns = [f"{loss} ({counts[loss]}): {_SHOWN[name]}" for loss in losses for name in ("auroc", "ap")]
    lines = []
    for way in ways:
        cells = [
            [row[name] for row in single if row["way"] == way and row["loss"] == loss]
            for loss in losses
            for name in ("auroc", "ap")
        ]
        lines.append((way, *(f"{statistics.mean(own):.3f}" if own else _NONE for own in cells)))
    note = "In brackets: data sets and schedules, each counted once. Compare down a column, not across."
    title = "Ways to rank labels from one run, mean over data sets"
    return [Table(title, ("score", *columns), tuple(lines), (note,)), _together(single, ways)]


def _together(single: Sequence[Row], ways: Sequence[str]) -> Table:
    """The same over all methods, with and without the noise that a classifier learns as it learns the task."""
    groups = {"all": single, "but for these": [row for row in single if row["data"] not in _LEARNED]}
    names = ("auroc", "ap")
    columns = [
        f"{group} ({sum(row['way'] == 'narl' for row in own)}): {_SHOWN[name]}"
        for group, own in groups.items()
        for name in names
    ]
    counts = Counter(row["way"] for row in single)
    lines = [
        (way, *(_mean([row[name] for row in own if row["way"] == way]) for own in groups.values() for name in names))
        for way in ways
        if counts[way] == counts["narl"]
    ]
    note = f"These: {' and '.join(_LEARNED)}. Scores that all rows have."
    return Table("Ways to rank labels from one run, all methods together", ("score", *columns), tuple(lines), (note,))


def estimates(found: Sequence[Row]) -> list[Table]:
    """What else is known of narl's verdicts from one run: cut, estimated noise, probabilities; [] without any."""
    single = [row for row in found if row["training_runs"] == 1 and row["way"] == "narl" and row["low"] is not None]
    noisy, right = [row for row in single if row["rate"] > 0], [row for row in single if row["rate"] == 0]
    if not noisy:
        return []
    lost = [row["best_f1"] - row["f1"] for row in noisy]
    inside = [row["low"] <= row["rate"] <= row["high"] for row in noisy]
    lines = [
        ("F1 below that of the best cut, which nobody knows", _mean(lost), f"at most {max(lost):.3f}"),
        ("noise rate inside its interval", f"{sum(inside)} of {len(inside)}", ""),
        ("rows of the transition matrix off by (total variation)", _mean([row["matrix_error"] for row in noisy]), ""),
        ("its cells inside their interval", _mean([row["matrix_covered"] for row in noisy]), ""),
        ("calibration error of the probability", _mean([row["calibration_error"] for row in noisy]), ""),
        ("the same of 1 − score", _mean([row["uncalibrated_error"] for row in noisy]), ""),
    ]
    if right:
        flagged = [row["flagged"] for row in right]
        lines.append(("held for wrong where nothing is", _mean(flagged), f"at most {max(flagged):.3f}"))
    title = "The cut and the estimates from one run"
    note = f"Mean over {len(noisy)} rows with wrong labels, {len(right)} without."
    return [Table(title, ("", "mean", ""), tuple(lines), (note,))]


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.mean(known):.3f}" if known else _NONE
