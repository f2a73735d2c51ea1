"""Cells on a cluster: jobs end, fail, are preempted and go on; looking at them can be stopped and begun again."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fake_slurm
import small_grid
from fake_trainings import folder_of, held, train
from narl.bench import protocols, slurm, work
from narl.bench.cells import Cell, Task
from narl.bench.runs import Run
from narl.bench.slurm_training import Training
from narl.bench.work import Place
from narl.errors import ClusterError, MissingExtraError, NarlError, OptionError

TABLE = protocols.get("table1")


def cell_of(method: str) -> Cell:
    return Cell(Task("CIFAR-10", "symmetric", 0.4), "resnet32", "short", method, 0)


class Seen:
    """Writes down what it is told, and preempts what trains."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.told: list[tuple[Any, ...]] = []

    def began(self, cell: Cell) -> None:
        self.told.append(("began", cell.method))

    def moved(self, cell: Cell, epoch: int) -> None:
        self.told.append(("moved", cell.method, epoch))
        process = folder_of(cell, self.place) / "process"
        if epoch == 2:
            wait_for(process.exists)
            os.kill(int(process.read_text()), signal.SIGUSR2)

    def ended(self, cell: Cell, run: Run) -> None:
        self.told.append(("ended", cell.method, run.last5))

    def failed(self, cell: Cell, reason: str, log: Path) -> None:
        assert log.exists()
        self.told.append(("failed", cell.method, reason))

    def of(self, method: str) -> list[tuple[Any, ...]]:
        return [(what, *more) for what, name, *more in self.told if name == method]


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(slurm, "_LOOK", 0.05)
    monkeypatch.setattr(slurm, "_LAG", 0.0)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    return Place((("CIFAR-10", "nowhere"),), tmp_path / "work", tmp_path / "results")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    import submitit

    root = tmp_path / "slurm"
    for name, value in fake_slurm.install(root).items():
        monkeypatch.setenv(name, value)
    submitit.SlurmJob.watcher.clear()
    monkeypatch.setattr(submitit.SlurmJob.watcher, "_delay_s", 0.2)
    yield root
    wait_for(lambda: not any((root / "alive").iterdir()))


def submitted(methods: tuple[str, ...], place: Place, tmp_path: Path, **more: Any) -> list[slurm.Submitted]:
    asked: dict[str, Any] = {"at_once": 2, "hours": 1.5, "folder": tmp_path / "jobs", "train": train, **more}
    return slurm.submit({cell_of(method): TABLE for method in methods}, place, **asked)


def test_a_preempted_job_saves_and_goes_on(place: Place, tmp_path: Path) -> None:
    import submitit

    executor = submitit.AutoExecutor(tmp_path / "jobs", cluster="local")
    executor.update_parameters(timeout_min=60)
    cells = [cell_of("SL"), cell_of("PolySoft")]
    jobs = slurm._array(executor, [Training(cell, TABLE, place, train, grace=1) for cell in cells])
    seen = Seen(place)
    standing = slurm.watch([slurm.Submitted(*pair) for pair in zip(cells, jobs, strict=True)], place, seen)
    assert set(standing.ended) == set(cells)
    for cell in cells:
        told = seen.of(cell.method)
        assert [told[0], told[1], told[-1]] == [("began",), ("moved", 2), ("ended", 0.5)]
    assert (folder_of(cells[0], place) / "saved").exists()
    assert not (folder_of(cells[1], place) / "saved").exists(), "it was left where it was"
    assert str(standing) == "2 cells ended, 0 failed"
    wait_for(lambda: all(job.done() for job in jobs))  # a result is there before its process has ended


