"""Starting, resuming and reporting a run on the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from narl.cli.output import print_json
from narl.cli.watching import Watching
from narl.errors import NarlError, OptionError

if TYPE_CHECKING:
    from narl.train.planning import Plan
    from narl.train.session import Outcome
    from narl.train.settings import Settings

_STOPPED = 130


def carry_out(
    settings: Settings, out: Path | None, *, overwrite: bool, tensorboard: bool, as_json: bool, dry_run: bool
) -> None:
    """Plan a run, and unless this is a trial, train."""
    from narl.train import distributed, planning, session
    from narl.train.run_folder import RunFolder

    if out is None and not dry_run:
        raise OptionError("where shall the run go? Give a new folder: --out RUN")
    with distributed.joined(settings.device) as processes, told_warnings(silent=processes.rank > 0):
        if out is not None:
            processes.first(lambda: RunFolder.check_new(out, overwrite=overwrite))
        plan = processes.together(lambda: planning.plan(settings))
        if dry_run:
            if processes.rank == 0:
                _show(plan.describe(), _plan_lines(plan, out), as_json)
            return
        assert out is not None
        for line in _plan_lines(plan, None) if processes.rank == 0 else ():
            print(line, file=sys.stderr)
        with Watching(processes) as watching:
            outcome = session.start(
                plan, out, overwrite=overwrite, observer=watching, tensorboard=tensorboard, processes=processes
            )
    report(outcome, as_json, silent=processes.rank > 0)


def go_on(run: Path, *, tensorboard: bool, as_json: bool, dry_run: bool) -> None:
    """Resume a run."""
    from narl.train import distributed, session
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
    with (
        distributed.joined(_device_of(run)) as processes,
        told_warnings(silent=processes.rank > 0),
        Watching(processes) as watching,
    ):
        outcome = session.resume(run, observer=watching, tensorboard=tensorboard, processes=processes)
    report(outcome, as_json, silent=processes.rank > 0)


def _device_of(run: Path) -> str:
    """Where a run computes; machines that don't see its folder find out later."""
    from narl.train.run_folder import RunFolder

    try:
        return str(RunFolder.open(run).config["recipe"]["device"])
    except (NarlError, LookupError, TypeError):
        return "auto"


def report(outcome: Outcome, as_json: bool, *, silent: bool = False) -> None:
    """Say how a run ended; silently, with the exit status only."""
    if silent:
        sys.exit(0 if outcome.finished else _STOPPED)
    for remark in outcome.remarks:
        print(f"narl: {remark}", file=sys.stderr)
    if not outcome.finished:
        print(f"narl: stopped and saved. Go on with: narl train --resume {outcome.folder}", file=sys.stderr)
        sys.exit(_STOPPED)
    _show({"run": str(outcome.folder), **outcome.summary}, _result_lines(outcome), as_json)


@contextmanager
def told_warnings(*, silent: bool = False) -> Iterator[None]:
    """narl's own warnings as one line each; those of other packages stay silent, and with ``silent`` all of them."""
    import warnings

    from narl.errors import NarlWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not silent:
            warnings.simplefilter("always", NarlWarning)
        warnings.showwarning = lambda message, *rest, **named: print(f"narl: {message}", file=sys.stderr)
        yield


def _show(values: dict[str, Any], lines: list[str], as_json: bool) -> None:
    if as_json:
        print_json(values)
        return
    for line in lines:
        print(line)


