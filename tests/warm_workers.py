"""Workers of a grid that begin at once. As a script: forks one for everybody who comes to its socket.

Importing torch and what it loads when it is first used takes seconds, so one process does it and forks the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, final

import torch

from narl.bench import work, worker
from small_grid import cell, place, table

COMMAND = ("-m", "narl.bench.worker")


@final
class Worker:
    """What a grid asks of the process that it has started: a part of ``subprocess.Popen``."""

    def __init__(self, address: str, output: IO[str], env: dict[str, str]) -> None:
        read, write = os.pipe()
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(address)
        about = json.dumps({"env": env, "cwd": os.getcwd()}).encode()
        socket.send_fds(self._line, [len(about).to_bytes(8, "little")], [read, output.fileno()])
        os.close(read)
        self._line.sendall(about)
        self.stdin = os.fdopen(write, "w")
        self.pid = self._number()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """How it ended; None: it has not."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(COMMAND, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Nothing happens to one that has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._line], [], [], seconds)[0]:
            self.returncode = self._number()
            self._line.close()
        return self.returncode

    def _number(self) -> int:
        return int.from_bytes(_received(self._line, 8), "little", signed=True)


@contextmanager
def server() -> Iterator[str]:
    """A process that forks workers: where to ask for one."""
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder, "socket"))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield address
            process.stdin.close()
            try:
                assert process.wait(timeout=60) == 0
            finally:
                process.kill()  # nothing happens to one that has left


def starting(address: str) -> Any:
    """In place of ``subprocess.Popen``: workers come from the server, everything else is started as ever."""
    plain, own = subprocess.Popen, [sys.executable, *COMMAND]

    def start(command: Any, **how: Any) -> Any:
        if command != own:
            return plain(command, **how)
        assert how["start_new_session"]
        return Worker(address, how["stdout"], how["env"])

    return start


def _received(line: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = line.recv(count - len(found))
        assert more, "the other side has left"
        found += more
    return found


def _serve(address: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        protocol = table(Path(folder, "small.json"), epochs=1)
        for method in ("CE", "A-GCE"):
            work.train(cell(protocol, method), protocol, place(Path(folder)))
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(address)
        door.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while door in select.select([door, sys.stdin], [], [])[0]:
            line, _ = door.accept()
            with line:
                if os.fork() == 0:
                    door.close()
                    os._exit(_watch(line))
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    with contextlib.suppress(ChildProcessError):
        while os.wait():
            pass


def _watch(line: socket.socket) -> int:
    """Fork the worker, and tell who it is and how it ended."""
    size, (stdin, output), _, _ = socket.recv_fds(line, 8, 2)
    asked = json.loads(_received(line, int.from_bytes(size, "little")))
    number = os.fork()
    if number == 0:
        line.close()
        os._exit(_work(stdin, output, **asked))
    os.close(stdin)
    with contextlib.suppress(BrokenPipeError):
        line.sendall(number.to_bytes(8, "little"))
        code = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
        line.sendall(code.to_bytes(8, "little", signed=True))
    return 0


def _work(stdin: int, output: int, env: dict[str, str], cwd: str) -> int:
    """As if it were a new process."""
    os.setsid()
    for old, new in ((stdin, 0), (output, 1), (output, 2)):
        os.dup2(old, new)
    sys.stdin = os.fdopen(0, closefd=False)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    torch.set_num_threads(int(env.get("OMP_NUM_THREADS") or 1))
    code = 1
    try:
        code = worker.main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code


if __name__ == "__main__":
    _serve(sys.argv[1])
