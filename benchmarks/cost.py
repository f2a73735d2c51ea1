"""What a training step costs in plain steps, for every number of steps between two meta iterations.

    python benchmarks/cost.py [--model resnet32|resnet34|transformer] [--device cpu|cuda] [--precision float32|bfloat16]
                              [--rounds 7] [--out results/cost-cpu-resnet32.json]

A plain step (``CE``) is narl's own training step with cross entropy. ``A-GCE`` is narl's with the adjusted loss,
``A-GCE exact`` the same with the exact tangent by name, where the default is another one; ``unrolled`` differentiates
twice through the virtual step; ``betty``, ``torchopt`` and ``higher`` are libraries, on a CPU with ResNet-32, where
installed. The forms take turns, so that a busy machine slows all of them alike; ratios are of medians. At ``every``
= k a step costs (meta iteration + (k - 1) steps between) / k; that is derived from the two, and measured once, over 20
steps at k = 10. For the other forms, the steps between are narl's. Peak memory is what two iterations need on top of
model and data, gradients and momentum included, in a process of its own. A gradient's error is its distance from
narl's in float64, in parts of that one's length, after twenty training steps; the cosine is that of their angle.
On GPUs narl's engine does the steps: see ``cost_gpu.py``.
"""

from __future__ import annotations

import argparse
import copy
import importlib.metadata
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

import forms
import peers
from forms import Form, Iteration
from narl.train.environment import environment
from problems import BATCHES, Problem, distance, gradients_of

EVERY = (1, 2, 5, 10, 50)
MEASURED_STEPS = 20
GRADIENT_BATCH = {"resnet34": 16}  # float64 is slow
WARM_UP = {"cpu": 1, "cuda": 5}
STEPS = {"cpu": 1, "cuda": 20}  # in one measurement: a GPU's steps are short
OPTIMIZER = "SGD, learning rate 0.1, momentum 0.9, weight decay 5e-4"


def meta_forms(model: str, device: str) -> dict[str, Form]:
    """Ways to do a meta iteration, by the name that they have in the results."""
    found: dict[str, Form] = {"A-GCE": forms.adjusted, "A-GCE exact": forms.adjusted_exact, "unrolled": forms.unrolled}
    if device == "cpu" and model == "resnet32":
        found |= peers.installed()
    return found


def gradient_errors(names: Mapping[str, Form], arguments: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """How far each form's gradient of the adjuster is from the exact one, and the cosine, where it can be seen."""
    batch = min(arguments.batch, GRADIENT_BATCH.get(arguments.model, arguments.batch))
    settled = Problem(arguments.model, arguments.device, batch, dropout=False).settle()
    exact = settled.exact_gradient()
    errors: dict[str, tuple[float, float]] = {}
    for name, form in names.items():
        problem = copy.deepcopy(settled)
        iteration = form(problem, arguments.precision)
        with gradients_of(problem.adjuster) as seen:
            iteration()
        if seen:
            errors[name] = distance(seen, exact)
    return errors


def milliseconds(iteration: Iteration, device: str, steps: int) -> float:
    """How long one call takes."""
    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        iteration()
    if device != "cpu":
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start) / steps


