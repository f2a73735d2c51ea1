"""A small table of trainings that take a second each, and who watches them."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from narl.bench import own_table
from narl.bench.cells import Cell, Task
from narl.bench.protocol import Protocol
from narl.bench.runs import Run
from narl.bench.stopping import Asked
from narl.bench.work import Place

TASK = {"dataset": "points", "noise": "symmetric", "rate": 0.3}
TIMES = ("seconds", "environment")


def points(path: Path, count: int = 300) -> Path:
    """A CSV of points around three centres, rightly labelled."""
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 3
    east, north = rng.normal(size=(2, count)) + np.array([[0, 3, 0], [0, 0, 3]])[:, labels]
    rows = [f"{x:.6f},{y:.6f},{'abc'[k]}\n" for x, y, k in zip(east, north, labels, strict=True)]
    path.write_text("east,north,label\n" + "".join(rows))
    return path


def table(path: Path, **change: Any) -> Protocol:
    """A table of one's own, written to a file and read."""
    usual = {"tasks": [TASK], "methods": ["CE", "A-GCE"], "model": "tabular", "epochs": 3, "clean": 30}
    path.write_text(json.dumps({**usual, "training": {"batch_size": 20}, **change}))
    return own_table.read(path)


def place(folder: Path, **change: Any) -> Place:
    """Where its trainings go."""
    sources = change.pop("sources", (("points", str(points(folder / "points.csv"))),))
    return Place(sources, folder / "work", folder / "results", device="cpu", **change)


def cell(protocol: Protocol, method: str = "CE", dataset: str = "points", seed: int = 0) -> Cell:
    return Cell(Task(dataset, "symmetric", 0.3), "tabular", protocol.name, method, seed)


def decided(path: Path) -> dict[str, Any]:
    """What a result's file says, but for how long it took."""
    about: dict[str, Any] = json.loads(path.read_text())
    about["settings"].pop("epoch_seconds")
    return {name: value for name, value in about.items() if name not in TIMES}


def wait_for(happened: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.01)


class Seen:
    """Writes down what it is told; does something when a cell has moved."""

    def __init__(self, when_moved: Callable[[Cell, int], None] | None = None) -> None:
        self.told: list[tuple[Any, ...]] = []
        self._when_moved = when_moved

    def began(self, cell: Cell) -> None:
        self.told.append(("began", cell.slug))

    def moved(self, cell: Cell, epoch: int) -> None:
        self.told.append(("moved", cell.slug, epoch))
        if self._when_moved is not None:
            self._when_moved(cell, epoch)

    def ended(self, cell: Cell, run: Run) -> None:
        self.told.append(("ended", cell.slug, run.last5))

    def failed(self, cell: Cell, reason: str, log: Path) -> None:
        self.told.append(("failed", cell.slug, reason, log))

    def of(self, cell: Cell, *whats: str) -> list[tuple[Any, ...]]:
        return [(what, *more) for what, slug, *more in self.told if slug == cell.slug and (not whats or what in whats)]


class StopsAfter(Asked):
    """Is asked to stop after so many looks."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    @property
    def stop(self) -> bool:
        self._looks -= 1
        return self._looks < 0

    @stop.setter
    def stop(self, value: bool) -> None: ...


def bench(folder: Path, *more: object, data: object = None) -> tuple[object, ...]:
    """The command that trains the table in a folder."""
    where = ("--work", folder / "work", "--results", folder / "results", "--device", "cpu")
    return ("bench", "run", folder / "small.json", "--data", data or f"points={folder / 'points.csv'}", *where, *more)


def script(path: Path, lines: str) -> str:
    """A program of these lines of shell."""
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)
