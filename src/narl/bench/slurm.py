"""Cells on a Slurm cluster: an array of jobs that save and queue again when they are preempted or run out of time."""

from __future__ import annotations

import contextlib
import getpass
import io
import math
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from narl.bench import runs, work
from narl.bench.cells import Cell
from narl.bench.grid import Watcher
from narl.bench.protocol import Protocol
from narl.bench.slurm_training import NOTICE, Train, Training
from narl.bench.work import Place
from narl.errors import ClusterError, MissingExtraError, OptionError
from narl.train.writing import read_json, write_json

if TYPE_CHECKING:
    import submitit

FILE = "jobs.json"
_TIME_LIMITS = 50  # that a cell may run into: one that never ends is given up at last
_LOOK = 5.0  # seconds between two looks at the jobs
_LAG = 30.0  # seconds until another machine's files are seen here


@final
@dataclass(frozen=True, eq=False)
class Submitted:
    """A cell on the cluster.

    Args:
        cell: what is trained.
        job: submitit's handle of the job.
    """

    cell: Cell
    job: submitit.Job[str]


def submit(
    cells: Mapping[Cell, Protocol],
    place: Place,
    *,
    at_once: int,
    hours: float,
    folder: Path,
    partition: str | None = None,
    gpus: int = 1,
    cpus: int = 8,
    memory_gb: float = 32,
    train: Train = work.train,
) -> list[Submitted]:
    """Give cells to the cluster, as one array of jobs; a cell that an earlier call gave it, and that is there, stays.

    Args:
        cells: the missing ones, each with its table.
        place: where to; every machine of the cluster sees its folders.
        at_once: how many jobs of the array may run at a time.
        hours: that a job may run before it has to queue again.
        folder: for the jobs' logs, seen by every machine as well.
        partition: of the cluster; None: its default.
        gpus: of a job.
        cpus: of a job.
        memory_gb: of a job.
        train: what a job does with its cell.

    Returns:
        The cells with their jobs, in the order of the cells.

    Raises:
        MissingExtraError: without submitit.
        ClusterError: on a machine without Slurm, or where it refuses the jobs.
    """
    for name, value in {"at_once": at_once, "hours": hours, "cpus": cpus, "memory_gb": memory_gb, "gpus": gpus}.items():
        if not (math.isfinite(value) and value >= 0 and (value > 0 or name == "gpus")):
            raise OptionError(f"{name} = {value} asks the cluster for nothing: give a number above 0")
    executor = _executor(folder)
    executor.update_parameters(
        name="narl-bench",
        timeout_min=math.ceil(60 * hours),
        cpus_per_task=cpus,
        mem_gb=memory_gb,
        gpus_per_node=gpus or None,
        slurm_partition=partition,
        slurm_array_parallelism=at_once,
        slurm_signal_delay_s=NOTICE,
    )
    ids = _still_there(folder)
    new = [cell for cell in cells if cell.slug not in ids]
    jobs = _array(executor, [Training(cell, cells[cell], place, train) for cell in new]) if new else []
    ids |= {cell.slug: job.job_id for cell, job in zip(new, jobs, strict=True)}
    write_json(folder / FILE, ids)
    return [Submitted(cell, _job(folder, ids[cell.slug])) for cell in cells]


def _executor(folder: Path) -> submitit.AutoExecutor:
    try:
        import submitit
    except ImportError as error:
        raise MissingExtraError(
            f"giving cells to a cluster needs the package submitit ({error}): pip install 'narl[sweep]'"
        ) from error
    for command in ("sbatch", "srun"):
        if shutil.which(command) is None:
            raise ClusterError(
                f"this machine has no {command}, so it cannot give jobs to Slurm: go to one of the cluster's login "
                "machines, or train here without the cluster"
            )
    folder.mkdir(parents=True, exist_ok=True)
    return submitit.AutoExecutor(folder, cluster="slurm", slurm_max_num_timeout=_TIME_LIMITS)


def _array(executor: submitit.Executor, trainings: Sequence[Training]) -> list[submitit.Job[str]]:
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    try:
        with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what the error says as well
            return executor.submit_array(trainings)
    except (FailedJobError, FailedSubmissionError) as error:
        said = " ".join(str(error).split()) or "without a word"
        raise ClusterError(
            f"sbatch refused {len(trainings)} jobs ({said}): ask for less or for another partition; an account goes "
            "into SBATCH_ACCOUNT"
        ) from error


def _job(folder: Path, job_id: str) -> submitit.Job[str]:
    from submitit import SlurmJob

    return SlurmJob(folder, job_id)


