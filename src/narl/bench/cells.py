"""A cell of a table: one training, told apart from every other one by a short name."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from narl.errors import ConfigError

SCHEDULES = ("short", "paper")
TUNING = "tuning"  # the schedule of trainings that hyperparameters are chosen by
_LONGEST = 80  # letters of a name in a path; file systems take 255 in all


@final
@dataclass(frozen=True, order=True)
class Task:
    """Labels to learn from.

    Args:
        dataset: its name, as people write it: ``"CIFAR-10"``.
        noise: ``"symmetric"``, ``"asymmetric"`` or ``"instance"``; which labels of people: ``"aggregate"``,
            ``"random1"``, ``"worst"``; ``"weak"``: labels by rules; ``"real"`` where the given labels are all there is.
        rate: share of wrong labels that is asked for; None where nobody chose it.

    Example:
        >>> str(Task("CIFAR-10", "symmetric", 0.4)), Task("CIFAR-10N", "worst").slug
        ('CIFAR-10 symmetric 0.4', 'cifar-10n/worst')
    """

    dataset: str
    noise: str
    rate: float | None = None

    def __str__(self) -> str:
        """For people."""
        return " ".join([self.dataset, self.noise, *([] if self.rate is None else [f"{self.rate:g}"])])

    @property
    def images(self) -> str:
        """The data set whose samples these are: people labelled CIFAR-10's images for CIFAR-10N."""
        return "CIFAR-10" if self.dataset.lower() == "cifar-10n" else self.dataset

    @property
    def slug(self) -> str:
        """For paths."""
        return f"{_plain(self.dataset)}/{_plain(self.noise)}" + ("" if self.rate is None else f"-{_number(self.rate)}")


@final
@dataclass(frozen=True)
class Cell:
    """One training.

    Args:
        task: what it learns from.
        model: name of the classifier.
        schedule: ``"paper"``, ``"short"``: half as long, or a table of one's own; ``"tuning"``, or that table with
            ``"-tuning"`` behind its name: see :mod:`narl.bench.tuning`.
        method: as people write it: ``"A-GCE"``.
        seed: of noise, clean set, weights and batches.
        options: of the method, name and value, where they are not the default.
        tune: whether the loss's hyperparameters are chosen on the clean set.
        heldout: share of the clean set that is not learned from, to choose options by.
        fold: ``(k, K)``: trained without the k-th of K parts of the training set, to judge that part; ``(0, K)``: all
            K of these together.
        review: ``(order, count)``: the clean set is the first so many samples in that order, as a person answered.

    Example:
        >>> cell = Cell(Task("CIFAR-10", "symmetric", 0.4), "resnet32", "short", "A-GCE", 1)
        >>> cell.slug
        'cifar-10/symmetric-0.4/resnet32-short/a-gce-seed1'
        >>> dataclasses.replace(cell, options=(("margin", "latest"),)).slug
        'cifar-10/symmetric-0.4/resnet32-short/a-gce-margin=latest-seed1'
        >>> dataclasses.replace(cell, fold=(2, 4)).label, dataclasses.replace(cell, review=("random", 300)).label
        ('A-GCE, fold 2 of 4', 'A-GCE, 300 reviewed (random)')
        >>> Cell.from_json(cell.to_json()) == cell
        True
    """

    task: Task
    model: str
    schedule: str
    method: str
    seed: int
    options: tuple[tuple[str, Any], ...] = ()
    tune: bool = False
    heldout: float = 0.0
    fold: tuple[int, int] | None = None
    review: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        """The order in which options are given means nothing."""
        object.__setattr__(self, "options", tuple(sorted(self.options, key=lambda option: option[0])))

    @property
    def slug(self) -> str:
        """Its path without the ending, under a folder of runs or of results."""
        parts = [_plain(self.method), *(f"{_plain(name)}={_value(value)}" for name, value in self.options)]
        parts += ["tuned"] if self.tune else []
        parts += [f"heldout={_number(self.heldout)}"] if self.heldout else []
        if self.fold is not None:
            number, count = self.fold
            parts.append(f"fold{number}of{count}" if number else f"{count}folds")
        parts += [f"{_plain(self.review[0])}={self.review[1]}"] if self.review is not None else []
        return f"{self.task.slug}/{_plain(self.model)}-{_plain(self.schedule)}/{'-'.join([*parts, f'seed{self.seed}'])}"

    @property
    def label(self) -> str:
        """The method with what is not the default about it: rows of tables are called so."""
        said = [f"{name} = {value}" for name, value in self.options]
        said += ["tuned"] if self.tune else []
        said += [f"{self.heldout:.0%} held out"] if self.heldout else []
        if self.fold is not None:
            number, count = self.fold
            said.append(f"fold {number} of {count}" if number else f"{count} folds")
        said += [f"{self.review[1]} reviewed ({self.review[0]})"] if self.review is not None else []
        said += ["to choose by"] if self.schedule.endswith(TUNING) else []
        return ", ".join([self.method, *said])

    def result(self, results: Path) -> Path:
        """The file that says how it ended."""
        return results / "runs" / f"{self.slug}.json"

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        values = dataclasses.asdict(self)
        rare = {name: list(value) for name in ("fold", "review") if (value := values.pop(name)) is not None}
        return {**values.pop("task"), **values, "options": dict(self.options), **rare}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Cell:
        """From what :meth:`to_json` gave."""
        try:
            given = dict(values)
            task = Task(**{name: given.pop(name) for name in ("dataset", "noise", "rate")})
            rare: dict[str, Any] = {name: tuple(given.pop(name)) for name in ("fold", "review") if name in given}
            return cls(task=task, options=tuple(given.pop("options").items()), **given, **rare)
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"these are not a cell's values: {error}") from error


def _plain(text: str) -> str:
    """A part of a path: lower case, without what file systems or shells take for something else.

    Upper and lower case are one name everywhere here. What else is lost, a few digits stand for: two names never get
    one path, and none leads out of the folder.

    Example:
        >>> _plain("CIFAR-10"), _plain("my letters"), _plain("../письма")
        ('cifar-10', 'myletters~40e4bf26', '~84ed0c7a')
    """
    kept = re.sub(r"[^a-z0-9._+-]+", "", text.lower()).lstrip(".")[:_LONGEST]
    return kept if kept and kept == text.lower() else f"{kept}~{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _value(value: Any) -> str:
    """An option's value as part of a path: a word or a number as it is written."""
    if (
        isinstance(value, str)
        and re.fullmatch(r"[a-z_]+", value)
        and value not in ("null", "true", "false", "nan", "infinity")
    ):
        return value
    text = json.dumps(value)
    return text if re.fullmatch(r"[a-z0-9.+-]+", text) else _plain(text)


def _number(value: float) -> str:
    """As short as it can be without being another one."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)
