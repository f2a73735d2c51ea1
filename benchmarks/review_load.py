"""How fast a review answers with a million samples and eight browsers at once, and how much memory it takes.

    python benchmarks/review_load.py [--samples 1000000] [--clients 8] [--seconds 20] [--pause 0.2]
        [--out results/review-load.json]

The server is a process of its own, with made-up verdicts about images in files, 32 by 32 pixels. Every client is one,
too: it answers, fetches the next image, as the page does, and looks at it for a moment (``--pause``, in seconds); each
answer is on the disk (SQLite, ``synchronous=FULL``) before its reply. ``move`` is from an answer to the next image,
``answer`` and ``image`` are its two requests, ``first`` is from nothing to the first sample. Half of the clients share
a labeller, the others have one each. The same once more without a pause is ``flat_out``.

An answer can be no faster than the disk: ``fsync`` is what a plain 4 kB write and fsync took just before, and a second
row has the same review in memory (``/dev/shm``), to tell the server from the disk. ``load`` is how many processes
wanted the machine's cores when it began, ``nice`` the priority of all of this among them (0 is the usual one, less goes
first). Exit status 1 if in memory 1 % of the moves with a pause take 100 ms or more, or on the disk 100 ms more than
the fsync does, or a server has ever had 1 GB of memory.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

CLASSES = tuple(f"class {number}" for number in range(100))
FILES = 500
MEMORY = "/dev/shm"
SYNCING = 10.0
LONGEST_MS, LARGEST_MB = 100.0, 1000.0


def serve(folder: Path, samples: int, link: Any) -> None:
    """Serve a made-up run until the process is ended."""
    from narl.audit.review.answers import FILE
    from narl.audit.review.contents import Contents
    from narl.audit.review.desk import Desk
    from narl.audit.review.opening import open_desk
    from narl.audit.review.server import Server
    from narl.audit.verdicts import NoiseEstimate, Verdicts
    from narl.data.samples import ImageFiles

    assert open_desk is not None  # what the command loads counts as well
    rng = np.random.default_rng(0)
    begin = time.perf_counter()
    given, score, sure = rng.integers(0, len(CLASSES), samples), rng.random(samples), np.eye(len(CLASSES))
    wrong = score < 0.2
    verdicts = Verdicts(
        ids=np.array([f"class{k}/{number:08d}.png" for number, k in enumerate(given)]),
        given=given,
        suggested=np.where(wrong, (given + 1) % len(CLASSES), given),
        confidence=rng.random(samples),
        score=score,
        wrong=wrong,
        probability=None,
        margin=rng.normal(size=samples),
        family=np.zeros(samples, np.int64),
        class_names=CLASSES,
        noise=NoiseEstimate(0.2, 0.1, 0.3, sure, sure, sure),
    )
    files = ImageFiles(folder, np.array([f"{number % FILES:08d}.png" for number in range(samples)]))
    made = time.perf_counter()
    desk = Desk(verdicts, Contents(files, np.arange(samples)), folder / FILE)
    server = Server(desk, run="made up", labeller="nobody")
    link.send((server.port, server.token, made - begin, time.perf_counter() - made))
    server.run()


def work(number: int, clients: int, port: int, token: str, seconds: float, pause: float, ready: Any, done: Any) -> None:
    """Answer for some seconds; tells how long everything took, in milliseconds."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    who = {"labeller": "all" if number < clients // 2 else f"labeller {number}", "tab": f"tab {number}"}
    headers = {"x-narl-token": token, "content-type": "application/json"}

    def ask(method: str, path: str, fields: dict[str, Any] | None = None) -> bytes:
        connection.request(method, path, None if fields is None else json.dumps({**who, **fields}), headers)
        reply = connection.getresponse()
        content = reply.read()
        if reply.status != 200:
            raise SystemExit(f"{path}: {reply.status} {content[:200]!r}")
        return content

    ready.wait()  # whoever still loads Python would be in the way of the others
    begin = time.perf_counter()
    for path in ("/", "/review.css", "/review.js", "/api/about"):
        ask("GET", path)
    shown = json.loads(ask("POST", "/api/next", {}))
    first = 1000 * (time.perf_counter() - begin)
    times: list[tuple[float, float, float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        fields = {"sample": shown["sample"]["number"], "verdict": ("keep", "unsure")[len(times) % 2]}
        shown = json.loads(ask("POST", "/api/answer", fields))
        answered = time.perf_counter()
        ask("GET", f"/api/image/{shown['sample']['number']}")
        ended = time.perf_counter()
        time.sleep(pause)
        times.append((1000 * (answered - start), 1000 * (ended - answered), 1000 * (ended - start)))
    done.send((first, times))


def megabytes(process: int, field: str) -> float:
    """Of a process, from Linux: VmHWM is the most it ever had, VmRSS what it has."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 * 1.024 for line in lines if line.startswith(f"{field}:"))


def measure(arguments: argparse.Namespace, place: str | None) -> dict[str, Any]:
    """A review in a folder of its own at this place."""
    start, busy = multiprocessing.get_context("spawn"), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=place) as name:
        folder = Path(name)
        rng = np.random.default_rng(0)
        for number in range(FILES):
            PIL.Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(folder / f"{number:08d}.png")
        ours, theirs = start.Pipe()
        server = start.Process(target=serve, args=(folder, arguments.samples, theirs))
        server.start()
        port, token, _, opened = ours.recv()
        asked = (arguments.clients, port, token, arguments.seconds)
        synced = syncs(folder / "plain")  # not beside the review, where it would be a load of its own
        with_pause = load(start, *asked, arguments.pause)
        flat_out = load(start, *asked, 0.0)
        assert server.pid is not None
        memory = {"most_mb": megabytes(server.pid, "VmHWM"), "at_the_end_mb": megabytes(server.pid, "VmRSS")}
        server.kill()
        server.join()
    return {
        "place": "disk" if place is None else "memory",
        "load": round(busy, 1),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "opened_s": round(opened, 2),
        "fsync_ms": shares(synced),
        **with_pause,
        "flat_out": flat_out,
        **{key: round(value) for key, value in memory.items()},
    }


def syncs(path: Path) -> list[float]:
    """Milliseconds of plain writes that reach the disk, for some seconds."""
    times = []
    with path.open("wb") as file:
        end = time.perf_counter() + SYNCING
        while time.perf_counter() < end:
            begin = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
            times.append(1000 * (time.perf_counter() - begin))
            time.sleep(0.02)
    return times


def shares(times: Any) -> dict[str, float]:
    """What half, 99 % and all of them took at most."""
    return {
        name: round(float(np.percentile(times, q)), 1) for name, q in {"median": 50, "p99": 99, "most": 100}.items()
    }


def load(start: Any, clients: int, port: int, token: str, seconds: float, pause: float) -> dict[str, Any]:
    """All clients at once."""
    pipes = [start.Pipe() for _ in range(clients)]
    ready = start.Barrier(clients)
    working = [
        start.Process(target=work, args=(k, clients, port, token, seconds, pause, ready, pipe[1]))
        for k, pipe in enumerate(pipes)
    ]
    for client in working:
        client.start()
    results = [pipe[0].recv() for pipe in pipes]
    for client in working:
        client.join()
    times = np.array([row for _, rows in results for row in rows])
    found: dict[str, Any] = {
        "moves": len(times),
        "moves_a_second": round(len(times) / seconds, 1),
        "first_ms": round(max(first for first, _ in results), 1),
    }
    for column, what in enumerate(("answer", "image", "move")):
        found[f"{what}_ms"] = shares(times[:, column])
    return found


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--pause", type=float, default=0.2)
    parser.add_argument("--out", type=Path, help="file for the numbers, results/review-load.json")
    arguments = parser.parse_args()
    places = [None, *([MEMORY] if os.path.isdir(MEMORY) else [])]
    rows = [measure(arguments, place) for place in places]
    names = ("samples", "clients", "seconds", "pause")
    found = {"settings": {name: getattr(arguments, name) for name in names}, "rows": rows}
    if arguments.out:
        from narl.train.environment import environment

        arguments.out.write_text(json.dumps({**found, "environment": environment("cpu")}, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    sys.exit(int(any(too_slow(row) or row["most_mb"] >= LARGEST_MB for row in rows)))


def too_slow(row: dict[str, Any]) -> bool:
    """Whether people would wait for the server."""
    disk = row["fsync_ms"]["p99"] if row["place"] == "disk" else 0.0
    return bool(row["move_ms"]["p99"] >= LONGEST_MS + disk)


if __name__ == "__main__":
    main()
