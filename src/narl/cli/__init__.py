"""The command line: parse, call, print."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

import typer
from typer.main import get_command

from narl._version import __version__
from narl.cli.audit import audit
from narl.cli.bench import app as bench
from narl.cli.demo import demo
from narl.cli.figures import figures
from narl.cli.noise import noise
from narl.cli.predict import predict
from narl.cli.review import review
from narl.cli.train import train
from narl.cli.transfer import transfer
from narl.errors import NarlError

app = typer.Typer(
    name="narl",
    help="Train classifiers on wrongly labelled data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"narl {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version and leave."
    ),
) -> None:
    """Train classifiers on wrongly labelled data."""


for command in (demo, train, transfer, predict, audit, review, noise, figures):
    app.command()(command)
app.add_typer(bench)


_INTERRUPTED = 130


def main() -> None:
    """Run the command line; what narl or the parser refuses ends in one line, not in a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a class name may have letters that the terminal has not
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _parser()(_or_help(sys.argv[1:]), standalone_mode=False)
    except NarlError as error:
        _refuse(str(error), error)
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except Exception as error:
        message = getattr(error, "format_message", None)  # of the parser; its classes moved between versions of typer
        if message is None:
            raise
        _refuse(f"{message()} ({' '.join(['narl', *_known(sys.argv[1:]), '--help'])})")
    if code == _INTERRUPTED and _speaks():  # newer typer makes this of Ctrl-C
        print("narl: interrupted", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


@cache
def _parser() -> Callable[..., Any]:
    """What typer makes of all commands; it reads every signature anew, so once has to do for many calls."""
    return get_command(app)


def _or_help(arguments: list[str]) -> list[str]:
    """The arguments, or a wish for help where they name no command."""
    whole = not arguments or (len(arguments) == 1 and _commands(app).get(arguments[0]) is not None)
    return [*arguments, "--help"] if whole else arguments


def _known(arguments: list[str]) -> list[str]:
    """The names of commands at the beginning: ``bench show`` of ``bench show cost``."""
    group: typer.Typer | None = app
    names: list[str] = []
    for argument in arguments:
        inside = {} if group is None else _commands(group)
        if argument not in inside:
            break
        names.append(argument)
        group = inside[argument]
    return names


def _commands(group: typer.Typer) -> dict[str, typer.Typer | None]:
    """What a group has: commands, and groups of commands with what they have."""
    found: dict[str, typer.Typer | None] = {}
    for command in group.registered_commands:
        found[str(command.name or getattr(command.callback, "__name__", ""))] = None
    for inside in group.registered_groups:
        if inside.typer_instance is not None:
            found[str(inside.typer_instance.info.name)] = inside.typer_instance
    return found


def _refuse(message: str, error: NarlError | None = None) -> NoReturn:
    if _speaks(error):
        print(f"narl: {' '.join(message.splitlines())}", file=sys.stderr)  # a file's name may hold a newline
    sys.exit(2)


def _speaks(error: NarlError | None = None) -> bool:
    """Whether this process is the one of several that prints."""
    if os.environ.get("WORLD_SIZE", "1") == "1":  # without torchrun nothing needs to be loaded
        return True
    from narl.train.distributed import speaks

    return speaks(error)
