"""Progress of long work: a bar on a terminal, plain lines elsewhere. Always on standard error."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress


class Progress:
    """How far a piece of work with parts has come.

    Args:
        total: steps of all parts together.
    """

    def __init__(self, total: int) -> None:
        self._console = Console(stderr=True)
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=total, note="")
        self._part, self._note = "", ""

    def __enter__(self) -> Progress:
        """Show the bar."""
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away, also when the work failed."""
        self._bar.stop()
        if error is None:
            self._finish_part()

    def begin(self, part: str) -> None:
        """Name the part that begins."""
        self._finish_part()
        self._part = part
        self._bar.update(self._task, description=part)

    def advance(self, note: str) -> None:
        """One step is done."""
        self._note = note
        self._bar.update(self._task, advance=1, note=note)

    def _finish_part(self) -> None:
        if self._part and not self._console.is_terminal:
            print(f"{self._part}: {self._note}", file=self._console.file, flush=True)
        self._part = ""
