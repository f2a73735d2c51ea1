"""Adjusters that were learned before, from their files or from the run that learned them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from narl.adjuster import Adjuster
from narl.errors import OptionError

_SERVING = 3
_KEPT = "source-adjuster-{}.safetensors"


def load_adjusters(paths: Sequence[str]) -> list[Adjuster]:
    """Learned adjusters: from files, or those of a run.

    Args:
        paths: adjuster files in order, or one run folder.

    Returns:
        One adjuster or more, each to serve its share of a new training. Of a run they are its adjuster as it was before
        the training, after one third and after two: each then serves from the time on at which it was taken. In the
        paper each serves until then; for that, name the files of the three snapshots.
    """
    files = [Path(path) for path in paths]
    if len(files) > _SERVING:
        raise OptionError(f"{len(files)} adjusters are too many: give one, or three that were taken one after another")
    if len(files) == 1 and files[0].is_dir():
        found = sorted(files[0].glob("adjuster-*.safetensors"))
        if not found:
            raise OptionError(f"{files[0]} holds no adjuster: give a finished run of an A-* method, or adjuster files")
        files = found[:_SERVING]  # runs of narl before it kept adjuster-0 have the three snapshots only
    return [Adjuster.load(path) for path in files]


def keep_adjusters(adjusters: Sequence[Adjuster], folder: Path) -> None:
    """Copy adjusters into a run's folder: a run that is resumed needs no other."""
    for number, adjuster in enumerate(adjusters, start=1):
        adjuster.save(folder / _KEPT.format(number))


def kept_adjusters(folder: Path) -> tuple[str, ...]:
    """Files of the adjusters that a run has kept, in order."""
    return tuple(str(path) for path in sorted(folder.glob(_KEPT.format("*"))))
