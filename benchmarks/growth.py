"""How the cost grows: with the classes, the batch, the training set and the hyperparameters of a loss.

    python benchmarks/growth.py [--rounds 7] [--out results/growth-cpu.json]

Parts of a step, on logits that are given: ``ce`` is cross entropy with its gradient and the margins that every method
reports; ``adjusted`` is the adjuster, its loss with the gradient, and the bookkeeping of running margins; ``meta`` is
what a meta iteration adds to that: the double backward and the adjuster's own step. Whole steps of a linear classifier
of 100 numbers, in which narl's part is as large as it can be: ``plain_step``, ``step`` between two meta iterations,
``meta_step``. An exponent is the slope of log time against log size; the last one is between the two largest sizes.
The adjuster's share of a ResNet-32 step at batch 100 is (adjusted - ce) over a plain step, with its part of the meta
iterations where that is said. Sizes take turns; times are medians.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import narl
from narl import losses
from narl.losses import Hyperparameter, RobustLoss
from narl.losses.inputs import over_labels
from narl.losses.stable import expm1_over
from narl.train import methods
from narl.train.environment import environment
from narl.train.record import SampleRecord
from problems import Problem

SIZES = {
    "classes": (10, 100, 1000, 10_000),
    "batch": (10, 100, 1000, 10_000),
    "samples": (10_000, 100_000, 1_000_000, 10_000_000),
    "hyperparameters": (1, 2, 4, 8, 16),
}
USUAL = {"classes": 10, "batch": 100, "samples": 50_000, "hyperparameters": 1}
FEATURES = 100
_SHORTEST = 0.02  # seconds of a measurement: what is shorter is repeated


class Case:
    """One size: given logits, and a linear classifier that a whole step can be made with."""

    def __init__(self, classes: int, batch: int, samples: int, hyperparameters: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.counts = torch.full((classes,), max(samples // classes, 1))
        self.loss = loss_with(hyperparameters)
        self.adjuster = narl.Adjuster(self.loss, self.counts, margin="running", generator=generator)
        self.optimizer = torch.optim.Adam(self.adjuster.parameters(), lr=1e-3)
        self.logits = torch.randn(batch, classes, generator=generator)
        self.along = torch.randn(batch, classes, generator=generator)
        self.y = torch.randint(0, classes, (batch,), generator=generator)
        self.ids = torch.randint(0, samples, (batch,), generator=generator)
        self.x = torch.randn(batch, FEATURES, generator=generator)
        self.samples = samples
        self._remember_all(self.adjuster)

    def _remember_all(self, adjuster: narl.Adjuster) -> None:
        """As after an epoch."""
        assert adjuster.running is not None
        for begin in range(0, self.samples, 100_000):
            ids = torch.arange(begin, min(begin + 100_000, self.samples))
            adjuster.running.store(torch.zeros(len(ids)), ids)

    def ce(self) -> None:
        """The cross entropy's part of a plain step."""
        leaf = self.logits.detach().requires_grad_()
        torch.autograd.grad(losses.ce(leaf, self.y).mean(), leaf)
        narl.margin(self.logits, self.y)

    def adjusted(self) -> None:
        """The adjuster's part of a step between two meta iterations."""
        leaf = self.logits.detach().requires_grad_()
        torch.autograd.grad(self.adjuster.loss(leaf, self.y, self.ids).mean(), leaf)
        self.adjuster.observe(self.logits, self.y, self.ids)

    def meta(self) -> None:
        """What a meta iteration adds on top of the passes through the classifier."""
        leaf = self.logits.detach().requires_grad_()
        value = self.adjuster.loss(leaf, self.y, self.ids).mean()
        (slope,) = torch.autograd.grad(value, leaf, create_graph=True)
        learned = list(self.adjuster.parameters())
        for parameter, gradient in zip(learned, torch.autograd.grad(slope, learned, -self.along), strict=True):
            parameter.grad = gradient
        self.optimizer.step()

    def whole(self, name: str, **options: Any) -> Callable[[], object]:
        """A whole step of a linear classifier."""
        model = nn.Linear(FEATURES, len(self.counts))
        clean = (self.x, self.y)
        setting = methods.Setting(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
            class_counts=self.counts,
            clean=lambda: clean,
            total_steps=10**6,
            num_samples=self.samples,
            generator=torch.Generator().manual_seed(0),
        )
        method = methods.build(name, setting, **options)
        if method.adjuster is not None:
            self._remember_all(method.adjuster)
        return lambda: method.step(self.x, self.y, self.ids)

    def parts(self) -> dict[str, Callable[[], object]]:
        """Everything that is timed."""
        name = f"A-{losses.get(self.loss).title}"
        return {
            "ce": self.ce,
            "adjusted": self.adjusted,
            "meta": self.meta,
            "plain_step": self.whole("CE"),
            "step": self.whole(name, every=10**9),
            "meta_step": self.whole(name, every=1),
        }


