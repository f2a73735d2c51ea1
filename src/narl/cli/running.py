"""Starting, resuming and reporting a run on the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from narl.cli.watching import Watching
from narl.errors import OptionError

if TYPE_CHECKING:
    from narl.train.planning import Plan
    from narl.train.session import Outcome
    from narl.train.settings import Settings

_STOPPED = 130


def carry_out(
    settings: Settings, out: Path | None, *, overwrite: bool, tensorboard: bool, as_json: bool, dry_run: bool
) -> None:
    """Plan a run, and unless this is a trial, train."""
    from narl.train import planning, session
    from narl.train.run_folder import RunFolder

    if out is None and not dry_run:
        raise OptionError("where shall the run go? Give a new folder: --out RUN")
    if out is not None:
        RunFolder.check_new(out, overwrite=overwrite)
    with told_warnings():
        plan = planning.plan(settings)
        if dry_run:
            _show(plan.describe(), _plan_lines(plan, out), as_json)
            return
        assert out is not None
        for line in _plan_lines(plan, None):
            print(line, file=sys.stderr)
        with Watching() as watching:
            outcome = session.start(plan, out, overwrite=overwrite, observer=watching, tensorboard=tensorboard)
    report(outcome, as_json)


def go_on(run: Path, *, tensorboard: bool, as_json: bool, dry_run: bool) -> None:
    """Resume a run."""
    from narl.train import session
    from narl.train.run_folder import RunFolder

    if dry_run:
        folder = RunFolder.open(run)
        with folder.understood() as config:
            epochs, done = config["recipe"]["epochs"], len(folder.metrics())
        _show(
            {"run": str(run), "epochs": epochs, "epochs_done": done},
            [f"would go on with {run}: {done} of {epochs} epochs are done"],
            as_json,
        )
        return
    with told_warnings(), Watching() as watching:
        outcome = session.resume(run, observer=watching, tensorboard=tensorboard)
    report(outcome, as_json)


def report(outcome: Outcome, as_json: bool) -> None:
    """Say how a run ended."""
    for remark in outcome.remarks:
        print(f"narl: {remark}", file=sys.stderr)
    if not outcome.finished:
        print(f"narl: stopped and saved. Go on with: narl train --resume {outcome.folder}", file=sys.stderr)
        raise typer.Exit(_STOPPED)
    _show({"run": str(outcome.folder), **outcome.summary}, _result_lines(outcome), as_json)


@contextmanager
def told_warnings() -> Iterator[None]:
    """narl's own warnings as one line each; those of other packages stay silent."""
    import warnings

    from narl.errors import NarlWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", NarlWarning)
        warnings.showwarning = lambda message, *rest, **named: print(f"narl: {message}", file=sys.stderr)
        yield


def _show(values: dict[str, Any], lines: list[str], as_json: bool) -> None:
    if as_json:
        print(json.dumps(values, indent=2, ensure_ascii=False))
        return
    for line in lines:
        print(line)


def _plan_lines(plan: Plan, out: Path | None) -> list[str]:
    settings, recipe, sets = plan.settings, plan.recipe, plan.sets
    counts = plan.describe()["samples"]
    smallest, largest = sets.train.class_counts.min(), sets.train.class_counts.max()
    extra = [f"{counts[part]:,} {word}" for part, word in _PARTS.items() if counts[part]]
    lines = [
        f"{recipe.method} on {counts['train']:,} {_WORDS[sets.train.kind]} of {len(sets.train.classes)} classes "
        f"({smallest:,} to {largest:,} a class); {', '.join(extra) or 'no clean and no test samples'}",
        f"model {settings.model or _default_model(sets.train.kind)}, {plan.parameters:,} parameters; {recipe.epochs} "
        f"epochs of {plan.steps} steps, batches of {recipe.batch_size}; {recipe.optimizer} "
        f"{recipe.learning_rate:g}, {recipe.schedule} schedule; seed {settings.seed}, {recipe.device}",
        *(f"note: {note}" for note in sets.notes),
    ]
    if out is not None:
        lines.append(f"would be written to {out}")
    return lines


_WORDS = {"image": "images", "text": "texts", "table": "rows"}
_PARTS = {"clean": "clean to learn the loss from", "heldout": "clean to choose the epoch", "test": "to test on"}


def _default_model(kind: str) -> str:
    from narl.train import architectures

    return architectures.defaults()[kind]


def _result_lines(outcome: Outcome) -> list[str]:
    summary = outcome.summary
    lines = []
    if "last5" in summary:
        lines.append(f"test accuracy, mean of the last 5 epochs: {summary['last5']['test_accuracy']:.2%}")
        if "selected" in summary:
            chosen = summary["selected"]
            lines.append(
                f"epoch {chosen['epoch']}, chosen by held-out clean samples: {chosen['test_accuracy']:.2%} "
                f"(held-out {chosen['heldout_accuracy']:.2%})"
            )
        best = summary["best"]
        lines.append(
            f"best epoch on the test set, for comparison only: {best['test_accuracy']:.2%} (epoch {best['epoch']})"
        )
        lines.append(_worst_classes(summary["test_accuracy_by_class"]))
    elif "selected" in summary:
        chosen = summary["selected"]
        lines.append(
            f"epoch {chosen['epoch']} chosen; accuracy on held-out clean samples {chosen['heldout_accuracy']:.2%}"
        )
    lines.append(
        f"The model of epoch {summary['model_of_epoch']} is in {outcome.folder}; "
        f"use it with: narl predict {outcome.folder} DATA"
    )
    return lines


def _worst_classes(by_class: dict[str, float | None]) -> str:
    known = sorted((value, name) for name, value in by_class.items() if value is not None)
    shown = known if len(known) <= 10 else known[:5]
    what = "by class" if len(known) <= 10 else "lowest classes"
    return f"{what}: " + ", ".join(f"{name} {value:.1%}" for value, name in shown)
