"""Progress of long work: a bar on a terminal, plain lines elsewhere. Always on standard error."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, SupportsFloat, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

# Seconds between two looks at the losses: on a GPU each look waits for the steps that are under way.
_LOOK = 0.2
# Seconds of work from which on it is worth a line where there is no terminal.
_WORTH_A_LINE = 2.0


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


@final
class TrainingProgress:
    """How far a training has come: a bar on a terminal, elsewhere a line an epoch.

    Args:
        epochs: of the training.
        steps_per_epoch: its batches.
        title: what is being trained, where there is more than one training.
        console: where to show it; None for standard error.
    """

    def __init__(self, epochs: int, steps_per_epoch: int, *, title: str = "", console: Console | None = None) -> None:
        self._epochs, self._steps, self._title = epochs, steps_per_epoch, title
        self._console = Console(stderr=True) if console is None else console
        self._shown = self._console.is_terminal
        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=self._console,
            transient=True,
            disable=not self._shown,
        )
        self._task = self._bar.add_task("", total=steps_per_epoch, numbers="")
        self._before = self._done = 0
        self._loss: SupportsFloat | None = None
        self._meta_loss: SupportsFloat | None = None
        self._accuracy = ""
        self._began = self._looked = time.monotonic()

    def __enter__(self) -> TrainingProgress:
        """Show the bar."""
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away, also when the training failed."""
        self._bar.stop()

    def start(self, done_steps: int = 0) -> None:
        """The first step is about to begin; so many were done in an earlier sitting."""
        self._before = self._done = done_steps
        self._began = self._looked = time.monotonic()
        self._draw()

    def step(self, loss: SupportsFloat, meta_loss: SupportsFloat | None = None) -> None:
        """A step is done.

        Args:
            loss: of the batch; a tensor is not looked at before it is shown, five times a second.
            meta_loss: of the clean batch, if the step had one.
        """
        self._done += 1
        self._loss = loss
        if meta_loss is not None:
            self._meta_loss = meta_loss
        if self._shown:
            now = time.monotonic()
            if now - self._looked >= _LOOK:
                self._looked = now
                self._draw()

    def epoch(self, record: Mapping[str, Any]) -> None:
        """An epoch is done.

        Args:
            record: as in ``metrics.jsonl``: ``epoch`` counts from 1; ``loss``, ``meta_loss`` and accuracies such as
                ``test_accuracy`` are shown where they are there.
        """
        self._done = int(record["epoch"]) * self._steps
        self._accuracy = _accuracy(record)
        numbers = _numbers(record.get("loss"), record.get("meta_loss"), self._accuracy)
        self.note(f"{self._head(record['epoch'])}  {numbers}({_clock(self._elapsed())}{self._left(' left ')})")
        if self._shown:
            self._draw()

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        with suppress(RuntimeError):  # called from a signal handler that has interrupted another print
            if self._shown:
                self._console.print(text, markup=False, highlight=False, soft_wrap=True)
            else:
                self._print(text)

    def _print(self, line: str) -> None:
        print(line, file=self._console.file, flush=True)

    def _draw(self) -> None:
        whole, step = divmod(self._done, self._steps)
        if whole and not step:  # the end of an epoch, rather than the beginning of the next
            whole, step = whole - 1, self._steps
        numbers = _numbers(self._loss, self._meta_loss, self._accuracy) + self._left("left ")
        self._bar.update(self._task, completed=step, description=self._head(whole + 1), numbers=numbers)

    def _head(self, epoch: int) -> str:
        return f"{self._title}  epoch {epoch}/{self._epochs}".strip()

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _left(self, words: str) -> str:
        done = self._done - self._before
        if done <= 0:
            return ""
        return words + _clock(self._elapsed() / done * max(0, self._epochs * self._steps - self._done))


@final
class Counting:
    """How many things have been read or decoded: a count on a terminal, elsewhere a line if it took a while.

    Args:
        total: of the things; None where it is not known.
        label: what is being done, such as ``"decoding images"``.
        console: where to show it; None for standard error.
    """

    def __init__(self, total: int | None, label: str, *, console: Console | None = None) -> None:
        self._console = Console(stderr=True) if console is None else console
        self._label, self._done = label, 0
        length = BarColumn() if total is not None else SpinnerColumn()
        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            length,
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(label, total=total)
        self._began = time.monotonic()

    def __enter__(self) -> Counting:
        """Show the count."""
        self._began = time.monotonic()
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the count away, also when the work failed."""
        self._bar.stop()
        took = time.monotonic() - self._began
        if error is None and took >= _WORTH_A_LINE and not self._console.is_terminal:
            print(f"{self._label}: {self._done:,} ({_clock(took)})", file=self._console.file, flush=True)

    def __call__(self, done: int) -> None:
        """So many are done by now."""
        self._done = done
        self._bar.update(self._task, completed=done)


def _numbers(loss: SupportsFloat | None, meta_loss: SupportsFloat | None, accuracy: str) -> str:
    """What is known, each part with two spaces after it."""
    parts = [f"{name} {float(value):.3f}" for name, value in (("loss", loss), ("meta", meta_loss)) if value is not None]
    return "".join(f"{part}  " for part in [*parts, accuracy] if part)


def _accuracy(record: Mapping[str, Any]) -> str:
    of_sets = [name for name in record if name.endswith("_accuracy") and not name.endswith("_top5_accuracy")]
    found = {name.removesuffix("_accuracy"): record[name] for name in of_sets}
    return "  ".join(f"{name} {100 * value:.1f} %" for name, value in found.items() if value is not None)


def _clock(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any.

    Example:
        >>> _clock(7), _clock(110.4), _clock(7261)
        ('0:07', '1:50', '2:01:01')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
