"""How several trainings share a GPU best: steps a second of all together, in processes of their own and in stacks.

    python benchmarks/sharing.py [--each 1x1 4x1 1x8 2x8] [--method CE] [--seconds 4] [--out results/sharing-h200.json]

``4x1`` is four processes with a training each, ``2x8`` two processes that each do eight trainings as one. Several
processes run with and, unless ``--mps-only``, without NVIDIA's MPS. ResNet-32, batch 100, bfloat16, compiled and
captured steps on a batch that is there. New rows are added to those of ``--out``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from narl.bench.sharing import shared_gpus
from narl.train.environment import environment

EVERY = 6  # what narl chooses for the tables' short schedule


def train(method: str, stack: int, seconds: float) -> None:
    """Say when all is prepared, wait for a line, and print how many steps a second there were."""
    import torch

    step = one_by_one(method) if stack == 1 else as_one(method, stack)
    for _ in range(EVERY):
        step()
    torch.cuda.synchronize()
    print("ready", flush=True)
    sys.stdin.readline()
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(8 * EVERY):
            step()
        torch.cuda.synchronize()
        steps += 8 * EVERY * stack
    print(steps / (time.perf_counter() - began))


def one_by_one(method: str) -> Callable[[], object]:
    """A step of one training."""
    import captured
    from problems import Problem

    problem = Problem("resnet32", "cuda", 100)
    step = captured.engine_step(problem.method(method, **options(method)), problem, "bfloat16", compiled=True)
    batch = problem.noisy
    return lambda: step(batch.x, batch.y, batch.ids)


def as_one(method: str, stack: int) -> Callable[[], object]:
    """A step of each of several trainings."""
    import captured
    from narl.train.engine.stack import Stack
    from problems import Problem

    place, problems = Stack(), [Problem("resnet32", "cuda", 100) for _ in range(stack)]
    seats = [
        place.seat(
            "auto",
            problem.method(method, **options(method)),
            problem.model,
            problem.optimizer,
            captured.Always(problem),
            rows=100,
            steps=10**6,
            precision="bfloat16",
        )
        for problem in problems
    ]
    batches = [(problem.noisy.x, problem.noisy.y, problem.noisy.ids) for problem in problems]
    return lambda: place.step(seats, batches)


def options(method: str) -> dict[str, Any]:
    """What a method is given."""
    return {"every": EVERY} if method.startswith("A-") else {}


def together(slots: list[dict[str, str]], method: str, stack: int, seconds: float) -> float:
    """Steps a second of trainings that begin at the same time."""
    command = [sys.executable, "-W", "ignore", __file__, "--one", "--each", f"1x{stack}", "--method", method]
    running = [
        subprocess.Popen(
            [*command, "--seconds", str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **slot},
            bufsize=1,
        )
        for slot in slots
    ]
    for process in running:
        assert process.stdout is not None
        while (line := process.stdout.readline()).strip() != "ready":
            if not line:
                raise SystemExit(f"a training ended before it began, with exit code {process.wait()}")
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return sum(float(process.communicate()[0].split()[-1]) for process in running)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--each", nargs="+", default=["1x1", "4x1", "1x4", "1x8", "2x8"], metavar="PROCESSESxSTACK")
    parser.add_argument("--method", default="CE")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--mps-only", action="store_true", help="several processes with MPS only")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = [tuple(int(part) for part in each.split("x")) for each in arguments.each]
    if arguments.one:
        train(arguments.method, sizes[0][1], arguments.seconds)
        return
    found: dict[str, Any] = {}
    if arguments.out and arguments.out.exists():
        found = json.loads(arguments.out.read_text())
    rows: list[dict[str, Any]] = found.get("rows", [])
    for count, stack in sizes:
        for mps in ((True,) if arguments.mps_only else (False, True)) if count > 1 else (False,):
            with shared_gpus("cuda", count if mps else 1) as slots:
                rate = together(slots if mps else slots[:1] * count, arguments.method, stack, arguments.seconds)
            about = {"method": arguments.method, "processes": count, "mps": mps, "stack": stack}
            rows = [row for row in rows if {name: row.get(name) for name in about} != about]
            rows.append({**about, "steps_a_second": round(rate)})
            print(f"{arguments.method}, {count} x {stack}{', MPS' if mps else ''}: {rate:.0f} steps/s", flush=True)
    if arguments.out:
        settings = {"model": "resnet32", "batch": 100, "precision": "bfloat16", "engine": "compiled", "every": EVERY}
        arguments.out.write_text(
            json.dumps({"settings": settings, "rows": rows, "environment": environment("cuda")}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
