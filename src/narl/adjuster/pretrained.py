"""Adjusters that were learned before: those that narl ships, files, and those of the Hugging Face hub.

``weights/`` has a file and a model card for each release, ``gce-1.safetensors`` and ``gce-1.md``, and ``SHA256SUMS``,
which says what is shipped; nothing is loaded whose checksum is another one.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import final

from narl._version import __version__
from narl.adjuster import packs
from narl.adjuster.hub import PREFIX as HUB
from narl.adjuster.hub import download
from narl.adjuster.packs import Pack
from narl.errors import AdjusterFileError, UnknownNameError, nearest

WEIGHTS = Path(__file__).parent / "weights"
SUMS = "SHA256SUMS"
SHIPPED = "narl:"  # before a name: the shipped one is meant, whatever files there are
_ON_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@\S+)?")


@final
@dataclass(frozen=True)
class Release:
    """An adjuster that narl ships.

    Args:
        name: with its version, ``"gce-1"``.
        loss: that it adjusts.
        version: of the adjuster.
        data: what it is for: ``"any data"``, or the kinds of data; with adjusters of their own for some kinds.
        input: what it sees of a sample.
        snapshots: how many there are of it.
        trained_on: data and tasks.
        sha256: of its file.
        path: of its file; the model card lies beside it.
    """

    name: str
    loss: str
    version: str
    data: str
    input: str
    snapshots: int
    trained_on: str
    sha256: str
    path: Path

    @property
    def card(self) -> str:
        """The model card: data, tasks, protocol, results, where it fails, licence."""
        return self.path.with_suffix(".md").read_text("utf-8")


@final
class Releases(tuple[Release, ...]):
    """Adjusters that narl ships, as a tuple that prints as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        """A line each."""
        if not self:
            return (
                f"narl {__version__} ships no adjusters yet: narl bench adjusters learns them, and "
                "narl.AdjustedLoss.pretrained takes their files"
            )
        lines = [("name", "loss", "version", "for", "sha256")]
        lines += [(r.name, r.loss, r.version, r.data, r.sha256[:12]) for r in self]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def pretrained() -> Releases:
    """The adjusters that narl ships.

    Returns:
        A :class:`Release` each, by name; printed, a table. What it has learned from and where it fails is in its
        ``card``.

    Example:
        >>> for release in pretrained():
        ...     assert release.name == f"{release.loss}-{release.version}"
    """
    found = [_release(name, checksum) for name, checksum in _sums().items()]
    return Releases(sorted(found, key=lambda release: (release.loss, _number(release.version))))


def shipped(loss: str) -> str | None:
    """How the newest shipped adjuster of a loss is called, for :func:`open_pack`; None: there is none.

    Example:
        >>> shipped("mae") is None
        True
    """
    known = sorted((name for name in _sums() if name.rpartition("-")[0] == loss), key=_number_of)
    return f"{SHIPPED}{known[-1]}" if known else None


def open_pack(name: str | PathLike[str], *, sha256: str | None = None, bare: bool = False) -> Pack:
    """The snapshots of an adjuster that was learned before.

    Args:
        name: see :meth:`narl.AdjustedLoss.pretrained`.
        sha256: what the file must have.
        bare: whether ``owner/repo`` may mean the hub; where paths are expected, a mistyped one must not.

    Raises:
        UnknownNameError: none is called so.
        AdjusterFileError: the file is damaged, or another one than it should be.
    """
    if not isinstance(name, str | PathLike):
        raise UnknownNameError(f"{name!r} names no adjuster: give a string, 'gce' or 'sl-1', or a path")
    path, expected = _located(os.fspath(name), bare)
    for wanted in (expected, sha256):
        if wanted is not None and (found := packs.sha256(path)) != wanted.lower():
            raise AdjusterFileError(
                f"{path} is another file than it should be: its SHA-256 is {found}, not {wanted.lower()}; get it again"
            )
    return packs.read(path)


def is_name(name: str) -> bool:
    """Whether a name is no path here: of a shipped adjuster, or of one on the hub."""
    if name.startswith((SHIPPED, HUB)):
        return True
    return not Path(name).exists() and _release_of(name) is not None


def _located(name: str, bare: bool) -> tuple[Path, str | None]:
    """Where the file is, and the checksum that it must have, where one is known."""
    if name.startswith(HUB):
        return download(name.removeprefix(HUB)), None
    asked = name.removeprefix(SHIPPED)
    if asked == name and Path(name).exists():
        return Path(name), None
    release = _release_of(asked)
    if release is not None:
        return WEIGHTS / f"{release}.safetensors", _sums()[release]
    if bare and asked == name and _ON_HUB.fullmatch(name) and not name.endswith(".safetensors"):
        return download(name), None
    if asked == name and (name.endswith(".safetensors") or len(Path(name).parts) > 1):
        raise AdjusterFileError(f"there is no file {name}: check the path")
    known = _sums()
    losses = sorted({release.rpartition("-")[0] for release in known})
    way = nearest(asked, [*losses, *known]) if known else "none is shipped yet; narl bench adjusters learns them"
    raise UnknownNameError(f"no shipped adjuster is called {asked!r}: {way}. A file of your own is given by its path")


def _release_of(name: str) -> str | None:
    """The release that is meant: the newest of a loss, or one by its version."""
    asked, known = name.lower(), _sums()
    if asked in known:
        return asked
    newest = shipped(asked)
    return None if newest is None else newest.removeprefix(SHIPPED)


def _sums() -> dict[str, str]:
    """Checksums of the shipped files, by name and version."""
    try:
        lines = (WEIGHTS / SUMS).read_text("utf-8").splitlines()
    except FileNotFoundError:
        return {}
    pairs = [line.split() for line in lines if line.strip()]
    return {name.removesuffix(".safetensors"): checksum for checksum, name in pairs}


def _release(name: str, checksum: str) -> Release:
    path = WEIGHTS / f"{name}.safetensors"
    pack = open_pack(f"{SHIPPED}{name}")
    return Release(
        name=name,
        loss=pack.loss,
        version=pack.version,
        data=pack.data,
        input=pack.input,
        snapshots=len(pack.snapshots),
        trained_on=pack.trained_on,
        sha256=checksum,
        path=path,
    )


def _number_of(name: str) -> tuple[int, ...]:
    return _number(name.rpartition("-")[2])


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
