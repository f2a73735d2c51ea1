"""What a job on a Slurm cluster does: train a cell; save and queue again when the cluster wants the machine back."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, final

from narl.bench import work
from narl.bench.cells import Cell
from narl.bench.protocol import Protocol
from narl.bench.runs import Run
from narl.bench.stopping import Asked
from narl.bench.work import Place
from narl.train.keeper import Observer

if TYPE_CHECKING:
    import submitit

NOTICE = 120
"""Seconds from the cluster's signal to the end of a job's time."""
_GRACE = 60  # of them, for the training to save by itself

Train = Callable[[Cell, Protocol, Place, Observer], Run | None]


@final
@dataclass(frozen=True)
class Training:
    """What a job does: train a cell, or go on with it.

    Args:
        cell: what to train.
        protocol: the table that it is of.
        place: where to.
        train: how; an importable function.
        grace: seconds after which a training that was asked to stop is left where it is: its last checkpoint holds.
    """

    cell: Cell
    protocol: Protocol
    place: Place
    train: Train = work.train
    grace: int = _GRACE

    def __call__(self) -> str:
        """Train to the end, or until the cluster wants the machine back; then save and queue again."""
        notice, queue_again = _notice()
        asked = Asked()

        def ask(number: int, frame: FrameType | None) -> None:
            asked.stop = True
            signal.alarm(self.grace)

        signal.signal(notice, ask)
        signal.signal(signal.SIGALRM, queue_again)
        finished = self.train(self.cell, self.protocol, self.place, asked)
        signal.alarm(0)
        if finished is None:
            queue_again(notice, None)
        return self.cell.slug

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """The same once more: what is done lies in the run's folder."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _notice() -> tuple[int, Callable[[int, FrameType | None], Any]]:
    """The cluster's signal, and what submitit does about it: submit :meth:`Training.checkpoint` again, and exit."""
    from submitit import JobEnvironment

    number = signal.Signals[f"SIG{JobEnvironment.USR_SIG}"]
    handler = signal.getsignal(number)
    assert callable(handler)
    return number, handler
