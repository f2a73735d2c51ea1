"""What a run leaves in its folder while it goes."""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol, final

from numpy.typing import NDArray

from narl.bilevel import StepReport
from narl.train.checkpoint import Checkpoints
from narl.train.loop import Loop
from narl.train.record import SampleRecord
from narl.train.run_folder import RunFolder
from narl.train.writing import cannot_write


class Observer(Protocol):
    """Who wants to see a run go on: the command line's progress bar."""

    def decoded(self, done: int, total: int) -> None:
        """So many training images have been decoded into memory."""

    def begin(self, title: str, epochs: int, steps: int, done: int) -> None:
        """A training of so many epochs of so many steps begins, some steps of which were done before."""

    def after_step(self, report: StepReport) -> None:
        """A step is done."""

    def after_epoch(self, record: dict[str, Any]) -> None:
        """An epoch is done."""

    def wants_stop(self) -> bool:
        """Whether the run should save and leave."""


@final
class Unobserved:
    """Nobody looks."""

    def decoded(self, done: int, total: int) -> None:
        """Nothing to show."""

    def begin(self, title: str, epochs: int, steps: int, done: int) -> None:
        """Nothing to show."""

    def after_step(self, report: StepReport) -> None:
        """Nothing to show."""

    def after_epoch(self, record: dict[str, Any]) -> None:
        """Nothing to show."""

    def wants_stop(self) -> bool:
        """Never."""
        return False


@final
class Keeper:
    """Writes checkpoints, metrics, per-sample records and the best model; passes on what happens.

    The best model, the samples' values and the metrics of an epoch are written before the checkpoint that ends it:
    whatever moment a run is killed at, what the last checkpoint speaks of is there, and what is ahead of it will be
    written once more, the same.

    Args:
        folder: of the run.
        loop: that is watched.
        checkpoints: where they go.
        record: where margins and hyperparameters go.
        save_model: writes the model as it is now; called with its epoch.
        observer: who else wants to know.
        every: seconds between two checkpoints within an epoch; None: at the ends of epochs only.
        stacked: says how many trainings are done as one at the moment, this one among them.
        tensorboard: also write what TensorBoard shows, where it is installed.
    """

    def __init__(
        self,
        folder: RunFolder,
        loop: Loop,
        checkpoints: Checkpoints,
        record: SampleRecord,
        save_model: Callable[[int], None],
        observer: Observer,
        *,
        every: float | None = 300.0,
        stacked: Callable[[], int] = lambda: 1,
        tensorboard: bool = True,
    ) -> None:
        self._stacked = stacked
        self._folder, self._loop, self._checkpoints, self._record = folder, loop, checkpoints, record
        self._save_model, self._observer, self._every = save_model, observer, every
        self._board = _board(folder, loop.epoch) if tensorboard else None
        self._began = self._saved = time.monotonic()
        self._position = loop.position

    def after_step(self, report: StepReport) -> None:
        """Pass it on, if it has brought the run a step of the planned ones nearer to its end."""
        if self._loop.position != self._position:
            self._position = self._loop.position
            self._observer.after_step(report)

    def wants_stop(self) -> bool:
        """Whether the observer wants to stop."""
        return self._observer.wants_stop()

    def wants_checkpoint(self) -> bool:
        """Whether the last one is old."""
        return self._every is not None and time.monotonic() - self._saved > self._every

    def better(self, epoch: int) -> None:
        """Keep this model."""
        self._save_model(epoch)

    def checkpoint(self, state: dict[str, Any]) -> None:
        """Save the state."""
        self._checkpoints.save(state, state["epoch"], state["step_of_epoch"])
        self._saved = time.monotonic()

    def after_epoch(self, record: dict[str, Any], values: Mapping[str, NDArray[Any]]) -> None:
        """Write the epoch's record."""
        self._record.write(record["epoch"] - 1, {name: values[name] for name in self._record.fields})
        self._folder.append_metrics(record)
        now = time.monotonic()
        together = {"stacked": count} if (count := self._stacked()) > 1 else {}  # the seconds are those of all
        self._folder.append_time({"epoch": record["epoch"], "seconds": round(now - self._began, 3), **together})
        self._began = now
        if self._board is not None:
            with _board_errors(self._folder):
                for name, value in _numbers(record):
                    self._board.add_scalar(name, value, record["epoch"])
                self._board.flush()
        self._observer.after_epoch(record)

    def close(self) -> None:
        """Let go of what is open."""
        if self._board is not None:
            with suppress(OSError):  # nothing is waiting: every epoch was flushed
                self._board.close()


def _numbers(record: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in record.items():
        if isinstance(value, Mapping):
            found += _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)) and name != "epoch":
            found.append((f"{prefix}{name}", float(value)))
    return found


def _board(folder: RunFolder, epoch: int) -> Any:
    if importlib.util.find_spec("tensorboard") is None:
        return None
    with warnings.catch_warnings(), _board_errors(folder):
        warnings.simplefilter("ignore")  # its own dependencies' deprecations
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(folder.path / "tensorboard"), purge_step=epoch + 1)


@contextmanager
def _board_errors(folder: RunFolder) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(folder.path / "tensorboard", error) from error
