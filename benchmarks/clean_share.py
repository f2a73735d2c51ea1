"""What checked samples should be of every batch: the data by which `narl train --clean-share auto` was chosen.

    python benchmarks/clean_share.py --data FOLDER    # letter.npz and penbased.npz; trains what is missing
    python benchmarks/pages.py                        # puts the table into docs/review.md

A part of each table is trained on with wrong labels, another tells how good it is. Some samples, drawn at random, are
checked by a person who errs in 2 %. results/clean-share.jsonl holds a line a training.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from narl import noise
from narl.bench.reviewing import answers, answers_alone, enough
from narl.bench.tables import Table
from narl.data.id_file import write_id_file
from narl.train import Settings, plan, start
from narl.train.environment import environment

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "clean-share.jsonl"
SIZES = {"letter": (5000, 4000), "penbased": (4000, 3000)}  # to train on, to judge by
NOISES = ("symmetric", "pair")
RATE, EPOCHS, LONGER, SEED = 0.4, 20, 10, 0
COUNTS = (100, 300, 1000)
# As any others: with the method's own loss. Auto: a share of every batch. Alone: without given labels.
WAYS = ("as any others", "auto", "alone, CE")


def problem(data: Path, name: str, kind: str, folder: Path) -> tuple[Path, int]:
    """A file with wrong labels for training, and the number of classes."""
    found = np.load(data / f"{name}.npz")
    x, y, classes = found["x"], found["y"], int(found["y"].max()) + 1
    rows, (own, other) = np.random.default_rng(99).permutation(len(x)), SIZES[name]
    train, rest = rows[:own], rows[own : own + other]
    make = noise.symmetric if kind == "symmetric" else noise.pair
    given = np.asarray(make(y[train], RATE, classes, seed=SEED))
    path = folder / f"{name}-{kind}.npz"
    np.savez(path, x_train=x[train], y_train=y[train], x_test=x[rest], y_test=y[rest], given_train=given)
    return path, classes


def trained(data: Path, name: str, kind: str, count: int, way: str) -> dict[str, Any]:
    """One training."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        path, classes = problem(data, name, kind, folder)
        alone = way == "alone, CE"
        asked: dict[str, Any] = {
            "data": str(path),
            "labels": f"{path}:given_train",
            "overlap": "drop",
            "epochs": EPOCHS * (LONGER if alone else 1),
            "seed": SEED,
            "device": "cpu",
        }
        readable = plan(Settings(**asked, method="GCE")).sets.train  # copies of what is judged by are left out
        assert readable.true_labels is not None
        said = answers(readable.true_labels, classes, SEED)
        rows = enough(np.random.default_rng([SEED, 7]).permutation(len(readable)), said, count, classes)
        clean = folder / "clean.csv"
        clean.write_bytes(write_id_file(readable.ids[rows].tolist(), [readable.classes[label] for label in said[rows]]))
        asked |= {"clean": str(clean), "train_on_clean": True, "method": "CE" if alone else "A-GCE"}
        asked |= {} if alone else {"clean_batch_size": 100}
        planned = plan(Settings(**asked))
        if way == "as any others":
            planned = replace(planned, recipe=replace(planned.recipe, clean_share=None))
        planned = answers_alone(planned) if alone else planned
        summary = start(planned, folder / "run", tensorboard=False).summary
    return {
        "data": name,
        "noise": kind,
        "rate": RATE,
        "checked": count,
        "way": way,
        "clean_share": planned.recipe.clean_share,
        "accuracy": summary["last5"]["test_accuracy"],
        "epochs": asked["epochs"],
        "seed": SEED,
        "environment": environment("cpu"),
    }


def read() -> list[dict[str, Any]]:
    """The lines that there are."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def tables() -> list[Table]:
    """A row a data set, noise and number of checked samples; ways are columns."""
    found = {(row["data"], row["noise"], row["checked"], row["way"]): row for row in read()}
    lines = []
    for name, kind, count in product(SIZES, NOISES, COUNTS):
        own = [found.get((name, kind, count, way)) for way in WAYS]
        cells = ["–" if row is None else f"{100 * row['accuracy']:.1f}" for row in own]
        auto = found.get((name, kind, count, "auto"))
        title = f"{name}, {kind}" + ("" if auto is None else f" (auto: {auto['clean_share']:.0%})")
        if any(row is not None for row in own):
            lines.append((title, f"{count:,}", *cells))
    note = (
        f"Accuracy on development data, %, mean of the last five of {EPOCHS} epochs, one seed; {RATE:.0%} of the given "
        f"labels wrong, 2% of the checked ones. Alone: no given labels, {LONGER} times as many epochs."
    )
    return [Table("Checked samples in A-GCE's batches", ("data", "checked", *WAYS), tuple(lines), (note,))]


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    asked = parser.parse_args()
    there = {(row["data"], row["noise"], row["checked"], row["way"]) for row in read()}
    for cell in product(SIZES, NOISES, COUNTS, WAYS):
        if cell not in there:
            row = trained(asked.data, *cell)
            with RESULTS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(*cell, f"{row['accuracy']:.1%}", flush=True)


if __name__ == "__main__":
    main()
