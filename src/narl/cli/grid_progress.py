"""How far many trainings have come: bars on a terminal, a line for each that ends elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from narl.bench.cells import Cell
    from narl.bench.protocol import Protocol
    from narl.bench.runs import Run


@final
class GridProgress:
    """Shows cells come and go.

    Args:
        cells: that will be trained, each with its table.
        console: where to; standard error by default.
    """

    def __init__(self, cells: Mapping[Cell, Protocol], console: Console | None = None) -> None:
        self._cells = cells
        self._console = console or Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._total, self._over = len(cells), 0
        self._all = self._bars.add_task("all", total=self._total)
        self._running: dict[str, TaskID] = {}
        self._began: dict[str, float] = {}

    def __enter__(self) -> GridProgress:
        """Show the bars."""
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take them away."""
        self._bars.stop()
        if kind is KeyboardInterrupt:
            self._line("stopped and saved: the same command goes on")

    def began(self, cell: Cell) -> None:
        """A bar for it."""
        if cell.slug not in self._running:
            self._began.setdefault(cell.slug, time.monotonic())
            epochs = self._cells[cell].schedule(cell.schedule, cell.task.dataset, cell.method).epochs
            self._running[cell.slug] = self._bars.add_task(escape(_name(cell)), total=epochs)

    def moved(self, cell: Cell, epoch: int) -> None:
        """Its bar grows."""
        self._bars.update(self._running[cell.slug], completed=epoch)

    def ended(self, cell: Cell, run: Run) -> None:
        """A line with the result."""
        self._end(cell, f"{run.last5:.2%} (best epoch {run.best:.2%})")

    def failed(self, cell: Cell, reason: str, log: Path) -> None:
        """A line with the reason."""
        self._end(cell, f"failed: {reason} ({log})")

    def _end(self, cell: Cell, said: str) -> None:
        self._over += 1
        self._bars.remove_task(self._running.pop(cell.slug))
        self._bars.update(self._all, completed=self._over)
        seconds = time.monotonic() - self._began.pop(cell.slug)
        self._line(f"[{self._over}/{self._total}] {_name(cell)}: {said}, {seconds:.0f} s")

    def _line(self, text: str) -> None:
        self._console.print(escape(text), highlight=False, soft_wrap=True)


def _name(cell: Cell) -> str:
    return f"{cell.task}, {cell.label}, seed {cell.seed}"
