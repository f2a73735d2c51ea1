"""How long an epoch of every system takes, and how many fit a budget: the lengths of the table ``systems``.

    python benchmarks/systems.py CIFAR-10.npz [--budget 300] [--device cuda] [--out results/systems-speed.json]

Each method of the table trains a few epochs on symmetric noise of 0.5, alone on the machine. Where a training begins
otherwise than it goes on (DivideMix's warm-up, a boost that sets in later), both are timed. The first epoch of each
kind is left out: something may be compiled in it. Evaluation counts, as it does in a table's runs. The times are those
of one run; how many epochs fit is rounded down.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from narl.bench import protocols, work
from narl.bench.cells import Cell
from narl.bench.protocol import Protocol
from narl.train import start
from narl.train.environment import environment
from narl.train.planning import plan
from narl.train.run_folder import RunFolder

EPOCHS = 6  # half of them as the training begins, where that differs
TASK = "cifar-10/symmetric-0.5"


def beginning(method: str) -> tuple[dict[str, Any], float, int | None]:
    """Options with which half of a short training is like a long one's beginning; how long that is.

    Returns:
        The options; the share of a long training that is its beginning; at most so many epochs.
    """
    if method == "DivideMix":
        return {"warmup": EPOCHS // 2}, 1 / 3, 10
    if method.startswith("A-"):
        return {"boost_from": 0.5}, 0.1, None
    return {}, 0.0, None


def fitting(first: float, later: float, share: float, most: int | None, budget: float) -> int:
    """How many epochs fit, of which a share, or at most so many, take as long as the first ones.

    Example:
        >>> fitting(1.0, 2.0, 0.0, None, 100.0), fitting(1.0, 2.0, 1 / 3, 10, 100.0)
        (50, 55)
    """
    epochs = 0
    while True:
        early = min(int((epochs + 1) * share), (epochs + 1) if most is None else most)
        if early * first + (epochs + 1 - early) * later > budget:
            return epochs
        epochs += 1


def timed(cell: Cell, protocol: Protocol, place: work.Place) -> list[float]:
    """Seconds of every epoch."""
    folder = place.work / cell.slug
    start(plan(work.settings_of(cell, protocol, place)), folder, tensorboard=False)
    return [epoch["seconds"] for epoch in RunFolder.open(folder).times()]


def main() -> None:
    """Time, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds of a training")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--methods", nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    table = protocols.get("systems")
    names = given.methods or list(dict.fromkeys([*table.methods, *protocols.get("table3").methods]))
    protocol = replace(table, methods=tuple(names), lengths=dict.fromkeys(names, EPOCHS))
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = work.Place((("CIFAR-10", given.data),), Path(folder), Path(folder), device=given.device)
        for cell in protocol.cells(tasks=[TASK]):
            options, share, most = beginning(cell.method)
            seconds = timed(replace(cell, options=tuple(options.items())), protocol, place)
            half = EPOCHS // 2
            later = statistics.median(seconds[half + 1 :])
            first = statistics.median(seconds[1:half]) if share else later
            epochs = fitting(first, later, share, most, given.budget)
            found[cell.method] = {"first": round(first, 3), "later": round(later, 3), "epochs": epochs}
            print(f"{cell.method:12} {first:7.2f} s {later:7.2f} s an epoch: {epochs} epochs", flush=True)
    report = {
        "budget": given.budget,
        "task": TASK,
        "methods": found,
        "environment": environment("cpu" if given.device == "cpu" else "cuda"),
    }
    if given.out:
        given.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
