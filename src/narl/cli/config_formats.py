"""The formats of configuration files: bytes in, keys and values out, one refusal for everything malformed."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from narl.errors import ConfigError

Settings: TypeAlias = list[tuple[str, Any]]

FLAT = "write every flag on the outermost level"  # the way out of every kind of nesting


def parse(content: bytes, path: Path) -> Settings:
    """The keys and values of a configuration file, in order, perhaps with a key twice.

    Args:
        content: of the file.
        path: its name: the suffix decides the format, one of :data:`FORMATS`; messages begin with it.

    Raises:
        ConfigError: for bytes that are not one table in this format.

    Example:
        >>> parse(b"epochs: 30\\nclean: none", Path("run.yaml"))
        [('epochs', 30), ('clean', 'none')]
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text in UTF-8 (byte {error.start}): save it as UTF-8") from error
    if not text.strip():
        return []
    try:
        return FORMATS[path.suffix.lower()](text, path)
    except RecursionError as error:
        raise ConfigError(f"{path} is nested too deeply: {FLAT}") from error
    except ConfigError:
        raise
    except ValueError as error:  # a number of more digits than Python reads
        raise _syntax(path, str(error)) from error


# The parser's memory grows with the square of a dotted key's length; a file of flags has a few dots.
_MOST_DOTS = 2000


def _toml(text: str, path: Path) -> Settings:
    if text.count(".") > _MOST_DOTS:
        raise ConfigError(f"{path} is nested too deeply: {FLAT}")
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        return list(tomllib.loads(text).items())
    except tomllib.TOMLDecodeError as error:
        raise _syntax(path, str(error)) from error


def _json(text: str, path: Path) -> Settings:
    def constant(name: str) -> NoReturn:
        raise ConfigError(f"{path} holds {name}, but a finite number is needed: write one")

    def pairs(entries: list[tuple[str, Any]]) -> _Table:
        return _Table(entries)

    try:
        table = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise _syntax(path, error.msg, error.lineno, error.colno) from error
    if not isinstance(table, _Table):
        raise _no_table(path)
    return table.entries


class _Table(dict[str, Any]):
    """A JSON object that remembers keys that came twice."""

    def __init__(self, entries: Settings) -> None:
        super().__init__(entries)
        self.entries = entries


def _yaml(text: str, path: Path) -> Settings:
    import yaml

    # Events, not objects: nothing is ever constructed, so there are no tags to obey, no aliases to expand and no depth.
    events = yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    try:
        return _settings(events, path)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _syntax(path, str(error.problem or error.context), mark.line + 1, mark.column + 1) from error
    except yaml.reader.ReaderError as error:
        raise _syntax(path, str(error.reason)) from error


def _settings(events: Iterator[Any], path: Path) -> Settings:
    import yaml

    settings: Settings = []
    table = False  # whether the document's mapping has begun
    key: str | None = None
    entries: list[Any] | None = None  # of the list being read
    for event in events:
        here = f"{path} line {event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(f"{here}: refers to another place with '*', which is not read: write the value itself")
        if getattr(event, "tag", None) is not None:
            raise ConfigError(f"{here}: has the tag {event.tag[:60]!a}, which is not read: write a plain value")
        if isinstance(event, yaml.DocumentStartEvent) and table:
            raise ConfigError(f"{here}: a second document begins: keep one")
        if isinstance(event, yaml.MappingStartEvent):
            if table:
                raise ConfigError(f"{here}: settings are not nested: {FLAT}")
            table = True
        elif isinstance(event, yaml.SequenceStartEvent):
            if not table:
                raise _no_table(path)
            if key is None or entries is not None:
                raise ConfigError(f"{here}: a list in a list, or as a name: give a flat list of values")
            entries = []
        elif isinstance(event, yaml.SequenceEndEvent):
            settings.append((str(key), entries))
            key, entries = None, None
        elif isinstance(event, yaml.ScalarEvent):
            if not table:
                if event.value == "" and not event.style:  # '---' and nothing after it
                    continue
                raise _no_table(path)
            if key is None:
                key = event.value
            elif entries is not None:
                entries.append(_scalar(event))
            else:
                settings.append((key, _scalar(event)))
                key = None
    return settings


# The core schema of YAML 1.2, which is what people expect: 'no' and '12:30' are text and 1e-3 is a number. Numbers with
# leading zeros stay text, so that no digit of a name gets lost.
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"-?(0|[1-9][0-9]*)")
NUMBER = re.compile(r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")


def _scalar(event: Any) -> Any:
    text: str = event.value
    if event.style:  # in quotes, or a block of text
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if NUMBER.fullmatch(text) else text


def _no_table(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} holds a single value or a list, but settings have names: write lines such as epochs: 30"
    )


def _syntax(path: Path, reason: str, line: int | None = None, column: int | None = None) -> ConfigError:
    where = "" if line is None else f" line {line} column {column}"
    reason = " ".join(ascii(reason)[1:-1].split())[:200]
    return ConfigError(f"{path}{where} is not written as {path.suffix.lower()} should be: {reason}")


FORMATS: Mapping[str, Callable[[str, Path], Settings]] = {".toml": _toml, ".yaml": _yaml, ".yml": _yaml, ".json": _json}
