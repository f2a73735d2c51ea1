"""A training run on the command line: its progress, and Ctrl-C that saves before it leaves."""

from __future__ import annotations

import signal
import time
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, final

from narl.cli.progress import Counting, TrainingProgress

if TYPE_CHECKING:
    from narl.bilevel import Processes, StepReport

_ONE_SIGNAL = 2.0  # seconds: a terminal and torchrun may both pass on the same Ctrl-C


@final
class Watching:
    """Shows how far a run has come, and turns the first Ctrl-C (or SIGTERM) into a wish to save and stop.

    A second one ends the program at once; what was saved before stays. Of several processes the first one shows.

    Args:
        processes: who trains together.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._progress: TrainingProgress | None = None
        self._decoding: Counting | None = None
        self._stop = False
        self._told = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Watching:
        """Take over the signals."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._end()

    def decoded(self, done: int, total: int) -> None:
        """Show how many images are in memory."""
        if self._processes.rank > 0:
            return
        if self._decoding is None:
            self._decoding = Counting(total, "decoding images")
            self._decoding.__enter__()
        self._decoding(done)
        if done >= total:
            self._end()

    def begin(self, title: str, epochs: int, steps: int, done: int) -> None:
        """A training begins; the first process alone is told."""
        self._end()
        self._progress = TrainingProgress(epochs, steps, title=title)
        self._progress.__enter__()
        self._progress.start(done)

    def after_step(self, report: StepReport) -> None:
        """Move the bar."""
        if self._progress is not None:
            self._progress.step(report.loss, report.meta_loss)

    def after_epoch(self, record: dict[str, Any]) -> None:
        """Show the epoch."""
        if self._progress is not None:
            self._progress.epoch(record)

    def wants_stop(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._stop

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stop:
            if self._processes.count > 1 and time.monotonic() - self._told < _ONE_SIGNAL:
                return
            raise KeyboardInterrupt
        self._stop, self._told = True, time.monotonic()
        if self._progress is not None:
            self._progress.note("stopping after this step (once more to stop at once)")

    def _end(self) -> None:
        if self._decoding is not None:
            self._decoding.__exit__(None, None, None)
            self._decoding = None
        if self._progress is not None:
            self._progress.__exit__(None, None, None)
            self._progress = None