def loss_with(count: int) -> str:
    """The name of a loss with so many hyperparameters: GCE, or, for more than one, a mean of GCE's curves."""
    if count == 1:
        return "gce"
    name = f"gce-of-{count}"
    if name not in losses.names():
        specs = tuple(Hyperparameter(f"q{k}", 0.01, 1.0, start=0.3, default=0.7) for k in range(count))

        def curve(log_p: Tensor, *values: Tensor) -> Tensor:
            return sum((-log_p * expm1_over(q * log_p) for q in values), torch.zeros_like(log_p)) / count

        def function(logits: Tensor, targets: Tensor, **values: float | Tensor) -> Tensor:
            return over_labels(curve, logits, targets, *((spec, values[spec.name]) for spec in specs))

        losses.register(RobustLoss(name, function, specs))
    return name


def milliseconds(work: Callable[[], object]) -> float:
    """How long one call takes, of as many as fill a moment."""
    calls, elapsed = 0, 0.0
    begin = time.perf_counter()
    while elapsed < _SHORTEST:
        work()
        calls += 1
        elapsed = time.perf_counter() - begin
    return 1000 * elapsed / calls


def growth(axis: str, rounds: int) -> dict[str, Any]:
    """Times at every size of one kind, and their exponents."""
    sizes = SIZES[axis]
    cases = [Case(**{**USUAL, axis: size}) for size in sizes]
    parts = [case.parts() for case in cases]
    times: dict[str, list[list[float]]] = {name: [[] for _ in sizes] for name in parts[0]}
    for number in range(rounds + 1):
        for position, by_name in enumerate(parts):
            for name, work in by_name.items():
                elapsed = milliseconds(work)
                if number:  # the first round warms up
                    times[name][position].append(elapsed)
    found: dict[str, Any] = {"axis": axis, "sizes": sizes, "held": {k: v for k, v in USUAL.items() if k != axis}}
    for name, measured in times.items():
        medians = [statistics.median(values) for values in measured]
        found[name] = {
            "ms": [round(value, 4) for value in medians],
            "range": [[round(min(values), 4), round(max(values), 4)] for values in measured],
            "exponent": round(slope(sizes, medians), 3),
            "last_exponent": round(slope(sizes[-2:], medians[-2:]), 3),
        }
    if axis == "samples":
        found["memory_mb"] = [round(_table_mb(case), 3) for case in cases]
        found["epoch_record"] = _records(sizes)
    return found


def slope(sizes: Iterable[float], times: Iterable[float]) -> float:
    """The exponent: by how many powers of the size the time grows, by least squares."""
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in times]
    return statistics.linear_regression(x, y).slope


def _table_mb(case: Case) -> float:
    assert case.adjuster.running is not None
    table = case.adjuster.running.table
    return table.numel() * table.element_size() / 2**20


def _records(sizes: Iterable[int]) -> dict[str, Any]:
    """Seconds and disk of an epoch's margins and hyperparameters, for every sample."""
    seconds, megabytes = [], []
    for size in sizes:
        values = {"margin": torch.randn(size).numpy(), "q": torch.rand(size).numpy()}
        ids = [str(number) for number in range(size)]
        with tempfile.TemporaryDirectory() as folder:
            record = SampleRecord.create(folder, list(values), ids, epochs=2)
            begin = time.perf_counter()
            record.write(0, values)
            seconds.append(round(time.perf_counter() - begin, 4))
            megabytes.append(round(Path(folder, "samples.npy").stat().st_size / 2**20, 3))
    return {"seconds": seconds, "mb": megabytes, "exponent": round(slope(sizes, seconds), 3)}


def share(rounds: int) -> dict[str, float]:
    """The adjuster's own part of a ResNet-32 step: of one between two meta iterations, and on average at every = 10."""
    problem = Problem("resnet32", "cpu", USUAL["batch"])
    batch, plain, case = problem.noisy, problem.method("CE"), Case(**USUAL)
    works: dict[str, Callable[[], object]] = {
        "plain_step": lambda: plain.step(batch.x, batch.y, batch.ids),
        "ce": case.ce,
        "adjusted": case.adjusted,
        "meta": case.meta,
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            elapsed = milliseconds(work)
            if number:
                times[name].append(elapsed)
    medians = {name: statistics.median(values) for name, values in times.items()}
    own = medians["adjusted"] - medians["ce"]
    return {
        **{f"{name}_ms": round(value, 4) for name, value in medians.items()},
        "share_between": round(own / medians["plain_step"], 5),
        "share_every_10": round((own + medians["meta"] / 10) / medians["plain_step"], 5),
        "share_every_1": round((own + medians["meta"]) / medians["plain_step"], 5),
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="file for the results")
    arguments = parser.parse_args()
    found = {
        "share": share(arguments.rounds),
        "growth": [growth(axis, arguments.rounds) for axis in SIZES],
        "rounds": arguments.rounds,
        "environment": environment("cpu"),
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    for axis in found["growth"]:
        print(f"{axis['axis']}: {', '.join(map(str, axis['sizes']))}")
        for name, part in axis.items():
            if isinstance(part, dict) and "ms" in part:
                times = "".join(f"{value:10.3f}" for value in part["ms"])
                print(f"  {name:12}{times} ms   exponent {part['exponent']:.2f}, last {part['last_exponent']:.2f}")
        if "memory_mb" in axis:
            print(f"  running margins {axis['memory_mb']} MB; an epoch's record {axis['epoch_record']}")
    print(f"share of a ResNet-32 step: {found['share']}")
    print(", ".join(f"{key} {value}" for key, value in found["environment"].items()))


if __name__ == "__main__":
    main()
