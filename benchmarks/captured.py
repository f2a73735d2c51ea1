"""Iterations on a GPU as narl's engine does them, compiled and captured: narl's own, and the unrolled one likewise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from narl.bilevel.calls import substituted
from narl.bilevel.optimizers import fill_state
from narl.train.engine.captured import CapturedEngine
from narl.train.methods import Method
from problems import Problem

TYPES = {"float32": None, "bfloat16": torch.bfloat16}


class Always:
    """The same clean batch every time."""

    def __init__(self, problem: Problem) -> None:
        self._batch = (problem.clean.x, problem.clean.y)

    def __call__(self) -> tuple[Tensor, Tensor]:
        """The batch."""
        return self._batch

    def example(self) -> tuple[Tensor, Tensor]:
        """The batch."""
        return self._batch


def engine_step(
    method: Method, problem: Problem, precision: str, *, compiled: bool
) -> Callable[[Tensor, Tensor, Tensor], object]:
    """A method's steps by the engine."""
    engine = CapturedEngine(
        method,
        problem.model,
        problem.optimizer,
        Always(problem),
        rows=len(problem.noisy.y),
        precision=TYPES[precision],
        compiled=compiled,
    )
    return engine.step


def unrolled(problem: Problem, precision: str, *, compiled: bool) -> Callable[[], object]:
    """A double backward through the virtual step: traced and captured, or compiled too, like narl's own passes."""
    model, adjuster = problem.model, problem.adjuster
    for optimizer in (problem.optimizer, problem.adjuster_optimizer):
        fill_state(optimizer)
    group = problem.optimizer.param_groups[0]
    weights, learned = list(model.parameters()), list(adjuster.parameters())
    momenta = [problem.optimizer.state[weight]["momentum_buffer"] for weight in weights]
    noisy, clean = problem.batches
    # Every tensor that the functions use is an input of theirs, so that nothing is fixed in the graphs.
    lists: list[list[Tensor]] = [[*weights], [*model.buffers()], momenta, [*learned], [*adjuster.buffers()]]
    lists += [[noisy.x, noisy.y, noisy.ids], [clean.x, clean.y]]
    sizes = [len(one) for one in lists]
    state = [tensor.detach() for one in lists for tensor in one]

    def parted(flat: Sequence[Tensor]) -> list[list[Tensor]]:
        rest = iter(flat)
        return [[next(rest) for _ in range(size)] for size in sizes]

    def loss(used: Sequence[Tensor], theta: Sequence[Tensor], given: list[list[Tensor]]) -> tuple[Tensor, list[Tensor]]:
        x, y, ids = given[5]
        logits, buffers = _run(model, used, given[1], x)
        names = (name for name, _ in adjuster.named_buffers())
        with substituted(adjuster, _named(adjuster, theta), dict(zip(names, given[4], strict=True))):
            return adjuster.loss(logits, y, ids).mean(), buffers

    def autocast() -> Any:
        return torch.autocast(problem.device, torch.bfloat16, enabled=precision == "bfloat16", cache_enabled=False)

    def meta(*flat: Tensor) -> tuple[Tensor, ...]:
        given = parted(flat)
        used, theta = _leaves(given[0]), _leaves(given[3])
        clean_x, clean_y = given[6]
        with torch.enable_grad(), autocast():
            gradients = torch.autograd.grad(loss(used, theta, given)[0], used, create_graph=True)
            moved = [
                weight - group["lr"] * (group["momentum"] * old + gradient + group["weight_decay"] * weight)
                for weight, old, gradient in zip(given[0], given[2], gradients, strict=True)
            ]
            meta_loss = F.cross_entropy(_run(model, moved, given[1], clean_x)[0], clean_y)
            found = torch.autograd.grad(meta_loss, theta)
        return tuple(gradient.detach() for gradient in found)

    def step(*flat: Tensor) -> tuple[Tensor, ...]:
        given = parted(flat)
        used = _leaves(given[0])
        with torch.enable_grad(), autocast():
            value, buffers = loss(used, given[3], given)
            found = torch.autograd.grad(value, used)
        return tuple(result.detach() for result in (*found, *buffers))

    first, second = (_traced(function, state, compiled) for function in (meta, step))

    @torch.no_grad()
    def iteration() -> None:
        for parameter, gradient in zip(learned, first(*state), strict=True):
            parameter.grad = gradient
        problem.adjuster_optimizer.step()
        found = second(*state)
        for parameter, gradient in zip(weights, found, strict=False):
            parameter.grad = gradient.new_empty_strided(parameter.shape, parameter.stride()).copy_(gradient)
        problem.optimizer.step()
        for buffer, value in zip(model.buffers(), found[len(weights) :], strict=True):
            buffer.copy_(value)

    return _graph(iteration)


def _traced(function: Callable[..., Any], state: Sequence[Tensor], compiled: bool) -> Callable[..., Any]:
    graph: fx.GraphModule = make_fx(function, tracing_mode="fake")(*state)
    return torch.compile(graph, dynamic=False, fullgraph=True) if compiled else graph


def _graph(iteration: Callable[[], None]) -> Callable[[], object]:
    apart = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    apart.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(apart):
        for _ in range(2):
            iteration()
    torch.cuda.current_stream().wait_stream(apart)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        iteration()

    def replay() -> Callable[[], None]:
        graph.replay()
        return iteration  # holds the memory that the graph works in, the host's too

    return replay


def _named(module: nn.Module, values: Sequence[Tensor]) -> dict[str, Tensor]:
    return dict(zip((name for name, _ in module.named_parameters()), values, strict=True))


def _run(model: nn.Module, used: Sequence[Tensor], buffers: Sequence[Tensor], x: Tensor) -> tuple[Tensor, list[Tensor]]:
    names = (name for name, _ in model.named_buffers())
    with substituted(model, _named(model, used), dict(zip(names, buffers, strict=True))):
        logits: Tensor = model(x)
        return logits, list(model.buffers())


def _leaves(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().requires_grad_() for tensor in tensors]
