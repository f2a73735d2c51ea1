"""A simulated reviewer: what some hundred answers are worth, by which samples were asked about.

A first run (GCE, no clean sample) is audited. A person who knows the true labels, and errs now and then, answers the
first samples in some order. The next run (A-GCE) learns from these answers as its clean set, as ``narl train --clean
RUN`` would have it: answered samples are not trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from narl import audit
from narl.audit.review import choice
from narl.audit.runs import read_sets
from narl.audit.verdicts import Classes, Verdicts
from narl.bench.cells import Cell, Task
from narl.bench.protocols import SHORT, TRAINING, Protocol, Schedule
from narl.data.id_file import write_id_file
from narl.errors import OptionError, UnknownNameError, nearest
from narl.train.run_folder import RunFolder
from narl.train.writing import replacing

FIRST, NEXT = "GCE", "A-GCE"
COUNTS = (100, 300, 1000)
MISTAKES = 0.02
RANDOM = "random"
ORDERS = (*(name for name in choice.ORDERS if name != RANDOM), RANDOM)

IMAGES = Protocol(
    "review-images",
    "A simulated reviewer",
    tuple(Task("CIFAR-10N", labels) for labels in ("worst", "random1")),
    (FIRST, NEXT),
    "resnet32",
    {},
    own=SHORT,
    clean=0,
    training=dict(TRAINING),
)
TEXTS = Protocol(
    "review-texts",
    "A simulated reviewer",
    (Task("TREC", "weak"), Task("TREC", "symmetric", 0.4)),
    (FIRST, NEXT),
    "text_cnn",
    {},
    own=Schedule(10, ()),
    clean=0,
    training={"clean_batch_size": 100},
)
TABLES = Protocol(
    "review-tables",
    "A simulated reviewer",
    tuple(Task(data, noise, 0.4) for data in ("letter", "penbased") for noise in ("symmetric", "asymmetric")),
    (FIRST, NEXT),
    "tabular",
    {},
    own=Schedule(30, ()),
    clean=0,
    training={"clean_batch_size": 100},
)
ALL = (IMAGES, TEXTS, TABLES)


def first_of(cell: Cell) -> Cell:
    """The run whose labels are reviewed.

    Example:
        >>> cell = Cell(Task("TREC", "weak"), "text_cnn", "review-texts", NEXT, 1, review=("random", 100))
        >>> first_of(cell).label
        'GCE'
    """
    return replace(cell, method=FIRST, review=None)


def cells_after(first: Cell, orders: Sequence[str], counts: Sequence[int] = COUNTS) -> list[Cell]:
    """The runs that learn from so many answers, in each order.

    Raises:
        UnknownNameError: there is no such order.
    """
    for name in orders:
        if name not in ORDERS:
            raise UnknownNameError(f"no order is called {name!r}: {nearest(name, ORDERS)}")
    return [replace(first, method=NEXT, review=(order, count)) for order in orders for count in counts]


def answered(cell: Cell, work: Path) -> Path:
    """The file of the answers that a cell learns from: made if it is not there.

    Args:
        cell: one with a review.
        work: folder of the runs; the first run is there.
    """
    assert cell.review is not None
    path, folder = work / f"{cell.slug}-answers.csv", work / first_of(cell).slug
    if path.exists():
        return path
    if not (folder / "summary.json").exists():
        raise OptionError(f"there is no finished run in {folder}, whose labels are reviewed: train it first")
    verdicts, true = audit.from_run(folder), read_sets(RunFolder.open(folder)).train.true_labels
    assert true is not None
    order, count = cell.review
    said = answers(true, len(verdicts.class_names), cell.seed)
    rows = enough(placed(verdicts, order, cell.seed), said, count, len(verdicts.class_names))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(write_id_file(verdicts.ids[rows].tolist(), [verdicts.class_names[label] for label in said[rows]]))
    return path


def placed(verdicts: Verdicts, order: str, seed: int) -> NDArray[np.int64]:
    """All rows in an order; at random, all are equally likely to come first, whatever their class."""
    if order == RANDOM:
        return np.random.default_rng([seed, *b"reviewed at random"]).permutation(len(verdicts)).astype(np.int64)
    return choice.order(verdicts, order, seed=seed)


def enough(order: NDArray[np.int64], said: Classes, count: int, num_classes: int) -> NDArray[np.int64]:
    """The first so many rows; more where a class is not among their answers, since a clean set needs all.

    Example:
        >>> enough(np.array([3, 1, 0, 2]), np.array([0, 1, 0, 1]), 1, 2).tolist()
        [3, 1, 0]
    """
    firsts = [int(np.flatnonzero(said[order] == label)[0]) for label in range(num_classes) if (said == label).any()]
    return order[: max(count, 1 + max(firsts))]


def answers(true: Classes, num_classes: int, seed: int) -> Classes:
    """What the person says of every label: the truth, and another class now and then.

    Example:
        >>> said = answers(np.zeros(10_000, dtype=np.int64), 5, seed=0)
        >>> round(float((said != 0).mean()), 2), sorted(set(said.tolist()))
        (0.02, [0, 1, 2, 3, 4])
    """
    draw = np.random.default_rng([seed, *b"answers"])
    errs = draw.random(len(true)) < MISTAKES
    other = (true + draw.integers(1, num_classes, len(true))) % num_classes
    return np.where(errs, other, true).astype(np.int64)
