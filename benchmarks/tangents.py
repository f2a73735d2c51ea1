"""The forms of the tangent J·d side by side: what each costs, and how far it is from the exact one while training.

Cost: ResNet-32, batch 100. The tangent pass alone, in forward passes, and a whole meta iteration (``every=1``) with it,
in plain steps with cross entropy; the plain step with images as they usually come, and with the channels last, which
narl takes by itself on a CPU. All of them take turns, so that a busy machine slows all alike; ratios are of medians.

Error: networks are trained on scikit-learn's digits with 40 % wrong labels, one meta iteration a step with the default
tangent. Every few steps J·d and the hypergradient are computed by every form and compared with forward mode in float64;
``of_float32`` compares with dual numbers in float32, the same function with the same virtual step and look-ahead; in
float64 these are other ones too, which shows in the first steps of a deep network.

``recorded`` is forward mode with the values that the first pass left, what ``tangent="auto"`` and ``"forward"`` do;
``dual`` is forward mode by running the model again with dual numbers, what they do where a pass cannot be recorded.

    python benchmarks/tangents.py [--rounds 9] [--steps 300] [--measure-every 10] [--json]
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import narl
from narl.bilevel import tangents
from narl.bilevel.calls import snapshot
from narl.bilevel.hypergradient import hypergradient
from narl.bilevel.tangents import TrainingPass
from narl.train.environment import environment

FORMS = {"recorded": "forward", "dual": "forward", "reverse": "reverse", "difference": "difference"}
MODELS: dict[str, Callable[[torch.Generator], nn.Module]] = {
    "resnet32": lambda generator: narl.models.resnet32(10, in_channels=1, generator=generator),
    "convnet": lambda generator: narl.models.convnet(10, in_channels=1, generator=generator),
    "mlp": lambda generator: narl.models.mlp(64, 10, generator=generator),
    # without dropout: masks in float64 would be others
    "transformer": lambda generator: narl.models.text_transformer(20, 10, dropout=0.0, generator=generator),
}
BATCH = 32
CLEAN = 100


@contextmanager
def form(name: str) -> Iterator[list[Tensor]]:
    """Inside, forward mode is recorded or dual, as the name says; the tangents that are made go into the list."""
    made: list[Tensor] = []

    def keep(*args: Any) -> Tensor:
        made.append(tangents.tangent_of_logits(*args))
        return made[-1]

    with (
        patch.object(sys.modules["narl.bilevel.hypergradient"], "tangent_of_logits", keep),
        patch.object(tangents, "Tape", lambda: None) if name == "dual" else nullcontext(),
    ):
        yield made


def costs(rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each thing, one of each a round; the first round warms up and does not count."""
    generator = torch.Generator().manual_seed(0)
    x, clean_x = (torch.randn(100, 3, 32, 32, generator=generator) for _ in range(2))
    y, clean_y = (torch.randint(0, 10, (100,), generator=generator) for _ in range(2))
    model = narl.models.resnet32(10, generator=generator)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    adjuster = narl.Adjuster("gce", [100] * 10, generator=generator)

    def plain(images: Tensor) -> Callable[[], object]:
        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(F.cross_entropy(model(images), y))
            optimizer.step()

        return step

    def iteration(name: str) -> Callable[[], object]:
        meta = narl.MetaStep(model, optimizer, adjuster, every=1, tangent=FORMS[name])

        def step() -> None:
            with form(name):
                meta.step(x, y, (clean_x, clean_y))

        return step

    things = {
        "plain step": plain(x),
        "plain step, channels last": plain(x.contiguous(memory_format=torch.channels_last)),
        **{f"iteration, {name}": iteration(name) for name in FORMS},
    }
    times: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for name, thing in things.items():
            elapsed = milliseconds(thing)
            if number:
                times.setdefault(name, []).append(elapsed)
        for name, elapsed in tangent_passes(model, x).items():
            if number:
                times.setdefault(name, []).append(elapsed)
        progress(f"cost, round {number} of {rounds}")
    return times


def tangent_passes(model: nn.Module, x: Tensor) -> dict[str, float]:
    """Milliseconds of the forward pass and of each tangent pass on top of it."""
    directions = {name: 1e-2 * torch.randn_like(weight) for name, weight in model.named_parameters()}
    by_weight: dict[Tensor, Tensor] = {weight: directions[name] for name, weight in model.named_parameters()}
    buffers = snapshot(model)
    runs: list[TrainingPass] = []
    forward = milliseconds(lambda: runs.append(TrainingPass.of(model, x, len(x), buffers, tangent="forward")))
    run = runs[0]
    assert run.tape is not None
    tape = run.tape
    return {
        "forward pass": forward,
        "tangent pass, recorded": milliseconds(lambda: tape.tangent(run.logits, by_weight)),
        "tangent pass, dual": milliseconds(lambda: tangents._dual_pass(run, directions)),
        "tangent pass, reverse": milliseconds(lambda: tangents._reverse(run, directions)),
        "tangent pass, difference": milliseconds(lambda: tangents._difference(run, directions)),
    }


