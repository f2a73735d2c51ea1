"""A simulated reviewer: what some hundred answers are worth, by which samples were asked about.

A first run (GCE, no clean sample) is audited. A person who knows the true labels, and errs now and then, answers the
first samples in some order. The next run (A-GCE) has these answers as its clean set, as ``narl train --clean RUN
--train-on-clean`` would have it: it learns the loss from them and is trained on them, with the labels that the person
named. Beside it, cross entropy is trained on the answered samples alone; on request A-GCE learns from the answers and
is not trained on them.
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
from narl.bench.protocol import SHORT, TRAINING, Protocol, Schedule
from narl.data.id_file import write_id_file
from narl.errors import OptionError, UnknownNameError, nearest
from narl.train.planning import Plan
from narl.train.run_folder import RunFolder
from narl.train.writing import replacing

FIRST, NEXT, ALONE = "GCE", "A-GCE", "CE"
LONGER = 10  # times as many epochs for answers alone, since theirs are short
COUNTS = (100, 300, 1000)
MISTAKES = 0.02
RANDOM = "random"
ORDERS = (*(name for name in choice.ORDERS if name != RANDOM), RANDOM)

IMAGES = Protocol(
    "review-images",
    "A simulated reviewer",
    tuple(Task("CIFAR-10N", labels) for labels in ("worst", "random1")),
    (FIRST, NEXT, ALONE),
    "resnet32",
    {},
    own=SHORT,
    clean=0,
    training={**TRAINING, "train_on_clean": True},
)
TEXTS = Protocol(
    "review-texts",
    "A simulated reviewer",
    (Task("TREC", "weak"), Task("TREC", "symmetric", 0.4)),
    (FIRST, NEXT, ALONE),
    "text_cnn",
    {},
    own=Schedule(10, ()),
    clean=0,
    training={"clean_batch_size": 100, "train_on_clean": True},
)
TABLES = Protocol(
    "review-tables",
    "A simulated reviewer",
    tuple(Task(data, noise, 0.4) for data in ("letter", "penbased") for noise in ("symmetric", "asymmetric")),
    (FIRST, NEXT, ALONE),
    "tabular",
    {},
    own=Schedule(30, ()),
    clean=0,
    training={"clean_batch_size": 100, "train_on_clean": True},
)
ALL = (IMAGES, TEXTS, TABLES)
_APART = "-apart"


def apart(protocol: Protocol) -> Protocol:
    """The same, but answers teach the loss alone: they are not trained on.

    Example:
        >>> apart(TEXTS).name, apart(TEXTS).training, is_apart(apart(TEXTS).name)
        ('review-texts-apart', {'clean_batch_size': 100}, True)
    """
    training = {name: value for name, value in protocol.training.items() if name != "train_on_clean"}
    return replace(protocol, name=protocol.name + _APART, training=training)


def is_apart(schedule: str) -> bool:
    """Whether a schedule is of a table whose answers are not trained on."""
    return schedule.endswith(_APART)


def first_of(cell: Cell) -> Cell:
    """The run whose labels are reviewed.

    Example:
        >>> cell = Cell(Task("TREC", "weak"), "text_cnn", "review-texts", NEXT, 1, review=("random", 100))
        >>> first_of(cell).label
        'GCE'
    """
    return replace(cell, method=FIRST, review=None)


def cells_after(first: Cell, orders: Sequence[str], counts: Sequence[int] = COUNTS) -> list[Cell]:
    """The runs after so many answers, in each order: one that learns from them, and one of the answers alone.

    Raises:
        UnknownNameError: there is no such order.
    """
    for name in orders:
        if name not in ORDERS:
            raise UnknownNameError(f"no order is called {name!r}: {nearest(name, ORDERS)}")
    return [
        replace(first, method=method, review=(order, count))
        for method in ((NEXT,) if is_apart(first.schedule) else (NEXT, ALONE))
        for order in orders
        for count in counts
    ]


def is_alone(cell: Cell) -> bool:
    """Whether a cell is trained on answers alone.

    Example:
        >>> first = Cell(Task("TREC", "weak"), "text_cnn", "review-texts", FIRST, 1)
        >>> [is_alone(cell) for cell in cells_after(first, ["random"], [100])]
        [False, True]
    """
    return cell.review is not None and cell.method == ALONE


def answers_alone(plan: Plan) -> Plan:
    """The plan, trained on its clean samples and on nothing else."""
    sets = plan.sets
    answered = sets.train.take(np.flatnonzero(np.isin(sets.train.ids, np.array(sets.checked))))
    return replace(plan, recipe=replace(plan.recipe, clean_share=None), sets=replace(sets, train=answered))


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
