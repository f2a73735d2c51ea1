"""A run's watcher where several processes train: the first one's keeps the run, all of them stop together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, final

from numpy.typing import NDArray

from narl.bilevel import Processes, StepReport


class Watcher(Protocol):
    """What a loop tells the one who started it."""

    def after_step(self, report: StepReport) -> None:
        """A step is done."""

    def wants_checkpoint(self) -> bool:
        """Whether to save between two steps, within an epoch."""

    def wants_stop(self) -> bool:
        """Whether to save and leave."""

    def better(self, epoch: int) -> None:
        """This epoch's model is the best one so far on the held-out clean samples."""

    def after_epoch(self, record: dict[str, Any], values: Mapping[str, NDArray[Any]]) -> None:
        """An epoch is done: its record, and every training sample's margin and hyperparameters ``(N,)``."""

    def checkpoint(self, state: dict[str, Any]) -> None:
        """Save the state."""


class Stopper(Protocol):
    """Who may want to stop."""

    def wants_stop(self) -> bool:
        """Whether the run should save and leave."""


@final
class Together:
    """Passes on what happens to the first process's watcher; a wish to stop, in any process, is everyone's.

    What the watcher cannot do, such as write to a full disk, ends all processes.

    Args:
        processes: who trains together.
        watcher: the first process's; None in the others.
        stopper: who may want to stop in this process.
    """

    def __init__(self, processes: Processes, watcher: Watcher | None, stopper: Stopper) -> None:
        self._processes, self._watcher, self._stopper = processes, watcher, stopper
        self._checkpoint = False

    def after_step(self, report: StepReport) -> None:
        """Pass it on."""
        if self._watcher is not None:
            self._watcher.after_step(report)

    def wants_stop(self) -> bool:
        """Whether any process wants to stop; what the first one wants is asked along with it."""
        old = self._watcher is not None and self._watcher.wants_checkpoint()
        stop, self._checkpoint = self._processes.any_of(self._stopper.wants_stop(), old)
        return stop

    def wants_checkpoint(self) -> bool:
        """Whether the first process wants to save: as of the last :meth:`wants_stop`."""
        return self._checkpoint

    def better(self, epoch: int) -> None:
        """Pass it on."""
        self._first(lambda watcher: watcher.better(epoch))

    def after_epoch(self, record: dict[str, Any], values: Mapping[str, NDArray[Any]]) -> None:
        """Pass it on."""
        self._first(lambda watcher: watcher.after_epoch(record, values))

    def checkpoint(self, state: dict[str, Any]) -> None:
        """Pass it on."""
        self._first(lambda watcher: watcher.checkpoint(state))

    def _first(self, tell: Any) -> None:
        self._processes.first(lambda: tell(self._watcher))
