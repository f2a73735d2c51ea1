"""The command line: parse, call, print."""

from __future__ import annotations

import io
import sys
from typing import NoReturn

import typer

from narl._version import __version__
from narl.cli.demo import demo
from narl.cli.noise import noise
from narl.cli.predict import predict
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


for command in (demo, train, transfer, predict, noise):
    app.command()(command)


_INTERRUPTED = 130


def main() -> None:
    """Run the command line; what narl or the parser refuses ends in one line, not in a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a class name may have letters that the terminal has not
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except NarlError as error:
        _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except Exception as error:
        message = getattr(error, "format_message", None)  # of the parser; its classes moved between versions of typer
        if message is None:
            raise
        _refuse(f"{message()} (narl {sys.argv[1] if _knows(sys.argv[1]) else ''} --help)".replace("  ", " "))
    if code == _INTERRUPTED:  # newer typer makes this of Ctrl-C
        print("narl: interrupted", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _knows(command: str) -> bool:
    """Whether there is a command of that name."""
    return any((info.name or getattr(info.callback, "__name__", "")) == command for info in app.registered_commands)


def _refuse(message: str) -> NoReturn:
    print(f"narl: {' '.join(message.splitlines())}", file=sys.stderr)  # a file's name may hold a newline
    sys.exit(2)
