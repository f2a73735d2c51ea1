"""``narl bench review``: what a simulated reviewer's answers are worth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from narl.cli import options as shared
from narl.cli.bench_options import WHAT, AtOnce, Data, Device, DryRun, Labels, Results, Seeds, Stack, Tasks, Work
from narl.cli.bench_run import check, sources, train
from narl.errors import OptionError

FOLDER = "review"


def review(
    data: Data,
    labels: Labels = None,
    orders: Annotated[
        list[str],
        typer.Option(help="Which samples are asked about: orders of narl review, and random.", rich_help_panel=WHAT),
    ] = ["informative,random"],  # noqa: B006  typer copies it
    counts: Annotated[str, typer.Option(help="Numbers of answers.", rich_help_panel=WHAT)] = "100,300,1000",
    apart: Annotated[
        bool,
        typer.Option("--apart", help="Do not train on the answers: they teach the loss alone.", rich_help_panel=WHAT),
    ] = False,
    seeds: Seeds = 1,
    tasks: Tasks = None,
    results: Results = Path("results"),
    work: Work = Path("bench-runs"),
    device: Device = "auto",
    at_once: AtOnce = None,
    stack: Stack = 1,
    dry_run: DryRun = False,
) -> None:
    """Measure what a person's answers are worth: accuracy by how many samples were reviewed, and which.

    A reviewer who knows the true labels, and errs in 2 %, answers what narl review would ask about a run, or samples
    drawn at random; the next run learns from the answers and is trained on them, and one on them alone. Trains what has
    no result yet. Look at the results with: narl bench show review

    narl bench review --data TREC=trec.npz --seeds 3
    """
    from narl.bench import audits, grid, reviewing, runs
    from narl.bench.cells import Cell
    from narl.bench.protocol import Protocol
    from narl.bench.wanted import of_given
    from narl.bench.work import Place

    place = Place(sources(data), work.resolve(), (results / FOLDER).resolve(), labels, device=device)
    first_place = replace(place, results=place.work / "reviewed")  # kept with its run, which the answers are about
    tables = [*map(reviewing.apart, reviewing.ALL)] if apart else reviewing.ALL
    found = of_given(tables, place, seeds=seeds, tasks=shared.names(tasks), first_seed=audits.FIRST_SEED)
    firsts = {cell: table for cell, table in found.items() if cell.method == reviewing.FIRST}
    needed: dict[Cell, Protocol] = {}
    missing: dict[Cell, Protocol] = {}
    stale: list[tuple[Cell, str]] = []
    for first, table in firsts.items():
        after = reviewing.cells_after(first, shared.names(orders), _numbers(counts))
        found_now = grid.sort(after, table, place)
        own = found_now.missing
        missing |= dict.fromkeys(own, table)
        stale += found_now.stale
        if (own or not first.result(place.results).exists()) and not first.result(first_place.results).exists():
            needed[first] = table
    print(f"{len(needed) + len(missing)} trainings are missing")
    for cell in (*needed, *missing):
        print(f"  {cell.task}, {cell.label}, seed {cell.seed}")
    for change in dict.fromkeys(change for _, change in stale):
        old = [cell.result(place.results) for cell, own in stale if own == change]
        print(
            f"{len(old)} results of before do not count ({change}): remove what is to be trained anew, such as {old[0]}"
        )
    if dry_run or not (needed or missing):
        return
    check(place)
    if needed:
        train(needed, first_place, at_once, stack)
    for first in firsts:
        if (made := first.result(first_place.results)).exists() and not first.result(place.results).exists():
            runs.read_file(made).write(place.results)
    if missing:
        train(missing, place, at_once, stack)


def _numbers(counts: str) -> list[int]:
    try:
        found = [int(one) for one in counts.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise OptionError(f"--counts {counts} are no numbers of answers: give some, such as 100,300,1000")
    return found
