"""How long an epoch of every system takes, and how many fit a budget: the lengths of the table ``systems``.

    python benchmarks/systems.py CIFAR-10.npz [--budget 300] [--device cuda] [--out results/systems-speed.json]
    python benchmarks/systems.py CIFAR-10.npz --samples 6400 12800     # on the line through two smaller sets: sooner

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
SAMPLES = 49_000  # that the table trains on
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


def timed(cell: Cell, protocol: Protocol, place: work.Place, samples: int | None = None) -> tuple[float, float]:
    """Seconds of an epoch as the training begins, and as it goes on."""
    folder = place.work / f"{cell.slug}-{samples}"
    limit = None if samples is None else samples + protocol.clean  # which are taken out of them
    settings = replace(work.settings_of(cell, protocol, place), limit=limit)
    start(plan(settings), folder, tensorboard=False)
    seconds = [epoch["seconds"] for epoch in RunFolder.open(folder).times()]
    half = EPOCHS // 2
    return statistics.median(seconds[1:half]), statistics.median(seconds[half + 1 :])


def extended(short: float, long: float, samples: tuple[int, int], whole: int = SAMPLES) -> float:
    """What a line through two measurements says of all samples.

    Example:
        >>> extended(1.0, 1.5, (100, 200), 400)
        2.5
    """
    few, many = samples
    return short + (long - short) * (whole - few) / (many - few)


def main() -> None:
    """Time, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds of a training")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--methods", nargs="*", default=[])
    parser.add_argument("--samples", type=int, nargs=2, metavar=("FEW", "MORE"), help="time on so many, and extend")
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
            told = replace(cell, options=tuple(options.items()))
            if given.samples:
                pairs = zip(*(timed(told, protocol, place, count) for count in given.samples), strict=True)
                first, later = (extended(few, many, tuple(given.samples)) for few, many in pairs)
            else:
                first, later = timed(told, protocol, place)
            first = first if share else later
            epochs = fitting(first, later, share, most, given.budget)
            found[cell.method] = {"first": round(first, 3), "later": round(later, 3), "epochs": epochs}
            print(f"{cell.method:12} {first:7.2f} s {later:7.2f} s an epoch: {epochs} epochs", flush=True)
    report = {
        "budget": given.budget,
        "samples": given.samples,
        "task": TASK,
        "methods": found,
        "environment": environment("cpu" if given.device == "cpu" else "cuda"),
    }
    if given.out:
        given.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
