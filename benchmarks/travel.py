"""Which input lets an adjuster travel: learned on digits, used on data of other kinds that no result is reported on.

    python benchmarks/travel.py run [--work FOLDER] [--device cpu]    # what is missing in results/travel.jsonl
    python benchmarks/travel.py show                                  # the tables of docs/transfer.md

For each input an adjuster of GCE is learned by the demonstration's small convnet on scikit-learn's digits, from two
tasks in turn (40 % symmetric and 40 % pair noise), and then serves on two tables that are drawn here: 30 even classes
and 4 uneven ones. The targets differ from the source in the number of classes, their sizes, the classifier, the
schedule and the length of the training. None of them is in the tables of results.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from narl import Adjuster, MetaStep, models
from narl.adjuster import packs
from narl.adjuster.packs import Pack
from narl.bench import digits, work
from narl.bench.cells import Cell, Task
from narl.bench.protocol import Protocol, Schedule
from narl.bench.tables import Table
from narl.bench.work import Place

RESULTS = Path(__file__).parent.parent / "results" / "travel.jsonl"
VARIANTS = tuple(f"{name}{more}" for name in ("margin", "scaled", "rank") for more in ("", "+progress"))
NOISE = (("symmetric", 0.0), ("symmetric", 0.4), ("asymmetric", 0.4))
SEEDS = (0,)
EPOCHS, SNAPSHOTS = 30, 3
# Data set, classifier, epochs.
TARGETS = (("even30", "tabular", 20), ("uneven4", "tabular", 20))


def target(dataset: str, model: str, epochs: int) -> Protocol:
    """The trainings on one of the drawn data sets."""
    tasks = tuple(Task(dataset, kind, rate) for kind, rate in NOISE)
    methods = ("CE", "GCE", "T-GCE")
    return Protocol("travel", "Travel", tasks, methods, model, {}, own=Schedule(epochs, ()), clean=0, training={})


def draw(folder: Path) -> tuple[tuple[str, str], ...]:
    """Write the data sets; the same each time."""
    from sklearn.datasets import make_classification

    folder.mkdir(parents=True, exist_ok=True)
    x, y = make_classification(
        6000, 20, n_informative=15, n_redundant=0, n_classes=30, n_clusters_per_class=1, class_sep=1.5, flip_y=0,
        random_state=0,
    )  # fmt: skip
    np.savez(folder / "even30.npz", x=x.astype(np.float32), y=y)
    x, y = make_classification(
        4000, 30, n_informative=10, n_classes=4, n_clusters_per_class=2, weights=[0.5, 0.25, 0.15, 0.1], flip_y=0,
        random_state=1,
    )  # fmt: skip
    np.savez(folder / "uneven4.npz", x=x.astype(np.float32), y=y)
    return tuple((name, str(folder / f"{name}.npz")) for name, _, _ in TARGETS)


def learned(variant: str, folder: Path) -> str:
    """The file of a variant's snapshots; learned if it is not there."""
    path = folder / f"{variant}.safetensors"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        packs.write(path, Pack(tuple(_learn(variant)), trained_on="digits symmetric 0.4; digits pair 0.4"))
    return str(path)


