"""What one meta iteration costs, in plain training steps: plain, unrolled and exact side by side in one run.

A plain step is forward, backward and update with cross entropy on one batch. A meta iteration moves the adjuster and
the model (``every=1``): ``unrolled`` differentiates twice through a virtual step, as most code does; ``exact`` is
``narl.MetaStep``. The unrolled form runs the training batch forward again for the model's own step, as Algorithm 1 is
usually written; by counting passes, reusing its first forward pass would save it a third of a plain step. The three
take turns, so that a busy machine slows all of them alike; ratios are of medians. Peak memory is what a form needs on
top of model, optimiser state and data, measured in a process of its own.

    python benchmarks/step.py [--model resnet32] [--batch 100] [--rounds 7] [--tangent auto] [--device cpu] [--json]
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import narl
from narl.train.environment import environment

FORMS = ("plain", "unrolled", "exact")


class Problem:
    """A model, an optimiser, an adjuster and random batches: time does not depend on what the pixels show."""

    def __init__(self, name: str, batch: int, tangent: str, device: str) -> None:
        generator = torch.Generator().manual_seed(0)
        self.model = narl.models.get(name)(num_classes=10, generator=generator).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        self.adjuster = narl.Adjuster("gce", [batch] * 10, generator=generator).to(device)
        self.adjuster_optimizer = torch.optim.Adam(self.adjuster.parameters(), lr=1e-3, weight_decay=1e-4)
        self.meta = narl.MetaStep(
            self.model,
            self.optimizer,
            self.adjuster,
            every=1,
            tangent=tangent,
            adjuster_optimizer=self.adjuster_optimizer,
        )
        self.x = torch.randn(batch, 3, 32, 32, generator=generator).to(device)
        self.y = torch.randint(0, 10, (batch,), generator=generator).to(device)
        self.clean_x = torch.randn(batch, 3, 32, 32, generator=generator).to(device)
        self.clean_y = torch.randint(0, 10, (batch,), generator=generator).to(device)

    def plain(self) -> None:
        """One step of ordinary training."""
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(F.cross_entropy(self.model(self.x), self.y))
        self.optimizer.step()

    def exact(self) -> None:
        """One meta iteration by ``narl.MetaStep``."""
        self.meta.step(self.x, self.y, (self.clean_x, self.clean_y))

    def unrolled(self) -> None:
        """One meta iteration by a double backward through the virtual step (SGD with momentum)."""
        weights = dict(self.model.named_parameters())
        gradients = torch.autograd.grad(
            self._loss(weights, keep_buffers=True), list(weights.values()), create_graph=True
        )
        moved = {
            name: self._virtual(weight, gradient)
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
        }
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        clean_logits = functional_call(self.model, {**moved, **buffers}, (self.clean_x,))
        self.adjuster_optimizer.zero_grad(set_to_none=True)
        meta_loss = F.cross_entropy(clean_logits, self.clean_y)
        torch.autograd.backward(meta_loss, inputs=list(self.adjuster.parameters()))
        self.adjuster_optimizer.step()
        del gradients, moved, clean_logits, meta_loss
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(self._loss(weights, keep_buffers=False), inputs=list(weights.values()))
        self.optimizer.step()

    def _loss(self, weights: dict[str, nn.Parameter], *, keep_buffers: bool) -> Tensor:
        buffers = {name: buffer.clone() if keep_buffers else buffer for name, buffer in self.model.named_buffers()}
        return self.adjuster.loss(functional_call(self.model, {**weights, **buffers}, (self.x,)), self.y).mean()

    def _virtual(self, weight: Tensor, gradient: Tensor) -> Tensor:
        group = self.optimizer.param_groups[0]
        step = gradient + group["weight_decay"] * weight.detach()
        buffer = self.optimizer.state.get(weight, {}).get("momentum_buffer")
        moved: Tensor = weight.detach() - group["lr"] * (step if buffer is None else group["momentum"] * buffer + step)
        return moved


def milliseconds(form: Callable[[], None], device: str) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    form()
    if device != "cpu":
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start)


def measure(problem: Problem, rounds: int, device: str) -> dict[str, list[float]]:
    """Times of each form, in milliseconds, one of each a round; the first round warms up and does not count."""
    times: dict[str, list[float]] = {form: [] for form in FORMS}
    for number in range(rounds + 1):
        for form in FORMS[number % 3 :] + FORMS[: number % 3]:
            elapsed = milliseconds(getattr(problem, form), device)
            if number:
                times[form].append(elapsed)
        if sys.stderr.isatty():
            print(f"round {number} of {rounds}", end="\r", file=sys.stderr)
    return times


def peak_mb(form: str, problem: Problem, device: str) -> float:
    """Memory that two iterations need; on a CPU only valid in a fresh process."""
    if device != "cpu":
        getattr(problem, form)()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        getattr(problem, form)()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    idle = largest_process_mb()
    getattr(problem, form)()
    getattr(problem, form)()
    return largest_process_mb() - idle


def largest_process_mb() -> float:
    """The most memory that this process has held so far."""
    if platform.system() == "Linux":  # getrusage would give what the parent process held, if that is more
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if platform.system() == "Darwin" else 1024)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="resnet32")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tangent", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--peak", choices=FORMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()

    problem = Problem(arguments.model, arguments.batch, arguments.tangent, arguments.device)
    if arguments.peak:
        print(peak_mb(arguments.peak, problem, arguments.device))
        return
    times = measure(problem, arguments.rounds, arguments.device)
    medians = {form: statistics.median(values) for form, values in times.items()}
    again = [argument for argument in sys.argv[1:] if argument != "--json"]
    peaks = {
        form: float(subprocess.check_output([sys.executable, __file__, *again, "--peak", form], text=True))
        for form in FORMS
    }
    settings = {key: getattr(arguments, key) for key in ("model", "batch", "rounds", "tangent", "device")}
    result = {
        "ratios": {form: round(medians[form] / medians["plain"], 3) for form in FORMS[1:]},
        "ms": {form: {"median": medians[form], "min": min(times[form]), "max": max(times[form])} for form in FORMS},
        "peak_mb": {form: round(peaks[form], 1) for form in FORMS},
        "settings": settings,
        "environment": environment(arguments.device),
    }
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{'':10}{'ratio':>8}{'median ms':>12}{'min':>9}{'max':>9}{'peak MB':>10}")
    for form in FORMS:
        low, high = min(times[form]), max(times[form])
        ratio = medians[form] / medians["plain"]
        print(f"{form:10}{ratio:8.2f}{medians[form]:12.0f}{low:9.0f}{high:9.0f}{peaks[form]:10.0f}")
    print(", ".join(f"{key} {value}" for key, value in {**settings, **environment(arguments.device)}.items()))


if __name__ == "__main__":
    main()
