"""What an optimiser would do with a gradient, and how that depends on the gradient.

A rule takes one parameter, its gradient, and what the optimiser holds for it, and gives the weights after the step and
the derivative of the step by the gradient, ``-∂w̃/∂g``: a number or, elementwise, a tensor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from narl.errors import OptimizerError, OptionError

if TYPE_CHECKING:
    from narl.bilevel.hypergradient import Objective

Rule = Callable[[Tensor, Tensor, Mapping[str, Any], Mapping[str, Any]], tuple[Tensor, Tensor | float]]


def plain_sgd(
    weights: Tensor, gradient: Tensor, group: Mapping[str, Any], state: Mapping[str, Any]
) -> tuple[Tensor, Tensor | float]:
    """The paper's virtual step: the learning rate times the gradient, nothing else."""
    return weights - group["lr"] * gradient, group["lr"]


def sgd(
    weights: Tensor, gradient: Tensor, group: Mapping[str, Any], state: Mapping[str, Any]
) -> tuple[Tensor, Tensor | float]:
    """``torch.optim.SGD``: momentum, dampening, Nesterov, weight decay."""
    step, slope = _signed(weights, gradient, group, decay=group["weight_decay"])
    momentum = group["momentum"]
    if momentum:
        buffer = state.get("momentum_buffer")
        buffer = buffer.to_dense() if buffer is not None and buffer.is_sparse else buffer
        # torch leaves the first step undamped
        share = 1.0 if buffer is None else 1.0 - group["dampening"]
        velocity = step if buffer is None else momentum * buffer + share * step
        step = step + momentum * velocity if group["nesterov"] else velocity
        slope = slope * (1 + momentum * share if group["nesterov"] else share)
    return weights - group["lr"] * step, group["lr"] * slope


def adam(
    weights: Tensor, gradient: Tensor, group: Mapping[str, Any], state: Mapping[str, Any]
) -> tuple[Tensor, Tensor | float]:
    """``torch.optim.Adam`` and ``AdamW``: both kinds of weight decay, amsgrad."""
    decoupled = group.get("decoupled_weight_decay", False)
    step, slope = _signed(weights, gradient, group, decay=0.0 if decoupled else group["weight_decay"])
    if decoupled:
        weights = weights * (1 - group["lr"] * group["weight_decay"])
    beta1, beta2 = (float(beta) for beta in group["betas"])
    count = _step_of(state) + 1
    zero = torch.zeros((), dtype=step.dtype, device=step.device)
    first = (beta1 * state.get("exp_avg", zero) + (1 - beta1) * step) / (1 - beta1**count)
    raw_second = beta2 * state.get("exp_avg_sq", zero) + (1 - beta2) * step**2
    largest = torch.maximum(raw_second, state.get("max_exp_avg_sq", zero)) if group["amsgrad"] else raw_second
    root = (largest / (1 - beta2**count)).sqrt()
    scale = root + group["eps"]
    # ∂root/∂g; where the largest second moment is an old one (amsgrad), or all gradients have been zero, it is 0
    rising = (root > 0) & (raw_second >= largest)
    safe = torch.where(rising, root, 1.0)
    root_slope = torch.where(rising, (1 - beta2) * step / ((1 - beta2**count) * safe), 0.0)
    derivative = ((1 - beta1) / (1 - beta1**count) - first * root_slope / scale) / scale
    return weights - group["lr"] * first / scale, group["lr"] * slope * derivative


def _step_of(state: Mapping[str, Any]) -> Tensor | float:
    """Steps so far; a count that is on a device stays there, so that nobody waits for it."""
    step = state.get("step", 0.0)
    return step if isinstance(step, Tensor) and step.device.type != "cpu" else float(step)


def adamw(
    weights: Tensor, gradient: Tensor, group: Mapping[str, Any], state: Mapping[str, Any]
) -> tuple[Tensor, Tensor | float]:
    """``torch.optim.AdamW``, also where torch is too old to say in the group that its weight decay is decoupled."""
    return adam(weights, gradient, {**group, "decoupled_weight_decay": True}, state)


_RULES: dict[type[Optimizer], Rule] = {SGD: sgd, Adam: adam, AdamW: adamw}


def rule_of(optimizer: Optimizer, virtual: str) -> Rule:
    """The rule of the virtual step: the optimiser's own, or the paper's plain one."""
    if virtual == "sgd":
        return plain_sgd
    if virtual != "optimizer":
        raise OptionError(f"virtual = {virtual!r} is unknown: use 'optimizer' (its own update) or 'sgd' (the paper's)")
    if type(optimizer) not in _RULES:
        known = ", ".join(kind.__name__ for kind in _RULES)
        raise OptimizerError(
            f"the update of {type(optimizer).__name__} has no known derivative (known: {known}): "
            "use one of those, or virtual='sgd' to look ahead with a plain step of the same learning rate"
        )
    return _RULES[type(optimizer)]


