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
    the test set: never a result, but what many papers print. Further test sets, and the share of labels among the five
    most probable classes, stand beside the test set's accuracy: of the same epochs, they choose none.

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
        names = ["test", *(name for name in loop.evaluated if name not in ("test", "heldout"))]
        shares = [f"{name}{of}_accuracy" for name in names for of in ("", "_top5")]
        last = history[-_LAST:]
        # An earlier narl may have begun the run and not have looked at all of them.
        summary["last5"] = {
            share: sum(record[share] for record in last) / len(last)
            for share in shares
            if all(share in record for record in last)
        }
        summary["best"] = {
            "epoch": best + 1,
            **{share: history[best][share] for share in shares if share in history[best]},
        }
        for name in names:
            by_class = loop.selected["by_class"][name] if loop.selected else loop.by_class[name]
            summary[f"{name}_accuracy_by_class"] = dict(zip(classes, by_class, strict=True))
    summary["last"] = history[-1]
    return summary
