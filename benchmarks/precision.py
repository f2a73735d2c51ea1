"""Whether bfloat16 trains as well as float32, and whether its tangents do: whole runs on images, on a GPU.

    python benchmarks/precision.py DATA.npz [--samples 20000] [--epochs 30] [--every 5] [--seeds 0 1 2] [--at-once 9]

DATA.npz holds ``x_train``, ``y_train``, ``x_test`` and ``y_test`` (uint8 images, right labels), such as CIFAR-10. The
first samples are trained on, with 40 % symmetric noise; the next thousand are the clean set. Three ways: float32,
bfloat16, and bfloat16 with the tangent pass in float32. Each prints the mean test accuracy of the last five epochs;
``--out`` takes all of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from narl import noise
from narl.bilevel.passes import Left, Passes
from narl.train import Settings, plan, start
from narl.train.engine.iteration import Iteration
from narl.train.environment import environment

WAYS = ("float32", "bfloat16", "bfloat16, tangents float32")
CLEAN = 1000


def float32_shift(
    self: Iteration, passes: Passes | None, left: Left | None, x: Tensor, direction: Sequence[Tensor]
) -> Tensor:
    """How the logits move with the weights, in float32, from a forward pass of its own."""
    key = ("float32", *x.shape)
    if key not in self._passes:
        self._passes[key] = Passes(self._model, list(self._trained), x)
    own = self._passes[key]
    return own.tangent(own.forward(self._weights, list(self._model.buffers()), x), direction)


def prepare(self: Iteration, *arguments: Any) -> None:
    """As before, and the float32 passes run once."""
    _prepare(self, *arguments)
    if arguments[0].meta is not None:
        float32_shift(self, None, None, arguments[1], [torch.zeros_like(p) for p in self._trained.values()])


_prepare = Iteration.prepare


def run(way: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One training."""
    data = np.load(arguments.data)
    count = arguments.samples
    true = data["y_train"][:count].astype(np.int64)
    with tempfile.TemporaryDirectory() as folder:
        given = np.asarray(noise.symmetric(true, 0.4, 10, seed=seed))
        np.savez(
            f"{folder}/train.npz",
            x_train=data["x_train"][:count],
            y_train=given,
            x_test=data["x_test"],
            y_test=data["y_test"],
        )
        rows = slice(count, count + CLEAN)
        np.savez(f"{folder}/clean.npz", x=data["x_train"][rows], y=data["y_train"][rows])
        settings = Settings(
            data=f"{folder}/train.npz",
            clean=f"{folder}/clean.npz",
            method="A-GCE",
            options={"every": arguments.every},
            model="resnet32",
            epochs=arguments.epochs,
            precision=way.split(",")[0],
            seed=seed,
        )
        slow = way.endswith("tangents float32")
        with (
            patch.object(Iteration, "_shift", float32_shift if slow else Iteration._shift),
            patch.object(Iteration, "prepare", prepare if slow else Iteration.prepare),
        ):
            outcome = start(plan(settings), Path(folder, "run"), tensorboard=False)
        times = [json.loads(line)["seconds"] for line in Path(folder, "run", "times.jsonl").read_text().splitlines()]
    return {
        "way": way,
        "seed": seed,
        "last5": outcome.summary["last5"]["test_accuracy"],
        "last": outcome.summary["last"]["test_accuracy"],
        "epoch_seconds": statistics.median(times),
        "samples": count,
        "epochs": arguments.epochs,
        "every": arguments.every,
        "environment": environment("cuda"),
    }


def main() -> None:
    """Run all, some at once, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--at-once", type=int, default=9)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(run(arguments.one[0], int(arguments.one[1]), arguments)))
        return
    again = [sys.executable, "-W", "ignore", __file__, arguments.data]
    again += [f"--{key}={getattr(arguments, key)}" for key in ("samples", "epochs", "every")]
    waiting = [(way, str(seed)) for seed in arguments.seeds for way in WAYS]
    rows: list[dict[str, Any]] = []
    while waiting:
        batch, waiting = waiting[: arguments.at_once], waiting[arguments.at_once :]
        few = {**os.environ, "OMP_NUM_THREADS": "1"}  # the processes share the host's cores
        running = [
            subprocess.Popen([*again, "--one", *one], stdout=subprocess.PIPE, text=True, env=few) for one in batch
        ]
        for one, process in zip(batch, running, strict=True):
            output, _ = process.communicate()
            if process.returncode:
                print(f"{one} failed", file=sys.stderr)
            else:
                rows.append(json.loads(output.splitlines()[-1]))
        if arguments.out:
            arguments.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for way in WAYS:
        found = [100 * row["last5"] for row in rows if row["way"] == way]
        if found:
            spread = statistics.stdev(found) if len(found) > 1 else 0.0
            print(f"{way:28}{statistics.fmean(found):7.2f} ± {spread:.2f}  {[round(value, 2) for value in found]}")


if __name__ == "__main__":
    main()
