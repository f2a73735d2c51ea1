"""Which cells can be trained as one."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping

from narl.bench import reviewing, tuning
from narl.bench.cells import Cell
from narl.bench.protocol import Protocol
from narl.bench.work import Place, epochs_done
from narl.train import methods

_IN_STEP = ("every", "warmup", "virtual", "tangent", "clean_loss")  # options that say what is done in which step


def stacked(cells: Mapping[Cell, Protocol], place: Place, size: int) -> list[tuple[Cell, ...]]:
    """Cells by what is trained as one: those of the same network, data, schedule and kind of step.

    Args:
        cells: to be trained, each with its table, in this order.
        place: where they may have been begun.
        size: how many at most make one.

    Returns:
        Each cell once, the stacks in the order of their first cells.
    """
    found: list[list[Cell]] = []
    open_: dict[Hashable, list[Cell]] = {}
    for cell, protocol in cells.items():
        one_network = methods.get(cell.method).networks_for(dict(cell.options)).plain
        key = _key(cell, protocol, place), one_network
        one_training = not cell.tune or tuning.is_apart(cell, protocol)
        stack = open_.get(key) if size > 1 and one_training and one_network else None
        if stack is None or len(stack) == size:
            stack = []
            found.append(stack)
            open_[key] = stack
        stack.append(cell)
    return [tuple(stack) for stack in found]


def _key(cell: Cell, protocol: Protocol, place: Place) -> Hashable:
    """Equal for cells whose steps go together."""
    schedule = protocol.schedule(cell.schedule, cell.task.dataset, cell.method)
    options = {name: value for name, value in cell.options if name in _IN_STEP}
    settings = json.dumps([protocol.training, protocol.clean, options], sort_keys=True, default=str)
    learns = methods.get(cell.method).needs_clean
    parts = 0 if cell.fold is None else cell.fold[1]  # without one of them an epoch has fewer steps
    if reviewing.is_alone(cell) and cell.review is not None:
        parts = cell.review[1]
    return cell.model, cell.task.images, schedule, settings, learns, parts, cell.tune, epochs_done(cell, place)
