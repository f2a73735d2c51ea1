"""What a table asks of its cells, so that results of a table that has changed since are noticed."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from narl.bench.cells import Cell
from narl.bench.own_papers import hyperparameters
from narl.bench.protocol import Protocol
from narl.bench.runs import Run
from narl.errors import UnknownNameError
from narl.train import methods
from narl.train.adjusters import digest_of, without_clean
from narl.train.batches import steps_per_epoch


def asked_of(cell: Cell, protocol: Protocol) -> dict[str, Any]:
    """What a table asks of a cell beyond its name, as plain values: a result that was asked for otherwise is stale."""
    schedule = protocol.schedule(cell.schedule, cell.task.dataset, cell.method)
    published = {} if protocol.own or cell.tune else hyperparameters(cell.method, cell.task, schedule.epochs)
    options = {**published, **dict(cell.options)}
    defaults = methods.get(cell.method).checked({})
    asked = {"clean": protocol.clean, "training": training_of(cell, protocol), "options": options, "defaults": defaults}
    if protocol.also:
        asked["also_test"] = list(protocol.also)
    if protocol.shared:
        asked["tasks"] = sorted(task.slug for task in protocol.tasks)  # all of them teach the adjuster
    if cell.tune:
        asked["candidates"] = candidate_values(cell, protocol)
    if cell.tune and protocol.tuning is not None:
        asked |= {f"tuning_{name}": value for name, value in asdict(protocol.tuning).items()}
    plain: dict[str, Any] = json.loads(json.dumps({**asdict(schedule), **asked}))
    return plain


def candidate_values(cell: Cell, protocol: Protocol) -> list[dict[str, Any]]:
    """What a tuned cell's hyperparameters are chosen from: narl's grid.

    Where that is done by short trainings, what the loss's paper has for such data is among them.
    """
    method = methods.get(cell.method)
    grid = [dict(values) for values in method.grid()]
    if protocol.own is not None or protocol.tuning is None or not grid:
        return grid
    usual = method.checked(hyperparameters(cell.method, cell.task, protocol.short.epochs))
    published = {name: usual[name] for name in grid[0]}
    return grid if published in grid else [*grid, published]


def training_of(cell: Cell, protocol: Protocol) -> dict[str, Any]:
    """The table's settings, but those about clean samples where there are none."""
    without = () if protocol.clean or cell.review is not None else ("train_on_clean",)
    return {name: value for name, value in protocol.training.items() if name not in without}


def difference(run: Run, protocol: Protocol) -> str | None:
    """In what the table has changed since a cell was trained; None: in nothing, or nobody wrote down what it was.

    An option that the method did not have then changes nothing: its default is what was before.
    """
    try:
        asked = asked_of(run.cell, protocol)
    except UnknownNameError:
        return f"narl has no {run.cell.method} any more"
    before, now = _flat(run.asked), _flat(asked)
    new = asked["defaults"].keys() - before.keys() - asked["options"].keys() - asked["training"].keys()
    new |= {"candidates"} - before.keys()  # which earlier results do not tell
    for name in [name for name in {**before, **now} if name not in new] if before else ():
        if before.get(name) != now.get(name):
            return f"{name} was {before.get(name)}, is {now.get(name)} now"
    return _other_shipped(run) if protocol.shipped else None


def _flat(asked: dict[str, Any]) -> dict[str, Any]:
    """What was asked for, one name a value: an option that was given and one that is the default are the same."""
    grouped = {
        name: value for group in ("training", "defaults", "options") for name, value in asked.get(group, {}).items()
    }
    return {name: value for name, value in asked.items() if not isinstance(value, dict)} | grouped


def _other_shipped(run: Run) -> str | None:
    """Whether a transferred cell was trained with another adjuster than the one that is shipped now; None: no."""
    loss = methods.get(run.cell.method).loss if run.cell.method.startswith("T-") else None
    kind = run.settings.get("kind")
    adjuster = None if loss is None else without_clean(loss, kind)[1]
    if adjuster is None:
        return None
    before = run.settings.get("adjusters")
    now = [digest_of([adjuster], kind, steps_of(run), noise_rate=asks_file(run.cell))]
    return None if before == now else f"its adjuster was {before}, the one that is shipped is {now} now"


def asks_file(cell: Cell) -> bool:
    """Whether the adjuster's file says if the noise rate has a say: not where an option does, nor in boosted losses.

    Example:
        >>> from narl.bench.cells import Task
        >>> asks_file(Cell(Task("CIFAR-10N", "worst"), "resnet32", "short", "T-SL", 0))
        True
        >>> asks_file(Cell(Task("CIFAR-10N", "worst"), "resnet32", "short", "T-SL+", 0))
        False
    """
    return dict(cell.options).get("noise_rate") is None and not cell.method.endswith("+")


def steps_of(run: Run) -> int | None:
    """Of the whole training; None: nobody wrote down what it depends on."""
    needed: list[Any] = [run.settings.get(name) for name in ("epochs", "train_samples", "batch_size")]
    if None in needed:
        return None
    epochs, rows, batch = map(int, needed)
    return epochs * steps_per_epoch(rows, batch)
