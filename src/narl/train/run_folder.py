"""The folder of a run: whatever stops the run, the folder is a run that can be resumed, or says that it never began.

``RUN/``
    ``config.json``
        what the run was asked to do. Written last: a folder with it is a run, a folder without is none.
    ``environment.json``
        hardware and versions.
    ``metrics.jsonl``, ``times.jsonl``
        one record an epoch; what depends on the clock stands apart, so that metrics can be compared byte for byte.
    ``checkpoints/``
        where to go on from.
    ``summary.json``, ``model.safetensors``, ``encoder.json``, ``adjuster-0….safetensors``
        the result.
    ``source-adjusters.safetensors``
        the adjusters that a transferred method was given.
    ``samples.npy``, ``samples.json``
        margins, hyperparameters and rivals of every sample by epoch, and its given label.
    ``tuning/``, ``tuning.json``
        runs that chose the hyperparameters, where it was asked for.
    ``tensorboard/``
        what TensorBoard shows, where it is installed.
    ``review.sqlite``, ``checked-….csv``
        what people answered about the labels, and lists of what they agreed on. A run that is overwritten keeps them.
    ``.lock``
        says that the folder is narl's, and which process uses it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any, final

from narl import atomic
from narl._version import __version__
from narl.errors import RunFolderError
from narl.train import lock, writing
from narl.train.checkpoint import Checkpoints

KIND = "narl run"
FORMAT = 1
RESULTS = (
    "metrics.jsonl",
    "times.jsonl",
    "summary.json",
    "model.safetensors",
    "encoder.json",
    "source-adjusters.safetensors",
    "samples.npy",
    "samples.json",
    "tuning.json",
)
"""What a run writes beside its configuration, and ``--overwrite`` removes."""
# The same, as many as there are; the second of runs of narl before it kept them in one file.
NUMBERED = ("adjuster-[0-9]*.safetensors", "source-adjuster-[1-3].safetensors")


@final
class RunFolder:
    """A run's files. Use :meth:`create` for a new run and :meth:`open` for one that is there.

    Args:
        path: the folder.
        config: what its ``config.json`` holds.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     run = RunFolder.create(f"{parent}/run", config={"epochs": 2}, environment={})
        ...     with run.lock():
        ...         run.append_metrics({"epoch": 1, "accuracy": 0.5})
        ...     again = RunFolder.open(f"{parent}/run")
        ...     again.config, again.metrics()
        ({'epochs': 2}, [{'epoch': 1, 'accuracy': 0.5}])
    """

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path = path
        self._config = config

    @classmethod
    def create(
        cls,
        path: str | PathLike[str],
        *,
        config: Mapping[str, Any],
        environment: Mapping[str, Any],
        overwrite: bool = False,
    ) -> RunFolder:
        """Make the folder of a new run.

        Args:
            path: a folder that is not there, is empty, or is of a run that was stopped before it began. Parents are
                made.
            config: what the run is asked to do, as plain values.
            environment: hardware and versions, as plain values.
            overwrite: whether a run that is there may give way. Only narl's own files are removed.

        Raises:
            RunFolderError: where the folder holds anything else, is in use, or cannot be written.
        """
        folder = Path(path)
        try:
            _check_free(folder, overwrite)
            folder.mkdir(parents=True, exist_ok=True)
        except RunFolderError:
            raise
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise RunFolderError(f"cannot make the run folder {folder}: {reason}; choose another --out") from error
        run = cls(folder, {})
        with run.lock():
            _check_free(folder, overwrite)  # once more: another process may have been faster
            run._clear()
            run.write_json("environment.json", environment)
            about = {"kind": KIND, "format": FORMAT, "narl": __version__, "config": config}
            run.write_json("config.json", about)
        return cls.open(folder)

    @staticmethod
    def check_new(path: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Refuse a folder that :meth:`create` would refuse for what it holds or where it is; nothing is written."""
        _check_free(Path(path), overwrite)
        _check_place(Path(path))

    @classmethod
    def open(cls, path: str | PathLike[str]) -> RunFolder:
        """The folder of a run that is there; nothing is written.

        Args:
            path: the folder.

        Raises:
            RunFolderError: where it is none, never began, is damaged, or is of a newer narl.
        """
        folder = Path(path)
        entries = _entries(folder, instead="give a folder that narl train --out made")
        if entries is None:
            raise RunFolderError(f"there is no folder {folder}: check the path, or start a run with --out {folder}")
        if "config.json" not in entries:
            if _has_lost_its_config(entries):
                raise RunFolderError(_lost(folder))
            if lock.never_began(folder, entries):
                raise RunFolderError(
                    f"the run in {folder} was stopped before it began: start it again with --out {folder}, or remove "
                    "the folder"
                )
            raise RunFolderError(f"{folder} is not a run of narl: give a folder that narl train --out made")
        about = writing.read_json(folder / "config.json")
        if not isinstance(about, dict) or about.get("kind") != KIND or not isinstance(about.get("config"), dict):
            raise RunFolderError(f"{folder} is not a run of narl: give a folder that narl train --out made")
        if type(about.get("format")) is not int or about["format"] > FORMAT:
            raise RunFolderError(
                f"the run in {folder} has format {about.get('format')}, written by narl {about.get('narl')}; narl "
                f"{__version__} reads formats up to {FORMAT}: upgrade narl"
            )
        return cls(folder, about["config"])

    @property
    def config(self) -> dict[str, Any]:
        """What the run was asked to do."""
        return self._config

    @contextmanager
    def understood(self) -> Iterator[dict[str, Any]]:
        """The configuration, for a reader who takes it apart inside: what he misses in it is named as its damage.

        Raises:
            RunFolderError: in place of what the reader stumbles over.
        """
        try:
            yield self._config
        except (LookupError, TypeError, ValueError) as error:
            raise RunFolderError(
                f"{self.path / 'config.json'} is damaged or of another version of narl ({error!r}): restore it, or "
                "start the run anew"
            ) from error

    @property
    def checkpoints(self) -> Checkpoints:
        """Where to go on from."""
        return Checkpoints(self.path / "checkpoints")

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes from using the run.

        The system drops the lock of a process that ends, however it ends. Where the system or the file system has no
        such locks (Windows, some network disks) nothing is locked.

        Raises:
            RunFolderError: where another process uses the run, with its number.
        """
        return lock.held(self.path)

    def write_json(self, name: str, value: object) -> None:
        """Write a file of plain values, all of it or nothing; NaN and infinity become null."""
        writing.write_json(self.path / name, value)

    def read_json(self, name: str) -> Any:
        """What a file of plain values holds."""
        try:
            return writing.read_json(self.path / name)
        except FileNotFoundError:
            raise RunFolderError(f"the run in {self.path} has no {name}: restore it, or start the run anew") from None

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add an epoch's metrics; they are on the disk afterwards."""
        writing.append_line(self.path / "metrics.jsonl", record)

    def rewrite_metrics(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Replace all metrics: at a resume, the checkpoint's history wins over what was written after it."""
        writing.write_lines(self.path / "metrics.jsonl", records)

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of every epoch so far; a line torn by a kill does not count."""
        return writing.read_lines(self.path / "metrics.jsonl")

    def append_time(self, record: Mapping[str, Any]) -> None:
        """Add an epoch's time; it is on the disk afterwards."""
        writing.append_line(self.path / "times.jsonl", record)

    def rewrite_times(self, epochs: int) -> None:
        """Keep the times of the first so many epochs: at a resume, the later ones come once more."""
        writing.write_lines(self.path / "times.jsonl", self.times()[:epochs])

    def times(self) -> list[dict[str, Any]]:
        """The times of every epoch so far; a line torn by a kill does not count."""
        return writing.read_lines(self.path / "times.jsonl")

    def discard(self) -> None:
        """Remove the run, and its folder where it holds nothing else."""
        with self.lock():
            self._clear()
            (self.path / lock.FILE).unlink(missing_ok=True)
        for folder in (self.path / "tensorboard", self.path / "tuning", self.checkpoints.folder, self.path):
            with suppress(OSError):
                folder.rmdir()

    def _clear(self) -> None:
        """Remove what a run before left, beginning with what it is told by: from then on the folder is no run."""
        try:
            for name in ("environment.json", "config.json", *RESULTS):
                (self.path / name).unlink(missing_ok=True)
                atomic.temporary_path(self.path / name).unlink(missing_ok=True)
            for path in [path for pattern in NUMBERED for path in self.path.glob(pattern)]:
                path.unlink(missing_ok=True)
            for events in (self.path / "tensorboard").glob("events.out.tfevents.*"):
                events.unlink(missing_ok=True)
            for part in (self.path / "tuning").glob("*"):
                if part.is_dir() and (_is_run(part) or lock.never_began(part, os.listdir(part))):
                    RunFolder(part, {}).discard()
        except RunFolderError:
            raise
        except OSError as error:
            raise writing.cannot_write(self.path, error) from error
        self.checkpoints.clear()


def _entries(folder: Path, instead: str = "there is a file in the way; choose another path") -> set[str] | None:
    """Names in a folder; None where there is no folder."""
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise RunFolderError(f"{folder} is not a folder: {instead}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunFolderError(f"cannot read the folder {folder}: {reason}; choose another path") from error


def _check_free(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that holds anything but what a run that never began left, or a run that may give way."""
    entries = _entries(folder)
    if entries and _has_lost_its_config(entries):
        raise RunFolderError(f"{_lost(folder)}; or choose another --out")
    if not entries or lock.never_began(folder, entries):
        return
    if not _is_run(folder):
        raise RunFolderError(f"{folder} exists already, and what it holds is not a run of narl: choose another --out")
    if not overwrite:
        raise RunFolderError(
            f"there is a run in {folder} already: choose another --out, continue it with --resume {folder}, or replace "
            "it with --overwrite"
        )


def _check_place(folder: Path) -> None:
    """Refuse a folder that cannot be made or written in, before hours of reading data."""
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise RunFolderError(f"cannot make the run folder {folder}: {there} may not be written; choose another --out")


def _has_lost_its_config(entries: Collection[str]) -> bool:
    """Whether there are results of a run without its configuration, which nobody who clears a folder leaves."""
    return "config.json" not in entries and "environment.json" in entries and any(name in entries for name in RESULTS)


def _lost(folder: Path) -> str:
    return f"{folder} holds the results of a run, but not its config.json: put that back, or move the results away"


def _is_run(folder: Path) -> bool:
    try:
        about = writing.read_json(folder / "config.json")
    except OSError:
        return False
    return isinstance(about, dict) and about.get("kind") == KIND