def test_an_array_on_the_cluster(
    place: Place, cluster: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs = submitted(("CE", "GCE", "JS"), place, tmp_path, partition="long", memory_gb=12)
    assert [one.job.job_id for one in jobs] == ["100_0", "100_1", "100_2"]
    flags = dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", (cluster / "submission").read_text(), re.MULTILINE))
    wanted = {"array": "0-2%2", "time": "90", "partition": "long", "mem": "12GB", "cpus-per-task": "8"}
    assert flags.items() >= (wanted | {"gpus-per-node": "1", "signal": "USR2@120", "job-name": "narl-bench"}).items()
    seen = Seen(place)
    standing = slurm.watch(jobs, place, seen)
    assert standing.ended == (cell_of("CE"),)
    assert set(standing.failed) == {cell_of("GCE"), cell_of("JS")}
    assert seen.of("CE") == [("began",), ("moved", 1), ("ended", 0.5)]
    assert seen.of("GCE") == [("began",), ("failed", "where is CIFAR-10?")]
    assert seen.of("JS") == [("began",), ("failed", "the job is over (failed)")]
    assert capfd.readouterr() == ("", "")
    wait_for(lambda: not slurm._still_there(tmp_path / "jobs"))  # what failed would be submitted anew


def test_ctrl_c_leaves_the_jobs(place: Place, cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = submitted(("SL",), place, tmp_path, gpus=0)
    assert "gpus-per-node" not in (cluster / "submission").read_text()
    wait_for((folder_of(cell_of("SL"), place) / "process").exists)

    def pressed(seconds: float) -> None:
        raise KeyboardInterrupt

    class Blind(Seen):
        def moved(self, cell: Cell, epoch: int) -> None:
            pass

    with monkeypatch.context() as patched:
        patched.setattr(time, "sleep", pressed)
        standing = slurm.watch(jobs, place, Blind(place))
    assert str(standing) == (
        "0 cells ended, 0 failed, 1 wait or run on the cluster and go on there: the same command looks after them "
        "again, scancel 100 ends them"
    )
    repeated = submitted(("SL",), place, tmp_path)
    assert [one.job.job_id for one in repeated] == ["100"], "it is not submitted twice"
    assert json.loads((tmp_path / "jobs" / slurm.FILE).read_text()) == {cell_of("SL").slug: "100"}
    seen = Seen(place)
    assert slurm.watch(repeated, place, seen).ended == (cell_of("SL"),)
    assert seen.of("SL") == [("began",), ("moved", 2), ("moved", 3), ("ended", 0.5)], "it was preempted and went on"
    assert (folder_of(cell_of("SL"), place) / "saved").exists()

    (cluster / "bin" / "squeue").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(ClusterError, match=r"squeue does not say .* remove .*jobs\.json"):
        submitted(("SL",), place, tmp_path)


@pytest.mark.usefixtures("place", "cluster")
def test_a_training_that_is_killed_and_preempted_goes_on(tmp_path: Path) -> None:
    """A cell of a small table, pickled and trained by jobs: what they leave is what one sitting leaves."""
    table, where = small_grid.table(tmp_path / "small.json", epochs=4), small_grid.place(tmp_path)
    cell = small_grid.cell(table, "A-GCE")
    asked: dict[str, Any] = {"at_once": 1, "hours": 1, "folder": tmp_path / "jobs", "gpus": 0, "train": held}

    def end(epoch: int, number: int) -> None:
        process = folder_of(cell, where) / f"waits-{epoch}"
        wait_for(process.exists)
        os.kill(int(process.read_text()), number)

    jobs = slurm.submit({cell: table}, where, **asked)
    end(2, signal.SIGKILL)
    seen = small_grid.Seen()
    assert slurm.watch(jobs, where, seen).failed == (cell,)
    assert [what for what, *_ in seen.of(cell)] == ["began", "moved", "failed"]
    wait_for(lambda: not slurm._still_there(tmp_path / "jobs"))

    jobs = slurm.submit({cell: table}, where, **asked)
    end(3, signal.SIGUSR2)
    assert slurm.watch(jobs, where, seen).ended == (cell,)
    assert "Requeued job" in jobs[0].job.paths.stdout.read_text()
    assert work.epochs_done(cell, where) == 4

    alone = replace(where, work=tmp_path / "alone", results=tmp_path / "alone-results")
    assert work.train(cell, table, alone) is not None
    assert small_grid.decided(cell.result(where.results)) == small_grid.decided(cell.result(alone.results))


def test_refusals(place: Place, cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cluster / "refusal").write_text("sbatch: error: invalid partition\nsbatch: error: Batch job submission failed")
    with pytest.raises(ClusterError, match="sbatch refused 2 jobs"):
        submitted(("CE", "SL"), place, tmp_path)
    assert not (tmp_path / "jobs" / slurm.FILE).exists()
    for wrong in ({"at_once": 0}, {"hours": 0}, {"hours": float("nan")}, {"cpus": 0}, {"gpus": -1}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            submitted(("CE",), place, tmp_path, **wrong)
    missing: list[tuple[str, type[NarlError]]] = [("narl[sweep]", MissingExtraError), ("no sbatch", ClusterError)]
    for words, kind in missing:
        with monkeypatch.context() as patched:
            if kind is MissingExtraError:
                patched.setitem(sys.modules, "submitit", None)
            patched.setenv("PATH", str(tmp_path))
            with pytest.raises(kind, match=re.escape(words)):
                submitted(("CE",), place, tmp_path)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (None, "the job is over (timeout)"),
        ("slurmstepd: error: out of memory\n\n", "the job is over (timeout): slurmstepd: error: out of memory"),
        ('Traceback:\n  File "a"\n    x\n    ^\nnarl.errors.OptionError: no data: give it\nmore\n', "no data: give it"),
        ('  File "a"\nKeyError: 1\n\nDuring another:\n\n  File "b"\nValueError: 2\n', "ValueError: 2"),
        ('  File "a"\n', '  File "a"'),
    ],
)
def test_the_reason_is_the_first_line_of_the_error(log: str | None, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    if log is not None:
        path.write_text(log)
    assert slurm._reason(path, "TIMEOUT") == reason
