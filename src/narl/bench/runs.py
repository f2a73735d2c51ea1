"""Finished trainings, a small file each: what the tables and figures are made of."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from narl.bench.cells import Cell
from narl.errors import ConfigError, NarlError
from narl.train.writing import write_json

KIND = "narl bench run"
FORMAT = 1


@final
@dataclass(frozen=True, eq=False)
class Run:
    """How a cell ended. Accuracies are shares of 1.

    Args:
        cell: what was trained.
        last5: mean test accuracy of the last five epochs: the result.
        best: test accuracy of the best epoch: beside it, never instead.
        curves: a list over epochs each: ``test_accuracy``, ``loss`` (of training), ``meta_loss``, ``margin_auroc`` …
        noise_rate: share of the training labels that was really wrong; None where nobody knows.
        auroc: how well low margins find the wrong labels: of the ``last`` epoch, averaged as the adjuster sees them
            (``running``), and averaged over ``all`` epochs; {} where nobody knows which are wrong.
        samples: the training samples at the end, right and wrong labels apart: for ``margin`` and each hyperparameter
            ``edges``, ``right`` and ``wrong`` (counts), ``right_mean`` and ``wrong_mean``.
        adjuster: what it makes of a margin at a third, two thirds and the end: ``margins``, ``centres`` (samples a
            class, a family each), ``curves`` (a dict a snapshot: hyperparameter to a list a family); {} without one.
        seconds: of the training.
        asked: what the table asked for, so that a table that has changed since is noticed.
        settings: what decided it, as narl understood it.
        environment: hardware and versions.
        audit: of audited tables, how well each way to find wrong labels did: see :mod:`narl.bench.findings`.
        further: what was measured beside the test accuracy, ``last5`` and ``best`` of each: ``test_top5_accuracy``, and
            the same of further test sets, such as ``ILSVRC12_accuracy``.
    """

    cell: Cell
    last5: float
    best: float
    curves: dict[str, list[float | None]]
    noise_rate: float | None = None
    auroc: dict[str, float] = field(default_factory=dict)
    samples: dict[str, dict[str, Any]] = field(default_factory=dict)
    adjuster: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    asked: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    audit: dict[str, dict[str, Any]] = field(default_factory=dict)
    further: dict[str, dict[str, float]] = field(default_factory=dict)

    def reached(self, dataset: str, metric: str = "top1") -> tuple[float, float] | None:
        """What was reached on a data set, in the last five epochs and in the best one on the test set; None: unknown.

        Args:
            dataset: the task's own, or another one that was tested on as well.
            metric: ``"top1"``: accuracy; ``"top5"``: share of labels among the five most probable classes.
        """
        own = dataset == self.cell.task.dataset
        if own and metric == "top1":
            return self.last5, self.best
        name = f"{'test' if own else dataset}{'' if metric == 'top1' else f'_{metric}'}_accuracy"
        both = self.further.get(name)
        return None if both is None else (both["last5"], both["best"])

    def write(self, results: Path) -> Path:
        """Write it where :func:`read` looks."""
        path = self.cell.result(results)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, self.to_json(), indent=None)
        return path

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        rare = ("audit", "further")
        own = {name: value for name, value in vars(self).items() if name != "cell" and (name not in rare or value)}
        return {"kind": KIND, "format": FORMAT, "cell": self.cell.to_json(), **own}


def read(results: Path) -> list[Run]:
    """All finished trainings under a folder of results, in the order of their paths.

    Args:
        results: the folder; an absent one holds none.

    Raises:
        ConfigError: a file that is damaged or of another kind.
    """
    found = []
    for path in sorted((results / "runs").rglob("*.json")):
        run = read_file(path)
        if path != run.cell.result(results):
            raise ConfigError(f"{path} is the result of {run.cell.slug}: give it its name, or remove it")
        found.append(run)
    return found


def read_file(path: Path) -> Run:
    """One of them."""
    try:
        return from_json(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError, RecursionError, NarlError) as error:
        raise ConfigError(
            f"{path} is not the result of a training ({error}): remove it, and narl bench run makes it again"
        ) from error


def from_json(about: Any) -> Run:
    """From what :meth:`Run.to_json` gave.

    Raises:
        ConfigError: these are not the values of a run.
    """
    if not isinstance(about, dict):
        raise ConfigError("it holds no JSON object")
    if about.get("kind") != KIND or about.get("format") != FORMAT:
        raise ConfigError(f"it is {about.get('kind')!r}, format {about.get('format')!r}")
    own = {name: value for name, value in about.items() if name not in ("kind", "format", "cell")}
    run = Run(cell=Cell.from_json(about["cell"]), **own)
    for name in ("last5", "best"):
        if not _is_share(own[name]):
            raise ConfigError(f"its {name} is {own[name]!r}")
    if not all(_is_share(value) for both in run.further.values() for value in both.values()):
        raise ConfigError(f"its further numbers are {run.further!r}")
    if not isinstance(run.curves, dict):
        raise ConfigError("it has no curves")
    return run


def _is_share(value: Any) -> bool:
    return isinstance(value, float | int) and math.isfinite(value)
