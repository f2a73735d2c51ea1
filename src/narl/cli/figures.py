"""``narl figures``: the paper's figures, from trainings that are finished and from theory."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class Format(str, Enum):
    """Kinds of files, as a choice on the command line."""

    svg = "svg"
    png = "png"
    pdf = "pdf"


class Schedule(str, Enum):
    """Lengths of trainings, as a choice on the command line."""

    short = "short"
    paper = "paper"


def figures(
    numbers: Annotated[
        list[int] | None,
        typer.Argument(help="Figures by their numbers in the paper; all if omitted.", metavar="NUMBER"),
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder with what narl bench run has made.")] = Path("results"),
    out: Annotated[Path, typer.Option(help="Folder for the figures; it is made if it is not there.")] = Path("figures"),
    formats: Annotated[
        list[Format] | None,
        typer.Option("--format", help="Kind of file; give it again for another one.", show_default="svg"),
    ] = None,
    schedule: Annotated[Schedule, typer.Option(help="Which trainings to draw.")] = Schedule.short,
) -> None:
    """Draw the paper's figures 1, 2, 5, 6, 7 and 8.

    Figures whose trainings are missing are named with the command that makes them; the others are drawn. Figure 2 needs
    none.

    narl figures 2 8 --format pdf --format png
    """
    from narl.bench.figures import FIGURES, Library, check_number, draw, folder_for, save
    from narl.errors import ResultsError

    wanted = list(dict.fromkeys(numbers or FIGURES))
    for number in wanted:
        check_number(number)
    library = Library.read(results, schedule.value)
    folder_for(out)
    missing = 0
    for number in wanted:
        try:
            drawing = draw(number, library)
        except ResultsError as error:
            print(f"narl: figure {number} is not drawn: {error}", file=sys.stderr)
            missing += 1
            continue
        for kind in dict.fromkeys(formats or [Format.svg]):
            path = out / f"figure{number}.{kind.value}"
            save(drawing, path)
            print(path)
        print(f"  {drawing.note}")
    if missing and numbers:
        raise typer.Exit(2)
