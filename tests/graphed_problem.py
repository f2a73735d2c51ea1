"""Trainings of methods that do their steps themselves, made twice alike; and recordings of passes without a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from engine_problem import apart, tiny
from methods_problem import options_of
from narl.bilevel import StepReport
from narl.train import methods
from narl.train.engine import Engine
from narl.train.engine.recording import Recording, _aliased, _gradients
from narl.train.methods import Method, Setting
from narl.train.methods.divide_mix import DivideMix

CLASSES, SAMPLES, ROWS, SIDE, STEPS = 4, 192, 12, 16, 20

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "A-GCE+": ("A-GCE+", {"every": 4, "boost_from": 0.0}),
    "A-GCE+ of two": ("A-GCE+", {"every": 4, "boost_from": 0.3, "networks": 2}),
    "T-GCE+": ("T-GCE+", {"boost_from": 0.0}),
    "Co-teaching": ("Co-teaching", {}),
    "ELR+": ("ELR+", {}),
    "DivideMix": ("DivideMix", {"warmup": 1}),
    "DivideMix, warm-up": ("DivideMix", {"warmup": 9}),
    "Mixup": ("Mixup", {}),
    "MentorNet": ("MentorNet", {"every": 4}),
}

PREPARED: dict[str, tuple[str, dict[str, Any]]] = {
    "as it is": ("A-GCE+", {}),
    "posterior": ("A-GCE+", {"doubt": "posterior", "suspicion": 0.0, "confidence": 0.0, "temperature": 1.0}),
    "not mixed": ("A-GCE+", {"mixup": 0.0, "balance": 0.0}),
    "later": ("A-GCE+", {"boost_from": 0.3, "ramp": 0.3}),
    "without averages": ("A-GCE+", {"ema": 0.0}),
    "transferred": ("T-GCE+", {}),
}
"""Boosted methods whose whole steps can be graphs: of which training, and what is different."""


class OnCpu:
    """In place of CUDA graphs: computes a pass anew, and leaves what comes out where it left it before."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.error: Exception | None = None
        self.forgotten = 0

    def forget(self) -> None:
        self.forgotten += 1

    def __call__(self, network: nn.Module, x: Tensor, *, differentiated: bool) -> Recording:
        if self.error is not None:
            raise self.error
        self.shapes.append(tuple(x.shape))
        room = x.detach().clone()
        left: list[Any] = []

        def run(*, copied: bool) -> tuple[Tensor, list[Tensor]]:
            kinds = {"differentiated": differentiated, "copied": copied}
            with torch.set_grad_enabled(differentiated), _aliased(network, **kinds) as trained:
                return network(room), trained

        with torch.random.fork_rng(devices=[]):
            first, trained = run(copied=True)
        output = first.detach().clone()

        def forward() -> None:
            left[:] = run(copied=False)
            output.copy_(left[0].detach())

        if not differentiated:
            return Recording(room, output, forward)
        slope = torch.zeros_like(output)
        gradients = _gradients(first, trained, slope)

        def backward() -> None:
            for place, found in zip(gradients, _gradients(left[0], left[1], slope), strict=True):
                if place is not None and found is not None:
                    place.copy_(found)

        return Recording(room, output, forward, slope, gradients, backward)


@dataclass(eq=False)
class Training:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    method: Method
    x: Tensor
    y: Tensor
    rows: list[Tensor]
    reports: list[StepReport] = field(default_factory=list)

    def batch(self, number: int) -> tuple[Any, Tensor, Tensor]:
        """As the loop would bring it."""
        rows = self.rows[number % len(self.rows)]
        if isinstance(self.method, DivideMix):
            self.method._at = number % len(self.rows)
        views = tuple(self.x[rows] + 0.01 * view for view, _ in enumerate(self.method.views))
        return views or self.x[rows], self.y[rows], rows

    def go(self, engine: Engine, steps: range) -> None:
        for number in steps:
            self.done(engine.step(*self.batch(number)))

    def done(self, report: StepReport) -> None:
        """Keep a report: what a graph says of samples holds until the next step."""
        assert report.margins is not None
        fields = {name: value.clone() for name, value in report.hyperparameters.items()}
        self.reports.append(replace(report, margins=report.margins.clone(), hyperparameters=fields))

    @property
    def state(self) -> tuple[Any, Any, Any]:
        return self.model.state_dict(), self.optimizer.state_dict(), self.method.state_dict()

    @property
    def losses(self) -> list[Tensor]:
        return [report.loss for report in self.reports]

    def away_from(self, other: Training) -> float:
        """How far weights and running statistics, losses and margins are from another's."""
        states = apart(self.model.state_dict().values(), other.model.state_dict().values())
        margins = apart([r.margins for r in self.reports], [r.margins for r in other.reports])
        return max(states, margins, apart(self.losses, other.losses))


def training(
    kind: str = "A-GCE+",
    *,
    device: str = "cpu",
    network: Any = tiny,
    rate: float = 0.02,
    trusted: int = 0,
    **more: Any,
) -> Training:
    """A training; the labels of its first samples, as many as ``trusted`` says, are known to be right."""
    name, options = METHODS[kind]
    options = {**options, **more}
    spec = methods.get(name)
    torch.manual_seed(0)
    draws = torch.Generator().manual_seed(1)
    model = spec.networks_for(options).of(network).to(device).train()
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=rate, momentum=0.9, fused=device != "cpu"
    )
    x = torch.randn(SAMPLES, 3, SIDE, SIDE, generator=draws).to(device)
    y = torch.randint(0, CLASSES, (SAMPLES,), generator=draws).to(device)
    setting = Setting(
        model,
        optimizer,
        torch.bincount(y, minlength=CLASSES),
        lambda: (x[:9], y[:9]),
        STEPS,
        SAMPLES,
        torch.Generator().manual_seed(2),
        labels=y,
        batch_size=ROWS,
        epochs=10,
        kind="image",
        trusted=torch.arange(SAMPLES, device=device) < trusted if trusted else None,
    )
    method = spec.build(setting, **{**options_of(spec), **options})
    rows = [torch.randperm(SAMPLES, generator=draws)[:ROWS].to(device) for _ in range(STEPS)]
    epoch = 1 if name == "DivideMix" else 5

    @torch.no_grad()
    def look(module: nn.Module) -> Tensor:
        found: Tensor = module.eval()(x)
        module.train()
        return found

    method.begin_epoch(epoch, look)
    chosen = method.rows(epoch, torch.Generator().manual_seed(3))
    if chosen is not None:
        rows = _in_turns(chosen, method, device)
    return Training(model, optimizer, method, x, y, rows)


def _in_turns(chosen: list[Tensor], method: Method, device: str) -> list[Tensor]:
    """DivideMix's batches of both networks in turns, so that a few steps train both."""
    assert isinstance(method, DivideMix)
    half = len(chosen) // 2
    order = [number for pair in zip(range(half), range(half, 2 * half), strict=True) for number in pair]
    method._batches = [method._batches[number] for number in order]
    return [chosen[number].to(device) for number in order]
