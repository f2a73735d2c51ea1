"""Twins for tests of engines: the same model, method and batches, made twice; and graphs without a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from narl import models
from narl.bilevel import StepReport
from narl.train import methods
from narl.train.engine.captured import CapturedEngine
from narl.train.engine.iteration import Iteration
from narl.train.methods import Method, Move, Setting

CLASSES, SAMPLES, ROWS, CLEAN_ROWS, SIDE = 4, 60, 12, 9, 16

Batch = tuple[Tensor, Tensor, Tensor]


class Clean:
    """Clean batches, one after the other, again and again."""

    def __init__(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        self._batches, self._next = batches, itertools.cycle(batches)

    def __call__(self) -> tuple[Tensor, Tensor]:
        return next(self._next)

    def example(self) -> tuple[Tensor, Tensor]:
        return self._batches[0]


@dataclass(eq=False)
class Twin:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    method: Method
    batches: list[Batch]
    clean: Clean

    @property
    def learned(self) -> list[nn.Parameter]:
        found = getattr(self.method, "adjuster", None) or getattr(self.method, "net", None)
        return [] if found is None else list(found.parameters())

    @torch.no_grad()
    def follow(self, other: Twin) -> None:
        """Take over the other's state, in the tensors that there are."""
        for one, source in zip(self._tensors(), other._tensors(), strict=True):
            one.copy_(source)

    def _tensors(self) -> Iterator[Tensor]:
        adjuster, own = self.method.adjuster, [self.optimizer]
        yield from self.model.state_dict().values()
        if adjuster is not None:
            yield from adjuster.state_dict().values()
            own.append(self.method._meta.adjuster_optimizer)  # type: ignore[attr-defined]
        for optimizer in own:
            for parameter in optimizer.param_groups[0]["params"]:
                yield from (v for _, v in sorted(optimizer.state[parameter].items()) if isinstance(v, Tensor))


def tiny() -> nn.Sequential:
    """Convolution, batch normalisation, a kink, a linear layer."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 7 * 7, 4)
    )
    generator = torch.Generator().manual_seed(0)
    for weights in model.parameters():
        nn.init.uniform_(weights, -0.2, 0.2, generator=generator)
    return model


class Peeking(nn.Module):
    """Looks at a value in its forward pass, which no graph can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(768, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.linear(x.flatten(1))
        return scores * (2 if float(x.mean()) > 0 else 1)


def twin(
    name: str,
    *,
    model: nn.Module | str | Callable[[], nn.Module] = tiny,
    optimizer: str = "sgd",
    steps: int = 12,
    rate: float = 0.05,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    trusted: int = 0,
    **options: Any,
) -> Twin:
    """A training; the labels of its first samples, as many as ``trusted`` says, are known to be right."""
    weights, draws = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1)
    if isinstance(model, str):
        model = models.get(model)(num_classes=CLASSES, generator=weights)
    network = model if isinstance(model, nn.Module) else model()
    network = network.to(device, dtype).train()
    fused = device != "cpu"
    moves: torch.optim.Optimizer
    if optimizer == "sgd":
        moves = torch.optim.SGD(network.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4, fused=fused)
    else:
        moves = torch.optim.AdamW(network.parameters(), lr=rate, fused=fused, capturable=fused)

    def images(rows: int) -> Tensor:
        return torch.randn(rows, 3, SIDE, SIDE, generator=draws, dtype=dtype).to(device)

    def labels(rows: int) -> Tensor:
        return torch.randint(0, CLASSES, (rows,), generator=draws).to(device)

    batches = [
        (images(ROWS), labels(ROWS), torch.randperm(SAMPLES, generator=draws)[:ROWS].to(device)) for _ in range(steps)
    ]
    clean = Clean([(images(CLEAN_ROWS), labels(CLEAN_ROWS)) for _ in range(steps)])
    counts = torch.tensor([SAMPLES // CLASSES] * CLASSES, device=device)
    known = torch.arange(SAMPLES, device=device) < trusted if trusted else None
    setting = Setting(network, moves, counts, clean, steps, SAMPLES, torch.Generator().manual_seed(2), trusted=known)
    return Twin(network, moves, methods.build(name, setting, **options), batches, clean)


def apart(one: Any, other: Any) -> float:
    """The largest difference between two lists of tensors, each measured by its largest entry."""
    pairs = [(a.detach(), b.detach()) for a, b in zip(one, other, strict=True)]
    return max(
        (float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-3)) for a, b in pairs),
        default=0.0,
    )


class Replayed:
    """In place of a graph and of its report: runs the step on the batch that the engine has brought."""

    def __init__(self, engine: CapturedEngine, move: Move) -> None:
        self.engine, self.move, self.graph = engine, move, self
        self.report: StepReport

    def replay(self) -> None:
        iteration, batch = self.engine._iteration, self.engine._batch
        assert iteration is not None
        assert batch is not None
        clean = None if self.move.meta is None else self.engine._clean_batch
        self.report = iteration.run(self.move, *batch, clean)


def replay_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have captured engines run their steps where a GPU would replay them."""

    def capture(self: CapturedEngine, move: Move, x: Tensor, y: Tensor, ids: Tensor) -> Any:
        if self._iteration is None:
            self._iteration = Iteration(self._model, self._optimizer, compile=self._levels[0])
            self._batch = (x.clone(), y.clone(), ids.clone())
        clean = None
        if move.meta is not None:
            assert self._clean is not None
            clean = self._clean_batch = self._clean.example()
            self._clean_batch = (clean[0].clone(), clean[1].clone())
        self._iteration.refresh()
        self._iteration.prepare(move, x, y, ids, clean)
        return Replayed(self, move)

    monkeypatch.setattr(CapturedEngine, "_capture", capture)
