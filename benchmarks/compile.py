"""Whether ``torch.compile`` pays on a CPU: its compile time against what it saves over a normal run.

Plain steps with and without ``torch.compile``, with images as they usually come and with the channels last, and narl's
step between two meta iterations take turns in one process; the latter is nine of ten steps of a run. A normal run is 60
epochs of 500 steps; compiling pays if the time it takes, on an empty cache, is less than what those steps save.

    python benchmarks/compile.py [--model resnet32] [--batch 100] [--rounds 9] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

import narl
from narl.train.environment import environment

RUN = 60 * 500
NEVER_AGAIN = 10**9


def plain_step(name: str, batch: int, *, compiled: bool, channels_last: bool) -> Callable[[], object]:
    """One step of ordinary training."""
    generator = torch.Generator().manual_seed(0)
    model = narl.models.get(name)(num_classes=10, generator=generator)
    x = torch.randn(batch, 3, 32, 32, generator=generator)
    y = torch.randint(0, 10, (batch,), generator=generator)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    # model.compile() would skip torch's own Sequential and compile its parts one by one, which is slower
    run = torch.compile(model) if compiled else model

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(F.cross_entropy(run(x), y))
        optimizer.step()

    return step


def step_between(name: str, batch: int) -> Callable[[], object]:
    """A step of ``narl.MetaStep`` between two meta iterations."""
    generator = torch.Generator().manual_seed(0)
    model = narl.models.get(name)(num_classes=10, generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    adjuster = narl.Adjuster("gce", [batch] * 10, generator=generator)
    x = torch.randn(batch, 3, 32, 32, generator=generator)
    y = torch.randint(0, 10, (batch,), generator=generator)
    meta = narl.MetaStep(model, optimizer, adjuster, every=NEVER_AGAIN)
    meta.step(x, y, (x, y))
    return lambda: meta.step(x, y)


def seconds(step: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="resnet32")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    arguments = parser.parse_args()
    name, batch = arguments.model, arguments.batch

    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        forms = {
            "plain": plain_step(name, batch, compiled=False, channels_last=False),
            "plain, compiled": plain_step(name, batch, compiled=True, channels_last=False),
            "plain, channels last": plain_step(name, batch, compiled=False, channels_last=True),
            "plain, channels last, compiled": plain_step(name, batch, compiled=True, channels_last=True),
            "narl between meta iterations": step_between(name, batch),
        }
        first: dict[str, float] = {}
        for form, step in forms.items():
            first[form] = seconds(step)
            print(f"{form}: first step {first[form]:.1f} s", file=sys.stderr)
        times: dict[str, list[float]] = {form: [] for form in forms}
        for number in range(arguments.rounds + 1):
            for form, step in forms.items():
                elapsed = seconds(step)
                if number:
                    times[form].append(elapsed)
    medians = {form: statistics.median(values) for form, values in times.items()}
    result = {
        "forms": {
            form: {
                "first_step_s": round(first[form], 2),
                "median_s": round(medians[form], 4),
                "min_s": round(min(times[form]), 4),
                "max_s": round(max(times[form]), 4),
                "run_s": round(first[form] + RUN * medians[form]),
            }
            for form in forms
        },
        "steps_of_a_run": RUN,
        "settings": {"model": name, "batch": batch, "rounds": arguments.rounds},
        "environment": environment("cpu"),
    }
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{'':40}{'first s':>9}{'median ms':>11}{'min':>8}{'max':>8}{'run h':>8}")
    for form, values in times.items():
        low, high, run = min(values), max(values), (first[form] + RUN * medians[form]) / 3600
        print(f"{form:40}{first[form]:9.1f}{1000 * medians[form]:11.0f}{1000 * low:8.0f}{1000 * high:8.0f}{run:8.2f}")


if __name__ == "__main__":
    main()
