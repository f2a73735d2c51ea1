"""A finished run in a few numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from narl.train.loop import Loop
    from narl.train.planning import Plan

_LAST = 5


def summarise(loop: Loop, plan: Plan) -> dict[str, Any]:
    """The results of a run.

    ``last5`` is the mean over the last five epochs: the result, in the way the field reports it. ``selected`` is the
    epoch that the held-out clean samples chose, whose model is kept. ``best`` is the epoch that happened to be best on
    the test set: never a result, but what many papers print.

    Args:
        loop: that has finished.
        plan: that it followed.

    Returns:
        Plain values, for ``summary.json``.
    """
    history, classes = loop.history, plan.sets.train.classes
    summary: dict[str, Any] = {
        "method": loop.method.name,
        "options": dict(plan.settings.options),
        "seed": loop.seed,
        "epochs": loop.epoch,
        "stopped_early": loop.epoch < loop.epochs,
        "model_of_epoch": loop.selected["epoch"] if loop.selected else loop.epoch,
    }
    if loop.selected is not None:
        summary["selected"] = {name: value for name, value in loop.selected.items() if name != "by_class"}
    if "test" in loop.evaluated:
        accuracies = [record["test_accuracy"] for record in history]
        best = max(range(len(accuracies)), key=accuracies.__getitem__)
        summary["last5"] = {"test_accuracy": sum(accuracies[-_LAST:]) / len(accuracies[-_LAST:])}
        summary["best"] = {"epoch": best + 1, "test_accuracy": accuracies[best]}
        by_class = loop.selected["by_class"]["test"] if loop.selected else loop.by_class["test"]
        summary["test_accuracy_by_class"] = dict(zip(classes, by_class, strict=True))
    summary["last"] = history[-1]
    return summary
