"""The paper's numbers as data, what is wrong in them as printed, and published numbers on CIFAR-10N.

The paper: Ding, Shu, Meng, Xu. *Improve Noise Tolerance of Robust Loss via Noise-Awareness*. ``paper.csv`` holds every
number of its six tables, ``published.csv`` test accuracies on CIFAR-10N that others have reported.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import NamedTuple, final

from narl.bench.cells import Task

SOURCES = {
    "published": "published results, ResNet-34: most are of the data set's authors (Wei et al., ICLR 2022)",
    "rerun": "an independent rerun of published methods",
}
_ERRATA = (
    ("table1", "CIFAR-10", "A-PolySoft at symmetric 0.4: a gain of 0.99 is printed, the cells give 1.06."),
    ("table2", "CIFAR-10", "A-SL at instance 0.2: a gain of 2.34 is printed, the cells give 3.34."),
    ("table2", "CIFAR-100", "A-GCE at instance 0.5: a gain of 0.83 is printed, the cells give 1.83."),
    ("table2", "CIFAR-100", "A-JS at instance 0.5: a gain of 0.14 is printed, the cells give 0.04."),
    ("table3", "CIFAR-100", "DivideMix at asymmetric 0.4: 31.5 repeats the column before it; it can hardly be right."),
)
# Data that the paper has no numbers on, the table and the data set that are nearest to it, and in what they differ.
_LIKE = {"TinyImageNet-32": ("table5", "TinyImageNet", " (table 5, 64 × 64 pixels)")}


class Key(NamedTuple):
    """What a number is of."""

    dataset: str
    noise: str
    rate: float | None
    metric: str
    method: str


@final
@dataclass(frozen=True)
class Number:
    """A test accuracy in per cent.

    Args:
        mean: over seeds.
        std: over seeds; None where the paper gives none.
    """

    mean: float
    std: float | None


@final
@dataclass(frozen=True)
class Published:
    """A test accuracy on a data set with labels by people.

    Args:
        labels: which of them: ``"worst"``.
        method: its name.
        source: a key of :data:`SOURCES`.
        epoch: ``"best"``, chosen by the test set, or ``"last"``.
        accuracy: in per cent.
    """

    labels: str
    method: str
    source: str
    epoch: str
    accuracy: float


@functools.cache
def numbers(table: str) -> dict[Key, Number]:
    """All numbers of one of the paper's tables.

    Args:
        table: ``"table1"`` to ``"table6"``.

    Returns:
        The numbers by what they are of, in the paper's order; empty where the paper has no such table.

    Example:
        >>> numbers("table1")[Key("CIFAR-10", "symmetric", 0.4, "top1", "A-GCE")]
        Number(mean=88.19, std=0.13)
        >>> numbers("cifar10n")
        {}
    """
    return {_key(row): _number(row) for row in _lines("paper.csv") if row["table"] == table}


def number(table: str, task: Task, method: str, metric: str = "top1") -> Number | None:
    """The paper's accuracy in one cell, None where it has none.

    Example:
        >>> number("table6", Task("Food-101N", "real"), "T-SL")
        Number(mean=85.9, std=0.01)
    """
    of_table, dataset, _ = _LIKE.get(task.dataset, (table, task.dataset, ""))
    of_method = method.removesuffix("+") if method.startswith("A-") else method  # tables 3 and 4 have boosted ones only
    return numbers(of_table).get(Key(dataset, task.noise, task.rate, metric, of_method))


def aside(dataset: str) -> str:
    """What has to be said of the paper's numbers beside ours on a data set; mostly nothing.

    Example:
        >>> aside("TinyImageNet-32"), aside("CIFAR-10")
        (' (table 5, 64 × 64 pixels)', '')
    """
    return _LIKE[dataset][2] if dataset in _LIKE else ""


def errata(table: str, dataset: str) -> tuple[str, ...]:
    """What is wrong in a table as printed, a sentence each.

    Example:
        >>> errata("table1", "CIFAR-10")
        ('A-PolySoft at symmetric 0.4: a gain of 0.99 is printed, the cells give 1.06.',)
    """
    return tuple(said for of_table, of_dataset, said in _ERRATA if (of_table, of_dataset) == (table, dataset))


@functools.cache
def published(dataset: str) -> tuple[Published, ...]:
    """What others have reported on a data set with labels by people.

    Example:
        >>> published("CIFAR-10N")[0]
        Published(labels='aggregate', method='CE', source='published', epoch='best', accuracy=87.77)
    """
    own = [row for row in _lines("published.csv") if row["dataset"] == dataset]
    return tuple(
        Published(row["labels"], row["method"], row["source"], row["epoch"], float(row["accuracy"])) for row in own
    )


def _lines(name: str) -> Iterator[dict[str, str]]:
    yield from csv.DictReader(resources.files("narl.bench").joinpath(name).read_text("utf-8").splitlines())


def _key(row: dict[str, str]) -> Key:
    rate = float(row["rate"]) if row["rate"] else None
    return Key(row["dataset"], row["noise"], rate, row["metric"], row["method"])


def _number(row: dict[str, str]) -> Number:
    return Number(float(row["mean"]), float(row["std"]) if row["std"] else None)
