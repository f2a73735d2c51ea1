"""Adjusters for tables, learned from whole trainings on tables that are drawn here.

    python benchmarks/table_adjusters.py learn gce [--generations 6] [--at-once 2]   # goes on where it was stopped
    python benchmarks/table_adjusters.py write gce --out adjusters                   # adjusters/gce-tables.safetensors
    python benchmarks/table_adjusters.py write gce --out adjusters --kind text       # the same, to serve on texts
    python benchmarks/table_adjusters.py show

A small network knows a table's labels by heart after some hundred steps. What a look-ahead of one step finds good there
is not what is good at the end: it trusts all labels. Tables are small, though, so an adjuster can be judged by what a
whole training with it is worth (:mod:`whole_trainings`).
"""

from __future__ import annotations

import argparse
import functools
import math
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import travel
import whole_trainings
from narl import AdjustedLoss, losses
from narl.adjuster import packs
from narl.adjuster.packs import Pack
from narl.adjuster.turns import KINDS
from narl.bench.tables import Table
from whole_trainings import OWN, Numbers, Search, beginning, made

RESULTS = Path(__file__).parent.parent / "results" / "table-adjusters.jsonl"
CANDIDATES, ELITE, TABLES = 32, 8, 40
NOISE = (
    *(("clean", 0.0), ("symmetric", 0.2), ("symmetric", 0.3), ("symmetric", 0.4), ("symmetric", 0.6)),
    *(("pair", 0.2), ("pair", 0.4), ("instance", 0.2), ("instance", 0.4), ("instance", 0.6)),
)

SECTION = """\
## On tables

An adjuster of its own serves there, learned from whole trainings: {candidates} candidates in each of {generations}
generations were used on the same {tables} freshly drawn tables, each from the first step to the last, and the next
generation was drawn around the best of them. It has one family, sees the number of classes, of which there were 2 to
40, and begins with hyperparameters that depend on nothing else.

`narl train --loss {loss}` takes it on tables by itself, and `narl.AdjustedLoss.pretrained("{loss}", …, data="table")`
asks for it.

{table}
"""

ELSEWHERE = """\
## On {kind}s

There the adjuster for tables serves, too, in trainings of {least} steps or more. In shorter ones it does harm, likely
because a network that has not learned the words yet contradicts every label, so that all of them are doubted.
"""
LEAST_STEPS = {"text": 900}
"""From how many steps on those for tables serve on other data: benchmarks/text_steps.py."""


