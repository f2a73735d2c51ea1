"""Runs by several processes, started as torchrun starts them: equal to one's, stopped, killed, resumed, refused."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from command_line import Answer, answer_of, done, process, result, rings
from narl.train.run_folder import RunFolder
from together import Running, Team

LIMIT = 60.0
FLAGS = ("--batch-size", 20, "--device", "cpu", "--no-tensorboard", "--seed", 3)
TABLE = ("--model", "mlp", "--ignore", "colour", "--clean", 40, *FLAGS)
FORGETFUL = ("--method", "A-GCE", "--clean", 40, "--model", "together:forgetful", "--ignore", "colour", *FLAGS)


def near(ours: Path, theirs: Path, tolerance: float = 1e-5) -> None:
    """Two runs with the same numbers, up to rounding."""
    for a, b in zip(RunFolder.open(ours).metrics(), RunFolder.open(theirs).metrics(), strict=True):
        assert numbers(a) == pytest.approx(numbers(b), abs=tolerance)
    names = ["model.safetensors", *(path.name for path in theirs.glob("adjuster-*.safetensors"))]
    for name in names:
        mine, other = load_file(ours / name), load_file(theirs / name)
        assert mine.keys() == other.keys()
        for key in other:
            np.testing.assert_allclose(mine[key], other[key], atol=tolerance, rtol=tolerance)
    np.testing.assert_allclose(np.load(ours / "samples.npy"), np.load(theirs / "samples.npy"), atol=4e-3, rtol=2e-3)


def numbers(record: dict[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in record.items():
        inside = value if isinstance(value, dict) else {"": value}
        found |= {f"{name} {key}": entry for key, entry in inside.items() if entry is not None}
    return found


def finished(answers: list[Answer]) -> None:
    """All got to the end, and the first one spoke."""
    assert [answer.code for answer in answers] == [0] * len(answers), answers[0].err
    assert "The model of epoch" in answers[0].out
    assert all(answer.out == answer.err == "" for answer in answers[1:])


def refused(answers: list[Answer]) -> str:
    """All left, with one line of the first."""
    assert [answer.code for answer in answers] == [2] * len(answers)
    assert all(answer.out == answer.err == "" for answer in answers[1:])
    lines = answers[0].err.splitlines()
    assert "Traceback" not in answers[0].err
    assert [line for line in lines if line.startswith("narl: ")] == lines[-1:]
    return lines[-1]


def wait_for_epochs(run: Path, count: int) -> None:
    began = time.monotonic()
    while not (run / "metrics.jsonl").exists() or len(RunFolder.open(run).metrics()) < count:
        assert time.monotonic() - began < LIMIT
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("method", "count"), [pytest.param("A-GCE", 2, marks=pytest.mark.slow), ("A-GCE", 3), ("Forward", 2)]
)
def test_a_run_is_that_of_one_process(workers: Team, tmp_path: Path, method: str, count: int) -> None:
    """The test set is large enough to be divided, the last batch too small."""
    learned = ("--option", "tangent=forward") if method != "Forward" else ()
    data = rings(tmp_path / "rings.csv", 1903)
    flags = ("--test", 0.8, "--epochs", 2, "--heldout", 0.2, "--method", method, *learned)
    command = ("train", data, *TABLE, *flags)
    finished(workers.narl(count, *command, "--out", tmp_path / "several"))
    done(*command, "--out", tmp_path / "one")
    near(tmp_path / "several", tmp_path / "one")
    assert json.loads((tmp_path / "several" / "environment.json").read_text())["processes"] == count


def test_images_are_varied_as_by_one_process(workers: Team, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = tmp_path / "images.npz"
    np.savez(data, x=rng.integers(0, 256, (90, 12, 12, 3), dtype=np.uint8), y=np.arange(90) % 3)
    flags = ("--clean", 12, "--clean-batch-size", 7, "--epochs", 2, "--option", "tangent=forward", *FLAGS)
    command = ("train", data, "--model", "together:tiny", "--augment", "crop+flip+cutout+colour+rotate", *flags)
    finished(workers.narl(2, *command, "--out", tmp_path / "several"))
    done(*command, "--out", tmp_path / "one")
    near(tmp_path / "several", tmp_path / "one")


def test_transferred(workers: Team, tmp_path: Path) -> None:
    data = rings(tmp_path / "rings.csv", 240)
    done("train", data, "--epochs", 1, "--out", tmp_path / "source", *TABLE)
    table = [flag for flag in TABLE if flag not in ("--clean", 40)]
    command = ("transfer", data, "--from", tmp_path / "source", "--epochs", 2, *table)
    finished(workers.narl(2, *command, "--out", tmp_path / "several"))
    done(*command, "--out", tmp_path / "one")
    near(tmp_path / "several", tmp_path / "one")


def stopped(running: Running, run: Path) -> None:
    answers = running.answers()
    assert [answer.code for answer in answers] == [130] * len(answers), answers[0].err
    assert answers[0].err.splitlines()[-1] == f"narl: stopped and saved. Go on with: narl train --resume {run}"
    assert "Traceback" not in answers[0].err
    assert all(answer.out == answer.err == "" for answer in answers[1:])


def test_ctrl_c_in_any_process_stops_all_and_the_run_goes_on_as_it_was(workers: Team, tmp_path: Path) -> None:
    """Bit for bit with the same number of processes, dropout included."""
    run = tmp_path / "run"
    command = ("train", rings(tmp_path / "rings.csv", 300), "--epochs", 6, *FORGETFUL)
    finished(workers.narl(2, *command, "--out", tmp_path / "reference"))
    with workers.commands(*[(*command, "--out", run)] * 2) as running:
        wait_for_epochs(run, 2)
        os.kill(running.pids[1], signal.SIGINT)
        stopped(running, run)
    assert len(RunFolder.open(run).metrics()) < 6
    finished(workers.narl(2, "train", "--resume", run, "--no-tensorboard"))
    assert result(run) == result(tmp_path / "reference")
    answers = workers.narl(2, "train", "--resume", run)
    finished(answers)
    assert "finished already" in answers[0].err


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_process_ends_the_others_and_any_number_goes_on(workers: Team, tmp_path: Path, victim: int) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    command = ("train", rings(tmp_path / "rings.csv", 300), "--epochs", 6, "--option", "tangent=forward", *TABLE)
    with workers.commands(*[(*command, "--out", run)] * 2) as running:
        wait_for_epochs(run, 2)
        os.kill(running.pids[victim], signal.SIGKILL)
        began = time.monotonic()
        answers = running.answers()
        assert time.monotonic() - began < 20
    left = answers[1 - victim]
    assert answers[victim].code == -signal.SIGKILL
    assert left.code == 2
    assert left.err.splitlines()[-1].startswith("narl: the connection to another process is lost: it has ended")
    assert "Traceback" not in left.err
    finished(workers.narl(3, "train", "--resume", run, "--no-tensorboard"))
    done(*command, "--out", whole)
    near(run, whole)


def test_what_is_wrong_in_one_process_ends_all(workers: Team, tmp_path: Path) -> None:
    data, run = rings(tmp_path / "rings.csv", 240), tmp_path / "run"
    other = rings(tmp_path / "other.csv", 240, seed=1)

    def commands(second: Path) -> list[tuple[object, ...]]:
        return [("train", path, "--epochs", 1, "--out", run, *TABLE) for path in (data, second)]

    with workers.commands(*commands(tmp_path / "none.csv")) as running:
        assert refused(running.answers()).endswith("(process 1)")
    with workers.commands(*commands(other)) as running:
        assert "process 1 has another data than process 0" in refused(running.answers())
    assert not run.exists()


@pytest.mark.parametrize("seed", [0, 1])
def test_a_file_that_is_lost_in_the_middle_is_named(workers: Team, tmp_path: Path, seed: int) -> None:
    rng, run = np.random.default_rng(0), tmp_path / "run"
    for number in range(60):
        path = tmp_path / "data" / "abc"[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(path)
    flags = ("--model", "together:tiny", "--test", "none", "--memory", 0, "--epochs", 400, *FLAGS, "--seed", seed)
    with workers.commands(*[("train", tmp_path / "data", "--out", run, *flags)] * 2) as running:
        wait_for_epochs(run, 1)
        (tmp_path / "data" / "b" / "1.png").unlink()  # one of the two needs it first
        assert "1.png" in refused(running.answers())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--method", "GCE", "--tune"), "--tune trains one candidate after the other"),
        (("--method", "together:Remembering"), "does not say that several processes can train with it"),
        (("--device", "cuda:0"), "--device cuda:0 is one device, and there are 2 processes"),
        (("--method", "nonsense"), "no method is called 'nonsense'"),
        (("--epochs", "many"), "--epochs"),
    ],
)
def test_refusals(workers: Team, tmp_path: Path, flags: tuple[str, ...], words: str) -> None:
    run = tmp_path / "run"
    command = ("train", rings(tmp_path / "rings.csv", 240), "--out", run, *TABLE, *flags)
    assert words in refused(workers.narl(2, *command))
    assert not run.exists()


def test_a_run_that_is_there_is_not_touched(workers: Team, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ("train", rings(tmp_path / "rings.csv", 240), "--out", run, "--epochs", 1, *TABLE)
    finished(workers.narl(2, *command))
    assert "there is a run in" in refused(workers.narl(2, *command))
    finished(workers.narl(2, *command, "--overwrite"))


def test_torchrun(tmp_path: Path) -> None:
    command = ("train", rings(tmp_path / "rings.csv", 300), "--epochs", 2, "--option", "tangent=forward", *TABLE)
    begin = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "narl"]
    answer = answer_of(process(*command, "--out", tmp_path / "several", begin=begin))
    assert answer.code == 0, answer.err
    assert answer.out.count("The model of epoch") == 1
    done(*command, "--out", tmp_path / "one")
    near(tmp_path / "several", tmp_path / "one")