def measure(names: Mapping[str, Form], arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Times of each form, one a round, in milliseconds; the order changes from round to round."""
    device = arguments.device
    iterations = {
        name: form(Problem(arguments.model, device, arguments.batch), arguments.precision)
        for name, form in names.items()
    }
    for iteration in iterations.values():
        milliseconds(iteration, device, WARM_UP[device])
    times: dict[str, list[float]] = {name: [] for name in names}
    order = list(names)
    for number in range(arguments.rounds):
        for name in order:
            times[name].append(milliseconds(iterations[name], device, STEPS[device]))
        order = [*order[1:], order[0]]
        if sys.stderr.isatty():
            print(f"round {number + 1} of {arguments.rounds}", end="\r", file=sys.stderr)
    return times


def run_of_steps(arguments: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Every step of a run at every = 10 and of a plain one beside it, in milliseconds, step by step in turns."""
    device, precision = arguments.device, arguments.precision
    plain = forms.plain(Problem(arguments.model, device, arguments.batch), precision)
    tenth = forms.every_tenth(Problem(arguments.model, device, arguments.batch), precision)
    for _ in range(10):  # a whole period, so that the run begins with a meta iteration
        milliseconds(tenth, device, 1)
    milliseconds(plain, device, WARM_UP[device])
    times = [(milliseconds(plain, device, 1), milliseconds(tenth, device, 1)) for _ in range(MEASURED_STEPS)]
    return [first for first, _ in times], [second for _, second in times]


def peak_mb(form: Form, arguments: argparse.Namespace) -> float:
    """Memory that two iterations need; only valid in a fresh process."""
    problem = Problem(arguments.model, arguments.device, arguments.batch)
    idle = _most_mb(arguments.device)
    iteration = form(problem, arguments.precision)
    for _ in range(2):
        iteration()
    return _most_mb(arguments.device) - idle


def _most_mb(device: str) -> float:
    """The most memory that this process has held so far."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated() / 2**20
    if platform.system() == "Linux":  # getrusage would give what the parent process held, if that is more
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if platform.system() == "Darwin" else 1024)


def peaks(names: Mapping[str, Form], arguments: argparse.Namespace) -> dict[str, float]:
    """Each form's memory, from a process of its own."""
    again = [f"--{key}={getattr(arguments, key)}" for key in ("model", "device", "precision", "batch")]
    return {
        name: float(subprocess.check_output([sys.executable, __file__, *again, "--peak", name], text=True))
        for name in names
    }


def rows(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each form and number of steps between two meta iterations, and one for the run that checks it.

    A row's ``kind`` is ``measured``, ``derived``, or ``run`` for the mean over the steps of a run.
    """
    meta = meta_forms(arguments.model, arguments.device)
    errors = gradient_errors(meta, arguments)
    if errors.get("A-GCE") == errors.get("A-GCE exact"):  # the default is the exact one
        meta.pop("A-GCE exact", None)
    times = measure({"CE": forms.plain, "between": forms.between, **meta}, arguments)
    memory = peaks({"CE": forms.plain, **meta}, arguments)
    shared = {"device": arguments.device, "model": arguments.model, "batch": arguments.batch}
    shared |= {"precision": arguments.precision}
    where = {"settings": _settings(arguments), "environment": _environment(arguments.device, meta)}

    def row(method: str, every: int | None, ms: list[float], ce: list[float], kind: str) -> dict[str, Any]:
        ratios = [one / other for one, other in zip(ms, ce, strict=True)]
        error, cosine = errors.get(method, (None, None))
        middle = statistics.fmean if kind == "run" else statistics.median
        return {
            **shared,
            "method": method,
            "every": every,
            "ratio": round(middle(ms) / middle(ce), 4),
            "ms": round(middle(ms), 3),
            "peak_mb": round(memory[method], 1),
            "ratio_range": [round(min(ratios), 4), round(max(ratios), 4)],
            "ms_range": [round(min(ms), 3), round(max(ms), 3)],
            "rounds": len(ms),
            "kind": kind,
            "gradient_error": error,
            "gradient_cosine": cosine,
            **where,
        }

    found = [row("CE", None, times["CE"], times["CE"], "measured")]
    for name in meta:
        for every in EVERY:
            pairs = zip(times[name], times["between"], strict=True)
            mean = [(one + (every - 1) * between) / every for one, between in pairs]
            found.append(row(name, every, mean, times["CE"], "measured" if every == 1 else "derived"))
    if not arguments.short:
        plain, tenth = run_of_steps(arguments)
        found.append(row("A-GCE", 10, tenth, plain, "run"))
    return found


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    gradient_batch = min(arguments.batch, GRADIENT_BATCH.get(arguments.model, arguments.batch))
    return {"optimizer": OPTIMIZER, "classes": 10, "clean_batch": arguments.batch, "gradient_batch": gradient_batch}


def _environment(device: str, measured: Collection[str]) -> dict[str, Any]:
    packages = {"betty": "betty-ml", "torchopt": "torchopt", "higher": "higher"}
    versions = {name: importlib.metadata.version(packages[name]) for name in packages if name in measured}
    return {**environment(device), **versions}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", choices=sorted(BATCHES), default="resnet32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--batch", type=int, help="samples a batch; by default 128 for ResNet-34, 100 for the others")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--short", action="store_true", help="leave out the run of 20 steps that checks the derivation")
    parser.add_argument("--out", type=Path, help="file for the rows, results/cost-….json")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.batch = arguments.batch or BATCHES[arguments.model]

    if arguments.peak:
        print(peak_mb({"CE": forms.plain, **meta_forms(arguments.model, arguments.device)}[arguments.peak], arguments))
        return
    if arguments.device == "cpu" and arguments.model == "resnet32":
        for name in peers.missing():
            print(f"{name} is not installed and left out: pip install -r benchmarks/requirements.txt", file=sys.stderr)
    found = rows(arguments)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    for row in found:
        error = (
            ""
            if row["gradient_error"] is None
            else f"  gradient error {row['gradient_error']:.1e}, cosine {row['gradient_cosine']:.4f}"
        )
        low, high = row["ratio_range"]
        print(
            f"{row['method']:12}{row['every'] or '–':>4}{row['ratio']:8.3f} ({low:.2f} … {high:.2f})"
            f"{row['ms']:10.1f} ms{row['peak_mb']:8.0f} MB{error}" + f"  {row['kind']}"
        )
    print(", ".join(f"{key} {value}" for key, value in found[0]["environment"].items()))


if __name__ == "__main__":
    main()
