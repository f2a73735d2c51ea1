"""Options that several ``narl bench`` commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

WHAT, WHERE = "What", "Where"

Data = Annotated[
    list[str],
    typer.Option(
        help="A data set, NAME=PATH, once each: CIFAR-10, digits, penbased, letter, TREC.",
        rich_help_panel=WHERE,
        show_default=False,
    ),
]
Labels = Annotated[
    str | None, typer.Option(help="CIFAR-10N's file of labels.", rich_help_panel=WHERE, show_default=False)
]
Seeds = Annotated[int, typer.Option(help="Trainings of each cell, with seeds 1, 2, …", rich_help_panel=WHAT)]
Tasks = Annotated[
    list[str] | None,
    typer.Option(
        help="Some only, by data set, noise or both: cifar-10n/worst,letter.",
        rich_help_panel=WHAT,
        show_default="all whose data is given",
    ),
]
Results = Annotated[Path, typer.Option(help="Folder of the results.", rich_help_panel=WHERE)]
Work = Annotated[Path, typer.Option(help="Folder of the runs: checkpoints, models, records.", rich_help_panel=WHERE)]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: GPUs where there are some.", rich_help_panel=WHERE)]
AtOnce = Annotated[
    int | None,
    typer.Option(help="Processes at a time.", rich_help_panel=WHERE, show_default="6 on a GPU that MPS shares, else 1"),
]
Stack = Annotated[
    int,
    typer.Option(
        help="Trainings of a process that are done as one where they go together: on GPUs.", rich_help_panel=WHERE
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what is missing, train nothing.")]
Discard = Annotated[
    bool, typer.Option("--discard", help="Remove a run's folder when its result is written.", rich_help_panel=WHERE)
]
