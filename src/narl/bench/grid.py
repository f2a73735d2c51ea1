"""Many cells on this machine: the missing ones only, several at once where that is faster, through kills and stops."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol as Interface
from typing import final

from narl.bench import runs, tuning
from narl.bench.adjusters import rows
from narl.bench.asked import difference
from narl.bench.cells import Cell
from narl.bench.protocol import Protocol
from narl.bench.runs import Run
from narl.bench.sharing import shared_gpus
from narl.bench.stacks import stacked
from narl.bench.work import Place, epochs_done, other_adjusters, reason_against
from narl.bench.worker import STOPPED, order
from narl.errors import OptionError

_LOOK = 0.5  # seconds between two looks at the workers
_PATIENCE = 120.0  # seconds that a worker has for its checkpoint
_TRIES = 3  # of a worker that something killed


class Watcher(Interface):
    """Who wants to see cells come and go."""

    def began(self, cell: Cell) -> None:
        """A cell is being trained."""

    def moved(self, cell: Cell, epoch: int) -> None:
        """So many of its epochs are done."""

    def ended(self, cell: Cell, run: Run) -> None:
        """It has a result."""

    def failed(self, cell: Cell, reason: str, log: Path) -> None:
        """It has none."""


@final
@dataclass(frozen=True)
class Sorted:
    """Cells by what is to be done about them.

    Args:
        done: that have a result.
        missing: to be trained.
        impossible: that narl cannot train here, with the reason.
        stale: that have a result of a table that has changed since, with the change.
    """

    done: tuple[Cell, ...]
    missing: tuple[Cell, ...]
    impossible: tuple[tuple[Cell, str], ...]
    stale: tuple[tuple[Cell, str], ...] = ()


def sort(cells: Iterable[Cell], protocol: Protocol, place: Place) -> Sorted:
    """Which cells are missing. Each counts once, whatever number of tables asks for it."""
    done, missing, impossible, stale = [], [], [], []
    for cell in dict.fromkeys(cells):
        reason = reason_against(cell, protocol, place)
        if (written := cell.result(place.results)).exists():
            run = runs.read_file(written)
            change = difference(run, protocol) or other_adjusters(run, place)
            if change is None:
                done.append(cell)
            else:
                stale.append((cell, change))
        elif reason is not None:
            impossible.append((cell, reason))
        else:
            missing.append(cell)
    return Sorted(tuple(done), tuple(missing), tuple(impossible), tuple(stale))


def train(
    cells: Mapping[Cell, Protocol], place: Place, watcher: Watcher, at_once: int | None = None, *, stack: int = 1
) -> bool:
    """Train cells, each in a process of its own or several as one; those that fail do not stop the others.

    Ctrl-C or a polite kill ends all workers with a checkpoint; what is killed impolitely goes on from its last one.

    Args:
        cells: the missing ones, each with its table.
        place: where to.
        watcher: who wants to see.
        at_once: how many processes on each GPU; None: several where GPUs can be shared, else one.
        stack: how many cells a process trains as one, where they go together; should that fail, each is trained alone.

    Returns:
        Whether all have a result; False also if it was stopped.
    """
    for folder in (place.work, place.results):  # before hours of training
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise OptionError(
                f"{folder} cannot be written: {error.strerror or error}; choose another folder"
            ) from error
    with shared_gpus(place.device, at_once) as slots, _polite_kills():
        return _Workers(slots, cells, place, watcher).train(_jobs(cells, place, stack))


def _jobs(cells: Mapping[Cell, Protocol], place: Place, stack: int) -> list[tuple[Cell, ...]]:
    """What is trained in one process each, in order: rows that learn one adjuster, stacks, single cells."""
    together = [cell for cell, protocol in cells.items() if protocol.shared]
    alone = {cell: protocol for cell, protocol in cells.items() if not protocol.shared}
    places = {cell: number for number, cell in enumerate(cells)}
    return sorted(rows(together) + stacked(alone, place, stack), key=lambda job: places[job[0]])


@contextlib.contextmanager
def _polite_kills() -> Iterator[None]:
    """A kill that can be answered ends the work as Ctrl-C does."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    # A terminal that is closed hangs up; Windows has no such signal.
    numbers = [number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@final
@dataclass(eq=False)
class _Worker:
    """A process and what it does now; what it did before, it does faster a second time."""

    process: subprocess.Popen[str]
    cells: tuple[Cell, ...]
    log: Path
    tries: int
    epochs: dict[Cell, int] = field(default_factory=dict)

    def dismiss(self) -> None:
        """There are no more orders."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


@final
class _Workers:
    """Processes in slots: what a slot adds to the environment of its process is given."""

    def __init__(
        self, slots: Sequence[dict[str, str]], cells: Mapping[Cell, Protocol], place: Place, watcher: Watcher
    ) -> None:
        self._slots, self._cells, self._place, self._watcher = slots, cells, place, watcher
        self._busy: dict[int, _Worker] = {}
        self._idle: dict[int, _Worker] = {}  # fulfilled their orders and wait for the next
        self._waiting: list[tuple[Cell, ...]] = []

    def train(self, jobs: Sequence[tuple[Cell, ...]]) -> bool:
        """All cells, those of a job in one process; see :func:`train`."""
        self._waiting, failed = list(jobs), 0
        try:
            while self._waiting or self._busy:
                while len(self._busy) < len(self._slots) and (begun := self._next()) is not None:
                    self._begin(*begun)
                if not self._busy:
                    failed += self._give_up()
                    continue
                time.sleep(_LOOK)
                failed += sum(not self._look(slot) for slot in list(self._busy))
            self._dismiss(self._idle)
        except BaseException:
            self._stop()
            raise
        return failed == 0

    def _next(self) -> tuple[int, tuple[Cell, ...]] | None:
        """The slot to be filled and its job: the next in line, unless a worker is free that has done the like.

        None: no job is left, or all that are wait for others.
        """
        possible = [job for job in self._waiting if self._is_ready(job)]
        if not possible:
            return None
        for slot, worker in self._idle.items():
            for job in possible:
                if _alike(job, worker.cells):
                    return slot, self._taken(job)
        free = [slot for slot in range(len(self._slots)) if slot not in self._busy]
        return min(free, key=lambda slot: slot in self._idle), self._taken(possible[0])

    def _is_ready(self, job: tuple[Cell, ...]) -> bool:
        """Whether all is there that its cells are chosen by."""
        return all(self._lacking(cell) is None for cell in job)

    def _lacking(self, cell: Cell) -> str | None:
        return tuning.lacking(cell, self._cells[cell], self._place.results)

    def _taken(self, job: tuple[Cell, ...]) -> tuple[Cell, ...]:
        self._waiting.remove(job)
        return job

    def _give_up(self) -> int:
        """How many cells are left because what they are chosen by has no result, and never will; others go on alone."""
        reasons = {cell: self._lacking(cell) for job in self._waiting for cell in job}
        self._waiting = [(cell,) for cell, reason in reasons.items() if reason is None]
        lost = {cell: reason for cell, reason in reasons.items() if reason is not None}
        for cell, reason in lost.items():
            self._watcher.began(cell)
            self._watcher.failed(cell, reason, self._place.work)
        return len(lost)

    def _begin(self, slot: int, cells: tuple[Cell, ...], tries: int = 1) -> None:
        log = self._place.work / f"{cells[0].slug}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        process = self._process(slot, log)
        self._busy[slot] = _Worker(process, cells, log, tries)  # first: from now on it is stopped with the others
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(order([(cell, self._cells[cell]) for cell in cells], self._place, log))
            process.stdin.flush()
        for cell in cells:
            self._watcher.began(cell)

    def _process(self, slot: int, log: Path) -> subprocess.Popen[str]:
        """The slot's, if it waits for an order, or a new one."""
        if (idle := self._idle.pop(slot, None)) is not None:
            if idle.process.poll() is None:
                return idle.process
            idle.dismiss()  # something ended it meanwhile
        with log.open("a") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "narl.bench.worker"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
                env={**os.environ, **self._slots[slot]},
                start_new_session=True,  # Ctrl-C is for this process, which passes it on
            )

    def _look(self, slot: int) -> bool:
        """Whether all is well in a slot: its worker goes on, or has results, or its cells are tried again."""
        worker = self._busy[slot]
        code = worker.process.poll()
        shared = self._cells[worker.cells[0]].shared
        left = tuple(cell for cell in worker.cells if not cell.result(self._place.results).exists())
        if code is None and left:
            self._tell_progress(worker)
            return True
        del self._busy[slot]
        if code is None:
            self._idle[slot] = worker
        else:
            worker.dismiss()
        if left and shared:
            left = worker.cells  # whole or not at all
        for cell in worker.cells:
            if cell not in left:
                self._watcher.ended(cell, runs.read_file(cell.result(self._place.results)))
        if not left or code is None:
            return True
        if code in (-signal.SIGKILL, -signal.SIGTERM, STOPPED) and worker.tries < _TRIES:
            self._begin(slot, left, worker.tries + 1)  # goes on from its checkpoint
            return True
        if len(worker.cells) > 1 and not shared:
            self._waiting[:0] = [(cell,) for cell in left]  # what one cannot do ends all of a stack
            return True
        for cell in left:
            self._watcher.failed(cell, _reason(worker.log, code), worker.log)
        return False

    def _tell_progress(self, worker: _Worker) -> None:
        for cell in worker.cells:
            epoch = epochs_done(cell, self._place)
            if epoch > worker.epochs.get(cell, 0):
                worker.epochs[cell] = epoch
                self._watcher.moved(cell, epoch)

    def _stop(self) -> None:
        """Ask all to save and leave; whoever does not, or is asked twice, is killed."""
        for worker in self._busy.values():
            worker.process.terminate()
        self._dismiss({**self._idle, **self._busy})

    def _dismiss(self, workers: Mapping[int, _Worker]) -> None:
        """Let workers leave, who have no more orders; whoever takes too long is killed."""
        try:
            for worker in workers.values():
                worker.dismiss()
            until = time.monotonic() + _PATIENCE
            for worker in workers.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.process.wait(max(0.1, until - time.monotonic()))
        finally:
            for worker in workers.values():
                worker.process.kill()  # nothing happens to one that has left


def _alike(cells: Sequence[Cell], others: Sequence[Cell]) -> bool:
    """Whether jobs do the same steps, only with other data."""
    one, other = (
        [(cell.model, cell.task.images, cell.method, cell.options) for cell in job] for job in (cells, others)
    )
    return one == other


def _reason(log: Path, code: int) -> str:
    """The last line of a log, which is the error's."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    ending = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return lines[-1].removeprefix("narl: ") if lines and code > 0 else ending
