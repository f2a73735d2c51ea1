"""``narl bench run``: train the missing cells of a table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narl.cli import bench_options
from narl.cli import options as shared
from narl.errors import OptionError

if TYPE_CHECKING:
    from narl.bench.cells import Cell
    from narl.bench.grid import Sorted
    from narl.bench.protocol import Protocol
    from narl.bench.work import Place

_WHAT, _WHERE, _SLURM = "What", "Where", "On a cluster"
_FAILED = 1
_JOBS = 16


def run(
    tables: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLE",
            help="table1, table2, table3, table4, table5, table6, cifar10n, figure5, figure6; systems: boosted losses "
            "beside DivideMix and others; transfer: adjusters on data that they were not learned on; or a JSON file "
            "with a table of your own.",
        ),
    ],
    data: Annotated[
        list[str],
        typer.Option(
            help="The data set, as narl train takes it; of several data sets NAME=PATH, once each.",
            rich_help_panel=_WHERE,
            show_default=False,
        ),
    ],
    labels: bench_options.Labels = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="short: 60 epochs, 50 for table4; paper: the paper's, twice as long.",
            rich_help_panel=_WHAT,
            show_default="short",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Trainings of each cell, with seeds 0, 1, …", rich_help_panel=_WHAT)] = 1,
    methods: Annotated[
        list[str] | None, typer.Option(help="Some methods only: GCE,A-GCE.", rich_help_panel=_WHAT, show_default="all")
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            help="Some columns only, by data set, noise or both: cifar-10/symmetric-0.4,asymmetric.",
            rich_help_panel=_WHAT,
            show_default="all whose data is given",
        ),
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Choose fixed losses' values on the clean set.", rich_help_panel=_WHAT)
    ] = False,
    option: Annotated[
        list[str],
        typer.Option(
            "--option",
            "-o",
            help="Option of the methods, NAME=VALUE: a variant of the cells, kept apart from them.",
            rich_help_panel=_WHAT,
            show_default=False,
        ),
    ] = [],  # noqa: B006  typer copies it
    each: Annotated[
        list[str],
        typer.Option(
            help="Besides the cells, a variant with this option alone changed: once for each part of an ablation.",
            metavar="NAME=VALUE",
            rich_help_panel=_WHAT,
            show_default=False,
        ),
    ] = [],  # noqa: B006  typer copies it
    heldout: Annotated[
        float,
        typer.Option(help="Share of the clean set that is not learned from, to choose by.", rich_help_panel=_WHAT),
    ] = 0.0,
    adjuster: Annotated[
        list[str],
        typer.Option(
            help="Learned adjuster for T-*: a run, a file or a name.",
            rich_help_panel=_WHAT,
            show_default="those that narl ships",
        ),
    ] = [],  # noqa: B006  typer copies it
    results: bench_options.Results = Path("results"),
    work: bench_options.Work = Path("bench-runs"),
    discard: bench_options.Discard = False,
    device: bench_options.Device = "auto",
    at_once: Annotated[
        int | None,
        typer.Option(
            help="Processes on one GPU, or jobs on the cluster, at a time.",
            rich_help_panel=_WHERE,
            show_default="6 on a GPU that MPS shares, else 1; 16 jobs",
        ),
    ] = None,
    stack: Annotated[
        int,
        typer.Option(
            help="Trainings of a process that are done as one where they go together: a small network fills a GPU "
            "only in company.",
            rich_help_panel=_WHERE,
        ),
    ] = 1,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Give the cells to a Slurm cluster, a job each.", rich_help_panel=_SLURM)
    ] = False,
    partition: Annotated[
        str | None, typer.Option(help="Of the cluster.", rich_help_panel=_SLURM, show_default="the cluster's own")
    ] = None,
    hours: Annotated[
        float, typer.Option(help="That a job may run before it has to queue again.", rich_help_panel=_SLURM)
    ] = 4.0,
    cpus: Annotated[int, typer.Option(help="Cores of a job.", rich_help_panel=_SLURM)] = 8,
    memory: Annotated[float, typer.Option(help="GB of memory of a job.", rich_help_panel=_SLURM)] = 32.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say which cells are missing, train none.")] = False,
) -> None:
    """Train the cells of one table or more that have no result yet.

    A run that was stopped or killed goes on where it was. Look at the results with: narl bench show TABLE

    narl bench run table1 --data CIFAR-10=cifar-10-batches-py --seeds 3
    """
    from narl.bench import grid, own_table, protocols, tuning
    from narl.bench.wanted import Wanted
    from narl.bench.work import Place

    if seeds < 1:
        raise OptionError(f"--seeds {seeds} trains nothing: give at least 1")
    if stack < 1:
        raise OptionError(f"--stack {stack} trains nothing: give at least 1")
    if stack > 1 and slurm:
        raise OptionError("--stack is for one machine, --slurm gives a job to each cell: leave out one of them")
    if not 0 <= heldout < 1:
        raise OptionError(f"--heldout {heldout:g} is no share of the clean set: give a number from 0 to below 1")
    place = Place(
        sources(data), work.resolve(), results.resolve(), labels, tuple(adjuster), device=device, discard=discard
    )
    wanted = Wanted(
        schedule,
        seeds,
        shared.names(methods),
        shared.names(tasks),
        tune,
        lambda name: options_of(name, option),
        heldout,
        tuple(partial(options_of, pairs=[pair], flag="--each") for pair in each),
    )
    found = [
        protocol
        for table in tables
        for protocol in ([own_table.read(Path(table))] if table.endswith(".json") else protocols.parts(table))
    ]
    sorted_cells = [
        grid.sort(cells, table, place) for cells, table in zip(wanted.cells(found, place), found, strict=True)
    ]
    chosen_by = [
        grid.sort([one for cell in part.missing for one in tuning.candidates(cell, table)], table, place)
        for part, table in zip(sorted_cells, found, strict=True)
    ]
    for line in lines_about([*chosen_by, *sorted_cells], place.results):
        print(line)
    if dry_run:
        return
    if any(table.shared for table in found):
        raise OptionError("the trainings of this table learn their adjusters together: use narl bench adjusters")
    parts = zip([*chosen_by, *sorted_cells], [*found, *found], strict=True)
    missing = {cell: table for part, table in parts for cell in part.missing}
    missing = dict(sorted(missing.items(), key=lambda pair: pair[0].seed))
    if not missing:
        raise typer.Exit(0 if any(part.done for part in sorted_cells) else _FAILED)
    check(place)
    if slurm:
        gpus = 0 if device == "cpu" else 1
        asked = {"at_once": at_once or _JOBS, "hours": hours, "partition": partition, "gpus": gpus, "cpus": cpus}
        _submit(missing, place, {**asked, "memory_gb": memory})
    else:
        train(missing, place, at_once, stack)


def sources(data: list[str]) -> tuple[tuple[str, str], ...]:
    """Data set and place of each; no name for one that stands alone."""
    found = []
    for one in data:
        name, equals, path = one.partition("=")
        named = bool(equals) and not Path(one).exists()
        found.append((name, path) if named else ("", one))
        if not found[-1][1]:
            raise OptionError(f"--data {one} says of no data where it is: give its path, such as --data CIFAR-10=DIR")
    if len(found) > 1 and any(not name for name, _ in found):
        raise OptionError("which data set is which? Write --data NAME=PATH for each, such as --data CIFAR-10=DIR")
    return tuple((name, str(Path(path).resolve()) if Path(path).exists() else path) for name, path in found)


def options_of(method: str, pairs: list[str], flag: str = "--option") -> tuple[tuple[str, Any], ...]:
    """What a method is given, from the ``NAME=VALUE`` of a flag."""
    from narl.cli.train import read_options
    from narl.train import methods

    if not pairs:
        return ()
    for pair in pairs:
        if "=" not in pair:
            raise OptionError(f"{flag} {pair} is not NAME=VALUE: write it like {flag} mixup=0")
    try:
        return tuple(read_options(method, pairs).items())
    except OptionError as error:
        if all(pair.partition("=")[0] in methods.get(method).options for pair in pairs):
            raise
        raise OptionError(f"{error}; --methods names those that have it") from error


def check(place: Place) -> None:
    """Refuse a place without data or device once, not in every cell."""
    from narl.train.environment import usable_device

    usable_device(place.device)
    for path in (*(source for _, source in place.sources), *([place.human] if place.human else [])):
        if not path.startswith("hub:") and not Path(path).exists():
            raise OptionError(f"there is no {path}: give the folder or file of the data")


def lines_about(found: list[Sorted], results: Path) -> list[str]:
    """What there is to do, and what not."""
    done = list(dict.fromkeys(cell for one in found for cell in one.done))  # tables may have cells in common
    missing = list(dict.fromkeys(cell for one in found for cell in one.missing))
    impossible = [pair for one in found for pair in one.impossible]
    stale = [pair for one in found for pair in one.stale]
    count = len(done) + len(missing) + len(impossible) + len(stale)
    lines = [f"{_counted(count, 'cell')}: {len(done)} with a result, {len(missing)} missing"]
    lines += [f"  {cell.task}, {cell.label}, seed {cell.seed}" for cell in missing]
    for reason in dict.fromkeys(reason for _, reason in impossible):
        lines.append(f"{sum(own == reason for _, own in impossible)} cannot be trained: {reason}")
    for change in dict.fromkeys(change for _, change in stale):
        cells = [cell for cell, own in stale if own == change]
        lines.append(
            f"{_counted(len(cells), 'result')} of a table that has changed ({change}): remove what is to be trained "
            f"anew, such as {cells[0].result(results)}"
        )
    return lines


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" + ("" if count == 1 else "s")


def train(cells: Mapping[Cell, Protocol], place: Place, at_once: int | None, stack: int = 1) -> None:
    """Train cells and show how far they are; ends the command if one of them fails."""
    from narl.bench import grid
    from narl.cli.grid_progress import GridProgress

    with GridProgress(cells) as progress:
        whole = grid.train(cells, place, progress, at_once, stack=stack)
    if not whole:
        raise typer.Exit(_FAILED)


def _submit(cells: Mapping[Cell, Protocol], place: Place, asked: dict[str, Any]) -> None:
    """Give cells to the cluster; those that are chosen by others, whose jobs would not wait, after these."""
    import sys

    from narl.bench import slurm, tuning
    from narl.cli.grid_progress import GridProgress

    left, failed = dict(cells), False
    while wave := {c: table for c, table in left.items() if tuning.lacking(c, table, place.results) is None}:
        submitted = slurm.submit(wave, place, folder=place.work / "slurm", **asked)
        with GridProgress(wave) as progress:
            standing = slurm.watch(submitted, place, progress)
        print(f"narl: {standing}", file=sys.stderr)
        failed |= bool(standing.failed)
        left = {cell: table for cell, table in left.items() if cell not in wave}
        if standing.waiting:  # somebody stopped looking
            break
    else:
        for cell, table in left.items():
            print(f"narl: {cell.slug} fails: {tuning.lacking(cell, table, place.results)}", file=sys.stderr)
            failed = True
    if failed:
        raise typer.Exit(_FAILED)
