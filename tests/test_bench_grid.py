"""Many cells on one machine: only the missing ones, through failures, kills and stops."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import answer_of, done, narl, process
from narl.bench import grid, work
from narl.bench.cells import Cell
from narl.bench.runs import Run
from narl.bench.worker import STOPPED
from narl.cli.grid_progress import GridProgress
from narl.errors import OptionError
from small_grid import TASK, Seen, bench, cell, decided, place, points, script, table, wait_for

SLOW = {"epochs": 20, "training": {"batch_size": 4}}
OTHER = {"dataset": "other", "noise": "symmetric", "rate": 0.3}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    """The workers that a grid starts; each has one thread, and is looked at often."""
    found: list[subprocess.Popen[str]] = []
    plain = subprocess.Popen

    def start(*arguments: Any, **more: Any) -> subprocess.Popen[str]:
        found.append(plain(*arguments, **more))
        return found[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(grid, "_LOOK", 0.02)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return found


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the slow table's first cell gives when nothing happens to it."""
    folder = tmp_path_factory.mktemp("whole")
    protocol, where = table(folder / "small.json", **SLOW), place(folder)
    work.train(cell(protocol), protocol, where)
    return decided(cell(protocol).result(where.results))


@pytest.mark.usefixtures("nothing_shipped", "warm_workers")
def test_the_missing_cells_are_trained_whatever_happens_to_one(
    tmp_path: Path, started: list[subprocess.Popen[str]], whole: dict[str, Any]
) -> None:
    """One has a result, one cannot be read, one is killed while it trains."""
    protocol = table(tmp_path / "small.json", tasks=[TASK, OTHER], **SLOW)
    where = place(tmp_path)
    where = replace(where, sources=(*where.sources, ("other", str(tmp_path / "nowhere.csv"))))
    ready, bad, killed = (cell(protocol, seed=2), cell(protocol, dataset="other"), cell(protocol))
    result = Run(ready, 0.5, 0.5, {}).write(where.results)
    before = result.stat().st_mtime_ns
    found = grid.sort([ready, bad, killed, killed, cell(protocol, "T-GCE")], protocol, where)
    assert found.done == (ready,)
    assert found.missing == (bad, killed)
    assert [one.method for one, _ in found.impossible] == ["T-GCE"]

    def kill(one: Cell, epoch: int) -> None:
        if len(started) == 2:
            started[-1].kill()

    seen = Seen(kill)
    assert grid.train(dict.fromkeys(found.missing, protocol), where, seen, at_once=2) is False
    ((_, reason, log),) = seen.of(bad, "failed")
    assert "nowhere.csv" in reason
    assert "\n" not in reason
    assert reason in log.read_text()
    assert log == where.work / f"{bad.slug}.log"
    assert [one[0] for one in seen.of(bad)] == ["began", "failed"]
    assert len(started) == 3
    assert [one.returncode for one in started[1:]] == [-signal.SIGKILL, 0]
    assert [one[0] for one in seen.of(killed) if one[0] != "moved"] == ["began", "began", "ended"]
    assert decided(killed.result(where.results)) == whole
    assert result.stat().st_mtime_ns == before
    assert grid.sort(found.missing, protocol, where).missing == (bad,)


