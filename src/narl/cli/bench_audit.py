"""``narl bench audit`` and ``narl bench cleanlab``: how well wrong labels are found."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from narl.cli import options as shared
from narl.cli.bench_run import check, lines_about, sources, train
from narl.errors import OptionError

if TYPE_CHECKING:
    from narl.bench.cells import Cell
    from narl.bench.protocols import Protocol
    from narl.bench.work import Place

_WHAT, _WHERE = "What", "Where"
FOLDER = "audit"

Data = Annotated[
    list[str],
    typer.Option(
        help="A data set, NAME=PATH, once each: CIFAR-10, digits, penbased, letter, TREC.",
        rich_help_panel=_WHERE,
        show_default=False,
    ),
]
Labels = Annotated[
    str | None, typer.Option(help="CIFAR-10N's file of labels.", rich_help_panel=_WHERE, show_default=False)
]
Epochs = Annotated[
    int | None,
    typer.Option(
        help="Train so many epochs; such results are kept apart.", rich_help_panel=_WHAT, show_default="the usual ones"
    ),
]
Seeds = Annotated[int, typer.Option(help="Trainings of each cell, with seeds 1, 2, …", rich_help_panel=_WHAT)]
Tasks = Annotated[
    str | None,
    typer.Option(
        help="Some only, by data set, noise or both: cifar-10n/worst,letter.",
        rich_help_panel=_WHAT,
        show_default="all whose data is given",
    ),
]
Results = Annotated[Path, typer.Option(help="Folder of the results.", rich_help_panel=_WHERE)]
Work = Annotated[Path, typer.Option(help="Folder of the runs: checkpoints, models, records.", rich_help_panel=_WHERE)]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: GPUs where there are some.", rich_help_panel=_WHERE)]
AtOnce = Annotated[
    int | None,
    typer.Option(
        help="Processes at a time.", rich_help_panel=_WHERE, show_default="6 on a GPU that MPS shares, else 1"
    ),
]
Stack = Annotated[
    int,
    typer.Option(
        help="Trainings of a process that are done as one where they go together: on GPUs.", rich_help_panel=_WHERE
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what is missing, train nothing.")]


def audit(
    data: Data,
    labels: Labels = None,
    schedule: Annotated[
        str | None,
        typer.Option(help="Of the images: short, 60 epochs; paper, 120.", rich_help_panel=_WHAT, show_default="short"),
    ] = None,
    epochs: Epochs = None,
    seeds: Seeds = 1,
    methods: Annotated[
        str | None,
        typer.Option(help="What to train and audit.", rich_help_panel=_WHAT, show_default="CE,GCE,A-GCE"),
    ] = None,
    tasks: Tasks = None,
    folds: Annotated[
        int, typer.Option(help="Of the cross-validation by CE, for cleanlab; 0: none.", rich_help_panel=_WHAT)
    ] = 4,
    results: Results = Path("results"),
    work: Work = Path("bench-runs"),
    discard: Annotated[
        bool,
        typer.Option("--discard", help="Remove a run's folder when its result is written.", rich_help_panel=_WHERE),
    ] = False,
    device: Device = "auto",
    at_once: AtOnce = None,
    stack: Stack = 1,
    dry_run: DryRun = False,
) -> None:
    """Measure how well wrong labels are found, on data whose truth is known.

    narl's score and the area under the margin, from one run each, beside cleanlab on cross-validated probabilities of
    the same classifier. Trains what has no result yet. Look at the results with: narl bench show audit

    narl bench audit --data CIFAR-10=cifar-10-batches-py --labels CIFAR-10_human.pt --seeds 3
    """
    from narl.bench import audits, crossed, grid
    from narl.bench.work import Place

    if folds < 0 or folds == 1:
        raise OptionError(f"--folds {folds} leaves nothing to train on: give 2 or more, or 0 for none")
    place = Place(sources(data), work.resolve(), (results / FOLDER).resolve(), labels, device=device, discard=discard)
    tables = [audits.changed(table, shared.names(methods), epochs) for table in audits.ALL]
    cells = cells_of(tables, place, seeds=seeds, tasks=shared.names(tasks), schedule=schedule)
    found = [grid.sort([cell], table, place) for cell, table in cells.items()]
    whole = _cross_validated(cells, folds)
    untrained = crossed.missing(list(whole), place.work, place.results)
    for line in lines_about(found, place.results):
        print(line)
    for cell in untrained:
        print(f"  {cell.task}, {cell.label}, seed {cell.seed}")
    if dry_run:
        return
    missing = {cell: cells[cell] for part in found for cell in part.missing}
    parts = {part: whole[cell] for cell in untrained for part in _folds_of(cell)}
    if missing or parts:
        check(place)
    complete = _trained(missing, place, at_once, stack)
    complete &= _trained(parts, replace(place, results=place.work / "folds"), at_once, stack)
    _combine(list(whole), place)
    if not complete:
        raise typer.Exit(1)


def cells_of(
    tables: Sequence[Protocol], place: Place, *, seeds: int, tasks: tuple[str, ...], schedule: str | None = None
) -> dict[Cell, Protocol]:
    """What is asked for of the tables whose data is given, each with its table, seed by seed."""
    from narl.bench import audits, protocols
    from narl.bench.wanted import Wanted

    if seeds < 1:
        raise OptionError(f"--seeds {seeds} trains nothing: give at least 1")
    given = {name.lower() for name, _ in place.sources}
    for name in tasks:
        fitting = [task for table in tables for task in table.tasks if protocols.fits(name, task)]
        if fitting and not any(task.images.lower() in given for task in fitting):
            place.source(fitting[0])  # refuses
    there = [replace(one, tasks=tuple(t for t in one.tasks if t.images.lower() in given)) for one in tables]
    own = [table for table in there if table.tasks]
    if not own:
        known = dict.fromkeys(task.images for table in tables for task in table.tasks)
        raise OptionError(f"which data set is it? Write --data NAME=PATH; known are {', '.join(known)}")
    if schedule is not None and all(table.own is not None for table in own):
        raise OptionError("--schedule is of the paper's images: leave it out, or give --data CIFAR-10=FOLDER")
    wanted = Wanted(None, seeds, (), tasks, False, lambda name: (), 0.0)
    found: dict[Cell, Protocol] = {}
    for table, cells in zip(own, wanted.cells(own, place), strict=True):
        for cell in cells:
            if schedule is not None and table.own is None:
                table.schedule(schedule, cell.task.dataset)
                cell = replace(cell, schedule=schedule)
            found[replace(cell, seed=cell.seed + audits.FIRST_SEED)] = table
    return dict(sorted(found.items(), key=lambda pair: pair[0].seed))


def _cross_validated(cells: Mapping[Cell, Protocol], folds: int) -> dict[Cell, Protocol]:
    """All folds together, for each task and seed with wrong labels."""
    if not folds:
        return {}
    return {
        replace(cell, method="CE", options=(), fold=(0, folds)): table
        for cell, table in cells.items()
        if cell.task.rate != 0
    }


def _folds_of(cell: Cell) -> list[Cell]:
    from narl.bench.audits import folds_of

    return folds_of(cell)


def _trained(cells: Mapping[Cell, Protocol], place: Place, at_once: int | None, stack: int) -> bool:
    """Whether all could be trained."""
    cells = {cell: table for cell, table in cells.items() if not cell.result(place.results).exists()}
    if not cells:
        return True
    try:
        train(cells, place, at_once, stack)
    except typer.Exit:
        return False
    return True


def _combine(cells: Sequence[Cell], place: Place) -> None:
    """Results of what has been cross-validated, by cleanlab too where it is installed."""
    from narl.bench import crossed, runs

    trained = place.work / "folds"
    unscored = []
    for cell in cells:
        kept, written = crossed.out_of_fold(cell, place.work), cell.result(place.results)
        if not kept.exists() and all(part.result(trained).exists() for part in _folds_of(cell)):
            crossed.combine(cell, trained, place.work, place.results)
        if kept.exists() and (not written.exists() or crossed.CLEANLAB not in runs.read_file(written).audit):
            unscored.append(kept)
    if unscored and not crossed.has_cleanlab():
        print(
            "narl: cleanlab is not installed, so its rows are missing: score what the folds said where it is, with "
            f"narl bench cleanlab {unscored[0].parent}",
            file=sys.stderr,
        )
        return
    for path in unscored:
        crossed.score_with_cleanlab(path, place.results)


def cleanlab(
    folder: Annotated[Path, typer.Argument(help="out-of-fold, in the folder of the runs.")],
    results: Results = Path("results"),
) -> None:
    """Score cross-validated probabilities with cleanlab, where narl bench audit could not.

    narl bench cleanlab bench-runs/out-of-fold
    """
    from narl.bench import crossed

    files = sorted(folder.glob("*.npz"))
    if not files:
        raise OptionError(f"{folder} holds no .npz files: give the folder {crossed.OUT_OF_FOLD} of narl bench audit")
    for path in files:
        run = crossed.score_with_cleanlab(path, results / FOLDER)
        found = run.audit[crossed.CLEANLAB]
        print(f"{run.cell.task}, {run.cell.label}, seed {run.cell.seed}: AUROC {found['auroc']}, F1 {found['f1']}")
