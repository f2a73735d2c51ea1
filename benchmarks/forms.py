"""Ways to do one training iteration: plain, by narl, by a double backward through the virtual step."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from narl.train.methods import Method
from problems import Problem

Iteration = Callable[[], object]
Form = Callable[[Problem, str], Iteration]
_NEVER_AGAIN = 10**9


def stepper(method: Method, problem: Problem, precision: str) -> Callable[[Tensor, Tensor, Tensor], object]:
    """A method's step as a training run would make it on that device and in that precision."""
    if precision == "float32":
        return method.step

    def step(x: Tensor, y: Tensor, ids: Tensor) -> object:
        with torch.autocast(problem.device, getattr(torch, precision)):
            return method.step(x, y, ids)

    return step


def of_method(problem: Problem, precision: str, method: Method) -> Iteration:
    """Steps of a method on the problem's batch."""
    step, batch = stepper(method, problem, precision), problem.noisy
    return lambda: step(batch.x, batch.y, batch.ids)


def plain(problem: Problem, precision: str) -> Iteration:
    """Cross entropy."""
    return of_method(problem, precision, problem.method("CE"))


def adjusted(problem: Problem, precision: str) -> Iteration:
    """A meta iteration as narl does it by default."""
    return _adjusted(problem, precision, every=1)


def adjusted_exact(problem: Problem, precision: str) -> Iteration:
    """A meta iteration with the exact tangent by name."""
    return _adjusted(problem, precision, every=1, tangent="forward")


def every_tenth(problem: Problem, precision: str) -> Iteration:
    """The paper's rhythm: one meta iteration, then nine steps between."""
    return _adjusted(problem, precision, every=10)


def between(problem: Problem, precision: str) -> Iteration:
    """A step between two meta iterations; only the very first one is a meta iteration."""
    return _adjusted(problem, precision, every=_NEVER_AGAIN)


def _adjusted(problem: Problem, precision: str, **options: object) -> Iteration:
    method = problem.method("A-GCE", adjuster_weight_decay=0.0, **options)  # the gradient that is seen is the clean one
    assert method.adjuster is not None
    method.adjuster.load_state_dict(problem.adjuster.state_dict())
    problem.adjuster = method.adjuster
    return of_method(problem, precision, method)


def unrolled(problem: Problem, precision: str) -> Iteration:
    """A meta iteration by a double backward through the virtual step.

    The training batch runs forward again for the model's own step, as Algorithm 1 is usually written; by counting
    passes, reusing the first forward pass would save a third of a plain step.
    """
    problem.channels_first()  # double backward passes are faster so
    model, weights = problem.model, dict(problem.model.named_parameters())
    learned = list(problem.adjuster.parameters())

    def loss(*, keep_buffers: bool) -> Tensor:
        buffers = {name: buffer.clone() if keep_buffers else buffer for name, buffer in model.named_buffers()}
        return problem.loss(functional_call(model, {**weights, **buffers}, (problem.noisy.x,)))

    def meta_gradients() -> tuple[Tensor, ...]:
        gradients = torch.autograd.grad(loss(keep_buffers=True), list(weights.values()), create_graph=True)
        moved = {
            name: _virtual(problem, weight, gradient)
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
        }
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        logits = functional_call(model, {**moved, **buffers}, (problem.clean.x,))
        return torch.autograd.grad(F.cross_entropy(logits, problem.clean.y), learned)

    def iteration() -> None:
        with torch.autocast(problem.device, torch.bfloat16, enabled=precision == "bfloat16"):
            move_adjuster(problem, meta_gradients())
            problem.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss(keep_buffers=False), inputs=list(weights.values()))
            problem.optimizer.step()

    return iteration


def move_adjuster(problem: Problem, gradients: tuple[Tensor, ...]) -> None:
    """One step of the adjuster's optimiser."""
    for parameter, gradient in zip(problem.adjuster.parameters(), gradients, strict=True):
        parameter.grad = gradient
    problem.adjuster_optimizer.step()


def _virtual(problem: Problem, weight: Tensor, gradient: Tensor) -> Tensor:
    """The weight after SGD's step, as a function of the gradient."""
    group = problem.optimizer.param_groups[0]
    step = gradient + group["weight_decay"] * weight.detach()
    buffer = problem.optimizer.state.get(weight, {}).get("momentum_buffer")
    moved: Tensor = weight.detach() - group["lr"] * (step if buffer is None else group["momentum"] * buffer + step)
    return moved