@pytest.mark.usefixtures("warm_workers")
def test_a_worker_goes_on_with_what_is_most_like_what_it_did(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    """What it did before changes nothing."""
    protocol, where = table(tmp_path / "small.json", methods=["CE", "GCE"]), place(tmp_path)
    first, other, second = cell(protocol), cell(protocol, "GCE"), cell(protocol, seed=1)
    seen, cells = Seen(), (first, other, second)
    assert grid.train(dict.fromkeys(cells, protocol), where, seen, at_once=1) is True
    assert [slug for what, slug, *_ in seen.told if what == "began"] == [one.slug for one in (first, second, other)]
    assert [worker.returncode for worker in started] == [0]
    (tmp_path / "alone").mkdir()
    alone = place(tmp_path / "alone", sources=where.sources)
    for one in cells:
        work.train(one, protocol, alone)
        assert decided(one.result(where.results)) == decided(one.result(alone.results))


@pytest.mark.usefixtures("warm_workers")
def test_each_cell_has_a_log_of_its_own(tmp_path: Path, started: list[subprocess.Popen[str]]) -> None:
    """One worker, and the second cell is the one that fails."""
    protocol = table(tmp_path / "small.json", methods=["CE"], tasks=[TASK, OTHER])
    where = place(tmp_path)
    where = replace(where, sources=(*where.sources, ("other", str(tmp_path / "nowhere.csv"))))
    good, bad = cell(protocol), cell(protocol, dataset="other")
    seen = Seen()
    assert grid.train(dict.fromkeys((good, bad), protocol), where, seen, at_once=1) is False
    assert len(started) == 1
    ((_, reason, log),) = seen.of(bad, "failed")
    assert reason in log.read_text()
    assert "nowhere" not in (where.work / f"{good.slug}.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.usefixtures("warm_workers")
def test_a_command_that_is_stopped_goes_on(
    tmp_path: Path,
    started: list[subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
    whole: dict[str, Any],
    number: signal.Signals,
) -> None:
    protocol, where = table(tmp_path / "small.json", methods=["CE"], **SLOW), place(tmp_path)
    one = cell(protocol)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(GridProgress, "moved", lambda *_: os.kill(os.getpid(), number))
        answer = narl(*bench(tmp_path))
    assert answer.code == 130
    assert "Traceback" not in answer.err
    assert answer.err.splitlines()[0] == "stopped and saved: the same command goes on"
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert [worker.returncode for worker in started] == [STOPPED]
    assert list((where.work / one.slug / "checkpoints").iterdir())
    assert not one.result(where.results).exists()
    if number == signal.SIGINT:
        answer = done(*bench(tmp_path))
        assert answer.out.splitlines()[0] == "1 cell: 0 with a result, 1 missing"
        assert re.fullmatch(
            r"\[1/1\] points symmetric 0\.3, CE, seed 0: \d\d\.\d\d% \(best epoch \d\d\.\d\d%\), \d+ s\n", answer.err
        )
        assert "\x1b" not in answer.out + answer.err
        answer = done(*bench(tmp_path))
        assert (answer.out, answer.err) == ("1 cell: 1 with a result, 0 missing\n", "")
        assert len(started) == 2
        assert decided(one.result(where.results)) == whole


def test_a_command_that_is_killed_leaves_nothing_damaged(
    tmp_path: Path, started: list[subprocess.Popen[str]], whole: dict[str, Any]
) -> None:
    """Its worker goes on alone; who tries meanwhile learns which process has the run."""
    protocol, where = table(tmp_path / "small.json", methods=["CE"], **SLOW), place(tmp_path)
    one, running = cell(protocol), process(*bench(tmp_path))
    wait_for(lambda: work.epochs_done(one, where) > 0)
    lock = (where.work / one.slug / ".lock").read_text()
    worker = int(lock.split()[-1])
    os.kill(worker, signal.SIGSTOP)
    try:
        running.kill()
        assert answer_of(running).code == -signal.SIGKILL
        answer = narl(*bench(tmp_path))
    finally:
        os.kill(worker, signal.SIGCONT)
    assert answer.code == 1
    in_use = f"{where.work / one.slug} is in use by process {worker}: wait until it ends, or stop it"
    assert f"failed: {in_use} ({where.work / one.slug}.log), " in answer.err
    wait_for(one.result(where.results).exists)
    assert done(*bench(tmp_path)).out == "1 cell: 1 with a result, 0 missing\n"
    assert decided(one.result(where.results)) == whole


def test_a_worker_that_is_killed_again_and_again_is_given_up(
    tmp_path: Path, started: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", script(tmp_path / "python", "kill -9 $$"))
    protocol, where = table(tmp_path / "small.json"), place(tmp_path)
    seen = Seen()
    assert grid.train({cell(protocol): protocol}, where, seen) is False
    assert len(started) == 3
    assert [one[:2] for one in seen.of(cell(protocol), "failed")] == [("failed", "killed by signal 9")]


def test_a_worker_that_does_not_leave_is_killed(
    tmp_path: Path, started: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", script(tmp_path / "python", "trap '' TERM; echo > deaf; exec sleep 60"))
    monkeypatch.setattr(grid, "_PATIENCE", 0.2)
    monkeypatch.chdir(tmp_path)
    protocol, where = table(tmp_path / "small.json"), place(tmp_path)

    class Stop(Seen):
        def began(self, cell: Cell) -> None:
            wait_for((tmp_path / "deaf").exists)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grid.train({cell(protocol): protocol}, where, Stop())
    assert started[0].wait(10) == -signal.SIGKILL


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    protocol, where = table(tmp_path / "small.json"), place(tmp_path)
    (tmp_path / "file").touch()
    file = tmp_path / "file"
    for blocked in (replace(where, work=file), replace(where, results=file / "inside")):
        with pytest.raises(OptionError, match=f"{file}.* cannot be written: .*; choose another folder"):
            grid.train({cell(protocol): protocol}, blocked, Seen())


def test_workers_get_what_their_slot_says(
    tmp_path: Path, started: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    # A worker ends once the other slot has begun as often as its own: which one would be free first is chance.
    count = f"cat {told}-$1 2>/dev/null | wc -l"
    waits = "until [ $(begun $((1 - slot))) -ge $(begun $slot) ]; do sleep 0.02; done"
    does = f"begun() {{ {count}; }}; slot=$CUDA_VISIBLE_DEVICES; echo $slot >> {told}-$slot; {waits}; exit 3"
    monkeypatch.setattr(sys, "executable", script(tmp_path / "python", does))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    protocol, where = table(tmp_path / "small.json"), replace(place(tmp_path), device="cuda")
    cells = [cell(protocol, seed=seed) for seed in range(4)]
    seen = Seen()
    assert grid.train(dict.fromkeys(cells, protocol), where, seen, at_once=1) is False
    assert [(tmp_path / f"told-{slot}").read_text().split() for slot in "01"] == [["0", "0"], ["1", "1"]]
    assert {one[1] for each in cells for one in seen.of(each, "failed")} == {"exit code 3"}


def test_the_answer_of_a_failing_cell(
    tmp_path: Path, started: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", script(tmp_path / "python", "echo 'narl: no room' >&2; exit 2"))
    table(tmp_path / "small.json", methods=["CE", "GCE"])
    points(tmp_path / "points.csv")
    answer = narl(*bench(tmp_path))
    assert (answer.code, len(started)) == (1, 2)
    assert len(answer.err.splitlines()) == 2
    for line, method in zip(answer.err.splitlines(), ("ce", "gce"), strict=True):
        log = tmp_path / f"work/points/symmetric-0.3/tabular-small/{method}-seed0.log"
        assert f"failed: no room ({log}), " in line
