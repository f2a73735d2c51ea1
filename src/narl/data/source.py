"""What every source gives, and what is asked of it."""

from __future__ import annotations

import difflib
import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from narl.data.class_labels import ClassLabels
from narl.data.columns import DETECTED, Columns
from narl.data.samples import Inputs
from narl.errors import DataError

_LONGEST_ID = 1000


@final
@dataclass(frozen=True)
class Request:
    """What is wanted from a source.

    Args:
        part: ``"train"`` or ``"test"``.
        columns: what the columns of a table, or the arrays of a file, are.
        labelled: whether labels are looked for.
        optional: whether it is no error that there are none.
        classes: the training set's class names, where they are known.
        check_files: refuse image files that don't exist.
        true_labels: whether the user can say which column has the true labels.
    """

    part: str = "train"
    columns: Columns = DETECTED
    labelled: bool = True
    optional: bool = False
    classes: tuple[str, ...] | None = None
    check_files: bool = True
    true_labels: bool = True


@final
@dataclass(frozen=True, eq=False)
class Found:
    """What a source holds.

    Args:
        inputs: N samples.
        ids: ``(N,)``.
        labels: the given labels, None where there are none.
        true_labels: the true ones where they are known, with the same class names.
        columns: the request's columns, completed by what was detected, where there are columns.
    """

    inputs: Inputs
    ids: NDArray[np.str_]
    labels: ClassLabels | None = None
    true_labels: ClassLabels | None = None
    columns: Columns | None = None


class Layout(ABC):
    """A way to lay out samples in a file or folder."""

    name: str

    @abstractmethod
    def matches(self, path: Path) -> bool:
        """Whether the file or folder, which exists, looks like it."""

    @abstractmethod
    def read(self, path: Path, request: Request) -> Found:
        """The samples, or an error that says what is not as it should be."""

    def parts(self, path: Path) -> frozenset[str]:
        """The parts it tells apart; none: it is one set, whatever part is asked for."""
        return frozenset()


def string_array(words: Sequence[str] | NDArray[np.object_], what: str) -> NDArray[np.str_]:
    """Ids or paths as an array that holds them verbatim."""
    longest = max(map(len, words), default=0)
    if longest > _LONGEST_ID:
        raise DataError(f"{what} has an entry of {longest} characters: at most {_LONGEST_ID} are read; shorten it")
    if any("\0" in word for word in words):
        raise DataError(f"{what} has an entry with a NUL character: remove it")
    return np.array(words, dtype=f"U{max(longest, 1)}")


def read_lines(path: Path) -> list[str]:
    """The lines of a small text file, without their ends; empty ones are left out."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"there is no file {path}: {nearest_file(path)}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {as_utf8(path)}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    return [line for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n") if line.strip()]


def as_utf8(path: Path, encoding: str = "latin1") -> str:
    """The end of a message about a file in another encoding: how to convert it.

    Example:
        >>> as_utf8(Path("a.csv"))
        'save it as UTF-8, or convert it: iconv -f latin1 -t utf-8 a.csv > a-utf8.csv'
    """
    new = path.with_name(f"{path.stem}-utf8{path.suffix}")
    command = f"iconv -f {encoding} -t utf-8 {shlex.quote(str(path))} > {shlex.quote(str(new))}"
    return f"save it as UTF-8, or convert it: {command}"


def nearest_file(path: Path) -> str:
    """The end of a message about a missing file: the sibling that is spelled most alike."""
    try:
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    except OSError:
        siblings = []
    close = difflib.get_close_matches(path.name, siblings, n=1, cutoff=0.6)
    return f"did you mean {path.parent / close[0]}?" if close else "check the path"


def first_missing(root: Path, paths: Iterable[str]) -> str | None:
    """The first path that is no file under the root."""
    start = os.fspath(root)
    return next((path for path in paths if not os.path.isfile(os.path.join(start, path))), None)
