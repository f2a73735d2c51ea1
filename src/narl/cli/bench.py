"""``narl bench``: what has been measured."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narl.cli.bench_adjusters import adjusters
from narl.cli.bench_audit import audit, cleanlab
from narl.cli.bench_pack import pack
from narl.cli.bench_review import review
from narl.cli.bench_run import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narl.bench.protocol import Protocol
    from narl.bench.runs import Run
    from narl.bench.tables import Table

app = typer.Typer(name="bench", help="The paper's tables, and other measurements.")
app.command()(run)
app.command()(adjusters)
app.command()(pack)
app.command()(audit)
app.command()(cleanlab)
app.command()(review)
_OWN = ("cost", "audit", "review")  # measurements that are no tables of accuracies


@app.command()
def show(
    name: Annotated[
        str,
        typer.Argument(
            help="cost: of a training step, in plain steps. table1, table2, table3, table4, table5, table6: the "
            "paper's tables. cifar10n: labels by people. systems: boosted losses beside DivideMix and others. "
            "figure5, figure6: what these are drawn from. adjusters: the tasks that adjusters were learned from. "
            "transfer: the shipped adjusters on data that they were not learned on. audit: how well wrong labels are "
            "found. review: what a person's answers are worth. Or a JSON file with a table of your own."
        ),
    ],
    results: Annotated[Path, typer.Option(help="Folder with the measured files.")] = Path("results"),
    schedule: Annotated[
        str | None,
        typer.Option(help="Of tables: short or paper.", show_default="all that have been trained"),
    ] = None,
    variants: Annotated[
        bool, typer.Option("--variants", help="Of tables: cells with options, and tuned ones, as rows of their own.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Show results that have been measured, beside the paper's.

    narl bench show table1
    """
    from narl.cli.output import print_json
    from narl.errors import OptionError

    if markdown and as_json:
        raise OptionError("--markdown and --json are two ways to print the same: give one of them")
    if name in _OWN and (schedule is not None or variants):
        raise OptionError(f"--schedule and --variants are of tables: {name} has neither, leave them out")
    own = {"cost": _cost, "audit": _audit, "review": _review}
    rows, tables = own[name](results) if name in own else _compared(name, results, schedule, variants)
    if as_json:
        print_json(rows)
    elif markdown:
        print("\n\n".join(table.markdown() for table in tables))
    else:
        _print(tables)


def _cost(results: Path) -> tuple[list[dict[str, Any]], list[Table]]:
    from narl.bench import cost

    rows = cost.read(results)
    return rows, cost.tables(rows)


def _audit(results: Path) -> tuple[list[dict[str, Any]], list[Table]]:
    from narl.bench import audit_table, audits

    rows = audit_table.rows(_current(results / "audit", audits.ALL))
    if not rows:
        _nothing_yet("audits", results / "audit")
    return rows, audit_table.tables(rows)


def _review(results: Path) -> tuple[list[dict[str, Any]], list[Table]]:
    from narl.bench import review_table, reviewing

    tables = [*reviewing.ALL, *map(reviewing.apart, reviewing.ALL)]
    rows = review_table.rows(_current(results / "review", tables))
    if not rows:
        _nothing_yet("reviews", results / "review")
    return rows, review_table.tables(rows)


def _current(results: Path, tables: Sequence[Protocol]) -> list[Run]:
    """The results that are there, without those whose table has changed since."""
    from narl.bench import comparison, runs
    from narl.bench.asked import difference

    found: list[Run] = []
    left_out: list[Run] = []
    for one in runs.read(results):
        changes = [difference(one, table) for table in tables if comparison.belongs(one, table)]
        (left_out if any(changes) else found).append(one)
    if left_out:
        print(f"narl: {len(left_out)} of the results are left out: their table has changed since", file=sys.stderr)
    return found


def _compared(
    name: str, results: Path, schedule: str | None, variants: bool
) -> tuple[list[dict[str, Any]], list[Table]]:
    from narl.bench import comparison, own_table, runs
    from narl.errors import ResultsError, UnknownNameError, nearest

    own = name.endswith(".json")
    if not own and name not in comparison.NAMES:
        raise UnknownNameError(f"no results are called {name!r}: {nearest(name, [*_OWN, *comparison.NAMES])}")
    if results.exists() and not results.is_dir():
        raise ResultsError(f"{results} is a file: give the folder of the results")
    table = own_table.read(Path(name)) if own else name
    there = runs.read(results)
    rows = comparison.rows(table, there, schedule, variants=variants)
    if stale := comparison.stale(table, there):
        print(
            f"narl: {len(stale)} of the results are left out: the table has changed since ({stale[0]})", file=sys.stderr
        )
    if not any(row["seeds"] for row in rows):
        _nothing_yet(name, results / "runs")
    return rows, comparison.tables(table, rows)


def _nothing_yet(name: str, folder: Path) -> None:
    print(
        f"narl: nothing of {name} has been run yet under {folder}; results elsewhere, such as those of narl's "
        "repository, are shown with --results FOLDER",
        file=sys.stderr,
    )


def _print(tables: list[Table]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table as RichTable

    console = Console()
    if not console.is_terminal:
        print("\n\n".join(table.text() for table in tables))
        return
    for table in tables:
        drawn = RichTable(
            title=table.title,
            caption="\n".join([*table.notes, ""]),
            title_justify="left",
            caption_justify="left",
            box=SIMPLE_HEAD,  # narrow: a table of the paper fits into 120 columns
            show_edge=False,
            pad_edge=False,
            collapse_padding=True,
        )
        for number, column in enumerate(table.columns):
            drawn.add_column(column, justify="right" if number else "left", overflow="fold")
        for row in table.rows:
            drawn.add_row(*map(escape, row))  # an option may be a list, which looks like markup
        console.print(drawn)
