"""Channels last where it is faster: which models take it, and that trying it leaves no trace."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

import narl
from narl.bilevel.memory_format import faster_layout

CLASSES = 3


class Reading(nn.Module):
    """A convolution, and a head that reads its result out of memory in some way."""

    def __init__(self, read: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.norm, self.head = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Linear(64, CLASSES)
        self.read, self.draw, self.calls = read, torch.Generator().manual_seed(0), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        noise = torch.randn(len(x), 1, 1, 1, generator=self.draw).to(x)
        logits: Tensor = self.head(self.read(self.norm(self.layer(x)) * (1 + 0 * noise)))
        return logits


class SquareOfContiguous(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        result: Tensor = 2 * x.view(-1).view(x.shape) * gradients[0]
        return result


def images(n: int = 8, **options: Any) -> Tensor:
    return torch.randn(n, 2, 6, 6, generator=torch.Generator().manual_seed(0), **options)


def is_channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last)


def flat(h: Tensor) -> Tensor:
    return h.flatten(1)


def test_images_get_channels_last_and_keep_their_values() -> None:
    x = images()
    found = faster_layout(Reading(flat), x)
    assert is_channels_last(found)
    assert torch.equal(found, x)


READINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda h: h.view(len(h), 64),
    "strides": lambda h: h.as_strided((len(h), 64), (64, 1)),
    "masks in memory order": lambda h: F.dropout(h, 0.5).flatten(1),
    "the backward pass": lambda h: SquareOfContiguous.apply(h).flatten(1),  # type: ignore[no-untyped-call]
    "single precision only": lambda h: F.linear(h.flatten(1), torch.eye(64, dtype=torch.float32)),
}


@pytest.mark.parametrize("name", READINGS)
def test_models_that_look_at_memory_keep_their_layout(name: str) -> None:
    model = Reading(READINGS[name])
    for _ in range(2):
        x = images()
        assert faster_layout(model, x) is x


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (Reading(flat), images(dtype=torch.float64)),
        (Reading(flat), images(1)),
        (nn.Sequential(nn.Flatten(), nn.Linear(72, CLASSES)), images()),
        (nn.Sequential(nn.Conv1d(2, 4, 3), nn.Flatten()), torch.zeros(8, 2, 6)),
        (Reading(flat), (images(),)),
    ],
    ids=["float64", "one sample", "no convolution", "sequences", "several inputs"],
)
def test_what_would_not_gain_is_left_alone(model: nn.Module, x: Any) -> None:
    assert faster_layout(model, x) is x


def test_compiled_models_are_left_alone() -> None:
    model, x = Reading(flat), images()
    model.compile(backend="eager")
    assert faster_layout(model, x) is x


def test_trying_leaves_no_trace() -> None:
    model = Reading(lambda h: F.dropout(h, 0.5).flatten(1))
    before, random_state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    faster_layout(model, images())
    assert model.calls == 0
    assert model.training
    assert torch.equal(model.draw.get_state(), torch.Generator().manual_seed(0).get_state())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("every", [1, 2])
def test_training_with_either_layout_is_the_same_training(every: int) -> None:
    results = []
    for read in (flat, READINGS["view"]):
        torch.manual_seed(0)
        model = Reading(read)
        faster_layout(model, images())
        seen: list[bool] = []
        model.register_forward_hook(lambda _, args, __, seen=seen: seen.append(is_channels_last(args[0])))
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        meta = narl.MetaStep(model, optimizer, narl.Adjuster("gce", [40, 40, 10], families=2), every=every)
        y = torch.arange(8) % CLASSES
        for _ in range(3):
            meta.step(images(), y, (images().flip(0), y))
        assert seen == [read is flat] * len(seen)
        results.append(model.state_dict())
    for name, value in results[0].items():
        torch.testing.assert_close(value, results[1][name], rtol=1e-4, atol=1e-5)
