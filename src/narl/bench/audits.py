"""What narl bench audit trains, as data; and how wrong labels are found in what was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from narl import audit
from narl.adjuster.margins import RunningMargin
from narl.bench import findings
from narl.bench.cells import Cell, Task
from narl.bench.protocol import TRAINING, Protocol, Schedule
from narl.errors import OptionError
from narl.train import methods
from narl.train.planning import Plan
from narl.train.record import SampleRecord
from narl.train.run_folder import RunFolder

METHODS = ("CE", "GCE", "A-GCE")
FIRST_SEED = 1  # seed 0 of the tables and texts chose the score
_LONG = {name: Schedule(120, (80, 100)) for name in ("CIFAR-10", "CIFAR-10N")}


def _made(*datasets: str, **rates: Sequence[float]) -> tuple[Task, ...]:
    return tuple(Task(dataset, noise, rate) for dataset in datasets for noise in rates for rate in rates[noise])


IMAGES = Protocol(
    "audit-images",
    "Images",
    (
        *(Task("CIFAR-10N", labels) for labels in ("worst", "aggregate", "random1")),
        *_made("CIFAR-10", symmetric=(0.4,), asymmetric=(0.4,), instance=(0.4,)),
    ),
    METHODS,
    "resnet32",
    _LONG,
    training=dict(TRAINING),
    audited=True,
)
TABLES = Protocol(
    "audit-tables",
    "Tables",
    _made("digits", "penbased", "letter", symmetric=(0.4, 0.1, 0.0), asymmetric=(0.3,), instance=(0.3,)),
    METHODS,
    "tabular",
    {},
    own=Schedule(30, ()),
    clean=200,
    training={"limit": 5_000, "test": "0.1"},
    audited=True,
)
TEXTS = Protocol(
    "audit-texts",
    "Texts",
    (Task("TREC", "weak"), *_made("TREC", symmetric=(0.4,), asymmetric=(0.3,))),
    METHODS,
    "text_cnn",
    {},
    own=Schedule(10, ()),
    clean=200,
    training={"clean_batch_size": 100},
    audited=True,
)
ALL = (IMAGES, TABLES, TEXTS)


def changed(protocol: Protocol, named: Sequence[str], epochs: int | None) -> Protocol:
    """The same with other methods, or another length.

    Args:
        protocol: one of :data:`ALL`.
        named: methods; empty: as they are.
        epochs: passes over the training set, kept apart from the usual ones; None: as they are.

    Example:
        >>> changed(IMAGES, ["sl"], 12).methods, changed(IMAGES, [], 12).own
        (('SL',), Schedule(epochs=12, milestones=(8, 10)))
    """
    if named:
        protocol = replace(protocol, methods=tuple(dict.fromkeys(methods.get(name).name for name in named)))
    if epochs is None:
        return protocol
    if epochs < 1:
        raise OptionError(f"--epochs {epochs} trains nothing: give at least 1")
    falls = tuple(dict.fromkeys(max(1, epochs * sixths // 6) for sixths in (4, 5))) if epochs > 5 else ()
    steps = falls if protocol.training.get("schedule") == "step" else ()
    return replace(protocol, name=f"{protocol.name}-{epochs}", own=Schedule(epochs, steps), schedules={})


def folds_of(cell: Cell) -> list[Cell]:
    """The trainings that together judge every label once.

    Example:
        >>> whole = Cell(Task("letter", "symmetric", 0.4), "tabular", "audit-tables", "CE", 1, fold=(0, 2))
        >>> [one.fold for one in folds_of(whole)]
        [(1, 2), (2, 2)]
    """
    assert cell.fold is not None
    count = cell.fold[1]
    return [replace(cell, fold=(number, count)) for number in range(1, count + 1)]


def cross_validated(cells: Mapping[Cell, Protocol], folds: int) -> dict[Cell, Protocol]:
    """All folds together, for each task and seed with wrong labels; none if there are no folds.

    Example:
        >>> noisy, right = (Cell(Task("letter", "symmetric", rate), "tabular", "t", "GCE", 1) for rate in (0.4, 0.0))
        >>> [cell.label for cell in cross_validated({noisy: TABLES, right: TABLES}, 4)]
        ['CE, 4 folds']
    """
    if not folds:
        return {}
    return {
        replace(cell, method="CE", options=(), fold=(0, folds)): table
        for cell, table in cells.items()
        if cell.task.rate != 0
    }


def found_in(folder: Path, plan: Plan, device: str) -> dict[str, dict[str, Any]]:
    """How well the wrong labels are found in a finished run, by narl and in other ways that need no further training.

    Args:
        folder: of the run.
        plan: that it followed; the truth is known.
        device: where to compute predictions.

    Returns:
        Numbers of each way: ``"narl"``, ``"AUM"`` and other averages of the run's margins.
    """
    train = plan.sets.train
    true = train.labels if train.true_labels is None else train.true_labels  # a task without noise has the right ones
    verdicts = audit.from_run(folder, device=device)
    found = {"narl": findings.of_verdicts(verdicts, true.astype(np.int64))}
    wrong = verdicts.given != true
    for name, score in _others(folder, plan).items():
        found[name] = findings.ranking(score, wrong)
        if name == "AUM":  # the class that stood above the label on average is not known
            found[name] |= findings.flagging(score < 0, wrong)
    return found


def _others(folder: Path, plan: Plan) -> dict[str, NDArray[np.floating]]:
    """Other scores than narl's, low where the label is likely wrong.

    AUM is the area under the margin as its paper has it (Pleiss et al., 2020): the mean margin of the epochs before
    the learning rate falls for the first time; of all epochs where it falls all the time.
    """
    record = SampleRecord.open(folder)
    epochs = len(RunFolder.open(folder).metrics())
    margins = record.read("margin")[:epochs].astype(np.float64)
    running, decay = margins[0], RunningMargin().decay
    for latest in margins[1:]:
        running = decay * running + (1 - decay) * latest
    first = int(plan.settings.milestones[0]) if plan.settings.milestones else epochs
    found = {
        "AUM": margins[:first].mean(axis=0),
        "mean margin": margins.mean(axis=0),
        "last margin": margins[-1],
        "late margins": margins[epochs // 2 :].mean(axis=0),
        "agreement": (margins > 0).mean(axis=0) + 1e-6 * margins.mean(axis=0),
        "running margin": running,
    }
    if "q" in record.fields:  # of GCE: the larger, the less a sample counts
        found["last hyperparameter"] = -record.read("q", epochs - 1).astype(np.float64)
    return found