def _plan_lines(plan: Plan, out: Path | None) -> list[str]:
    settings, recipe, sets = plan.settings, plan.recipe, plan.sets
    parts = {"clean": sets.clean, "heldout": sets.heldout, "test": sets.test}
    extra = [f"{len(samples):,} {_PARTS[part]}" for part, samples in parts.items() if samples is not None]
    extra += [f"{len(samples):,} of {name}" for name, samples in sets.also.items()]
    smallest, largest = sets.train.class_counts.min(), sets.train.class_counts.max()
    augment = f", {recipe.augment}" if sets.train.kind == "image" else ""
    lines = [
        f"{recipe.method} on {len(sets.train):,} {_WORDS[sets.train.kind]} of {len(sets.train.classes)} classes "
        f"({smallest:,} to {largest:,} a class); {', '.join(extra) or 'no clean and no test samples'}",
        *_column_lines(plan),
        f"model {settings.model or _default_model(sets.train.kind)}, {plan.parameters:,} parameters; "
        f"{_counted(recipe.epochs, 'epoch')} of {_counted(plan.steps, 'step')}, batches of {recipe.batch_size}"
        f"{augment}; {recipe.optimizer} {recipe.learning_rate:g}, {_schedule(plan)}; "
        f"seed {settings.seed}, {recipe.device}" + ("" if recipe.precision == "float32" else f" in {recipe.precision}"),
        *(f"note: {note}" for note in sets.notes),
    ]
    if out is not None:
        lines.append(f"would be written to {out}")
    return lines


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _schedule(plan: Plan) -> str:
    falls = ", ".join(f"{epoch:g}" for epoch in plan.settings.milestones)
    return f"{plan.recipe.schedule} schedule" + (f" with milestones {falls}" if falls else "")


def _column_lines(plan: Plan) -> list[str]:
    """What the columns of a table were taken for."""
    columns = plan.sets.columns
    if columns.label is None:
        return []
    kinds = {"text": columns.text, "images": columns.image, "true labels": columns.true_label, "ids": columns.id}
    named = [f"{kind} {column!r}" for kind, column in kinds.items() if column is not None]
    listed = {"numbers": columns.numbers, "categories": columns.categories, "left out": columns.ignore}
    named += [f"{kind} {_few(names)}" for kind, names in listed.items() if names]
    return ["columns: " + "; ".join([f"labels {columns.label!r}", *named])]


def _few(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:6])
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"


_WORDS = {"image": "images", "text": "texts", "table": "rows"}
_PARTS = {"clean": "clean to learn the loss from", "heldout": "clean to choose the epoch", "test": "to test on"}


def _default_model(kind: str) -> str:
    from narl.train import architectures

    return architectures.defaults()[kind]


def _result_lines(outcome: Outcome) -> list[str]:
    summary = outcome.summary
    lines = []
    if summary["stopped_early"]:
        lines.append(f"stopped early after epoch {summary['epochs']}: no better one on the held-out clean samples")
    if summary["options"]:
        lines.append("options: " + ", ".join(f"{name} = {value}" for name, value in summary["options"].items()))
    if "last5" in summary:
        last = min(5, summary["epochs"])
        plural = "s" if last > 1 else ""
        means = {name.removesuffix("_accuracy"): f"{mean:.2%}" for name, mean in summary["last5"].items()}
        among = {name.removesuffix("_top5"): mean for name, mean in means.items() if name.endswith("_top5")}
        for name, mean in means.items():
            if not name.endswith("_top5"):
                top5 = f", top 5 {among[name]}" if name in among else ""
                lines.append(f"{name} accuracy, mean of the last {last} epoch{plural}: {mean}{top5}")
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
    if summary["last"].get("margin_auroc") is not None:
        lines.append(f"a low margin finds the wrong labels with AUROC {summary['last']['margin_auroc']:.3f}")
    lines.append(
        f"The model of epoch {summary['model_of_epoch']} is in {outcome.folder}; "
        f"use it with: narl predict {outcome.folder} DATA"
    )
    return lines


def _worst_classes(by_class: dict[str, float | None]) -> str:
    known = sorted((value, name) for name, value in by_class.items() if value is not None)
    shown = known if len(known) <= 10 else known[:5]
    what = "by class, lowest first" if len(known) <= 10 else "lowest classes"
    return f"{what}: " + ", ".join(f"{_on_a_line(name)} {value:.1%}" for value, name in shown)


def _on_a_line(name: str) -> str:
    """A class name without what would break the line, or command the terminal."""
    return name if name.isprintable() else ascii(name)
