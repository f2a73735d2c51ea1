"""Whether trainings gain from sharing a GPU: plain steps a second of all together, with and without NVIDIA's MPS.

    python benchmarks/sharing.py [--processes 1 4 8] [--seconds 4] [--out results/sharing-h200.json]

ResNet-32, batch 100, bfloat16, compiled and captured steps, each training in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from narl.bench.sharing import shared_gpus
from narl.train.environment import environment


def train(seconds: float) -> None:
    """Say when all is prepared, wait for a line, and print how many steps a second there were."""
    import torch

    import captured
    from problems import Problem

    problem = Problem("resnet32", "cuda", 100)
    step = captured.engine_step(problem.method("CE"), problem, "bfloat16", compiled=True)
    batch = problem.noisy
    step(batch.x, batch.y, batch.ids)
    torch.cuda.synchronize()
    print("ready", flush=True)
    sys.stdin.readline()
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(50):
            step(batch.x, batch.y, batch.ids)
        torch.cuda.synchronize()
        steps += 50
    print(steps / (time.perf_counter() - began))


def together(slots: list[dict[str, str]], seconds: float) -> float:
    """Steps a second of trainings that begin at the same time."""
    command = [sys.executable, "-W", "ignore", __file__, "--one", "--seconds", str(seconds)]
    running = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **slot}, bufsize=1
        )
        for slot in slots
    ]
    for process in running:
        assert process.stdout is not None
        while process.stdout.readline().strip() != "ready":
            pass
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return sum(float(process.communicate()[0].split()[-1]) for process in running)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        train(arguments.seconds)
        return
    rows: list[dict[str, Any]] = []
    for count in arguments.processes:
        for mps in (False, True) if count > 1 else (False,):
            with shared_gpus("cuda", count if mps else 1) as slots:
                rate = together(slots if mps else slots[:1] * count, arguments.seconds)
            rows.append({"processes": count, "mps": mps, "steps_a_second": round(rate)})
            print(f"{count} processes{', MPS' if mps else ''}: {rate:.0f} steps a second", flush=True)
    if arguments.out:
        settings = {"model": "resnet32", "batch": 100, "precision": "bfloat16", "method": "CE", "engine": "compiled"}
        about = {"settings": settings, "rows": rows, "environment": environment("cuda")}
        arguments.out.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
