"""What ``narl.AdjustedLoss`` costs in place of ``nn.CrossEntropyLoss``, in steps of ResNet-32.

    python benchmarks/criterion.py [--rounds 81] [--batch 100] [--out results/criterion-cpu.json]
    PYTHONPATH=src python3 benchmarks/criterion.py --device cuda --out results/criterion-h200.json

A step is the forward pass, the criterion and the backward pass; all criteria take turns on one model and batch, in
another order every round, and ``ratio`` is the median of the rounds' ratios. A whole step varies by more than a
criterion costs: the ratio of ``CE, again``, which is cross entropy once more, shows how much. So each criterion is also
measured alone, on given logits with their gradient, as many calls as fill a moment; ``share`` is what it costs there on
top of cross entropy, in parts of the step with cross entropy. ``running`` is an adjuster with running margins, ``read``
is one whose suspicion and margins are read after every step, ``noise rate`` one that counts how many labels are wrong.
On a GPU ``compiled`` is one that went through ``torch.compile``: as they are written, criteria are many small kernels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import narl
from narl import losses
from narl.adjuster.worth import ESTIMATED
from narl.train.environment import environment, usable_device
from problems import CLASSES, NUM_SAMPLES, Problem

SNAPSHOTS = 3
_SHORTEST = 0.02  # seconds of a measurement: what is shorter is repeated

Criterion = Callable[[Tensor, Tensor, Tensor], Tensor]


def adjusted(loss: str, kind: str, device: str) -> Criterion:
    """An adjusted loss with three snapshots that counts its steps."""
    generator = torch.Generator().manual_seed(0)
    margin = "running" if kind == "running" else "latest"
    counts = [NUM_SAMPLES // CLASSES] * CLASSES
    learned = [narl.Adjuster(loss, counts, margin=margin, generator=generator) for _ in range(SNAPSHOTS)]
    rate = ESTIMATED if kind == "noise rate" else None
    criterion = narl.AdjustedLoss(learned, counts, total_steps=10**6, noise_rate=rate).to(device)
    function = torch.compile(criterion, fullgraph=True) if kind == "compiled" else criterion

    def call(logits: Tensor, y: Tensor, ids: Tensor) -> Tensor:
        value: Tensor = function(logits, y, ids=ids)
        if kind == "read":
            _ = criterion.last.suspicion, criterion.last.margins
        return value

    return call


def cross_entropy() -> Criterion:
    """What it stands in for."""
    criterion = nn.CrossEntropyLoss()
    return lambda logits, y, ids: criterion(logits, y)


def milliseconds(work: Callable[[], object], shortest: float = 0.0) -> float:
    """How long one call takes, of as many as fill so many seconds; a GPU is waited for at the end."""
    calls, elapsed = 0, 0.0
    begin = time.perf_counter()
    while elapsed < shortest or not calls:
        work()
        calls += 1
        elapsed = time.perf_counter() - begin
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - begin) / calls


def in_turns(works: dict[str, Callable[[], object]], rounds: int, shortest: float) -> dict[str, list[float]]:
    """Milliseconds of each, one a round, in another order every round; the first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    order = list(works)
    for number in range(rounds + 1):
        for name in order:
            elapsed = milliseconds(works[name], shortest)
            if number:
                times[name].append(elapsed)
        order = [*order[1:], order[0]]
        if sys.stderr.isatty():
            print(f"round {number} of {rounds}", end="\r", file=sys.stderr)
    return times


def whole_steps(criteria: dict[str, Criterion], problem: Problem) -> dict[str, Callable[[], object]]:
    """Forward and backward through the model."""
    model, batch = problem.model.train(), problem.noisy

    def step(criterion: Criterion) -> Callable[[], object]:
        def work() -> None:
            model.zero_grad(set_to_none=True)
            torch.autograd.backward(criterion(model(batch.x), batch.y, batch.ids))

        return work

    return {name: step(criterion) for name, criterion in criteria.items()}


def alone(criteria: dict[str, Criterion], problem: Problem) -> dict[str, Callable[[], object]]:
    """The criterion and the gradient of the logits that it is given."""
    batch = problem.noisy
    logits = problem.model(batch.x).detach().requires_grad_()

    def part(criterion: Criterion) -> Callable[[], object]:
        return lambda: torch.autograd.grad(criterion(logits, batch.y, batch.ids), logits)

    return {name: part(criterion) for name, criterion in criteria.items()}


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """A row a criterion; rows without a ``ratio`` were measured alone only."""
    device = arguments.device
    problem = Problem("resnet32", device, arguments.batch)
    forms: dict[str, Criterion] = {"CE": cross_entropy(), "CE, again": cross_entropy()}
    forms |= {losses.get(loss).title: adjusted(loss, "latest", device) for loss in ("gce", "sl", "polysoft", "js")}
    kinds = ("running", "read", "noise rate", *(["compiled"] if device == "cuda" else []))
    forms |= {f"GCE, {kind}": adjusted("gce", kind, device) for kind in kinds}
    in_steps = ("CE", "CE, again", "GCE", "GCE, read", "GCE, compiled")
    stepped = {name: form for name, form in forms.items() if name in in_steps}
    steps = in_turns(whole_steps(stepped, problem), arguments.rounds, shortest=0.0 if device == "cpu" else _SHORTEST)
    parts = in_turns(alone(forms, problem), arguments.rounds, shortest=_SHORTEST)
    step_ms, ce_ms = (statistics.median(times["CE"]) for times in (steps, parts))
    rows = []
    for name, own in parts.items():
        row: dict[str, Any] = {"criterion": name, "ms": round(statistics.median(own), 4)}
        row |= {"ms_range": [round(min(own), 4), round(max(own), 4)]}
        row |= {"share": round((statistics.median(own) - ce_ms) / step_ms, 5)}
        if name in steps:
            ratios = sorted(one / other for one, other in zip(steps[name], steps["CE"], strict=True))
            quarter = len(ratios) // 4
            row |= {"step_ms": round(statistics.median(steps[name]), 2)}
            row |= {"ratio": round(statistics.median(ratios), 4)}
            row |= {"ratio_middle_half": [round(ratios[quarter], 4), round(ratios[-1 - quarter], 4)]}
        rows.append(row)
    settings = {"model": "resnet32", "batch": arguments.batch, "classes": CLASSES, "snapshots": SNAPSHOTS}
    return {
        "settings": {**settings, "precision": "float32", "rounds": arguments.rounds},
        "rows": rows,
        "environment": environment(device),
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=81)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, help="file for the rows, results/criterion-cpu.json")
    arguments = parser.parse_args()
    usable_device(arguments.device)
    found = measure(arguments)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    by_name = {row["criterion"]: row for row in found["rows"]}
    ce, again, ours = by_name["CE"], by_name["CE, again"], by_name["GCE"]
    most = max(row["share"] for row in found["rows"])
    print(
        f"a step with AdjustedLoss takes {ours['ratio']:.3f} of one with cross entropy ({ce['step_ms']:.1f} ms; again, "
        f"it takes {again['ratio']:.3f}); alone {ours['ms']:.2f} against {ce['ms']:.2f} ms, {100 * ours['share']:.2f} "
        f"% of a step; of all losses and forms at most {100 * most:.2f} %"
    )


if __name__ == "__main__":
    main()
