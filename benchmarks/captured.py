"""Iterations on a GPU as narl's engine does them, compiled and captured: narl's own, and the unrolled one likewise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from narl.bilevel.calls import substituted
from narl.train.engine.captured import CapturedEngine
from narl.train.engine.iteration import fill_state
from narl.train.methods import Method
from problems import Problem

TYPES = {"float32": None, "bfloat16": torch.bfloat16}


def engine_step(
    method: Method, problem: Problem, precision: str, *, compiled: bool
) -> Callable[[Tensor, Tensor, Tensor], object]:
    """A method's steps by the engine."""
    engine = CapturedEngine(
        method,
        problem.model,
        problem.optimizer,
        lambda: (problem.clean.x, problem.clean.y),
        rows=len(problem.noisy.y),
        precision=TYPES[precision],
        compiled=compiled,
    )
    return engine.step


def unrolled(problem: Problem, precision: str, *, compiled: bool) -> Callable[[], object]:
    """A double backward through the virtual step: traced and captured, or compiled too, like narl's own passes."""
    model, adjuster = problem.model, problem.adjuster
    if adjuster.running is not None:
        adjuster.running.reserve(len(problem.counts) * int(problem.counts[0]))
    for optimizer in (problem.optimizer, problem.adjuster_optimizer):
        fill_state(optimizer)
    group = problem.optimizer.param_groups[0]
    weights, learned = list(model.parameters()), list(adjuster.parameters())
    momenta = [problem.optimizer.state[weight]["momentum_buffer"] for weight in weights]
    noisy, clean = problem.batches
    count = len(weights), len(momenta), len(learned)

    def loss(used: Sequence[Tensor], theta: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        logits, buffers = _run(model, used, noisy.x)
        with substituted(adjuster, _named(adjuster, theta)):
            return adjuster.loss(logits, noisy.y, noisy.ids).mean(), buffers

    def meta(*flat: Tensor) -> tuple[Tensor, ...]:
        used, velocity, theta = _leaves(flat, count)
        with torch.enable_grad(), torch.autocast("cuda", torch.bfloat16, enabled=precision == "bfloat16"):
            gradients = torch.autograd.grad(loss(used, theta)[0], used, create_graph=True)
            moved = [
                weight.detach()
                - group["lr"] * (group["momentum"] * old + gradient + group["weight_decay"] * weight.detach())
                for weight, old, gradient in zip(used, velocity, gradients, strict=True)
            ]
            found = torch.autograd.grad(F.cross_entropy(_run(model, moved, clean.x)[0], clean.y), theta)
        return tuple(gradient.detach() for gradient in found)

    def step(*flat: Tensor) -> tuple[Tensor, ...]:
        used, _, theta = _leaves(flat, count)
        with torch.enable_grad(), torch.autocast("cuda", torch.bfloat16, enabled=precision == "bfloat16"):
            value, buffers = loss(used, theta)
            found = torch.autograd.grad(value, used)
        return tuple(result.detach() for result in (*found, *buffers))

    state = [tensor.detach() for tensor in (*weights, *momenta, *learned)]
    first, second = (_traced(function, state, compiled) for function in (meta, step))

    @torch.no_grad()
    def iteration() -> None:
        for parameter, gradient in zip(learned, first(*state), strict=True):
            parameter.grad = gradient
        problem.adjuster_optimizer.step()
        found = second(*state)
        for parameter, gradient in zip(weights, found, strict=False):
            parameter.grad = gradient
        problem.optimizer.step()
        for buffer, value in zip(model.buffers(), found[len(weights) :], strict=True):
            buffer.copy_(value)

    return _graph(iteration)


def _traced(function: Callable[..., Any], state: Sequence[Tensor], compiled: bool) -> Callable[..., Any]:
    graph: fx.GraphModule = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*state)
    return torch.compile(graph, dynamic=False, fullgraph=True) if compiled else graph


def _graph(iteration: Callable[[], None]) -> Callable[[], None]:
    apart = torch.cuda.Stream()
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
    return graph.replay


def _named(module: nn.Module, values: Sequence[Tensor]) -> dict[str, Tensor]:
    return dict(zip((name for name, _ in module.named_parameters()), values, strict=True))


def _run(model: nn.Module, used: Sequence[Tensor], x: Tensor) -> tuple[Tensor, list[Tensor]]:
    with substituted(model, _named(model, used)):
        logits: Tensor = model(x)
        return logits, list(model.buffers())


def _leaves(flat: Sequence[Tensor], count: tuple[int, int, int]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    weights, momenta, _ = count
    used = [tensor.detach().requires_grad_() for tensor in flat[:weights]]
    theta = [tensor.detach().requires_grad_() for tensor in flat[weights + momenta :]]
    return used, list(flat[weights : weights + momenta]), theta
