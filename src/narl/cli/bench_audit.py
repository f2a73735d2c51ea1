"""``narl bench audit`` and ``narl bench cleanlab``: how well wrong labels are found."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from narl.cli import options as shared
from narl.cli.bench_options import (
    WHAT,
    AtOnce,
    Data,
    Device,
    Discard,
    DryRun,
    Labels,
    Results,
    Seeds,
    Stack,
    Tasks,
    Work,
)
from narl.cli.bench_run import check, lines_about, sources, train
from narl.errors import OptionError

if TYPE_CHECKING:
    from narl.bench.cells import Cell
    from narl.bench.protocol import Protocol
    from narl.bench.work import Place

FOLDER = "audit"

Epochs = Annotated[
    int | None,
    typer.Option(
        help="Train so many epochs; such results are kept apart.", rich_help_panel=WHAT, show_default="the usual ones"
    ),
]


def audit(
    data: Data,
    labels: Labels = None,
    schedule: Annotated[
        str | None,
        typer.Option(help="Of the images: short, 60 epochs; paper, 120.", rich_help_panel=WHAT, show_default="short"),
    ] = None,
    epochs: Epochs = None,
    seeds: Seeds = 1,
    methods: Annotated[
        list[str] | None,
        typer.Option(help="What to train and audit.", rich_help_panel=WHAT, show_default="CE,GCE,A-GCE"),
    ] = None,
    tasks: Tasks = None,
    folds: Annotated[
        int, typer.Option(help="Of the cross-validation by CE, for cleanlab; 0: none.", rich_help_panel=WHAT)
    ] = 4,
    results: Results = Path("results"),
    work: Work = Path("bench-runs"),
    discard: Discard = False,
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
    from narl.bench.wanted import of_given
    from narl.bench.work import Place

    if folds < 0 or folds == 1:
        raise OptionError(f"--folds {folds} leaves nothing to train on: give 2 or more, or 0 for none")
    place = Place(sources(data), work.resolve(), (results / FOLDER).resolve(), labels, device=device, discard=discard)
    tables = [audits.changed(table, shared.names(methods), epochs) for table in audits.ALL]
    cells = of_given(
        tables, place, seeds=seeds, tasks=shared.names(tasks), schedule=schedule, first_seed=audits.FIRST_SEED
    )
    found = [grid.sort([cell], table, place) for cell, table in cells.items()]
    whole = audits.cross_validated(cells, folds)
    untrained = crossed.missing(list(whole), place.work, place.results)
    for line in lines_about(found, place.results):
        print(line)
    for cell in untrained:
        print(f"  {cell.task}, {cell.label}, seed {cell.seed}")
    if dry_run:
        return
    missing = {cell: cells[cell] for part in found for cell in part.missing}
    parts = {part: whole[cell] for cell in untrained for part in audits.folds_of(cell)}
    if missing or parts:
        check(place)
    complete = _trained(missing, place, at_once, stack)
    complete &= _trained(parts, crossed.place_of_folds(place), at_once, stack)
    _combine(list(whole), place)
    if not complete:
        raise typer.Exit(1)


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
    from narl.bench import crossed

    unscored = crossed.combine_trained(cells, place)
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
