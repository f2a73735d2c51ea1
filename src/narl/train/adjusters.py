"""Adjusters that were learned before: from files, from the run that learned them, or those that narl ships."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from narl import losses
from narl.adjuster import Adjuster, packs
from narl.adjuster.packs import Pack
from narl.adjuster.pretrained import is_name, open_pack, shipped
from narl.adjuster.turns import meant_for
from narl.errors import OptionError

_KEPT = "source-adjusters.safetensors"
_KEPT_BEFORE = "source-adjuster-{}.safetensors"  # of narl before it kept all in one file
_OF_RUN = "adjuster-{}.safetensors"
_USUAL = "sl"  # its adjusters did best on the tables and images that were drawn to choose on


def load_adjusters(paths: Sequence[str]) -> list[Adjuster]:
    """Learned adjusters: from files, those of a run, or those that narl ships.

    Args:
        paths: adjuster files in order, one file that holds several, one run folder, or a name that
            :meth:`narl.AdjustedLoss.pretrained` takes.

    Returns:
        One adjuster, or its snapshots, which know when they were taken. Files of narl before snapshots knew it have
        them serve even shares.
    """
    if len(paths) == 1 and Path(paths[0]).is_dir() and not is_name(paths[0]):
        return _of_run(Path(paths[0]))
    return [snapshot for path in paths for snapshot in open_pack(path).snapshots]


def _of_run(folder: Path) -> list[Adjuster]:
    found = numbered(folder)
    if not found:
        raise OptionError(f"{folder} holds no adjuster: give a finished run of an A-* method, or adjuster files")
    snapshots = [Adjuster.load(path) for path in found.values()]
    if 0 in found and all(snapshot.taken is None for snapshot in snapshots):
        for number, snapshot in zip(found, snapshots, strict=True):
            snapshot.taken = number / max(found)  # a run of narl before it said so: after each third
    return snapshots


def numbered(folder: Path) -> dict[int, Path]:
    """A run's adjuster files by their number, ascending: 0 is of before the training, the last of its end."""
    before, after = _OF_RUN.split("{}")
    names = {path.name.removeprefix(before).removesuffix(after): path for path in folder.glob(_OF_RUN.format("*"))}
    return {number: names[str(number)] for number in sorted(int(name) for name in names if name.isdecimal())}


def save_adjusters(adjusters: Sequence[Adjuster], folder: Path) -> None:
    """Write what a run has learned to adjust by: the adjuster before the training, then its snapshots."""
    for number, adjuster in enumerate(adjusters):
        adjuster.save(folder / _OF_RUN.format(number))


def keep_adjusters(adjusters: Sequence[Adjuster], folder: Path) -> None:
    """Copy adjusters into a run's folder: a run that is resumed needs no other."""
    if adjusters:
        packs.write(folder / _KEPT, Pack(tuple(adjusters)))


def kept_adjusters(folder: Path) -> tuple[str, ...]:
    """Files of the adjusters that a run has kept, in order."""
    if (folder / _KEPT).exists():
        return (str(folder / _KEPT),)
    return tuple(str(path) for path in sorted(folder.glob(_KEPT_BEFORE.format("*"))))


def digest_of(
    paths: Sequence[str], data: str | None = None, steps: int | None = None, *, noise_rate: bool = True
) -> str:
    """What tells learned adjusters apart, however they are kept; see :func:`narl.adjuster.packs.digest`.

    Args:
        paths: see :func:`load_adjusters`.
        data: the kind of data that they serve on: of adjusters for several kinds, the others do not matter.
        steps: of the training that they serve in; None: not known, so it counts as long.
        noise_rate: whether it counts what they say about the noise rate.
    """
    return packs.digest(meant_for(load_adjusters(paths), data, steps), noise_rate=noise_rate)


def without_clean(loss: str | None = None, kind: str | None = None) -> tuple[str, str | None]:
    """What to train with where nobody has clean samples: a robust loss with the shipped adjuster, or fixed.

    The one place where this is decided.

    Args:
        loss: name of the loss; None: SL.
        kind: of the data, ``"image"``, ``"table"`` or ``"text"``; None: not known yet.

    Returns:
        The method, and the adjuster that it needs; None for a fixed loss, where narl ships no adjuster of it for such
        data.

    Example:
        >>> without_clean("mae")
        ('MAE', None)
    """
    robust = losses.get(_USUAL if loss is None else loss)
    adjuster = shipped(robust.name)
    if adjuster is None or (kind is not None and not _serves(adjuster, kind)):
        return robust.title, None
    return f"T-{robust.title}", adjuster


def _serves(adjuster: str, kind: str) -> bool:
    return any(snapshot.data in (None, kind) for snapshot in open_pack(adjuster).snapshots)
