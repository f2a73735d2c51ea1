"""Trainings that jobs of a test import: what each does depends on the cell's method."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, final

from narl.bench import work
from narl.bench.cells import Cell
from narl.bench.protocol import Protocol
from narl.bench.runs import Run
from narl.bench.stopping import Asked
from narl.bench.work import Place
from narl.errors import OptionError
from narl.train.keeper import Observer


def folder_of(cell: Cell, place: Place) -> Path:
    """Where a cell's training leaves its files."""
    return place.work / cell.slug


def train(cell: Cell, protocol: Protocol, place: Place, observer: Observer) -> Run | None:
    """CE ends; GCE is refused; JS is killed; SL and PolySoft train until they are preempted, and end the second time.

    SL saves when it is asked to, PolySoft hears nothing.
    """
    folder = folder_of(cell, place)
    folder.mkdir(parents=True, exist_ok=True)
    if cell.method == "GCE":
        raise OptionError("where is CIFAR-10?\nSay it with --data")
    if cell.method == "JS":
        os.kill(os.getpid(), signal.SIGKILL)
    if cell.method in ("SL", "PolySoft") and not (folder / "process").exists():
        _until_preempted(cell, folder, observer)
        return None
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.write("{}\n")
    run = Run(cell, 0.5, 0.6, {})
    run.write(place.results)
    return run


def held(cell: Cell, protocol: Protocol, place: Place, observer: Observer) -> Run | None:
    """The real training, which waits after some epochs to be killed or preempted."""
    return work.train(cell, protocol, place, _Held(observer, folder_of(cell, place)))


@final
class _Held(Asked):
    """Waits at the end of the second epoch for its end, at the end of the third for a wish to stop."""

    def __init__(self, observer: Observer, folder: Path) -> None:
        super().__init__()
        self._observer, self._folder = observer, folder

    def wants_stop(self) -> bool:
        return self._observer.wants_stop()

    def after_epoch(self, record: dict[str, Any]) -> None:
        place = self._folder / f"waits-{record['epoch']}"
        if record["epoch"] in (2, 3) and not place.exists():
            _write_process(place)
            while not self.wants_stop():
                time.sleep(0.02)


def _write_process(path: Path) -> None:
    new = path.with_name("new")
    new.write_text(str(os.getpid()))
    new.rename(path)


def _until_preempted(cell: Cell, folder: Path, observer: Observer) -> None:
    (folder / "metrics.jsonl").write_text("{}\n{}\n")
    _write_process(folder / "process")
    while not observer.wants_stop() or cell.method == "PolySoft":
        time.sleep(0.05)
    (folder / "saved").touch()
