"""What is kept of a finished training: a few kilobytes that tables and figures can be made from."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from narl.adjuster import Adjuster, packs
from narl.adjuster.margins import RunningMargin
from narl.adjuster.turns import meant_for
from narl.bench.asked import asks_file
from narl.bench.cells import Cell
from narl.bench.runs import Run
from narl.train import methods
from narl.train.adjusters import load_adjusters, numbered
from narl.train.evaluate import separation
from narl.train.methods.meta import auto_beginning, auto_every, auto_learning_rate
from narl.train.methods.transferred import beginning
from narl.train.planning import Plan
from narl.train.record import RIVAL, SampleRecord
from narl.train.run_folder import RunFolder

_BINS = 40
_RESULT = "test_accuracy"
_USUAL = 3  # snapshots, at a third, two thirds and the end
_DECIDED = ("epochs", "batch_size", "optimizer", "learning_rate", "momentum", "weight_decay", "schedule", "precision")


def account(cell: Cell, plan: Plan, folder: Path, asked: dict[str, Any]) -> Run:
    """Read a finished run's folder.

    Args:
        cell: that was trained.
        plan: that it followed.
        folder: of the run.
        asked: what the table asked for.

    Returns:
        What is kept.
    """
    run = RunFolder.open(folder)
    metrics, summary = run.metrics(), run.read_json("summary.json")
    names = [name for name, value in metrics[-1].items() if name != "epoch" and not isinstance(value, dict)]
    mislabelled, record = plan.sets.mislabelled, SampleRecord.open(folder)
    return Run(
        cell=cell,
        last5=summary["last5"][_RESULT],
        best=summary["best"][_RESULT],
        further=_further(summary),
        curves={name: [_short(epoch.get(name)) for epoch in metrics] for name in names},
        noise_rate=None if mislabelled is None else _short(mislabelled.mean()),
        auroc={} if mislabelled is None else _auroc(record.read("margin")[: len(metrics)], mislabelled),
        samples=_samples(record, len(metrics) - 1, mislabelled),
        adjuster=_adjuster([path for number, path in numbered(folder).items() if number]),
        seconds=round(sum(epoch["seconds"] for epoch in run.times()), 1),
        asked=asked,
        settings={
            **{name: getattr(plan.recipe, name) for name in _DECIDED},
            **({} if plan.recipe.clean_share is None else {"clean_share": plan.recipe.clean_share}),
            "milestones": list(plan.settings.milestones),
            "augment": plan.recipe.augment,
            "options": _options(plan),
            "adjusters": [_digest(plan, cell)] if plan.settings.adjusters else [],
            "kind": plan.sets.train.kind,
            "data": plan.sets.fingerprint(),
            "train_samples": len(plan.sets.train),
            "clean_samples": sum(len(part) for part in (plan.sets.clean, plan.sets.heldout) if part is not None),
            "test_samples": 0 if plan.sets.test is None else len(plan.sets.test),
            "class_counts": plan.sets.train.class_counts.tolist(),
            "epoch_seconds": statistics.median(epoch["seconds"] for epoch in run.times()),
        },
        environment={**run.read_json("environment.json"), **_stacked(run)},
    )


def _further(summary: dict[str, Any]) -> dict[str, dict[str, float]]:
    """What was measured beside the test accuracy, in the last five epochs and in the best one on the test set."""
    last5, best = summary["last5"], summary["best"]
    return {name: {"last5": last5[name], "best": best[name]} for name in last5 if name in best and name != _RESULT}


def _stacked(run: RunFolder) -> dict[str, int]:
    """How many trainings were done as one, this one among them, if several ever were: its seconds are those of all."""
    most = max(epoch.get("stacked", 1) for epoch in run.times())
    return {"stacked": most} if most > 1 else {}


def _serving(plan: Plan) -> list[Adjuster]:
    """Of the adjusters that were given, those for such data and so long a training."""
    return meant_for(load_adjusters(plan.settings.adjusters), plan.sets.train.kind, plan.total_steps)


def _digest(plan: Plan, cell: Cell) -> str:
    return packs.digest(_serving(plan), noise_rate=asks_file(cell))


def _options(plan: Plan) -> dict[str, Any]:
    """The method's options, those too that nobody gave."""
    options = methods.get(plan.recipe.method).checked(plan.settings.options)
    # Boosted forms (A-GCE+) begin as in the paper on all kinds of data.
    kind = None if plan.recipe.method.endswith("+") else plan.sets.train.kind
    rows, epochs = len(plan.sets.train), plan.recipe.epochs
    usual = auto_beginning(kind, plan.total_steps, rows, epochs)
    if plan.recipe.method.startswith("T-"):
        usual = {"robust_start": beginning(_serving(plan), kind, rows, epochs)}
    chosen: dict[str, Callable[[], Any]] = {
        "every": lambda: auto_every(plan.total_steps),
        "adjuster_lr": lambda: auto_learning_rate(plan.total_steps),
        **{name: partial(usual.get, name) for name in usual},
    }
    for name in chosen.keys() & options.keys():
        if options[name] is None:
            options[name] = chosen[name]()
    return {name: value for name, value in options.items() if name != "adjusters"}


