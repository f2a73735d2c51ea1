"""Calling a model: with other weights, on copies of its buffers, with the same random numbers again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from narl.checks import check_logits
from narl.errors import ModelOutputError

Inputs = Any  # a tensor; a tuple or list of positional arguments; a mapping of named ones


def call(model: nn.Module, inputs: Inputs, num_samples: int) -> Tensor:
    """The model's logits, as the model is.

    Args:
        model: any classifier.
        inputs: a tensor, or a tuple of positional arguments, or a mapping of named ones.
        num_samples: how many rows the logits must have.

    Returns:
        ``(N, c)``.
    """
    args, kwargs = _arguments(inputs)
    return _checked(model, model(*args, **kwargs), num_samples)


def call_with(
    model: nn.Module, weights: Mapping[str, Tensor], inputs: Inputs, num_samples: int | None = None
) -> Tensor:
    """The model's logits with some of its weights replaced, its own weights and buffers untouched.

    Args:
        model: any classifier.
        weights: replacements by parameter name; a tied weight is replaced everywhere.
        inputs: as for :func:`call`.
        num_samples: how many rows the logits must have, if that is to be checked.

    Returns:
        ``(N, c)``.
    """
    args, kwargs = _arguments(inputs)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    output = functional_call(model, {**buffers, **weights}, args, kwargs)
    return output if num_samples is None else _checked(model, output, num_samples)


@contextlib.contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Inside, a model that went through ``torch.compile`` runs as written: compiled code has one backward pass."""
    compiled = any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )
    with torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext():
        yield


@dataclass(frozen=True)
class RandomState:
    """The random numbers that a forward pass is about to see, so that it can be run again: the same dropout masks."""

    host: Tensor
    devices: dict[int, Tensor]

    @classmethod
    def now(cls, model: nn.Module) -> RandomState:
        """The state of the generators that the model's layers draw from."""
        used = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
        return cls(torch.get_rng_state(), {index: torch.cuda.get_rng_state(index) for index in sorted(used)})

    @contextlib.contextmanager
    def replayed(self) -> Iterator[None]:
        """Inside, the generators give these numbers again; afterwards they go on as if nothing had been drawn."""
        with torch.random.fork_rng(devices=list(self.devices)):
            torch.set_rng_state(self.host)
            for index, state in self.devices.items():
                torch.cuda.set_rng_state(state, index)
            yield


def _arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs), {}) if isinstance(inputs, (tuple, list)) else ((inputs,), {})


def _checked(model: nn.Module, output: object, num_samples: int) -> Tensor:
    if not isinstance(output, Tensor) or output.dim() != 2 or len(output) != num_samples:
        got = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise ModelOutputError(
            f"{type(model).__name__} returned {got} for {num_samples} labels: narl needs class scores of shape "
            f"({num_samples}, c); check that inputs and labels belong together, or wrap the model in a module whose "
            "forward returns such scores"
        )
    check_logits(output)
    return output
