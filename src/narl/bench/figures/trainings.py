"""The trainings that figures are drawn from: which there are, and the command that makes those that are not."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from narl.bench import protocols, runs
from narl.bench.asked import difference
from narl.bench.cells import SCHEDULES, Task
from narl.bench.runs import Run
from narl.bench.tables import model_title
from narl.errors import ResultsError

RESULTS = Path("results")


@final
@dataclass(frozen=True)
class Library:
    """Finished trainings.

    Args:
        runs: all that there are.
        schedule: which of them count: ``"short"`` or ``"paper"``.
        folder: where they were looked for.
    """

    runs: Sequence[Run]
    schedule: str = "short"
    folder: Path = RESULTS

    @classmethod
    def read(cls, folder: Path, schedule: str) -> Library:
        """All under a folder of results; an absent one holds none."""
        return cls(runs.read(folder), schedule, folder)

    def of(self, table: str, task: Task, method: str, *, tuned: bool = False, schedule: str = "") -> list[Run]:
        """The trainings of one method as a protocol has it, by seed; those with options of their own are not meant."""
        protocol, label = protocols.get(table), f"{method}, tuned" if tuned else method
        wanted = (task, protocol.model, schedule or self.schedule, label)
        found = [run for run in self.runs if _place(run) == wanted and difference(run, protocol) is None]
        return sorted(found, key=lambda run: run.cell.seed)

    def needed(self, table: str, task: Task, methods: Sequence[str]) -> dict[str, list[Run]]:
        """The trainings of each method.

        Raises:
            ResultsError: some method has none; the message says how to make them.
        """
        found = {method: self.of(table, task, method) for method in methods}
        missing = [method for method in methods if not found[method]]
        if missing:
            raise self.missing(table, task, missing)
        return found

    def missing(self, table: str, task: Task, methods: Sequence[str]) -> ResultsError:
        """What to raise where there is no training of some methods."""
        also = [
            f" (there is one with --schedule {other})"
            for other in SCHEDULES
            if other != self.schedule and all(self.of(table, task, method, schedule=other) for method in methods)
        ]
        where = "" if self.folder == RESULTS else f" --results {shlex.quote(str(self.folder))}"
        return ResultsError(
            f"{self.folder} has no training of {listed(methods)} on {task} with the {self.schedule} "
            f"schedule{''.join(also)}; make it with: {command(table, task, methods, self.schedule)}{where}"
        )


def command(table: str, task: Task, methods: Sequence[str], schedule: str) -> str:
    """The command line that makes trainings.

    Example:
        >>> command("figure5", Task("CIFAR-10", "asymmetric", 0.6), ["GCE", "A-GCE"], "short")
        'narl bench run figure5 --data FOLDER --tasks cifar-10/asymmetric-0.6 --methods GCE,A-GCE --schedule short'
    """
    return (
        f"narl bench run {table} --data FOLDER --tasks {task.slug} --methods {','.join(methods)} --schedule {schedule}"
    )


def listed(names: Sequence[str]) -> str:
    """Names as people write them.

    Example:
        >>> listed(["GCE", "SL", "JS"])
        'GCE, SL and JS'
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def source(run: Run, seeds: Sequence[int] = ()) -> str:
    """Where a figure's numbers come from: data, model, schedule and seeds.

    Args:
        run: one of the trainings.
        seeds: of all of them; of this one if omitted.
    """
    known = sorted(set(seeds)) or [run.cell.seed]
    word = "seed" if len(known) == 1 else "seeds"
    cell = run.cell
    numbers = listed([str(seed) for seed in known])
    return f"{cell.task}, {model_title(cell.model)}, {cell.schedule} schedule, {word} {numbers}"


@final
@dataclass(frozen=True, eq=False)
class Histogram:
    """How many samples with right and with wrong labels have which value.

    Args:
        edges: of the bins, ``(B + 1,)``.
        right: counts, ``(B,)``.
        wrong: counts, ``(B,)``.
    """

    edges: NDArray[np.float64]
    right: NDArray[np.float64]
    wrong: NDArray[np.float64]

    @classmethod
    def of(cls, run: Run, name: str) -> Histogram:
        """The values of ``"margin"`` or a hyperparameter that a training ended with.

        Raises:
            ResultsError: it has none, or nothing in one of the two groups.
        """
        try:
            found = run.samples[name]
            edges, right, wrong = (np.asarray(found[part], dtype=np.float64) for part in ("edges", "right", "wrong"))
        except (KeyError, TypeError, ValueError) as error:
            raise _unusable(run, f"has no histogram of {name}") from error
        if not (edges.ndim == 1 and right.shape == wrong.shape == (len(edges) - 1,)) or (np.diff(edges) < 0).any():
            raise _unusable(run, f"has a histogram of {name} whose bins do not fit its counts")
        if not (right.sum() > 0 and wrong.sum() > 0):
            raise _unusable(run, f"has no samples with right or none with wrong labels in its histogram of {name}")
        return cls(edges, right, wrong)

    def quantile(self, share: float, *, wrong: bool) -> float:
        """The value below which a share of a group lies; inside a bin the samples are taken to lie evenly.

        Example:
            >>> halves = Histogram(np.array([0.0, 0.5, 1.0]), np.array([3.0, 1.0]), np.array([0.0, 2.0]))
            >>> round(halves.quantile(0.5, wrong=False), 3), halves.quantile(0.5, wrong=True)
            (0.333, 0.75)
        """
        counts = self.wrong if wrong else self.right
        below = np.concatenate([[0.0], np.cumsum(counts) / counts.sum()])
        return float(np.interp(share, below, self.edges))


def curves(run: Run) -> tuple[list[float], list[float], list[dict[str, Any]]]:
    """What a training's adjuster makes of a margin: the margins, the families' centres, a dict a snapshot.

    Where classes are alike there are fewer families than the adjuster has heads: the last ones served nobody and are
    left out.

    Raises:
        ResultsError: it has no such curves.
    """
    try:
        margins, centres, snapshots = (run.adjuster[part] for part in ("margins", "centres", "curves"))
        fits = all(
            len(lines) >= len(centres) and all(len(line) == len(margins) for line in lines)
            for snapshot in snapshots
            for lines in snapshot.values()
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise _unusable(run, "has no curves of an adjuster") from error
    if not (fits and snapshots):
        raise _unusable(run, "has curves of an adjuster that do not fit its margins and families")
    served = [{name: lines[: len(centres)] for name, lines in snapshot.items()} for snapshot in snapshots]
    return margins, centres, served


def _unusable(run: Run, problem: str) -> ResultsError:
    return ResultsError(f"the training {run.cell.slug} {problem}: remove its file, and narl bench run makes it again")


def _place(run: Run) -> tuple[Task, str, str, str]:
    return run.cell.task, run.cell.model, run.cell.schedule, run.cell.label
