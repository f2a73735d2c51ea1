"""Parts of several tables in one queue, for a machine that is there for a limited time.

    python benchmarks/queued.py benchmarks/plans/images.json --data CIFAR-10=cifar10.npz --at-once 2 --stack 8

``narl bench run`` trains one schedule and one set of options at a time, and a process that has compiled a stack leaves
with it. Here the parts follow each other without a pause: the file lists them in the order of their importance, and
cells that have a result are left out. Stopped or killed, the same command goes on. A part::

    {"table": "table1", "schedule": "paper", "tasks": ["cifar-10/symmetric-0.4"], "methods": ["A-GCE"],
     "seeds": 2, "options": {"clean_loss": "mae"}, "heldout": 0.5, "tune": true}

All but ``table``, a name or a JSON file beside the plan, may be left out. Before tuned cells come the short trainings
that they are chosen by; ``--short-only`` leaves it at these, so that they can be stacked in other numbers. Adjusters
that are learned from many tasks (``"table": "adjusters"``) are put into ``--out`` at the end; a row of theirs is
trained whole or not at all.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from narl.bench import adjusters, grid, own_table, protocols, tuning
from narl.bench.cells import Cell
from narl.bench.protocol import Protocol
from narl.bench.wanted import Wanted
from narl.bench.work import Place
from narl.cli.bench_run import sources
from narl.cli.grid_progress import GridProgress
from narl.train import methods

KNOWN = {"table", "schedule", "tasks", "methods", "seeds", "options", "heldout", "tune"}


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("plan", type=Path)
    parser.add_argument("--data", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--labels", help="people's labels")
    parser.add_argument("--adjuster", action="append", default=[], metavar="FILE", help="for T-* methods")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--work", type=Path, default=Path("bench-runs"))
    parser.add_argument("--out", type=Path, default=Path("adjusters"))
    parser.add_argument("--at-once", type=int)
    parser.add_argument("--stack", type=int, default=8)
    parser.add_argument("--discard", action="store_true", help="remove a run once its result is written")
    parser.add_argument("--short-only", action="store_true", help="only the trainings that tuned cells are chosen by")
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args()
    place = Place(
        sources(given.data),
        given.work.resolve(),
        given.results.resolve(),
        given.labels,
        tuple(str(Path(file).resolve()) for file in given.adjuster),
        discard=given.discard,
    )
    cells: dict[Cell, Protocol] = {}
    missing: dict[Cell, Protocol] = {}
    for part in json.loads(given.plan.read_text()):
        found = wanted(part, given.plan.parent, place)
        todo = lacking(found, place)
        chosen_by = {one: table for cell, table in todo.items() for one in tuning.candidates(cell, table)}
        for cell, table in chosen_by.items():
            for _, change in grid.sort([cell], table, place).stale:
                print(f"{cell.result(place.results)} is stale ({change}): remove it")
        todo = {**lacking(chosen_by, place), **({} if given.short_only else todo)}
        cells, missing = {**cells, **found}, {**missing, **todo}
        print(f"{part['table']}: {len(found)} cells, {len(todo)} missing", flush=True)
    if given.dry_run:
        return
    whole = True
    if missing:
        try:
            with GridProgress(missing) as progress:
                whole = grid.train(missing, place, progress, given.at_once, stack=given.stack)
        except KeyboardInterrupt:  # the progress has said what it means
            raise SystemExit(130) from None
    for row in adjusters.rows(cell for cell, protocol in cells.items() if protocol.shared):
        if all(cell.result(place.results).exists() for cell in row):
            print(adjusters.collect(row, place, given.out))
    if not whole:
        raise SystemExit(1)


def wanted(part: dict[str, Any], beside: Path, place: Place) -> dict[Cell, Protocol]:
    """The cells of a part, each with its table."""
    if unknown := part.keys() - KNOWN:
        raise SystemExit(f"a part of the plan has {', '.join(sorted(unknown))}: known are {', '.join(sorted(KNOWN))}")
    table, options = part["table"], part.get("options", {})
    protocol = own_table.read(beside / table) if table.endswith(".json") else protocols.get(table)
    asked = Wanted(
        part.get("schedule"),
        part.get("seeds", 1),
        tuple(part.get("methods", ())),
        tuple(part.get("tasks", ())),
        tune=part.get("tune", False),
        options=lambda name: tuple(options.items()),
        heldout=part.get("heldout", 0.0),
    )
    (cells,) = asked.cells([protocol], place)
    for name in {cell.method for cell in cells}:
        methods.get(name).checked(options)  # refuses what the method does not have
    return dict.fromkeys(cells, protocol)


def lacking(cells: dict[Cell, Protocol], place: Place) -> dict[Cell, Protocol]:
    """Those that are to be trained: without a result, and all that learn an adjuster with one of these."""
    without = {cell for cell, protocol in cells.items() if grid.sort([cell], protocol, place).missing}
    for row in adjusters.rows(cell for cell, protocol in cells.items() if protocol.shared):
        without |= set(row) if without & set(row) else set()
    return {cell: protocol for cell, protocol in cells.items() if cell in without}


if __name__ == "__main__":
    main()
