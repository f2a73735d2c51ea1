"""The slow, obvious way to a hypergradient: step with a graph, then differentiate through everything twice."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import SGD, Adam, AdamW, Optimizer


def unrolled(
    model: nn.Module,
    optimizer: Optimizer,
    objective: Any,
    batch: tuple[Any, ...],
    clean_batch: tuple[Any, Tensor],
    virtual: str = "optimizer",
    clip: float | None = None,
) -> tuple[Tensor, ...]:
    """The hypergradient by a double backward; random numbers are drawn in the library's order: train, then clean."""
    x, y, *ids = batch
    weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
    group_of = {p: group for group in optimizer.param_groups for p in group["params"]}
    with sdpa_kernel(SDPBackend.MATH):
        loss = objective.loss(_forward(model, weights, x), y, *ids).mean()
        gradients: Sequence[Tensor | None] = torch.autograd.grad(
            loss, list(weights.values()), create_graph=True, allow_unused=True
        )
        if clip is not None:
            norm = torch.cat([g.flatten() for g in gradients if g is not None]).norm()
            gradients = [None if g is None else g * (clip / (norm + 1e-6)).clamp(max=1) for g in gradients]
        moved: dict[str, Tensor] = {}
        for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
            if gradient is None or weight not in group_of:
                moved[name] = weight
            elif virtual == "sgd":
                moved[name] = weight - group_of[weight]["lr"] * gradient
            else:
                moved[name] = stepped(optimizer, weight, gradient, group_of[weight], optimizer.state.get(weight, {}))
        clean_x, clean_y = clean_batch
        meta_loss = F.cross_entropy(_forward(model, moved, clean_x), clean_y)
    found: Sequence[Tensor | None] = torch.autograd.grad(meta_loss, list(objective.parameters()), allow_unused=True)
    return tuple(torch.zeros_like(p) if g is None else g for p, g in zip(objective.parameters(), found, strict=True))


def stepped(optimizer: Optimizer, w: Tensor, g: Tensor, group: Any, state: Any) -> Tensor:
    """Weights after one step, written from the optimisers' documentation, differentiable in the gradient."""
    w = w.detach()
    if group["maximize"]:
        g = -g
    if type(optimizer) is SGD:
        g = g + group["weight_decay"] * w
        if group["momentum"]:
            old = state.get("momentum_buffer")
            b = g if old is None else group["momentum"] * old + (1 - group["dampening"]) * g
            g = g + group["momentum"] * b if group["nesterov"] else b
        moved: Tensor = w - group["lr"] * g
        return moved
    assert type(optimizer) in (Adam, AdamW)
    if type(optimizer) is AdamW:
        w = w - group["lr"] * group["weight_decay"] * w
    else:
        g = g + group["weight_decay"] * w
    beta1, beta2 = group["betas"]
    t = float(state["step"]) + 1 if state else 1
    m = beta1 * state.get("exp_avg", torch.zeros_like(w)) + (1 - beta1) * g
    v = beta2 * state.get("exp_avg_sq", torch.zeros_like(w)) + (1 - beta2) * g * g
    if group["amsgrad"]:
        v = torch.maximum(v, state.get("max_exp_avg_sq", torch.zeros_like(w)))
    moved = w - group["lr"] * (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + group["eps"])
    return moved


def meta_loss_after_real_step(
    model: nn.Module,
    optimizer: Optimizer,
    objective: Any,
    batch: tuple[Any, ...],
    clean_batch: tuple[Any, Tensor],
    seed: int,
) -> float:
    """The clean loss after torch's own optimiser has taken the step: on copies, so nothing else changes."""
    model, optimizer = copy.deepcopy((model, optimizer))
    x, y, *ids = batch
    clean_x, clean_y = clean_batch
    torch.manual_seed(seed)
    optimizer.zero_grad()
    logits = model(*x) if isinstance(x, tuple) else model(x)
    torch.autograd.backward(objective.loss(logits, y, *ids).mean(), inputs=list(model.parameters()))
    optimizer.step()
    with torch.no_grad():
        logits = model(*clean_x) if isinstance(clean_x, tuple) else model(clean_x)
        return float(F.cross_entropy(logits, clean_y))


def finite_differences(value: Callable[[], float], parameters: list[Tensor], step: float = 1e-5) -> list[Tensor]:
    """Central differences of ``value`` by every entry of ``parameters``."""
    result = []
    for parameter in parameters:
        flat = parameter.detach().view(-1)
        slopes = []
        for i in range(len(flat)):
            old = float(flat[i])
            flat[i] = old + step
            above = value()
            flat[i] = old - step
            below = value()
            flat[i] = old
            slopes.append((above - below) / (2 * step))
        result.append(torch.tensor(slopes, dtype=parameter.dtype).view_as(parameter))
    return result


def relative_error(found: Any, expected: Any) -> float:
    """The distance of two lists of tensors over the length of the second."""
    distance = sum(float(((a - b) ** 2).sum()) for a, b in zip(found, expected, strict=True))
    length = sum(float((b**2).sum()) for b in expected)
    assert length > 0
    return float((distance / length) ** 0.5)


def _forward(model: nn.Module, weights: dict[str, Any], x: Any) -> Tensor:
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    args = x if isinstance(x, tuple) else (x,)
    output: Tensor = functional_call(model, {**weights, **buffers}, args)
    return output