def milliseconds(thing: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    thing()
    return 1000 * (time.perf_counter() - start)


class Training:
    """A network in training on digits with wrong labels; 100 right ones are kept apart."""

    def __init__(self, name: str) -> None:
        self.generator = torch.Generator().manual_seed(0)
        digits = load_digits()
        true = torch.as_tensor(digits.target)
        self.x, self.true = inputs(name, torch.as_tensor(digits.images, dtype=torch.float32)), true
        self.given = torch.as_tensor(narl.noise.symmetric(true.numpy(), 0.4, 10, seed=0))
        self.model = MODELS[name](self.generator)
        lr = 0.01 if name == "transformer" else 0.1
        self.optimizer = SGD(self.model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)
        self.adjuster = narl.Adjuster("gce", torch.bincount(self.given), generator=self.generator)
        self.meta = narl.MetaStep(self.model, self.optimizer, self.adjuster, every=1)

    def batches(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """A noisy and a clean one."""
        noisy = torch.randint(CLEAN, len(self.x), (BATCH,), generator=self.generator)
        clean = torch.randint(0, CLEAN, (BATCH,), generator=self.generator)
        return (self.x[noisy], self.given[noisy]), (self.x[clean], self.true[clean])

    def errors(self, noisy: tuple[Tensor, Tensor], clean: tuple[Tensor, Tensor]) -> dict[str, dict[str, float]]:
        """Relative errors of J·d and of the hypergradient at the present weights, by form."""
        found = {name: products(name, self.model, self.optimizer, self.adjuster, noisy, clean) for name in FORMS}
        model, adjuster = copy.deepcopy(self.model).double(), copy.deepcopy(self.adjuster).double()
        optimizer = SGD(model.parameters(), lr=0.1)
        optimizer.load_state_dict(self.optimizer.state_dict())
        noisy, clean = ((x.double() if x.is_floating_point() else x, y) for x, y in (noisy, clean))
        tangent, gradient = products("dual", model, optimizer, adjuster, noisy, clean)
        return {
            name: {
                "tangent": distance(found[name][0], tangent),
                "hypergradient": distance(found[name][1], gradient),
                "tangent_of_float32": distance(found[name][0], found["dual"][0]),
                "hypergradient_of_float32": distance(found[name][1], found["dual"][1]),
            }
            for name in FORMS
        }


def products(
    name: str, model: nn.Module, optimizer: Optimizer, adjuster: narl.Adjuster, noisy: Any, clean: Any
) -> tuple[Tensor, Tensor]:
    """J·d and the hypergradient, flat, by one form."""
    with form(name) as made:
        gradients = hypergradient(model, optimizer, adjuster, noisy, clean, tangent=FORMS[name])
    return made[-1].flatten(), torch.cat([gradient.flatten() for gradient in gradients])


def distance(found: Tensor, exact: Tensor) -> float:
    """In parts of the exact one's length."""
    return float((found.double() - exact.double()).norm() / exact.double().norm())


def inputs(name: str, images: Tensor) -> Tensor:
    """The digits as a network takes them: images of 32 by 32, 64 numbers, or 64 words of 17 kinds."""
    if name == "mlp":
        return (images.flatten(1) - 8) / 8
    if name == "transformer":
        return images.flatten(1).long() + 2
    return F.interpolate((images.unsqueeze(1) - 8) / 8, size=(32, 32), mode="bilinear")


def errors_while_training(name: str, steps: int, every: int) -> dict[str, dict[str, dict[str, float]]]:
    """Median, 99th percentile and largest error of each form over a run."""
    training, seen = Training(name), []
    for number in range(steps):
        noisy, clean = training.batches()
        if number % every == 0:
            seen.append(training.errors(noisy, clean))
        training.meta.step(*noisy, clean)
        progress(f"{name}, step {number} of {steps}")
    return {
        tangent: {what: spread(torch.tensor([errors[tangent][what] for errors in seen])) for what in seen[0][tangent]}
        for tangent in FORMS
    }


def spread(values: Tensor) -> dict[str, float]:
    """Of errors."""
    return {
        "median": float(f"{values.median():.2g}"),
        "p99": float(f"{values.quantile(0.99):.2g}"),
        "max": float(f"{values.max():.2g}"),
        "n": len(values),
    }


def progress(text: str) -> None:
    """Show where the benchmark is."""
    if sys.stderr.isatty():
        print(f"{text:60}", end="\r", file=sys.stderr)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--measure-every", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    times = costs(arguments.rounds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    errors = {name: errors_while_training(name, arguments.steps, arguments.measure_every) for name in MODELS}
    result = {
        "cost": {
            name: {"median_ms": round(medians[name], 1), "min": round(min(values), 1), "max": round(max(values), 1)}
            for name, values in times.items()
        },
        "in_plain_steps": {
            name: {
                "as_given": round(medians[f"iteration, {name}"] / medians["plain step"], 2),
                "channels_last": round(medians[f"iteration, {name}"] / medians["plain step, channels last"], 2),
            }
            for name in FORMS
        },
        "in_forward_passes": {
            name: round(medians[f"tangent pass, {name}"] / medians["forward pass"], 2) for name in FORMS
        },
        "errors": errors,
        "settings": {
            "rounds": arguments.rounds,
            "batch": {"cost": 100, "errors": BATCH},
            "steps": arguments.steps,
            "measure_every": arguments.measure_every,
        },
        "environment": environment("cpu"),
    }
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{'':28}{'median ms':>10}{'min':>8}{'max':>8}")
    for name, values in times.items():
        print(f"{name:28}{medians[name]:10.0f}{min(values):8.0f}{max(values):8.0f}")
    print(f"\n{'relative error, median, max':28}{'J·d':>20}{'hypergradient':>20}{'J·d, of float32':>20}")
    for model, by_form in errors.items():
        for name, of in by_form.items():
            cells = (f"{of[what]['median']:.1e} {of[what]['max']:.1e}" for what in list(of)[:3])
            print(f"{model + ', ' + name:28}" + "".join(f"{cell:>20}" for cell in cells))
    print(", ".join(f"{key} {value}" for key, value in environment("cpu").items()))


if __name__ == "__main__":
    main()
