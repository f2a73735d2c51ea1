"""``narl review``: check labels in a browser."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from narl.cli.running import told_warnings
from narl.errors import OptionError

if TYPE_CHECKING:
    from narl.audit.review.server import Server

_ANSWERS = "Answers"


def review(
    run: Annotated[Path, typer.Argument(help="The run's folder.", show_default=False)],
    labeller: Annotated[
        str | None,
        typer.Option(help="Your name: answers of different people are kept apart.", show_default="your user name"),
    ] = None,
    order: Annotated[
        str,
        typer.Option(
            help="What comes first in every class. informative: labels of all scores evenly; doubtful: those that may "
            "as well be right as wrong; suspicious: those most likely wrong; random: any."
        ),
    ] = "informative",
    once: Annotated[
        bool, typer.Option("--once", help="Show a sample to one labeller only: more is checked, nothing twice.")
    ] = False,
    port: Annotated[int, typer.Option(help="Port on this machine; 0: any that is free.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in your browser.")] = True,
    export: Annotated[
        Path | None,
        typer.Option(
            help="Write all answers to a .csv, .tsv, .jsonl or .parquet file instead.",
            rich_help_panel=_ANSWERS,
            show_default=False,
        ),
    ] = None,
    agreed: Annotated[
        bool,
        typer.Option(
            "--agreed",
            help="With --export: ids and labels only, of samples that labellers agree on; narl train --clean reads it.",
            rich_help_panel=_ANSWERS,
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the exported file if it exists.", rich_help_panel=_ANSWERS)
    ] = False,
) -> None:
    """Check labels in your browser; what is checked becomes the clean set of the next run.

    narl review run

    narl train DATA --clean run --train-on-clean --out better

    The page is served on this machine only and loads nothing from elsewhere. Answers are kept in the run's folder.
    """
    if export is not None:
        with told_warnings():
            _export(run, export, agreed=agreed, overwrite=overwrite)
        return
    if agreed or overwrite:
        raise OptionError("--agreed and --overwrite are about exported answers: give --export FILE, or leave them out")
    from narl.audit.review.server import Server, check_installed

    check_installed()  # before a large data set is read
    if not 0 <= port < 2**16:
        raise OptionError(f"--port {port} is no port: leave it out, or give a number up to 65535")
    from narl.audit.review.desk import check_name
    from narl.audit.review.opening import open_desk

    name = _user() if labeller is None else labeller
    check_name(name, "labeller")
    with told_warnings():
        desk = open_desk(run, order=order, once=once)
    try:
        server = Server(desk, run=str(run), labeller=name, port=port)
        print(f"{len(desk.contents):,} samples of {run}; open this link, Ctrl-C ends:\n{server.link}", flush=True)
        _serve(server, browser)
    finally:
        desk.close()
    from narl.audit.review.agreement import read_agreed

    found = read_agreed(run)
    print(f"narl: {found.describe()}", file=sys.stderr)
    if found.labels:
        print(f"train with them: narl train DATA --clean {run} --train-on-clean --out BETTER", file=sys.stderr)


def _serve(server: Server, browser: bool) -> None:
    try:
        if browser and _has_screen():
            _open(server.link)
        server.run()
    except KeyboardInterrupt:  # the way to end it
        print(file=sys.stderr)


def _open(link: str) -> None:
    import threading
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()


def _has_screen() -> bool:
    """Whether a browser has somewhere to appear; one in the terminal would be in the way."""
    import os

    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return "me"


def _export(run: Path, path: Path, *, agreed: bool, overwrite: bool) -> None:
    from narl.audit.review import agreement
    from narl.audit.review.answers import FILE, Answers
    from narl.cli.output import check_new, write_table
    from narl.train.run_folder import RunFolder

    RunFolder.open(run)
    check_new(path, overwrite=overwrite)
    answers = Answers(run / FILE, create=False)
    try:
        standing = answers.standing()
    finally:
        answers.close()
    found = agreement.agreed(standing)
    if agreed:
        write_table(path, {"id": [*found.labels], "label": [*found.labels.values()]})
    else:
        no_label = "" if path.suffix.lower() in (".csv", ".tsv") else None
        columns: dict[str, list[str | None]] = {
            "id": [answer.sample for answer in standing],
            "given": [answer.given for answer in standing],
            "answer": [answer.verdict for answer in standing],
            "label": [no_label if answer.label is None else answer.label for answer in standing],
            "labeller": [answer.labeller for answer in standing],
            "at": [answer.at for answer in standing],
        }
        write_table(path, columns)
    count = "1 answer" if len(standing) == 1 else f"{len(standing):,} answers"
    print(f"{count}: {found.describe()}: {path}")