def drawn(rng: np.random.Generator) -> tuple[travel.Drawn, str, float, int]:
    """A table, the noise of its labels, and a seed."""
    while True:
        classes = int(rng.choice([2, 3, 5, 8, 10, 15, 20, 30, 40]))
        rows, epochs = int(rng.integers(1500, 8000)), int(rng.integers(12, 35))
        informative = int(rng.integers(max(5, math.ceil(math.log2(2 * classes)) + 1), 20))
        clusters = min(int(rng.integers(1, 4)), 2**informative // classes)
        redundant, idle = int(rng.integers(0, 5)), int(rng.integers(0, 15))
        options: dict[str, Any] = {
            "n_informative": informative,
            "n_redundant": redundant,
            "n_clusters_per_class": clusters,
            "class_sep": float(rng.uniform(1, 3)),
            "random_state": int(rng.integers(10**6)),
        }
        if rng.random() < 0.35:
            shares = 0.7 * rng.dirichlet(np.full(classes, 3.0)) + 0.3 / classes
            options["weights"] = (shares / shares.sum()).tolist()
        kind, rate = NOISE[int(rng.integers(len(NOISE)))]
        seed = int(rng.integers(10**6))
        if rows * epochs <= 150_000:
            return travel.Drawn(epochs, rows, informative + redundant + idle, classes, options), kind, rate, seed


Job = tuple[str, list[Numbers], travel.Drawn, str, float, int]


def worth(job: Job) -> dict[str, Any]:
    """What whole trainings on a table are worth: with cross entropy, with the fixed loss, and with each candidate."""
    torch.set_num_threads(1)
    loss, candidates, table, kind, rate, seed = job
    problem = travel.problem(table, kind, rate, seed)
    counts = torch.bincount(problem.given, minlength=problem.classes)
    criteria = [AdjustedLoss(made(loss, numbers), counts) for numbers in candidates]
    found = travel.side_by_side(problem, loss, ["CE", losses.get(loss).title], criteria, seed)
    return {"noise": kind, "rate": rate, "classes": table.classes, "last5": [row["last5"] for row in found]}


def search(loss: str) -> Search:
    """The search for a loss's numbers."""
    return Search(loss, RESULTS, beginning(loss), CANDIDATES, ELITE)


def learn(loss: str, generations: int, at_once: int) -> None:
    """Make the generations that are missing."""
    with multiprocessing.Pool(at_once) as pool:
        search(loss).learn(generations, functools.partial(_on_tables, pool, loss), "cpu")


def _on_tables(
    pool: Any, loss: str, generation: int, candidates: list[Numbers], rng: np.random.Generator
) -> list[dict[str, Any]]:
    """What the candidates of a generation are worth on its tables."""
    jobs: list[Job] = [(loss, candidates, *drawn(rng)) for _ in range(TABLES)]
    found = []
    for row in pool.imap_unordered(worth, jobs):
        found.append(row)
        if len(found) % 10 == 0:
            print(f"{loss}, generation {generation}: {len(found)} of {TABLES} tables", flush=True)
    return found


def write(loss: str, out: Path, kind: str = "table") -> Path:
    """The file of what the newest generation came to, to serve on tables, or on other data of a ``kind``."""
    done = search(loss).results()
    if not done:
        raise SystemExit(f"nothing was learned of {loss} yet: table_adjusters.py learn {loss}")
    out.mkdir(parents=True, exist_ok=True)
    snapshots = made(loss, done[-1]["mean"])
    for snapshot in snapshots:
        snapshot.data, snapshot.least_steps = kind, LEAST_STEPS.get(kind)
    words = "drawn tables of 2 to 40 classes: right labels; symmetric, pair and instance noise of 0.2 to 0.6"
    table = _table("Each generation on tables of its own", whole_trainings.lines_of(loss, done))
    section = SECTION if kind == "table" else ELSEWHERE
    section = section.format(
        kind=kind,
        least=LEAST_STEPS.get(kind),
        loss=loss,
        candidates=CANDIDATES,
        generations=len(done),
        tables=TABLES,
        table=table.markdown(),
    )
    path = out / f"{loss}-{kind}s.safetensors"
    packs.write(path, Pack(snapshots, trained_on=words, about={"section": section}))
    return path


def tables() -> list[Table]:
    """How the search went."""
    lines = [line for loss in OWN for line in whole_trainings.lines_of(loss, search(loss).results())]
    return [_table("Adjusters for tables, learned from whole trainings", lines)]


def _table(title: str, lines: Sequence[tuple[str, ...]]) -> Table:
    return whole_trainings.table(title, lines, f"{TABLES} tables")


def main() -> None:
    """Do what was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("learn", "write", "show"))
    parser.add_argument("loss", nargs="?", choices=tuple(OWN))
    parser.add_argument("--generations", type=int, default=6)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("adjusters"))
    parser.add_argument("--kind", choices=KINDS, default="table", help="what the file serves on")
    given = parser.parse_args()
    if given.what == "show":
        print("\n\n".join(table.markdown() for table in tables()))
        return
    if given.loss is None:
        parser.error(f"{given.what} needs a loss: one of {', '.join(OWN)}")
    if given.what == "learn":
        learn(given.loss, given.generations, given.at_once)
    else:
        print(write(given.loss, given.out, given.kind))


if __name__ == "__main__":
    main()
