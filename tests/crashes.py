"""Processes to be killed while they write a run. As a script: forks one for every line of JSON that it is given.

Importing torch takes seconds, so one process imports it and forks the others.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from narl.train.record import SampleRecord
from narl.train.run_folder import RunFolder

EPOCHS = 500
SAMPLES = 300
WATCHED = ("open", "os.", "fcntl.", "pathlib.")


class Killer:
    """Makes processes that write a run, and has them killed."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server

    def run(self, work: str, folder: Path, **how: Any) -> bool:
        """Do the work, killed after ``after`` seconds or ``at`` a call of the system; True if it got through."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps({"work": work, "folder": str(folder), **how}), file=self._server.stdin, flush=True)
        answer = self._server.stdout.readline().strip()
        assert answer in ("0", str(-signal.SIGKILL)), f"the process ended with {answer!r}"
        return answer == "0"


@contextmanager
def killer() -> Iterator[Killer]:
    command = [sys.executable, __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield Killer(server)
        assert server.stdin is not None
        server.stdin.close()
        assert server.wait(timeout=20) == 0


def tree_of(epoch: int) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "weights": torch.full((5000,), float(epoch)),
        "state": {0: torch.full((3, 3), float(epoch))},
    }


def metrics_of(epoch: int) -> dict[str, Any]:
    return {"epoch": epoch, "accuracy": epoch / 7, "words": "x" * 200}


def values_of(epoch: int) -> dict[str, Any]:
    return {"margin": np.full(SAMPLES, epoch), "q": np.full(SAMPLES, epoch / 8)}


def create(folder: Path) -> None:
    RunFolder.create(folder, config={"epochs": EPOCHS}, environment={"cores": 2})


def overwrite(folder: Path) -> None:
    RunFolder.create(folder, config={"epochs": EPOCHS}, environment={"cores": 2}, overwrite=True)


def train(folder: Path, epochs: int = EPOCHS) -> None:
    """Go on with a run for so many epochs."""
    run = RunFolder.open(folder)
    with run.lock():
        found = run.checkpoints.latest()
        begin = 0 if found.tree is None else found.tree["epoch"]
        run.rewrite_metrics([metrics_of(epoch) for epoch in range(1, begin + 1)])
        record = SampleRecord.create(folder, ["margin", "q"], [str(i) for i in range(SAMPLES)], EPOCHS)
        for epoch in range(begin + 1, begin + 1 + epochs):
            record.write(epoch - 1, values_of(epoch))
            run.append_metrics(metrics_of(epoch))
            run.checkpoints.save(tree_of(epoch), epoch, 0)


WORKS: dict[str, Callable[[Path], None]] = {
    "create": create,
    "overwrite": overwrite,
    "train": train,
    "train 2": lambda folder: train(folder, 2),
}


def _kill_at(count: int) -> None:
    """Have this process killed at a call that touches files."""
    left = count

    def watch(event: str, _: Any) -> None:
        nonlocal left
        if event.startswith(WATCHED) or event == "fsync":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    plain = os.fsync

    def fsync(descriptor: int) -> None:
        watch("fsync", None)
        plain(descriptor)

    os.fsync = fsync  # type: ignore[assignment]  # Python announces it to no audit hook
    sys.addaudithook(watch)


def _serve() -> None:
    for line in sys.stdin:
        task = json.loads(line)
        number = os.fork()
        if number == 0:
            code = 1
            try:
                if "at" in task:
                    _kill_at(task["at"])
                WORKS[task["work"]](Path(task["folder"]))
                code = 0
            finally:
                os._exit(code)
        if "after" in task:
            time.sleep(task["after"])
            os.kill(number, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
