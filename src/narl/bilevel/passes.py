"""A network's forward, backward and tangent pass at one batch shape, as three functions of plain tensors.

The passes of a meta iteration share what the first one computed: the backward pass runs twice on what one forward pass
left, and the tangent pass takes the same values instead of computing them again. So the network is traced once, with
its backward pass and its tangents, and the trace is cut into three (see :mod:`narl.bilevel.cutting`). Dropout masks and
batch statistics are among the shared values: nothing is replayed. The functions hold no state and build no autograd
graph, so that each can be compiled, and all of an iteration captured as one CUDA graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from narl.bilevel import cutting
from narl.bilevel.calls import call, substituted
from narl.bilevel.compositions import Composed, differentiable_kernels
from narl.bilevel.normalisation import batch_norm
from narl.bilevel.tangents import load_forward_mode

Function = Callable[..., Any]
Compile = Callable[[fx.GraphModule], Function]


@final
@dataclass(frozen=True, eq=False)
class Left:
    """What a forward pass leaves.

    Args:
        logits: ``(N, c)``.
        buffers: the model's buffers after it, in their order.
        values: what the backward and the tangent pass need.
    """

    logits: Tensor
    buffers: list[Tensor]
    values: Sequence[Tensor]


@final
class Passes:
    """The passes of one model at one batch shape.

    ``unused`` names the trained parameters that the logits do not depend on, whose gradient is zero.

    Args:
        model: any classifier, in the mode that it is to run in.
        trained: names of the parameters that are differentiated by, in order.
        inputs: an example batch ``(N, …)``.
        precision: of autocast; None: the model's own.
        tangents: whether there is to be a tangent pass.
        compile: makes a fast function of a graph; None: the graph runs as it is.

    Example:
        >>> model = nn.Linear(2, 3)
        >>> x, slope = torch.randn(4, 2), torch.randn(4, 3)
        >>> passes = Passes(model, ["weight", "bias"], x)
        >>> left = passes.forward([p.detach() for p in model.parameters()], [], x)
        >>> torch.allclose(passes.backward(left, slope)[0], slope.T @ x, atol=1e-6)
        True
        >>> direction = [torch.ones(3, 2), torch.zeros(3)]
        >>> torch.allclose(passes.tangent(left, direction), x @ direction[0].T, atol=1e-6)
        True
    """

    def __init__(
        self,
        model: nn.Module,
        trained: Sequence[str],
        inputs: Tensor,
        *,
        precision: torch.dtype | None = None,
        tangents: bool = True,
        compile: Compile | None = None,
    ) -> None:
        self.weights = [name for name, _ in model.named_parameters()]
        self.buffers = [name for name, _ in model.named_buffers()]
        self._strides = [model.get_parameter(name).stride() for name in trained]
        # torch's own batch normalisation is one kernel; written out, it is few only once they are compiled
        written = tangents or compile is not None
        traced, unused = _trace(model, list(trained), inputs, precision, tangents, written)
        self.unused: frozenset[str] = unused
        first = len(self.weights) + len(self.buffers) + 1
        outputs = [1 + len(self.buffers), len(trained)] + ([1] if tangents else [])
        graphs = cutting.cut(traced, inputs=[first, 1] + ([len(trained)] if tangents else []), outputs=outputs)
        make: Compile = compile or (lambda graph: graph)
        self._kept = graphs.needed
        self._forward = make(graphs.first)
        self._later = [make(graph) for graph in graphs.later]

    def forward(self, weights: Sequence[Tensor], buffers: Sequence[Tensor], inputs: Tensor) -> Left:
        """The logits, and what the other passes need; model and buffers stay as they are.

        Args:
            weights: all parameters of the model, in their order.
            buffers: all buffers of the model, in their order.
            inputs: ``(N, …)``.
        """
        found = self._forward(*weights, *buffers, inputs)
        after = 1 + len(self.buffers)
        return Left(found[0], list(found[1:after]), found[after:])

    def backward(self, left: Left, slope: Tensor) -> list[Tensor]:
        """Jᵀ·slope: a gradient for each trained parameter. As often as wanted.

        Args:
            left: by the forward pass.
            slope: the loss's gradient by the logits, ``(N, c)``.
        """
        found = self._later[0](*(left.values[i] for i in self._kept[0]), slope)
        return [laid_out(gradient, stride) for gradient, stride in zip(found, self._strides, strict=True)]

    def tangent(self, left: Left, directions: Sequence[Tensor]) -> Tensor:
        """J·directions, ``(N, c)``: how the logits move when the trained parameters move.

        Args:
            left: by the forward pass.
            directions: one for each trained parameter.
        """
        (tangent,) = self._later[1](*(left.values[i] for i in self._kept[1]), *directions)
        return tangent  # type: ignore[no-any-return]


def _trace(
    model: nn.Module, trained: list[str], inputs: Tensor, precision: torch.dtype | None, tangents: bool, written: bool
) -> tuple[fx.GraphModule, frozenset[str]]:
    """One graph: weights, buffers, inputs, slope[, directions] → logits, buffers, gradients[, tangent].

    And the names of the trained parameters that the logits do not depend on.
    """
    unused: set[str] = set()
    weights, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    rows = len(inputs)

    def joint(*flat: Tensor) -> tuple[Tensor, ...]:
        given = iter(flat)
        leaves = {name: next(given).detach() for name in weights}
        leaves |= {name: leaves[name].requires_grad_() for name in trained}
        before = {name: next(given) for name in buffers}
        x, slope = next(given), next(given)
        with torch.enable_grad(), autocast(x.device.type, precision):
            with forward_ad.dual_level() if tangents else contextlib.nullcontext():
                used = dict(leaves)
                if tangents:
                    used |= {name: forward_ad.make_dual(leaves[name], next(given)) for name in trained}  # type: ignore[no-untyped-call]
                with substituted(model, used, before):
                    out = call(model, x, rows)
                    after = [buffer for _, buffer in model.named_buffers()]
                logits, tangent = forward_ad.unpack_dual(out) if tangents else (out, None)  # type: ignore[no-untyped-call]
            found = torch.autograd.grad(logits, [leaves[name] for name in trained], slope, allow_unused=True)
        unused.update(name for name, gradient in zip(trained, found, strict=True) if gradient is None)
        gradients = [
            torch.zeros_like(leaves[name]) if gradient is None else laid_out(gradient, leaves[name].stride())
            for name, gradient in zip(trained, found, strict=True)
        ]
        last = () if not tangents else (torch.zeros_like(logits) if tangent is None else tangent,)
        return tuple(value.detach() for value in (logits, *after, *gradients, *last))

    if tangents:
        load_forward_mode()
    with torch.no_grad(), autocast(inputs.device.type, precision), substituted(model, {}):
        slope = torch.zeros_like(call(model, inputs, rows))
    directions = [torch.zeros_like(weights[name]) for name in trained] if tangents else []
    example = [*(p.detach() for p in weights.values()), *buffers.values(), inputs, slope, *directions]
    with differentiable_kernels(model), _Written() if written else Composed():
        graph = make_fx(joint, tracing_mode="fake")(*example)
    with torch.no_grad():  # a second time, now without in-place operations
        graph = make_fx(torch.func.functionalize(graph), tracing_mode="fake")(*example)
    _drop_zero_convolutions(graph)
    return graph, frozenset(unused)


def laid_out(gradient: Tensor, stride: Sequence[int]) -> Tensor:
    """The gradient in memory as its parameter is: fused updates go through both side by side."""
    if gradient.stride() == tuple(stride):
        return gradient
    return gradient.new_empty_strided(gradient.shape, stride).copy_(gradient)


def _drop_zero_convolutions(module: fx.GraphModule) -> None:
    """The batch does not move with the weights: its own tangent is zero, and so is what a layer makes of it."""
    zeros, convolution = torch.ops.aten.zeros.default, torch.ops.aten.convolution.default
    for node in list(module.graph.nodes):
        if node.target is convolution and _is_zero(node.args[0]) and node.args[2] is None:
            value = node.meta["val"]
            with module.graph.inserting_before(node):
                nothing = module.graph.call_function(
                    zeros, (list(value.shape),), {"dtype": value.dtype, "device": value.device}
                )
            nothing.meta["val"] = value
            node.replace_all_uses_with(nothing)
            module.graph.erase_node(node)


def _is_zero(node: fx.Node) -> bool:
    aten = torch.ops.aten
    while node.target in (aten.expand.default, aten.view.default, aten._to_copy.default, aten.detach.default):
        node = node.args[0]  # type: ignore[assignment]
    return node.target is aten.zeros.default


@final
class _Written(Composed):
    """Inside, batch normalisation as well has its passes written out."""

    def __torch_function__(self, function: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace the calls that need it, pass the others on."""
        if function is F.batch_norm:
            return batch_norm(*args, **(kwargs or {}))
        return super().__torch_function__(function, types, args, kwargs)


def autocast(device: str, precision: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    """Inside, matrix products and convolutions are computed in ``precision``; None: in the tensors' own."""
    if precision is None:
        return contextlib.nullcontext()
    return torch.autocast(device, precision, cache_enabled=False)
