"""The problem that the cost benchmarks share: a model, its optimiser, an adjuster, a noisy and a clean batch."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

import narl
from narl.bilevel import Processes
from narl.bilevel.hypergradient import hypergradient
from narl.train import methods

BATCHES = {"resnet32": 100, "resnet34": 128, "transformer": 100}
CLASSES = 10
VOCABULARY, WORDS, LAYERS = 5000, 64, 6
NUM_SAMPLES = 50_000
_ALONE = Processes.alone()
_TOTAL_STEPS = 10**6  # no snapshot of the adjuster falls into the measurement


@dataclass(frozen=True)
class Batch:
    """Inputs, labels and ids of some samples."""

    x: Tensor
    y: Tensor
    ids: Tensor


class Problem:
    """What one iteration works on, made anew for each form so that none disturbs another.

    Args:
        name: one of ``BATCHES``.
        device: where.
        batch: samples in the noisy and in the clean batch.
        dropout: whether the model keeps its dropout; without it, gradients can be compared.
        processes: who trains together; each has its share of both batches.
    """

    def __init__(
        self, name: str, device: str, batch: int, *, dropout: bool = True, processes: Processes = _ALONE
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        self.name, self.device, self.processes = name, device, processes
        self.model = _model(name, generator, dropout).to(device)
        on_gpu = device == "cuda"
        if on_gpu:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = SGD(self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, fused=on_gpu)
        self.counts = torch.full((CLASSES,), NUM_SAMPLES // CLASSES)
        self.adjuster = narl.Adjuster("gce", self.counts, margin="running", generator=generator).to(device)
        self.adjuster_optimizer = Adam(
            self.adjuster.parameters(), lr=1e-3, weight_decay=1e-5, fused=on_gpu, capturable=on_gpu
        )
        true = torch.arange(2 * batch) % CLASSES
        x = _inputs(name, true, generator)
        given = torch.as_tensor(narl.noise.symmetric(true[:batch].numpy(), 0.4, CLASSES, seed=0))
        ids = torch.randperm(NUM_SAMPLES, generator=generator)[: 2 * batch]
        share = processes.share(batch)
        self.noisy = Batch(*(part[:batch][share].to(device) for part in (x, given, ids)))
        self.clean = Batch(*(part[batch:][share].to(device) for part in (x, true, ids)))

    def method(self, name: str, **options: Any) -> methods.Method:
        """One of narl's methods on this problem; A-* makes an adjuster of its own, like ours."""
        setting = methods.Setting(
            model=self.model,
            optimizer=self.optimizer,
            class_counts=self.counts,
            clean=lambda: (self.clean.x, self.clean.y),
            total_steps=_TOTAL_STEPS,
            num_samples=NUM_SAMPLES,
            generator=torch.Generator().manual_seed(1),
            processes=self.processes,
        )
        return methods.build(name, setting, **options)

    def loss(self, logits: Tensor) -> Tensor:
        """The adjusted loss of the noisy batch."""
        return self.adjuster.loss(logits, self.noisy.y, self.noisy.ids).mean()

    def settle(self, steps: int = 20) -> Problem:
        """Train a little, on fresh samples: the optimiser then has momentum, and the adjuster's heads are not zero."""
        generator = torch.Generator().manual_seed(2)
        for _ in range(steps):
            true = torch.randint(0, CLASSES, (len(self.noisy.y),), generator=generator)
            x = _inputs(self.name, true, generator).to(self.device)
            self.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(F.cross_entropy(self.model(x), true.to(self.device)))
            self.optimizer.step()
        heads = self.adjuster.heads.weight
        with torch.no_grad():
            heads.copy_(torch.empty(heads.shape).normal_(std=0.1, generator=generator))
        return self

    def channels_first(self) -> None:
        """Lay images out channels first, for forms that are faster so."""
        self.noisy, self.clean = (Batch(part.x.contiguous(), part.y, part.ids) for part in self.batches)

    def exact_gradient(self) -> list[Tensor]:
        """The adjuster's gradient in float64, by forward mode: what the others are compared with."""
        model, adjuster = copy.deepcopy(self.model).double(), copy.deepcopy(self.adjuster).double()
        optimizer = SGD(model.parameters(), lr=0.1, fused=self.device == "cuda")
        optimizer.load_state_dict(self.optimizer.state_dict())
        noisy, clean = (batch.x.double() if batch.x.is_floating_point() else batch.x for batch in self.batches)
        return list(
            hypergradient(
                model,
                optimizer,
                adjuster,
                (noisy, self.noisy.y, self.noisy.ids),
                (clean, self.clean.y),
                tangent="forward",
            )
        )

    @property
    def batches(self) -> tuple[Batch, Batch]:
        """The noisy and the clean batch."""
        return self.noisy, self.clean


def _model(name: str, generator: torch.Generator, dropout: bool) -> nn.Module:
    if name == "transformer":
        share = 0.1 if dropout else 0.0
        return narl.models.text_transformer(VOCABULARY, CLASSES, layers=LAYERS, dropout=share, generator=generator)
    return narl.models.get(name)(num_classes=CLASSES, generator=generator)


def _inputs(name: str, true: Tensor, generator: torch.Generator) -> Tensor:
    """Synthetic samples that tell their class: a pattern in noise, or words of which every tenth belongs to it."""
    if name == "transformer":
        words = torch.randint(2 + CLASSES, VOCABULARY, (len(true), WORDS), generator=generator)
        telling = torch.rand(words.shape, generator=generator) < 0.1
        return torch.where(telling, 2 + true.unsqueeze(1), words)
    patterns = torch.randn(CLASSES, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    images = 0.3 * patterns[true] + torch.randn(len(true), 3, 32, 32, generator=generator)
    return images.contiguous(memory_format=torch.channels_last)  # faster for the plain step, and most others


@contextmanager
def gradients_of(adjuster: nn.Module) -> Iterator[list[Tensor]]:
    """Inside, the gradient by which any optimiser moves the adjuster is put into the list."""
    seen: list[Tensor] = []
    parameters = list(adjuster.parameters())

    def keep(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if any(parameter is parameters[0] for group in optimizer.param_groups for parameter in group["params"]):
            seen[:] = [torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for p in parameters]

    handle = register_optimizer_step_pre_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()


def distance(found: Sequence[Tensor], exact: Sequence[Tensor]) -> tuple[float, float]:
    """How far a gradient is from the exact one, in parts of the exact one's length, and the cosine between them."""
    one, other = (torch.cat([part.double().flatten() for part in parts]) for parts in (found, exact))
    return float((one - other).norm() / other.norm()), float(F.cosine_similarity(one, other, dim=0))
