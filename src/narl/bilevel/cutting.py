"""Cutting one graph into a first part and later parts that start from values the first one computed.

A later part gets an input for every value that a heavy operation of the first part (a convolution, a matrix product, a
reduction, random numbers) reads or writes: those are in memory anyway. What lies between them, elementwise operations
and views, is computed again, which costs less than keeping it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import fx


@final
@dataclass(frozen=True, eq=False)
class Parts:
    """A graph in parts.

    Args:
        first: its own inputs to its own outputs, followed by every value that some later part needs.
        later: each from the values it needs, then its own inputs, to its own outputs.
        needed: for each later part, which of the first part's extra values it takes.
    """

    first: fx.GraphModule
    later: list[fx.GraphModule]
    needed: list[list[int]]


def cut(module: fx.GraphModule, *, inputs: Sequence[int], outputs: Sequence[int]) -> Parts:
    """Cut a graph without in-place operations.

    Args:
        module: one flat graph of torch operations.
        inputs: how many of its inputs are the first part's, the second's, …
        outputs: how many of its outputs are the first part's, the second's, …; the first part's depend on its own
            inputs only, a later part's on those and its own.

    Returns:
        The parts.

    Example:
        >>> from torch.fx.experimental.proxy_tensor import make_fx
        >>> def both(x, slope):
        ...     y = x @ x
        ...     return y, slope * y.cos()
        >>> parts = cut(make_fx(both)(torch.eye(2), torch.eye(2)), inputs=[1, 1], outputs=[1, 1])
        >>> y, kept = parts.first(torch.eye(2))
        >>> parts.later[0](kept, torch.eye(2))[0].diagonal()
        tensor([0.5403, 0.5403])
    """
    graph = module.graph
    given = _split([node for node in graph.nodes if node.op == "placeholder"], inputs)
    (result,) = [node for node in graph.nodes if node.op == "output"]
    wanted = _split(list(result.args[0]), outputs)
    first = _reachable(graph, given[0])
    in_memory = {node for node in first if _is_heavy(node)}
    in_memory |= {read for node in list(in_memory) for read in node.all_input_nodes}
    in_memory |= set(given[0])

    kept: dict[fx.Node, int] = {}
    later, needed = [], []
    for own, ends in zip(given[1:], wanted[1:], strict=True):
        starts = _starts(graph, ends, set(own), in_memory, first)
        needed.append([kept.setdefault(node, len(kept)) for node in starts])
        later.append(_part(module, [*starts, *own], ends))
    return Parts(_part(module, given[0], [*wanted[0], *kept]), later, needed)


def _split(nodes: list[fx.Node], sizes: Sequence[int]) -> list[list[fx.Node]]:
    assert len(nodes) == sum(sizes), f"{len(nodes)} nodes, not {sizes}"
    rest = iter(nodes)
    return [[next(rest) for _ in range(size)] for size in sizes]


def _reachable(graph: fx.Graph, inputs: list[fx.Node]) -> set[fx.Node]:
    """The nodes that depend on no other input than these."""
    found = set(inputs)
    for node in graph.nodes:
        if node.op not in ("placeholder", "output") and all(read in found for read in node.all_input_nodes):
            found.add(node)
    return found


def _is_heavy(node: fx.Node) -> bool:
    """Whether an operation is not to be done twice: anything but elementwise arithmetic, copies and views."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return True
    if torch.Tag.nondeterministic_seeded in target.tags:
        return True
    light = torch.Tag.pointwise in target.tags or target.is_view or target in _LIGHT
    return not light


_aten = torch.ops.aten
_LIGHT = {
    _aten._to_copy.default,
    _aten.clone.default,
    _aten.constant_pad_nd.default,
    _aten.detach.default,
    _aten.empty_like.default,
    _aten.full.default,
    _aten.full_like.default,
    _aten.ones_like.default,
    _aten.scalar_tensor.default,
    _aten.zeros.default,
    _aten.zeros_like.default,
}


def _starts(
    graph: fx.Graph, ends: list[fx.Node], own: set[fx.Node], in_memory: set[fx.Node], first: set[fx.Node]
) -> list[fx.Node]:
    """The first part's values from which a later part can compute its outputs without heavy operations of the first."""
    starts: set[fx.Node] = set()
    seen: set[fx.Node] = set()
    waiting = list(ends)
    while waiting:
        node = waiting.pop()
        if node in seen or node in own:
            continue
        seen.add(node)
        # One of several results of an operation is a value; the tuple of them is not.
        if node in first and (node in in_memory or _is_item_of(node, in_memory)) and not _is_tuple(node):
            starts.add(node)
        else:
            waiting.extend(node.all_input_nodes)
    return [node for node in graph.nodes if node in starts]


def _is_item_of(node: fx.Node, nodes: set[fx.Node]) -> bool:
    return node.target is operator.getitem and node.args[0] in nodes


def _is_tuple(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (tuple, list))


def _part(module: fx.GraphModule, inputs: list[fx.Node], outputs: list[fx.Node]) -> fx.GraphModule:
    """The graph between these nodes."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for position, node in enumerate(inputs):
        copies[node] = graph.placeholder(f"input_{position}")
        copies[node].meta = dict(node.meta)
    needed = _ancestors(outputs, set(inputs))
    for node in module.graph.nodes:
        if node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    graph.lint()
    return fx.GraphModule(module, graph)


def _ancestors(ends: list[fx.Node], stop: set[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    waiting = [node for node in ends if node not in stop]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(read for read in node.all_input_nodes if read not in stop)
    return found