def _still_there(folder: Path) -> dict[str, str]:
    """Cells that wait or run on the cluster, by their slugs, with the ids of their jobs."""
    try:
        known: dict[str, str] = read_json(folder / FILE)
    except FileNotFoundError:
        return {}
    command = ["squeue", "--noheader", "--array", f"--user={getpass.getuser()}", "--format=%i"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise ClusterError(
            f"squeue does not say which jobs are there ({error}), and a cell must not be trained twice at once: try "
            f"again, or remove {folder / FILE} if none is"
        ) from error
    there = set(answer.stdout.split())
    return {slug: job_id for slug, job_id in known.items() if job_id in there}


@final
@dataclass(frozen=True)
class Standing:
    """Where cells stand on the cluster.

    Args:
        ended: with a result.
        failed: without one.
        waiting: that wait or run, and the ids of their jobs.
    """

    ended: tuple[Cell, ...]
    failed: tuple[Cell, ...]
    waiting: tuple[tuple[Cell, str], ...]

    def __str__(self) -> str:
        """For whoever stopped looking."""
        said = f"{len(self.ended)} cells ended, {len(self.failed)} failed"
        if not self.waiting:
            return said
        arrays = " ".join(sorted({job_id.partition("_")[0] for _, job_id in self.waiting}))
        return (
            f"{said}, {len(self.waiting)} wait or run on the cluster and go on there: the same command looks after "
            f"them again, scancel {arrays} ends them"
        )


def watch(submitted: Sequence[Submitted], place: Place, watcher: Watcher) -> Standing:
    """Look at jobs until all are over, or until Ctrl-C: that ends the looking, not the jobs.

    Args:
        submitted: what :func:`submit` gave.
        place: where the results go.
        watcher: who wants to see.

    Returns:
        Where the cells stand.
    """
    watched = _Watched(submitted, place, watcher)
    with contextlib.suppress(KeyboardInterrupt):
        while not watched.look():
            time.sleep(_LOOK)
    return watched.standing()


@final
class _Watched:
    """Jobs that somebody looks at."""

    def __init__(self, submitted: Sequence[Submitted], place: Place, watcher: Watcher) -> None:
        self._waiting = list(submitted)
        self._place, self._watcher = place, watcher
        self._epochs: dict[str, int] = {}
        self._over: dict[str, float] = {}
        self._ended: list[Cell] = []
        self._failed: list[Cell] = []

    def look(self) -> bool:
        """Tell what is new; whether all are over."""
        for one in list(self._waiting):
            if self._is_over(one):
                self._waiting.remove(one)
                self._tell_end(one)
            elif one.job.paths.stdout.exists():
                self._tell_progress(one.cell)
        return not self._waiting

    def standing(self) -> Standing:
        """Where all stand now."""
        waiting = tuple((one.cell, one.job.job_id) for one in self._waiting)
        return Standing(tuple(self._ended), tuple(self._failed), waiting)

    def _is_over(self, one: Submitted) -> bool:
        if one.cell.result(self._place.results).exists():
            return True
        if not one.job.done():
            return False
        # The result was written on another machine: its name may take a while to be seen here.
        return time.monotonic() - self._over.setdefault(one.cell.slug, time.monotonic()) >= _LAG

    def _tell_end(self, one: Submitted) -> None:
        self._tell_progress(one.cell)
        written = one.cell.result(self._place.results)
        if written.exists():
            self._ended.append(one.cell)
            self._watcher.ended(one.cell, runs.read_file(written))
        else:
            self._failed.append(one.cell)
            self._watcher.failed(one.cell, _reason(one.job.paths.stderr, one.job.state), one.job.paths.stderr)

    def _tell_progress(self, cell: Cell) -> None:
        if cell.slug not in self._epochs:
            self._epochs[cell.slug] = 0
            self._watcher.began(cell)
        epoch = work.epochs_done(cell, self._place)
        if epoch > self._epochs[cell.slug]:
            self._epochs[cell.slug] = epoch
            self._watcher.moved(cell, epoch)


def _reason(log: Path, state: str) -> str:
    """The first line of the error in a log; where there is none, how the cluster says that the job ended."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = [line.rstrip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    if frames:
        error = next((line for line in lines[frames[-1] :] if not line.startswith(" ")), lines[-1])
        return re.sub(r"^narl\.errors\.\w+: ", "", error)
    return f"the job is over ({state.lower()})" + (f": {lines[-1]}" if lines else "")
