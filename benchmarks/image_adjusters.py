"""Adjusters for images, learned from whole trainings on small images that are drawn here.

    python benchmarks/image_adjusters.py learn gce --data cifar10.npz [--generations 5] [--device cuda]
    python benchmarks/image_adjusters.py write gce --out adjusters                  # adjusters/gce-images.safetensors
    python benchmarks/image_adjusters.py show

A look-ahead of one step on ten classes learns that labels with a margin below -2 are wrong. With 200 classes, or a
network that is small for its task, the margins of right labels are there, too. So adjusters are judged by whole
trainings here (:mod:`whole_trainings`), on tasks that differ in the number of classes, images, epochs and channels
(:mod:`small_images`), and have to be ahead of both cross entropy and the fixed loss. The search begins with what was
found for tables.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import small_images
import table_adjusters
import whole_trainings
from narl import AdjustedLoss
from narl.adjuster import packs
from narl.adjuster.packs import Pack
from narl.bench.tables import Table
from small_images import Images, Task
from whole_trainings import OWN, Numbers, Search, beginning, made

RESULTS = Path(__file__).parent.parent / "results" / "image-adjusters.jsonl"
CANDIDATES, ELITE, TASKS = 24, 6, 24
CLASSES = (2, 4, 7, 10, 10, 20, 40, 80, 200)
LONGEST = 120_000  # images that a training sees
WIDER = 0.6  # how much of the first search's spread this one begins with

SECTION = """\
## On images

This adjuster was learned from whole trainings: {candidates} candidates in each of {generations} generations were used
on the same {tasks} freshly drawn tasks, each from the first step to the last, and the next generation was drawn around
the best of them. The tasks are of 2 to 200 classes, made of CIFAR-10's training images at half their size. It has one
family, sees the number of classes, and begins with hyperparameters that depend on nothing else.

{table}
"""


def search(loss: str) -> Search:
    """The search for a loss's numbers."""
    begin = beginning(loss)
    known = table_adjusters.search(loss).results()
    if known:
        mean = known[-1]["mean"]
        begin = {name: (mean[name], WIDER * spread, *ends) for name, (_, spread, *ends) in begin.items()}
    return Search(loss, RESULTS, begin, CANDIDATES, ELITE, against_both=True)


def drawn(rng: np.random.Generator) -> Task:
    """A task.

    Example:
        >>> drawn(np.random.default_rng(0)).classes in CLASSES
        True
    """
    while True:
        kind, rate = table_adjusters.NOISE[int(rng.integers(len(table_adjusters.NOISE)))]
        task = Task(
            classes=int(rng.choice(CLASSES)),
            rows=100 * int(rng.integers(30, 120)),
            epochs=int(rng.integers(8, 30)),
            noise=kind,
            rate=rate,
            width=int(rng.choice([8, 16])),
            steps=bool(rng.integers(2)),
            seed=int(rng.integers(10**6)),
        )
        if LONGEST / 2 <= task.rows * task.epochs <= LONGEST and 25 * task.classes <= task.rows:
            return task


def _on_images(
    source: Images, loss: str, device: str, generation: int, candidates: list[Numbers], rng: np.random.Generator
) -> list[dict[str, Any]]:
    """What the candidates of a generation are worth on its tasks."""
    found = []
    for number in range(1, TASKS + 1):
        task = drawn(rng)
        data = small_images.draw(task, source)
        counts = torch.bincount(data.given, minlength=task.classes)
        criteria = [AdjustedLoss(made(loss, numbers), counts) for numbers in candidates]
        last5 = small_images.Trainings(task, data, {loss: criteria}, device).run()
        found.append({"noise": task.noise, "rate": task.rate, "classes": task.classes, "last5": last5})
        if number % 6 == 0:
            print(f"{loss}, generation {generation}: {number} of {TASKS} tasks", flush=True)
    return found


def learn(loss: str, source: Images, generations: int, device: str) -> None:
    """Make the generations that are missing."""
    search(loss).learn(generations, functools.partial(_on_images, source, loss, device), device)


def write(loss: str, out: Path) -> Path:
    """The file of what the newest generation came to."""
    done = search(loss).results()
    if not done:
        raise SystemExit(f"nothing was learned of {loss} yet: image_adjusters.py learn {loss}")
    out.mkdir(parents=True, exist_ok=True)
    words = "small images of 2 to 200 classes, made of CIFAR-10: right labels; symmetric, pair and instance noise"
    table = _table("Each generation on tasks of its own", whole_trainings.lines_of(loss, done))
    section = SECTION.format(candidates=CANDIDATES, generations=len(done), tasks=TASKS, table=table.markdown())
    pack = Pack(made(loss, done[-1]["mean"]), trained_on=words, about={"section": section})
    packs.write(out / f"{loss}-images.safetensors", pack)
    return out / f"{loss}-images.safetensors"


def tables() -> list[Table]:
    """How the search went."""
    lines = [line for loss in OWN for line in whole_trainings.lines_of(loss, search(loss).results())]
    return [_table("Adjusters for images, learned from whole trainings", lines)]


def _table(title: str, lines: Sequence[tuple[str, ...]]) -> Table:
    return whole_trainings.table(title, lines, f"{TASKS} tasks")


def main() -> None:
    """Do what was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("learn", "write", "show"))
    parser.add_argument("loss", nargs="?", choices=tuple(OWN))
    parser.add_argument("--data", type=Path, help="CIFAR-10 as npz")
    parser.add_argument("--generations", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("adjusters"))
    given = parser.parse_args()
    if given.what == "show":
        print("\n\n".join(table.markdown() for table in tables()))
        return
    if given.loss is None:
        parser.error(f"{given.what} needs a loss: one of {', '.join(OWN)}")
    if given.what == "write":
        print(write(given.loss, given.out))
    elif given.data is None:
        parser.error("learn needs --data: CIFAR-10 as npz")
    else:
        learn(given.loss, small_images.read(given.data), given.generations, given.device)


if __name__ == "__main__":
    main()
