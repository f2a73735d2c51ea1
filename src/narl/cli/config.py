"""``--config FILE``: a command's flags from a TOML, YAML or JSON file."""

from __future__ import annotations

import difflib
import io
import math
import types
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from narl.cli.config_formats import FLAT, FORMATS, NUMBER, parse
from narl.errors import ConfigError, nearest

# A file with every flag set takes a few kB; the rest is a mistake or an attack on the parser.
MOST_BYTES = 2**20


# Flags that take names of columns with commas between: a list says the same.
_COLUMNS = ("numbers", "categories", "ignore")
# And one that takes numbers so.
_NUMBERS = ("milestones",)


def read_config(path: Path, known: Mapping[str, Any], aliases: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The settings in a configuration file, checked against the settings that there are.

    Keys are the flags without their dashes; ``-`` and ``_`` are the same. The file is one flat table: values are
    texts, numbers, true or false, and lists where a flag may be repeated or takes several with commas between. An empty
    file sets nothing.

    Args:
        path: a file ending in .toml, .yaml, .yml or .json, in UTF-8.
        known: for each key the type of its value, as annotated: bool, int, float, str, Path, an enumeration, a list of
            these, each perhaps ``| None``.
        aliases: other spellings of keys, and the keys they stand for.

    Returns:
        The values by the keys as spelt in ``known``, of their types but for paths and enumerations, which stay text.

    Raises:
        ConfigError: for a file that cannot be read, an unknown key, or a value of another type.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = Path(folder.name, "run.toml")
        >>> _ = path.write_text("epochs = 30\\nskip_unreadable = true")
        >>> read_config(path, {"epochs": int, "skip-unreadable": bool})
        {'epochs': 30, 'skip-unreadable': True}
        >>> folder.cleanup()
    """
    settings: dict[str, Any] = {}
    spelling = {_dashed(alias): key for alias, key in (aliases or {}).items()} | {_dashed(key): key for key in known}
    for given, value in parse(_read(path), path):
        if isinstance(value, dict):
            raise ConfigError(f"{path}: {_shown(given)} is a table, but settings are not nested: {FLAT}")
        if _dashed(given) not in spelling:
            raise ConfigError(f"{path}: nothing is called {_shown(given)}: {nearest(_dashed(given)[:80], known)}")
        key = spelling[_dashed(given)]
        if key in settings:
            raise ConfigError(f"{path}: {key} is set twice: keep one of the two")
        settings[key] = _checked(value, known[key], key, path)
    return settings


def load_config(context: typer.Context, path: Path | None) -> Path | None:
    """Take a file's settings as the defaults of the command being run, so that its flags go before them.

    To be the callback of an eager option: see :data:`ConfigFile`.

    Args:
        context: the command being run.
        path: the file; None sets nothing.

    Returns:
        The path as it came.

    Raises:
        ConfigError: as :func:`read_config` does, and for a value that the flag would refuse.
    """
    if path is None or context.resilient_parsing:
        return path
    annotations = get_type_hints(context.command.callback)
    parameters = {
        _key(parameter): parameter
        for parameter in context.command.params
        if parameter.name in annotations and not parameter.is_eager
    }
    known = {key: annotations[str(parameter.name)] for key, parameter in parameters.items()}
    aliases = {flag.lstrip("-"): key for key, parameter in parameters.items() for flag in parameter.opts}
    settings = read_config(path, known, aliases)
    defaults = dict(context.default_map or {})
    for key, value in settings.items():
        parameter = parameters[key]
        try:
            parameter.process_value(context, value)
        except typer.BadParameter as error:
            reason = " ".join(error.message.split()).rstrip(".")
            raise ConfigError(f"{path}: {key} is {_shown(value)}: {reason}") from error
        defaults[str(parameter.name)] = value
    context.default_map = defaults
    return path


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        callback=load_config,
        is_eager=True,
        show_default=False,
        help="Take flags from a .toml, .yaml or .json file: a line a flag, such as 'epochs: 30', without dashes. Flags "
        "given here go before it; relative paths in it start from the current folder, not from the file's.",
    ),
]


def _key(parameter: Any) -> str:
    long = [flag for flag in parameter.opts if flag.startswith("--")]
    return long[0].removeprefix("--") if long else str(parameter.name)


def _dashed(key: str) -> str:
    return key.replace("_", "-")


def _read(path: Path) -> bytes:
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"{path} is no configuration file: let the name end in {', '.join(FORMATS)}")
    try:
        there, is_file = path.exists(), path.is_file()
        with path.open("rb") if is_file else io.BytesIO() as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not there:
        raise ConfigError(f"the configuration file {path} does not exist: {_way_out(path)}")
    if not is_file:
        raise ConfigError(f"{path} is not a file: give one that ends in {', '.join(FORMATS)}")
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{path} is larger than 1 MB, which no configuration is: give a file of flags")
    return content


def _way_out(path: Path) -> str:
    try:
        siblings = [other.name for other in path.parent.iterdir() if other.suffix.lower() in FORMATS]
    except OSError:
        return f"nor can its folder {path.parent} be read; check the path"
    close = difflib.get_close_matches(path.name, siblings, n=1, cutoff=0.5)
    return f"did you mean {path.parent / close[0]}?" if close else "check the path"


def _checked(value: Any, annotation: Any, key: str, path: Path) -> Any:
    kind = _without_none(annotation)

    def refusal(wanted: str) -> ConfigError:
        return ConfigError(f"{path}: {key} is {_shown(value)}, but {wanted}")

    if get_origin(kind) in (list, tuple):
        inner = get_args(kind)[0]
        if isinstance(value, list) and key in _COLUMNS and any("," in str(name) for name in value):
            raise refusal("names of columns are told apart by commas: rename the column that has one")
        if not isinstance(value, list):
            return [_checked(value, inner, key, path)]
        return [_checked(entry, inner, f"an entry of {key}", path) for entry in value]
    if value is None:
        raise refusal("a setting needs a value: give one, or leave the line out for the default")
    if not isinstance(value, str) and kind is str and key in _NUMBERS:
        entries = value if isinstance(value, list) else [value]
        return ",".join(repr(_checked(entry, float, f"an entry of {key}", path)) for entry in entries)
    if isinstance(value, list | dict):
        raise refusal("it takes one value: take the brackets away")
    if kind is bool:
        if not isinstance(value, bool):
            raise refusal("it is a switch: write true or false, without quotes")
        return value
    if kind is int or kind is float:
        number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
        if not number:
            what = "whole number" if kind is int else "number"
            if isinstance(value, str) and NUMBER.fullmatch(value):
                raise refusal(f"a {what} is needed: write it without quotes")
            raise ConfigError(f"{path}: {key} must be a {what}, got {_shown(value)}")
        return value if kind is int else _finite(value, refusal("a finite number is needed: write a smaller one"))
    if isinstance(kind, type) and issubclass(kind, Enum):
        choices = [str(member.value) for member in kind]
        if str(value) not in choices or isinstance(value, bool):
            raise refusal(f"that is no choice: {nearest(str(value)[:80], choices)}")
        return str(value)
    if isinstance(value, float) and 0 < value < 1:
        return repr(value)  # a share, such as test: 0.2; of other numbers 1.10 would become 1.1
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise refusal("a text is needed: put it in quotes")
    if isinstance(value, str) and ("\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value)):
        raise refusal("it holds a character that no text has: take it out")
    return str(value)


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        return next(part for part in get_args(annotation) if part is not type(None))
    return annotation


def _finite(value: float, refusal: ConfigError) -> float:
    try:
        number = float(value)
    except OverflowError:
        raise refusal from None
    if not math.isfinite(number):
        raise refusal
    return number


def _shown(value: object) -> str:
    # ascii(): whatever the file holds, the message is one line that every terminal can print.
    try:
        text = (
            ascii(value) if not isinstance(value, bool | None) else {True: "true", False: "false", None: "null"}[value]
        )
    except (RecursionError, ValueError):  # ValueError: a number of more digits than Python prints
        return f"a very large {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."