def _learn(variant: str) -> Iterator[Adjuster]:
    """An adjuster before, along and at the end of the training of two classifiers, which move it in turn."""
    generator = torch.Generator().manual_seed(0)
    tasks = [digits.load(kind, 0) for kind in ("symmetric", "pair")]
    adjuster = Adjuster("gce", [120] * 10, input=variant, generator=generator)
    outer = torch.optim.Adam(adjuster.parameters(), lr=1e-2, weight_decay=1e-4)
    metas = []
    for _ in tasks:
        model = models.convnet(num_classes=10, in_channels=1, width=16, generator=generator)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=5e-4)
        metas.append(MetaStep(model, optimizer, adjuster, every=1, adjuster_optimizer=outer))
    yield _taken(adjuster, 0.0)
    for epoch in range(1, EPOCHS + 1):
        adjuster.progress.fill_((epoch - 1) / EPOCHS)
        orders = [torch.split(torch.randperm(len(task.given), generator=generator), digits.BATCH) for task in tasks]
        for batches in zip(*orders, strict=True):
            for meta, task, ids in zip(metas, tasks, batches, strict=True):
                clean = digits.shifted(task.clean_images, generator), task.clean_labels
                meta.step(digits.shifted(task.images[ids], generator), task.given[ids], clean)
        if epoch % (EPOCHS // SNAPSHOTS) == 0:
            yield _taken(adjuster, epoch / EPOCHS)


def _taken(adjuster: Adjuster, when: float) -> Adjuster:
    snapshot = copy.deepcopy(adjuster)
    snapshot.taken = when
    return snapshot


def cases() -> Iterator[tuple[Protocol, Cell, str]]:
    """Every training, with the adjuster that it uses; none for those that use none."""
    for seed in SEEDS:
        for table in (target(*one) for one in TARGETS):
            for cell in table.cells(seeds=[seed]):
                for variant in VARIANTS if cell.method == "T-GCE" else [""]:
                    yield table, cell, variant


def results() -> list[dict[str, Any]]:
    """What there is so far."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def run(folder: Path, device: str) -> None:
    """Train what is missing."""
    done = {(row["dataset"], row["noise"], row["rate"], row["method"], row["seed"]) for row in results()}
    place = Place(draw(folder / "data"), folder / "work", folder / "results", device=device)
    for table, cell, variant in cases():
        method = f"{cell.method} ({variant})" if variant else cell.method
        task = cell.task
        if (task.dataset, task.noise, task.rate, method, cell.seed) in done:
            continue
        own = replace(place, work=folder / "of" / (variant or "none"), results=folder / "of" / f"{variant}-results")
        if variant:
            own = replace(own, adjusters=(learned(variant, folder / "learned"),))
        found = work.train(cell, table, replace(own, discard=True))
        assert found is not None
        row = {"dataset": task.dataset, "noise": task.noise, "rate": task.rate, "method": method, "seed": cell.seed}
        kept = {"last5": found.last5, "best": found.best, "settings": found.settings, "environment": found.environment}
        with RESULTS.open("a") as file:
            file.write(json.dumps(row | kept) + "\n")
        print(f"{task} {method} seed {cell.seed}: {found.last5:.4f}", flush=True)


def tables() -> list[Table]:
    """Accuracy by data set and noise, and how far each input is from GCE and CE in the mean."""
    found = results()
    columns = [(dataset, kind, rate) for dataset, _, _ in TARGETS for kind, rate in NOISE]
    methods = ["CE", "GCE", *(f"T-GCE ({variant})" for variant in VARIANTS)]
    means = {
        (method, column): statistics.mean(100 * row["last5"] for row in rows)
        for method in methods
        for column in columns
        if (rows := [r for r in found if (r["method"], r["dataset"], r["noise"], r["rate"]) == (method, *column)])
    }
    made = []
    for dataset, model, epochs in TARGETS:
        own = [column for column in columns if column[0] == dataset]
        lines = tuple((method, *(_shown(means.get((method, column))) for column in own)) for method in methods)
        heading = ("method", *("clean" if not rate else f"{kind} {rate:g}" for _, kind, rate in own))
        made.append(Table(f"{dataset}: {model}, {epochs} epochs", heading, lines))
    noisy = [column for column in columns if column[2]]
    lines = tuple(
        (
            method,
            *(_mean([_less(means, method, other, column) for column in noisy]) for other in ("CE", "GCE")),
            _mean([_less(means, method, "CE", column) for column in columns if not column[2]]),
            _lowest([_less(means, method, "GCE", column) for column in noisy]),
        )
        for method in methods[2:]
    )
    heading = ("method", "noisy: over CE", "noisy: over GCE", "clean: over CE", "noisy: worst cell against GCE")
    seeds = "one seed" if len(SEEDS) == 1 else f"{len(SEEDS)} seeds"
    note = f"Points of test accuracy, mean of the last five epochs, {seeds}, over the two tables."
    return [Table("What each input is worth on data of development", heading, lines, (note,)), *made]


def _less(means: dict[Any, float], method: str, other: str, column: Any) -> float | None:
    ours, theirs = means.get((method, column)), means.get((other, column))
    return None if ours is None or theirs is None else ours - theirs


def _mean(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return "–" if len(known) < len(values) else f"{statistics.mean(known):+.1f}"


def _lowest(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return "–" if len(known) < len(values) else f"{min(known):+.1f}"


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "show"))
    parser.add_argument("--work", type=Path, default=Path("bench-runs/travel"))
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.what == "show":
        print("\n\n".join(table.text() for table in tables()))
    else:
        run(options.work, options.device)


if __name__ == "__main__":
    main()