def trained_parameters(model: nn.Module, optimizer: Optimizer) -> dict[str, nn.Parameter]:
    """The model's parameters that the optimiser moves, by name; tied ones once, frozen ones not at all."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    strangers = sum(parameter not in names for parameter in held)
    if strangers:
        raise OptimizerError(
            f"the optimiser holds {strangers} of {len(held)} parameters that are not the model's: build it from "
            "model.parameters(), after the model has been moved or replaced"
        )
    trained = {names[parameter]: parameter for parameter in held if parameter.requires_grad}
    if not trained:
        raise OptimizerError("the optimiser holds no parameter that requires a gradient: nothing would be trained")
    return trained


@contextlib.contextmanager
def unmoved(optimizer: Optimizer) -> Iterator[None]:
    """What fails inside has moved neither the optimiser's parameters nor its state.

    Args:
        optimizer: of a few small parameters, of which copies are made.

    Example:
        >>> weight = nn.Parameter(torch.ones(1))
        >>> optimizer = Adam([weight])
        >>> with contextlib.suppress(ZeroDivisionError), unmoved(optimizer):
        ...     weight.grad = torch.ones(1)
        ...     optimizer.step()
        ...     1 / 0
        >>> weight.item(), len(optimizer.state)
        (1.0, 0)
    """
    states = {parameter: dict(state) for parameter, state in optimizer.state.items()}
    held = [value for state in states.values() for value in state.values() if isinstance(value, Tensor)]
    held += [parameter.detach() for group in optimizer.param_groups for parameter in group["params"]]
    copies = [value.clone() for value in held]
    try:
        yield
    except Exception:
        for value, before in zip(held, copies, strict=True):
            value.copy_(before)  # graphs go on with the tensors they have seen
        optimizer.state.clear()
        optimizer.state.update(states)
        raise


def optimizer_of(adjuster: Objective, given: Optimizer | None) -> Optimizer:
    """What moves an adjuster.

    Args:
        adjuster: with parameters, of which some require a gradient.
        given: an optimiser of them; None: Adam with learning rate 1e-3 and weight decay 1e-4.
    """
    learned = [parameter for parameter in adjuster.parameters() if parameter.requires_grad]
    if not learned:
        raise OptionError(
            f"{type(adjuster).__name__} has no parameter that requires a gradient, so there is nothing to learn: "
            "call its requires_grad_(), or use narl.AdjustedLoss for an adjuster that stays as it is"
        )
    if given is None:
        return Adam(learned, lr=1e-3, weight_decay=1e-4)
    if not isinstance(given, Optimizer):
        raise OptionError(
            f"adjuster_optimizer is a {type(given).__name__}: give an optimiser, "
            "such as torch.optim.Adam(adjuster.parameters(), lr=1e-2, weight_decay=1e-4)"
        )
    held = {parameter for group in given.param_groups for parameter in group["params"]}
    if not held <= set(adjuster.parameters()):
        raise OptimizerError(
            "adjuster_optimizer holds parameters that are not the adjuster's: build it from adjuster.parameters()"
        )
    return given


def fill_state(optimizer: Optimizer) -> None:
    """Give an optimiser the state that it would make in its first step, for nothing done so far.

    Args:
        optimizer: ``SGD`` without dampening, ``Adam`` or ``AdamW``.

    Example:
        >>> weights = torch.ones(2, requires_grad=True)
        >>> optimizer = torch.optim.SGD([weights], lr=0.1, momentum=0.9)
        >>> fill_state(optimizer)
        >>> optimizer.state[weights]["momentum_buffer"]
        tensor([0., 0.])
    """
    for group in optimizer.param_groups:
        names = ("momentum_buffer",) if group.get("momentum") else ()
        if "betas" in group:
            names = ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if "betas" in group and "step" not in state:
                on_device = group["capturable"] or group["fused"]
                state["step"] = torch.zeros((), device=parameter.device if on_device else "cpu")
            for name in names:
                if state.get(name) is None:
                    state[name] = torch.zeros_like(parameter)


def load_state(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """``optimizer.load_state_dict``, but the optimiser computes by the kernels that it was made for.

    Args:
        optimizer: any.
        state: of its kind, perhaps from a time when other kernels were chosen.

    Example:
        >>> weights = torch.ones(2, requires_grad=True)
        >>> old, new = SGD([weights], lr=0.1, foreach=False), SGD([weights], lr=0.2, foreach=True)
        >>> load_state(new, old.state_dict())
        >>> new.param_groups[0]["lr"], new.param_groups[0]["foreach"]
        (0.1, True)
    """
    groups = [
        {**saved, **{name: own[name] for name in _KERNELS if name in own}}
        for saved, own in zip(state["param_groups"], optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict({**state, "param_groups": groups})


_KERNELS = ("foreach", "fused", "capturable")


def _signed(weights: Tensor, gradient: Tensor, group: Mapping[str, Any], decay: float) -> tuple[Tensor, float]:
    """The direction before momentum: sign, then weight decay, in torch's order; and its derivative by the gradient."""
    sign = -1.0 if group["maximize"] else 1.0
    step = sign * gradient
    return (step + decay * weights if decay else step), sign
