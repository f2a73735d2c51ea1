"""Real processes: killed, interrupted, out of space, two on one run. Whatever happened, a run that goes on is the same.

The twenty kills that are promised are made by ``benchmarks/kill.py``.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from command_line import Answer, answer_of, done, narl, process, refusal, refused, result, rings, tree
from full_disk import file_size_limit
from narl.train.run_folder import RunFolder

EPOCHS = 12
LIMIT = 120.0


LEARNING = ("--method", "A-GCE", "--heldout", 0.25)
TUNING = ("--method", "GCE", "--tune")


class Case:
    """A run, the command that begins it, and how long it trains."""

    def __init__(self, folder: Path, flags: tuple[object, ...]) -> None:
        self.data, self.reference, self.flags = rings(folder / "rings.csv", 300), folder / "reference", flags
        began = time.monotonic()
        done(*self.command(self.reference))
        self.seconds = time.monotonic() - began

    def command(self, run: Path) -> tuple[object, ...]:
        flags = ("--epochs", EPOCHS, "--batch-size", 20, "--seed", 3, "--device", "cpu", "--no-tensorboard")
        return ("train", self.data, "--out", run, "--clean", 40, *self.flags, *flags)

    def resume(self, run: Path) -> None:
        """Go on in this process, or begin again where the run had not begun."""
        began = (run / "config.json").exists()
        done("train", "--resume", run, "--no-tensorboard") if began else done(*self.command(run))
        assert result(run) == result(self.reference)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("kill"), LEARNING)


def wait_for(path: Path, running: subprocess.Popen[str]) -> None:
    """Until a file is there and holds something."""
    began = time.monotonic()
    while not path.exists() or not path.stat().st_size:
        assert time.monotonic() - began < LIMIT, f"no {path.name} appeared"
        if running.poll() is not None:
            pytest.fail(f"the process ended before it wrote {path.name}: {answer_of(running).err}")
        time.sleep(0.002)


def kill(running: subprocess.Popen[str]) -> Answer:
    running.send_signal(signal.SIGKILL)
    return answer_of(running)


def stop(running: subprocess.Popen[str]) -> None:
    """Have a process stand still. The signal alone lets it end what it is in, as the writing of a file."""
    running.send_signal(signal.SIGSTOP)
    stopped = os.waitid(os.P_PID, running.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert stopped is not None
    assert stopped.si_code == os.CLD_STOPPED, "the process ended before it could be stopped"


@pytest.mark.parametrize("number", range(3))
def test_killed_while_it_trains(case: Case, tmp_path: Path, number: int) -> None:
    run = tmp_path / "run"
    running = process(*case.command(run))
    wait_for(run / "config.json", running)
    time.sleep(random.Random(number).uniform(0, case.seconds))
    answer = kill(running)
    assert answer.code in (0, -signal.SIGKILL)
    assert len(RunFolder.open(run).metrics()) <= EPOCHS
    case.resume(run)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [LEARNING, TUNING], ids=["learning", "tuning"])
def test_killed_at_any_moment_more_than_once(tmp_path: Path, flags: tuple[object, ...]) -> None:
    """From the start of the process on, three times in a row, each time resumed by a process of its own."""
    case, draw = Case(tmp_path, flags), random.Random(0)
    for number in range(4):
        run = tmp_path / f"run-{number}"
        for _ in range(3):
            began = (run / "config.json").exists()
            running = process("train", "--resume", run, "--no-tensorboard") if began else process(*case.command(run))
            time.sleep(draw.uniform(0, 2 + case.seconds))
            assert kill(running).code in (0, -signal.SIGKILL)
        case.resume(run)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_ctrl_c_saves_and_nobody_else_writes(case: Case, tmp_path: Path, number: signal.Signals) -> None:
    run = tmp_path / "run"
    running = process(*case.command(run))
    wait_for(run / "metrics.jsonl", running)
    stop(running)  # it keeps the run while others try
    before = tree(run)
    assert f"{run} is in use by process {running.pid}: wait" in refused("train", "--resume", run, "--no-tensorboard")
    assert f"in use by process {running.pid}" in refused(*case.command(run), "--overwrite", plan_shown=True)
    assert tree(run) == before
    running.send_signal(number)
    running.send_signal(signal.SIGCONT)
    answer = answer_of(running)
    assert answer.code == 130, answer.err
    assert answer.out == ""
    assert "Traceback" not in answer.err
    assert answer.err.splitlines()[-1] == f"narl: stopped and saved. Go on with: narl train --resume {run}"
    assert 1 <= len(RunFolder.open(run).metrics()) < EPOCHS
    case.resume(run)


@pytest.mark.parametrize("moment", ["checkpoint", "record", "configuration", "lock"])
def test_a_full_disk(case: Case, tmp_path: Path, moment: str) -> None:
    sizes = {
        "checkpoint": max(path.stat().st_size for path in (case.reference / "checkpoints").iterdir()),
        "record": (case.reference / "samples.json").stat().st_size,
        "configuration": (case.reference / "config.json").stat().st_size,
        "lock": 20,
    }
    run = tmp_path / "run"
    with file_size_limit(sizes[moment] - 1):
        answer = narl(*case.command(run))
    check_full(answer, run)
    case.resume(run)


def test_a_disk_that_fills_up_in_the_midst_of_a_process(case: Case, tmp_path: Path) -> None:
    """The record of the samples grows with every epoch, until it is larger than everything else."""
    run, data = tmp_path / "run", rings(tmp_path / "many.csv", 4000)
    small = ("--model", "mlp", "--ignore", "colour", "--method", "CE", "--batch-size", 4000)
    flags = ("--epochs", 40, *small, "--device", "cpu", "--no-tensorboard")
    answer = answer_of(process("train", data, "--out", run, *flags, file_limit=220_000))
    check_full(answer, run)
    assert "samples.npy" in answer.err.splitlines()[-1]
    assert 10 < len(RunFolder.open(run).metrics()) < 40
    done("train", "--resume", run, "--no-tensorboard")
    done("train", data, "--out", tmp_path / "whole", *flags)
    assert result(run) == result(tmp_path / "whole")


def check_full(answer: Answer, run: Path) -> None:
    message = refusal(answer, plan_shown=True)
    assert str(run) in message
    assert "File too large; raise the limit on the size of files; nothing of the run so far is lost" in message
