"""What the training loop costs beside the training: tables, images in memory, images in files.

    python benchmarks/throughput.py table  [--rows 1000000]   # an epoch from a CSV against a bare PyTorch loop
    python benchmarks/throughput.py loader [--device cpu]     # steps with loading against steps on one batch
    python benchmarks/throughput.py memory [--images 200000]  # memory of a folder of images, streamed and held

Each prints JSON; ratios are of one run on one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from narl.bilevel import StepReport
from narl.train import engine
from narl.train.assembly import assemble
from narl.train.courses import driven
from narl.train.environment import environment, threads
from narl.train.loop import Loop
from narl.train.planning import Plan, plan
from narl.train.settings import Settings


class Silent:
    """Watches without writing."""

    def after_step(self, report: StepReport) -> None:
        """Nothing."""

    def wants_checkpoint(self) -> bool:
        """Never."""
        return False

    def wants_stop(self) -> bool:
        """Never."""
        return False

    def better(self, epoch: int) -> None:
        """Nothing."""

    def after_epoch(self, record: dict[str, Any], values: Mapping[str, NDArray[Any]]) -> None:
        """Nothing."""

    def checkpoint(self, state: dict[str, Any]) -> None:
        """Nothing."""


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def table(rows: int, rounds: int, batch_size: int | None) -> dict[str, Any]:
    """One epoch over a table, from its CSV, against a loop of ten lines over the same tensors."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "table.csv")
        _write_csv(path, rows)
        made: list[Plan] = []
        settings = Settings(data=str(path), method="CE", test="none", epochs=1, batch_size=batch_size, device="cpu")
        reading = seconds(lambda: made.append(plan(settings)))
    ours, bare = [], []
    with threads(made[0].recipe.threads):
        loops = [assemble(made[0]) for _ in range(rounds)]
        for loop in loops:
            bare.append(seconds(_bare_epoch(made[0], loop)))
            ours.append(seconds(lambda: driven(loop.course(Silent()))))  # noqa: B023  called at once
    return {
        "rows": rows,
        "batch_size": made[0].recipe.batch_size,
        "reading_seconds": reading,
        "epoch_seconds": ours,
        "bare_epoch_seconds": bare,
        "ratio": statistics.median(ours) / statistics.median(bare),
    }


def _write_csv(path: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        file.write(",".join(f"x{column}" for column in range(20)) + ",label\n")
        for start in range(0, rows, 100_000):
            values = rng.normal(size=(min(100_000, rows - start), 20)).round(4)
            labels = (values[:, :5].sum(1) > 0).astype(int) + (values[:, 5] > 0.5)
            for row, label in zip(values.tolist(), labels.tolist(), strict=True):
                file.write(",".join(map(repr, row)) + f",class {label}\n")


def _bare_epoch(made: Plan, loop: Loop) -> Callable[[], None]:
    """Ten lines that do the same: the loop's own tensors, a new model, the same optimiser and batch size."""
    x, y, model = loop.train.pool.get(torch.arange(len(loop.train))), loop.train.labels, made.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    assert type(optimizer) is type(loop.optimizer)

    def epoch() -> None:
        for batch in torch.split(torch.randperm(len(x)), made.recipe.batch_size):
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(F.cross_entropy(model(x[batch]), y[batch]))
            optimizer.step()

    return epoch


def loader(device: str, steps: int, rounds: int, method: str) -> dict[str, Any]:
    """ResNet-32 on 32x32 images: epochs with cropping, flipping and one evaluation, against steps on one batch.

    The evaluated images are a fifth of the training images, as in CIFAR-10. On a GPU the steps are compiled, as in a
    long run.
    """
    rng = np.random.default_rng(0)
    count, clean = 100 * steps, 1000 if method.startswith("A-") else 0
    total = count + count // 5 + clean
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "images.npz")
        np.savez(path, x=rng.integers(0, 256, (total, 32, 32, 3), dtype=np.uint8), y=np.arange(total) % 10)
        settings = Settings(
            data=str(path),
            method=method,
            clean=str(clean) if clean else "none",
            test=str(count // 5 / total),
            epochs=rounds + 1,
            device=device,
            options={"every": 10} if clean else {},
        )
        made = plan(settings)
    with threads(made.recipe.threads), patch.object(engine, "STEPS_WORTH_COMPILING", 0):
        loop = assemble(made)
        watcher = Timed()
        driven(loop.course(watcher))
        rows = torch.arange(100, device=loop.train.labels.device)
        x, y = made.encoder.finish(loop.train.pool.get(rows)), loop.train.labels[rows]

        def step_only() -> None:
            loop.model.train()
            for _ in range(steps):
                loop.engine.step(x, y, rows)

        step_only()
        alone = [seconds(step_only) for _ in range(rounds)]
    return {
        "method": method,
        "steps": len(loop.train) // 100,
        "precision": made.recipe.precision,
        "step_only_seconds": alone,
        "whole_seconds": watcher.epochs[1:],
        "share_of_step_only_throughput": statistics.median(alone) / statistics.median(watcher.epochs[1:]),
    }


class Timed(Silent):
    """Notes how long each epoch took; the first one prepares."""

    def __init__(self) -> None:
        self.epochs: list[float] = []
        self._began = time.perf_counter()

    def after_epoch(self, record: dict[str, Any], values: Mapping[str, NDArray[Any]]) -> None:
        """The evaluation is done."""
        now = time.perf_counter()
        self.epochs.append(now - self._began)
        self._began = now


def memory(images: int) -> dict[str, Any]:
    """Peak memory of an epoch over a folder of small images, decoded as they are needed and held in memory."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "images")
        _write_images(data, images)
        peaks: dict[str, dict[str, float]] = {}
        for name, limit in (("streamed", "0"), ("held", "8")):
            run = Path(folder, name)
            arguments = ["train", str(data), "--out", str(run), "--method", "CE", "--model", "mlp", "--epochs", "1"]
            arguments += ["--test", "none", "--memory", limit, "--no-tensorboard", "--augment", "none", "--lr", "0.01"]
            began = time.perf_counter()
            peaks[name] = {"peak_bytes": _peak([sys.executable, "-m", "narl", *arguments])}
            peaks[name]["seconds"] = round(time.perf_counter() - began, 1)
        nothing = _peak([sys.executable, "-c", "import torch, narl.train.session"])
    return {"images": images, "decoded_bytes": images * 32 * 32 * 3, "imports_peak_bytes": nothing, **peaks}


def _write_images(folder: Path, count: int) -> None:
    from PIL import Image

    for name in range(10):
        (folder / f"class {name}").mkdir(parents=True)

    def write(start: int) -> None:
        rng = np.random.default_rng(start)
        for number in range(start, min(start + 1000, count)):
            pixels = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
            image = Image.fromarray(pixels).resize((32, 32))
            image.save(folder / f"class {number % 10}" / f"{number:06d}.jpg")

    with ThreadPoolExecutor() as workers:
        list(workers.map(write, range(0, count, 1000)))


def _peak(command: list[str]) -> int:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    """Measure one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("table", "loader", "memory"))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--images", type=int, default=200_000)
    parser.add_argument("--batch-size", type=int, default=None)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--method", default="CE", help="of the loader: CE or A-GCE")
    options = parser.parse_args()
    if options.what == "table":
        found = table(options.rows, options.rounds, options.batch_size)
    elif options.what == "loader":
        found = loader(options.device, options.steps, options.rounds, options.method)
    else:
        found = memory(options.images)
    found["host_peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({**found, "environment": environment("cpu" if options.device == "cpu" else "cuda")}, indent=2))


if __name__ == "__main__":
    main()
