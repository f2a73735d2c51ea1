"""``narl bench adjusters``: learn adjusters from many tasks at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from narl.cli import bench_options
from narl.cli import options as shared_options
from narl.cli.bench_run import check, lines_about, options_of, sources, train
from narl.errors import OptionError

_WHAT, _WHERE = "What", "Where"
_SNAPSHOTS = 3


def adjusters(
    data: Annotated[
        list[str],
        typer.Option(
            help="The data set, as narl train takes it; of several data sets NAME=PATH, once each.",
            rich_help_panel=_WHERE,
            show_default=False,
        ),
    ],
    table: Annotated[
        str,
        typer.Argument(
            metavar="[TABLE]",
            help="A JSON file with tasks of your own; without one, the paper's nine: CIFAR-10 with symmetric, "
            "asymmetric and instance noise of 0.2, 0.4 and 0.6.",
            show_default=False,
        ),
    ] = "adjusters",
    methods: Annotated[
        list[str] | None,
        typer.Option(help="Some losses only: A-GCE,A-JS.", rich_help_panel=_WHAT, show_default="all of the table"),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Adjusters of each loss, with seeds 0, 1, …", rich_help_panel=_WHAT)] = 1,
    snapshots: Annotated[
        int,
        typer.Option(
            help="How often the adjuster is kept along the training, besides before it.", rich_help_panel=_WHAT
        ),
    ] = _SNAPSHOTS,
    option: Annotated[
        list[str],
        typer.Option(
            "--option",
            "-o",
            help="Option of the methods, NAME=VALUE.",
            rich_help_panel=_WHAT,
            show_default=False,
        ),
    ] = [],  # noqa: B006  typer copies it
    labels: bench_options.Labels = None,
    out: Annotated[Path, typer.Option(help="Folder for the adjusters.", rich_help_panel=_WHERE)] = Path("adjusters"),
    results: bench_options.Results = Path("results"),
    work: bench_options.Work = Path("bench-runs"),
    device: bench_options.Device = "auto",
    at_once: Annotated[
        int | None,
        typer.Option(
            help="Adjusters on one GPU at a time.", rich_help_panel=_WHERE, show_default="6 that MPS shares, else 1"
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what is missing, learn nothing.")] = False,
) -> None:
    """Learn adjusters to take away: one for each loss, from many tasks at once.

    Each task has a classifier of its own; the adjuster moves by the mean of what their clean sets say. One file a loss
    is written to --out, with the adjuster as it was before the training, after a third, two thirds and all of it, for
    narl transfer and narl.AdjustedLoss.pretrained.

    narl bench adjusters --data CIFAR-10=cifar-10-batches-py
    """
    from narl.bench import adjusters as learning
    from narl.bench import grid, own_table, protocols
    from narl.bench.wanted import Wanted
    from narl.bench.work import Place

    if seeds < 1:
        raise OptionError(f"--seeds {seeds} learns nothing: give at least 1")
    if snapshots != _SNAPSHOTS:
        option = [*option, f"snapshots={snapshots}"]
    protocol = learning.shared(own_table.read(Path(table)) if table.endswith(".json") else protocols.get(table))
    if not methods:
        protocol = replace(protocol, methods=tuple(name for name in protocol.methods if name.startswith("A-")))
    place = Place(sources(data), work.resolve(), results.resolve(), labels, device=device)
    wanted = Wanted(
        None,
        seeds,
        shared_options.names(methods),
        tuple(task.slug for task in protocol.tasks),  # all of them, whatever data is given
        False,
        lambda name: options_of(name, option),
        heldout=0.0,
    )
    (cells,) = wanted.cells([protocol], place)
    for name in dict.fromkeys(cell.method for cell in cells):
        if not name.startswith("A-"):
            raise OptionError(f"{name} learns no adjuster: give A-* methods")
    if not cells:
        raise OptionError(f"{protocol.name} has no A-* method: name some under methods")
    found = grid.sort(cells, protocol, place)
    for line in lines_about([found], place.results):
        print(line)
    if dry_run:
        return
    rows = learning.rows(cells)
    missing = [cell for row in rows if any(cell in found.missing for cell in row) for cell in row]
    if found.stale or found.impossible:
        raise typer.Exit(1)
    if missing:
        check(place)
        train(dict.fromkeys(missing, protocol), place, at_once)
    for row in rows:
        print(learning.collect(row, place, out))
