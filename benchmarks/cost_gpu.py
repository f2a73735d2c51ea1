"""What a training step costs on a GPU, in plain steps, as narl's engine does it.

    python benchmarks/cost_gpu.py [--models resnet32 resnet34 transformer] [--precision bfloat16] [--rounds 9]
                                  [--unrolled-compiled] [--out results]

``engine`` is ``captured`` (a CUDA graph of torch's own kernels) or ``compiled`` (a CUDA graph of compiled ones, what
long runs use). ``CE`` is a plain step, ``A-GCE`` narl's with the adjusted loss, ``unrolled`` a double backward through
the virtual step, traced and captured in the same way. The forms take turns; ratios are of medians. At ``every`` = k a
step costs (meta iteration + (k - 1) steps between) / k: derived from the two, and measured as a ``run`` at k = 10.
Peak memory is what an iteration needs on top of model, optimiser and data, by torch's allocator. The gradient's error
is its distance from narl's in float64 after twenty training steps, in parts of that one's length.

Each model has a process; they compile side by side and are measured one after the other.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import captured
from narl.train.environment import environment
from narl.train.methods.adjusted import Adjusted
from problems import BATCHES, Problem, distance

EVERY = (1, 2, 5, 10, 50)
STEPS = 20
Iteration = Callable[[], object]


class Measured:
    """The forms of one model with one engine."""

    def __init__(self, model: str, precision: str, engine: str, *, unrolled: bool) -> None:
        self.model, self.precision, self.engine = model, precision, engine
        self.forms: dict[str, Iteration] = {}
        self.peaks: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        self.error: tuple[float, float] | None = None
        compiled = engine == "compiled"
        self._make("CE", lambda problem: self._steps(problem, problem.method("CE"), compiled))
        self._make("A-GCE", lambda problem: self._adjusted(problem, compiled))
        if unrolled:
            self._make("unrolled", lambda problem: captured.unrolled(problem, precision, compiled=compiled))

    def _make(self, name: str, form: Callable[[Problem], Iteration]) -> None:
        problem = Problem(self.model, "cuda", BATCHES[self.model])
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        idle, began = torch.cuda.memory_allocated(), time.perf_counter()
        self.forms[name] = form(problem)
        self.forms[name]()
        torch.cuda.synchronize()
        self.seconds[name] = time.perf_counter() - began
        self.peaks[name] = (torch.cuda.max_memory_allocated() - idle) / 2**20

    def _steps(self, problem: Problem, method: Any, compiled: bool) -> Iteration:
        step, batch = captured.engine_step(method, problem, self.precision, compiled=compiled), problem.noisy
        return lambda: step(batch.x, batch.y, batch.ids)

    def _adjusted(self, problem: Problem, compiled: bool) -> Iteration:
        method = problem.method("A-GCE", adjuster_weight_decay=0.0, every=1)
        assert isinstance(method, Adjusted)
        self.adjusted = method
        return self._steps(problem, method, compiled)

    def every(self, steps: int) -> Iteration:
        """A-GCE with so many steps from one meta iteration to the next."""

        def iteration() -> None:
            self.adjusted._meta.every = steps
            self.forms["A-GCE"]()

        return iteration

    def times(self, rounds: int) -> dict[str, list[float]]:
        """Milliseconds of each form, one measurement a round, in turns."""
        never = self.every(10**9)
        forms = {**self.forms, "A-GCE": self.every(1), "between": never}
        never()  # captures the step between
        for form in forms.values():
            milliseconds(form, STEPS)
        found: dict[str, list[float]] = {name: [] for name in [*forms, "run"]}
        for _ in range(rounds):
            for name, form in forms.items():
                found[name].append(milliseconds(form, STEPS))
            found["run"].append(milliseconds(self.every(10), 10 * STEPS))
        return found


def gradient_error(model: str, precision: str) -> tuple[float, float]:
    """The adjuster's gradient as the engine computes it, captured, against float64."""
    settled = Problem(model, "cuda", BATCHES[model], dropout=False).settle()
    exact = settled.exact_gradient()
    problem = copy.deepcopy(settled)
    method = problem.method("A-GCE", adjuster_weight_decay=0.0, every=1)
    assert method.adjuster is not None
    method.adjuster.load_state_dict(problem.adjuster.state_dict())
    captured.engine_step(method, problem, precision, compiled=False)(*vars(problem.noisy).values())
    return distance([p.grad for p in method.adjuster.parameters() if p.grad is not None], exact)


