"""Calling a model: with other weights, on copies of its buffers, with the same random numbers again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from narl.checks import check_logits
from narl.errors import ModelOutputError

Inputs = Any  # a tensor; a tuple or list of positional arguments; a mapping of named ones

_RUNNER: ContextVar[Callable[..., Any] | None] = ContextVar("runner", default=None)


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
    return _checked(model, run(model, *args, **kwargs), num_samples)


def run(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a model, or have it called by the one who runs models now, see :func:`run_by`."""
    runner = _RUNNER.get()
    return model(*args, **kwargs) if runner is None else runner(model, *args, **kwargs)


@contextlib.contextmanager
def run_by(runner: Callable[..., Any] | None) -> Iterator[None]:
    """Inside, :func:`call` and :func:`run` leave it to ``runner`` how a model is called.

    Args:
        runner: takes the model and its arguments and returns what the model would; it may have one backward pass only.
            None: models are called as they are.

    Example:
        >>> with run_by(lambda model, x: 2 * model(x)):
        ...     run(nn.Identity(), torch.ones(1))
        tensor([2.])
    """
    token = _RUNNER.set(runner)
    try:
        yield
    finally:
        _RUNNER.reset(token)


@contextlib.contextmanager
def substituted(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor] | None = None,
    *,
    copied: bool = True,
) -> Iterator[None]:
    """Inside, the model has other weights and works on copies of its buffers; afterwards it is what it was.

    Tensors are exchanged wherever a module holds them: as parameters and buffers, under every name of a module or
    tensor that has several, and in lists and dictionaries that the module keeps (as recurrent layers do). A backward
    pass through a checkpointed model runs parts of it again, so it belongs inside as well.

    Args:
        model: any classifier.
        weights: replacements by parameter name.
        buffers: what the buffers hold at the beginning, by name; what they hold now if omitted.
        copied: whether the model works on copies of these; if not, on these themselves.
    """
    given = dict(model.named_buffers()) if buffers is None else buffers
    exchange = {id(model.get_buffer(name)): value.clone() if copied else value for name, value in given.items()}
    exchange |= {id(model.get_parameter(name)): value for name, value in weights.items()}
    before = [(holder, _copy(holder)) for module in model.modules() for holder in _holders(module)]
    try:
        for holder, _ in before:
            for key, value in holder.items() if isinstance(holder, dict) else enumerate(holder):
                if isinstance(value, Tensor) and id(value) in exchange:
                    holder[key] = exchange[id(value)]
        yield
    finally:
        for holder, contents in before:
            holder.clear()
            holder.update(contents) if isinstance(holder, dict) else holder.extend(contents)


def _holders(module: nn.Module) -> Iterator[dict[Any, Any] | list[Any]]:
    """The dictionaries and lists in which a module keeps tensors."""
    yield module._parameters
    yield module._buffers
    for value in list(vars(module).values()):
        if isinstance(value, (dict, list)) and value is not module._parameters and value is not module._buffers:
            held = value.values() if isinstance(value, dict) else value
            if any(isinstance(item, Tensor) for item in held):
                yield value


def _copy(holder: dict[Any, Any] | list[Any]) -> dict[Any, Any] | list[Any]:
    return dict(holder) if isinstance(holder, dict) else list(holder)


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the model's buffers, by name."""
    buffers = {name: buffer.detach() for name, buffer in model.named_buffers()}
    copies = {name: torch.empty_like(buffer) for name, buffer in buffers.items()}
    copy_all(list(copies.values()), list(buffers.values()))
    return copies


def copy_all(into: Sequence[Tensor], of: Sequence[Tensor]) -> None:
    """Copy tensors into others of the same shape and type: on a GPU, all of a type at once."""
    kinds: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(into, of, strict=True):
        targets, sources = kinds.setdefault((source.device, source.dtype), ([], []))
        targets.append(target)
        sources.append(source)
    for targets, sources in kinds.values():
        torch._foreach_copy_(targets, sources)


def restore(model: nn.Module, buffers: Mapping[str, Tensor]) -> None:
    """Put a :func:`snapshot` back."""
    with torch.no_grad():
        for name, value in buffers.items():
            model.get_buffer(name).copy_(value)


@contextlib.contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Inside, models run as written, also one that went through ``torch.compile``: compiled code has one backward pass.

    So have the graphs of a runner, see :func:`run_by`.
    """
    with run_by(None), torch.compiler.set_stance("force_eager") if is_compiled(model) else contextlib.nullcontext():
        yield


def is_compiled(model: nn.Module) -> bool:
    """Whether the model or a part of it went through ``torch.compile``."""
    return any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


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