def _auroc(margins: NDArray[np.float32], mislabelled: NDArray[np.bool_]) -> dict[str, float]:
    """How well margins ``(epochs, N)`` find the wrong labels, averaged over epochs in three ways."""
    running, decay = margins[0], RunningMargin().decay
    for latest in margins[1:]:
        running = decay * running + (1 - decay) * latest
    averaged = {"last": margins[-1], "running": running, "all": margins.mean(axis=0)}
    found = {name: separation(values, mislabelled) for name, values in averaged.items()}
    return {name: value for name, value in found.items() if value is not None}


def _samples(record: SampleRecord, epoch: int, mislabelled: NDArray[np.bool_] | None) -> dict[str, dict[str, Any]]:
    """The training samples' margins and hyperparameters in the last epoch, counted."""
    found: dict[str, dict[str, Any]] = {}
    for field in (name for name in record.fields if name != RIVAL):  # class numbers are no distribution
        values = record.read(field, epoch)
        known = np.isfinite(values)
        wrong = np.zeros(len(values), np.bool_) if mislabelled is None else mislabelled
        low, high = np.quantile(values[known], (0.001, 0.999))
        edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
        found[field] = {"edges": [_short(edge) for edge in edges]}
        for name, part in (("right", ~wrong), ("wrong", wrong)):
            own = values[part & known]
            found[field][name] = np.histogram(own.clip(edges[0], edges[-1]), edges)[0].tolist()
            found[field][f"{name}_mean"] = _short(own.mean(dtype=np.float64)) if len(own) else None
    return found


def _adjuster(files: list[Path]) -> dict[str, Any]:
    """What the adjuster made of a margin, snapshot by snapshot."""
    if not files:
        return {}
    snapshots = [Adjuster.load(file) for file in files]
    for number, snapshot in enumerate(snapshots, start=1):
        snapshot.progress.fill_(number / len(snapshots) if snapshot.taken is None else snapshot.taken)
    far, near = torch.arange(6.0, 21.0, 2.0), torch.arange(-5.75, 6.0, 0.25)  # curves bend where labels change sides
    margins = torch.cat([-far.flip(0), near, far])
    curves = [
        {name: [[_short(v) for v in family] for family in values.T.tolist()] for name, values in one.items()}
        for one in (snapshot.curves(margins) for snapshot in snapshots)
    ]
    seen: dict[str, Any] = {} if snapshots[-1].input == "margin" else {"input": snapshots[-1].input}
    if len(snapshots) != _USUAL:
        seen["taken"] = [_short(snapshot.taken) for snapshot in snapshots]
    return {"margins": margins.tolist(), "centres": list(snapshots[-1].centres), "curves": curves, **seen}


def _short(value: Any) -> float | None:
    """Five digits are plenty for a figure."""
    return None if value is None else float(f"{float(value):.5g}")
