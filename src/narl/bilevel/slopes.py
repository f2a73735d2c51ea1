"""A loss's side of a step as functions of plain tensors: what it asks of the logits, what that owes to learned θ.

The counterpart of :mod:`narl.bilevel.passes`: traced once at one batch shape, without state, ready to be compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from narl.bilevel.calls import substituted
from narl.bilevel.clean_losses import CleanLoss, cross_entropy
from narl.bilevel.hypergradient import logit_gradient
from narl.bilevel.passes import Compile


@final
class Slopes:
    """The functions of one loss at one batch shape.

    Args:
        objective: an ``nn.Module`` with ``loss`` and ``observe``, such as :class:`narl.Adjuster`.
        logits: an example, ``(N, c)``.
        targets: an example.
        ids: an example, ``(N,)``.
        compile: makes a fast function of a graph; None: the graph runs as it is.
        learned: whether it is a loss that is learned; one that is not has :meth:`observed` alone.
    """

    def __init__(
        self,
        objective: nn.Module,
        logits: Tensor,
        targets: Tensor,
        ids: Tensor,
        *,
        compile: Compile | None = None,
        learned: bool = True,
    ) -> None:
        self._objective = objective
        self.learned = [name for name, p in objective.named_parameters() if p.requires_grad and learned]
        self._names: list[str] = []
        make: Compile = compile or (lambda graph: graph)
        state, example = self._state(), (logits, targets, ids)
        self._observed = make(_traced(self._trace_observed, state, *example))
        if learned:
            self._slope = make(_traced(self._trace_slope, state, *example))
            self._response = make(_traced(self._trace_response, state, *example, torch.zeros_like(logits)))

    def slope(self, logits: Tensor, targets: Tensor, ids: Tensor) -> Tensor:
        """The mean loss's gradient by the logits, ``(N, c)``."""
        return self._slope(self._state(), logits, targets, ids)  # type: ignore[no-any-return]

    def observed(
        self, logits: Tensor, targets: Tensor, ids: Tensor, *, remember: bool = True
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], Tensor]:
        """The slope, the mean loss, what the objective gives every sample by name, and the margins.

        The objective remembers the batch, as in ``observe``; with ``remember=False`` a copy of it does.
        """
        state = self._state() if remember else [tensor.clone() for tensor in self._state()]
        slope, loss, margins, *values = self._observed(state, logits, targets, ids)
        return slope, loss, dict(zip(self._names, values, strict=True)), margins

    def response(self, logits: Tensor, targets: Tensor, ids: Tensor, shift: Tensor) -> list[Tensor]:
        """−∂⟨slope, shift⟩/∂θ for every learned parameter: the hypergradient, if the shift is J·D·v."""
        return list(self._response(self._state(), logits, targets, ids, shift))

    def _state(self) -> list[Tensor]:
        return [t.detach() for t in (*self._objective.parameters(), *self._objective.buffers())]

    def _with(self, state: Sequence[Tensor]) -> Any:
        names = [name for name, _ in self._objective.named_parameters()]
        weights = {n: t.detach().requires_grad_() if n in self.learned else t for n, t in zip(names, state)}  # noqa: B905
        buffers = dict(zip((n for n, _ in self._objective.named_buffers()), state[len(names) :], strict=True))
        return weights, substituted(self._objective, weights, buffers, copied=False)

    def _trace_slope(self, state: list[Tensor], logits: Tensor, targets: Tensor, ids: Tensor) -> Tensor:
        _, exchanged = self._with(state)
        with exchanged:
            slope, _ = logit_gradient(self._objective, logits, targets, ids, create_graph=False)  # type: ignore[arg-type]
        return slope.detach()

    def _trace_observed(self, state: list[Tensor], logits: Tensor, targets: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        _, exchanged = self._with(state)
        with exchanged:
            slope, loss = logit_gradient(self._objective, logits, targets, ids, create_graph=False)  # type: ignore[arg-type]
            values, margins = self._objective.observe(logits, targets, ids)  # type: ignore[operator]
        self._names = list(values)
        return slope.detach(), loss, margins, *values.values()

    def _trace_response(
        self, state: list[Tensor], logits: Tensor, targets: Tensor, ids: Tensor, shift: Tensor
    ) -> tuple[Tensor, ...]:
        weights, exchanged = self._with(state)
        wanted = [weights[name] for name in self.learned]
        with exchanged:
            slope, _ = logit_gradient(self._objective, logits, targets, ids, create_graph=True)  # type: ignore[arg-type]
            found = torch.autograd.grad(slope, wanted, -shift.to(slope.dtype), allow_unused=True)
        return tuple(
            torch.zeros_like(weight) if gradient is None else gradient.detach()
            for weight, gradient in zip(wanted, found, strict=True)
        )


def _traced(function: Callable[..., Any], *example: Any) -> fx.GraphModule:
    def unbound(*arguments: Any) -> Any:  # make_fx counts a method's self among its arguments
        return function(*arguments)

    return make_fx(unbound, tracing_mode="fake")(*example)


@final
class CleanSlope:
    """The mean clean loss's gradient by the logits, and that mean, at one batch shape.

    Args:
        logits: an example, ``(N, c)``.
        targets: an example.
        loss: of clean samples, ``(logits, targets) -> (N,)``.
        trainings: how many stand side by side, R: logits ``(N, R·c)``, targets ``(N, R)`` or ``(N, R, c)``, and each
            has a mean of its own; None: the batch is one training's.
        compile: makes a fast function of a graph; None: the graph runs as it is.

    Example:
        >>> logits, targets = torch.zeros(2, 2), torch.tensor([0, 1])
        >>> CleanSlope(logits, targets)(logits, targets)[0]
        tensor([[-0.2500,  0.2500],
                [ 0.2500, -0.2500]])
    """

    def __init__(
        self,
        logits: Tensor,
        targets: Tensor,
        *,
        loss: CleanLoss = cross_entropy,
        trainings: int | None = None,
        compile: Compile | None = None,
    ) -> None:
        graph = _traced(functools.partial(_clean_slope, loss, trainings), logits, targets)
        self._function: Any = graph if compile is None else compile(graph)

    def __call__(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The slope, as the logits, and the loss: one number, or one for each training, ``(R,)``."""
        slope, loss = self._function(logits, targets)
        return slope, loss


def _clean_slope(loss: CleanLoss, trainings: int | None, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logits.detach().requires_grad_()
    with torch.enable_grad():
        if trainings is None:
            means = loss(leaf, targets).mean()
        else:
            each = loss(leaf.reshape(len(leaf) * trainings, -1), targets.flatten(0, 1))
            means = each.reshape(-1, trainings).mean(dim=0)
        (slope,) = torch.autograd.grad(means.sum(), leaf)
    return slope.detach(), means.detach()