def milliseconds(iteration: Iteration, steps: int) -> float:
    """How long one call takes on the device."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    began.record()
    for _ in range(steps):
        iteration()
    ended.record()
    torch.cuda.synchronize()
    return float(began.elapsed_time(ended)) / steps


def rows(measured: Measured, rounds: int, error: tuple[float, float] | None) -> list[dict[str, Any]]:
    """A row for each form and number of steps between two meta iterations."""
    times = measured.times(rounds)

    def row(method: str, every: int | None, ms: list[float], kind: str) -> dict[str, Any]:
        ratios = [one / plain for one, plain in zip(ms, times["CE"], strict=True)]
        return {
            "device": "cuda",
            "model": measured.model,
            "batch": BATCHES[measured.model],
            "precision": measured.precision,
            "method": method,
            "every": every,
            "ratio": round(statistics.median(ms) / statistics.median(times["CE"]), 4),
            "ms": round(statistics.median(ms), 4),
            "peak_mb": round(measured.peaks[method], 1),
            "engine": measured.engine,
            "ratio_range": [round(min(ratios), 4), round(max(ratios), 4)],
            "ms_range": [round(min(ms), 4), round(max(ms), 4)],
            "rounds": rounds,
            "kind": kind,
            "first_step_seconds": round(measured.seconds[method], 1),
            "gradient_error": error[0] if error and method == "A-GCE" else None,
            "gradient_cosine": error[1] if error and method == "A-GCE" else None,
            "settings": {"optimizer": "SGD, momentum 0.9, weight decay 5e-4", "clean_batch": BATCHES[measured.model]},
            "environment": environment("cuda"),
        }

    found = [row("CE", None, times["CE"], "measured")]
    for name in [form for form in measured.forms if form != "CE"]:
        for every in EVERY:
            pairs = zip(times[name], times["between"], strict=True)
            mean = [(one + (every - 1) * between) / every for one, between in pairs]
            found.append(row(name, every, mean, "measured" if every == 1 else "derived"))
    found.append(row("A-GCE", 10, times["run"], "run"))
    return found


def worker(arguments: argparse.Namespace) -> None:
    """Measure one model, after all have compiled."""
    (model,) = arguments.models
    error = gradient_error(model, arguments.precision) if model == "resnet32" else None
    measured = [
        Measured(model, arguments.precision, engine, unrolled=engine == "captured" or arguments.unrolled_compiled)
        for engine in ("captured", "compiled")
    ]
    Path(arguments.turn, f"{model}.ready").touch()
    while not Path(arguments.turn, f"{model}.go").exists():
        time.sleep(0.05)
    found = [row for one in measured for row in rows(one, arguments.rounds, error)]
    print(json.dumps(found))


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=sorted(BATCHES), default=["resnet32", "resnet34", "transformer"])
    parser.add_argument("--precision", choices=sorted(captured.TYPES), default="bfloat16")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--unrolled-compiled", action="store_true", help="compile the unrolled form too (minutes)")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--turn", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.turn:
        worker(arguments)
        return
    with tempfile.TemporaryDirectory() as turn:
        again = [sys.executable, "-W", "ignore", __file__, "--turn", turn, f"--precision={arguments.precision}"]
        again += [f"--rounds={arguments.rounds}", *(["--unrolled-compiled"] if arguments.unrolled_compiled else [])]
        running = {
            model: subprocess.Popen([*again, "--models", model], stdout=subprocess.PIPE, text=True)
            for model in arguments.models
        }
        while any(p.poll() is None and not Path(turn, f"{m}.ready").exists() for m, p in running.items()):
            time.sleep(0.1)
        for model, process in running.items():
            Path(turn, f"{model}.go").touch()
            output, _ = process.communicate()
            if process.returncode:
                print(f"{model} failed with exit code {process.returncode}", file=sys.stderr)
                continue
            found = json.loads(output.splitlines()[-1])
            target = arguments.out / f"cost-gpu-{model}-{arguments.precision}.json"
            target.write_text(json.dumps(found, indent=1) + "\n")
            for row in found:
                low, high = row["ratio_range"]
                print(
                    f"{model:12}{row['engine']:10}{row['method']:10}{row['every'] or '–':>4}{row['ratio']:8.3f} "
                    f"({low:.2f} … {high:.2f}){row['ms']:9.3f} ms{row['peak_mb']:8.0f} MB  {row['kind']}"
                    + (f"  error {row['gradient_error']:.3f}" if row["gradient_error"] is not None else ""),
                    flush=True,
                )


if __name__ == "__main__":
    main()
