"""Data-parallel training on one machine: two processes against one, each with one thread.

    python benchmarks/scaling.py [--model resnet32] [--rounds 9] [--out results/scaling-cpu.json]

``same batch``: two processes share the batch that one has alone; twice as fast would be perfect. ``batch each``: each
of two processes has a batch of that size; as fast as one alone would be perfect. The ratio is that of the samples a
second, two processes over one, so 2 is perfect in both. The teams take turns; ratios are of medians. A step at
``every`` = 10 is derived: (meta iteration + 9 steps between) / 10.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import forms
from narl.bilevel import Processes
from narl.train.environment import environment
from problems import BATCHES, Problem

STEPS = {"CE": forms.plain, "between": forms.between, "meta": forms.adjusted}


def work(caller: Connection, rank: int, count: int, store: str, model: str, batch: int) -> None:
    """One process of a team: makes the steps that it is told to, and tells how long they took."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    processes = Processes.joined() if count > 1 else Processes.alone()
    made = {name: form(Problem(model, "cpu", batch, processes=processes), "float32") for name, form in STEPS.items()}
    caller.send("ready")
    for name in iter(caller.recv, None):
        begin = time.perf_counter()
        made[name]()
        caller.send(1000 * (time.perf_counter() - begin))
    dist.destroy_process_group()


class Team:
    """Processes that train together."""

    def __init__(self, count: int, model: str, batch: int, folder: str) -> None:
        self.batch = batch
        spawning = multiprocessing.get_context("spawn")
        store = os.path.join(folder, f"{count}-{batch}")
        self._lines, self._members = [], []
        for rank in range(count):
            here, there = spawning.Pipe()
            member = spawning.Process(target=work, args=(there, rank, count, store, model, batch))
            member.start()
            self._lines.append(here)
            self._members.append(member)
        for line in self._lines:
            line.recv()

    def step(self, name: str) -> float:
        """How long the slowest took, in milliseconds."""
        for line in self._lines:
            line.send(name)
        return max(float(line.recv()) for line in self._lines)

    def leave(self) -> None:
        """End them."""
        for line in self._lines:
            line.send(None)
        for member in self._members:
            member.join()


def measure(teams: dict[str, Team], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds a step, by team and kind of step, one of each a round; the first two rounds warm up."""
    times: dict[str, dict[str, list[float]]] = {team: {name: [] for name in STEPS} for team in teams}
    for number in range(rounds + 2):
        for name in STEPS:
            for title, team in teams.items():
                elapsed = team.step(name)
                if number >= 2:
                    times[title][name].append(elapsed)
    for found in times.values():
        pairs = zip(found["meta"], found["between"], strict=True)
        found["every = 10"] = [(meta + 9 * between) / 10 for meta, between in pairs]
    return times


def rows(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each way to share the work and each kind of step."""
    batch = BATCHES[arguments.model]
    with tempfile.TemporaryDirectory() as folder:
        teams = {
            "alone": Team(1, arguments.model, batch, folder),
            "same batch": Team(2, arguments.model, batch, folder),
            "batch each": Team(2, arguments.model, 2 * batch, folder),
        }
        times = measure(teams, arguments.rounds)
        for team in teams.values():
            team.leave()
    found = []
    for title in ("same batch", "batch each"):
        for name, together in times[title].items():
            alone = times["alone"][name]
            work_done = teams[title].batch / batch
            ratios = [work_done * one / two for one, two in zip(alone, together, strict=True)]
            found.append(
                {
                    "device": "cpu",
                    "model": arguments.model,
                    "processes": 2,
                    "batch": teams[title].batch,
                    "sharing": title,
                    "step": name,
                    "ratio": round(work_done * statistics.median(alone) / statistics.median(together), 4),
                    "ratio_range": [round(min(ratios), 4), round(max(ratios), 4)],
                    "alone_ms": round(statistics.median(alone), 3),
                    "ms": round(statistics.median(together), 3),
                    "rounds": arguments.rounds,
                    "environment": {**environment("cpu"), "threads": 1},
                }
            )
    return found


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", choices=sorted(BATCHES), default="resnet32")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, help="file for the rows")
    arguments = parser.parse_args()
    found = rows(arguments)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    for row in found:
        low, high = row["ratio_range"]
        print(
            f"{row['sharing']:12}{row['step']:12}{row['alone_ms']:10.0f} ms alone{row['ms']:10.0f} ms together"
            f"   {row['ratio']:.2f} times the samples a second ({low:.2f} … {high:.2f})"
        )


if __name__ == "__main__":
    main()
