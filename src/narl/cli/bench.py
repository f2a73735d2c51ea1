"""``narl bench``: what has been measured."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from narl.bench.tables import Table

app = typer.Typer(name="bench", help="Measurements: what they gave.")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="What to show: cost (of a training step, in plain steps).")],
    results: Annotated[Path, typer.Option(help="Folder with the measured files.")] = Path("results"),
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Show results that have been measured.

    narl bench show cost
    """
    from narl.cli.output import print_json
    from narl.errors import OptionError

    if markdown and as_json:
        raise OptionError("--markdown and --json are two ways to print the same: give one of them")
    shown = _shown(name)
    rows = shown.read(results)
    if as_json:
        print_json(rows)
    elif markdown:
        print("\n\n".join(table.markdown() for table in shown.tables(rows)))
    else:
        _print(shown.tables(rows))


def _shown(name: str) -> ModuleType:
    """The module that reads these results and makes tables of them."""
    from narl.bench import cost
    from narl.errors import UnknownNameError, nearest

    known: dict[str, ModuleType] = {"cost": cost}
    if name not in known:
        raise UnknownNameError(f"no results are called {name!r}: {nearest(name, known)}")
    return known[name]


def _print(tables: list[Table]) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console()
    if not console.is_terminal:
        print("\n\n".join(table.text() for table in tables))
        return
    for table in tables:
        drawn = RichTable(
            title=table.title, caption="\n".join(table.notes), title_justify="left", caption_justify="left"
        )
        for number, column in enumerate(table.columns):
            drawn.add_column(column, justify="right" if number else "left")
        for row in table.rows:
            drawn.add_row(*row)
        console.print(drawn)
