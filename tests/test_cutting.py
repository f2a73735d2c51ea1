"""A graph in parts computes what it did whole, and does nothing expensive twice."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

from narl.bilevel.cutting import Parts, cut

SIDE = 3
aten = torch.ops.aten

# Square matrices to square matrices, values of moderate size.
LIGHT: list[Callable[..., Tensor]] = [
    torch.sin,
    torch.tanh,
    torch.relu,
    lambda x: x.T,
    lambda x: x.clone().view(-1).view(SIDE, SIDE),
    lambda x: torch.ones_like(x) - x,
    lambda x: torch.chunk(x, SIDE)[1].expand(SIDE, SIDE),  # a list of views
    lambda x, y: x + y,
    lambda x, y: (x * y).sin(),
    lambda x, y: torch.where(x > y, x, 0.5 * y),
]
HEAVY: list[Callable[..., Tensor]] = [
    lambda x, y: torch.tanh(x @ y),
    lambda x: x.sum(0).sin().expand(SIDE, SIDE),
    lambda x: torch.softmax(x, 1),
    lambda x: torch.sort(x, dim=1)[0],  # one of two results
    lambda x: x * torch.var_mean(x, dim=0)[1] + torch.var_mean(x, dim=1)[0].sin(),  # several results, all used
    lambda x, y: torch.cat([x, y])[1 : SIDE + 1],
]
KNOWN_HEAVY = {aten.mm, aten.sum, aten._softmax, aten.sort, aten.var_mean, aten.cat}


@dataclass(frozen=True)
class Program:
    """Steps of three parts, each an operation and which earlier values it takes, and which values are given out."""

    inputs: tuple[int, int, int]
    steps: list[list[tuple[int, int, int]]]
    outputs: list[list[int]]

    def __call__(self, *given: Tensor) -> tuple[Tensor, ...]:
        rest = iter(given)
        own = [[next(rest) for _ in range(count)] for count in self.inputs]
        first = _extended(own[0], self.steps[0])
        parts = [first, *(_extended([*first, *values], steps) for values, steps in zip(own[1:], self.steps[1:]))]  # noqa: B905
        return tuple(
            values[-1 - place % len(values)]
            for values, places in zip(parts, self.outputs, strict=True)
            for place in places
        )


def _extended(values: list[Tensor], steps: list[tuple[int, int, int]]) -> list[Tensor]:
    values, operations = list(values), LIGHT + HEAVY
    for operation, left, right in steps:
        function = operations[operation % len(operations)]
        taken = [values[-1 - place % len(values)] for place in (left, right)]
        values.append(function(*taken[: function.__code__.co_argcount] if hasattr(function, "__code__") else taken[:1]))
    return values


numbers = st.integers(0, 30)
programs = st.builds(
    Program,
    st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 2)),
    st.lists(st.lists(st.tuples(numbers, st.integers(0, 6), st.integers(0, 6)), max_size=6), min_size=3, max_size=3),
    st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=3), min_size=3, max_size=3),
)


def traced(function: Callable[..., Any], *values: Tensor) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*values)


def run(parts: Parts, own: list[list[Tensor]], outputs: list[int]) -> list[Tensor]:
    """The outputs of all parts, one part after the other."""
    found = list(parts.first(*own[0]))
    results, kept = found[: outputs[0]], found[outputs[0] :]
    for part, needed, values in zip(parts.later, parts.needed, own[1:], strict=True):
        results += part(*(kept[i] for i in needed), *values)
    return results


def heavy(nodes: Any) -> Counter[Any]:
    return Counter(n.target for n in nodes if getattr(n.target, "overloadpacket", n.target) in KNOWN_HEAVY)


def depending_on(graph: fx.Graph, inputs: list[fx.Node]) -> set[fx.Node]:
    """All nodes that one can come to from these."""
    found, waiting = set(inputs), list(inputs)
    while waiting:
        for user in waiting.pop().users:
            if user not in found:
                found.add(user)
                waiting.append(user)
    return found


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(program=programs)
@example(program=Program((1, 1, 1), [[], [], []], [[0], [0], [0]]))  # every part gives out its own input
@example(program=Program((1, 1, 1), [[(10, 0, 0)], [], []], [[0], [1], [1, 0]]))  # a later part gives out the first's
def test_parts_compute_what_the_whole_does(program: Program) -> None:
    generator = torch.Generator().manual_seed(0)
    own = [[torch.randn(SIDE, SIDE, generator=generator).double() for _ in range(n)] for n in program.inputs]
    flat = [value for values in own for value in values]
    outputs = [len(places) for places in program.outputs]
    whole = traced(program, *flat)
    parts = cut(whole, inputs=program.inputs, outputs=outputs)
    assert_close(run(parts, own, outputs), list(program(*flat)), rtol=1e-12, atol=1e-12)

    other = [[value.cos() for value in values] for values in own]  # no number is built in
    expected = list(program(*(value for values in other for value in values)))
    assert_close(run(parts, other, outputs), expected, rtol=1e-12, atol=1e-12)

    places = iter([node for node in whole.graph.nodes if node.op == "placeholder"])
    for part, count in zip([parts.first, *parts.later], program.inputs, strict=True):
        its_own = depending_on(whole.graph, [next(places) for _ in range(count)])
        if part is not parts.first:
            assert heavy(part.graph.nodes) <= heavy(its_own)
        assert not any(node.target is operator.getitem and node.op == "placeholder" for node in part.graph.nodes)


def test_nothing_is_kept_that_is_not_needed() -> None:
    def function(x: Tensor, weights: Tensor, slope: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = (x @ weights).exp()
        return (hidden @ weights).sin(), slope * hidden, other + 1

    square = torch.eye(SIDE)
    parts = cut(traced(function, *(square.clone() for _ in range(4))), inputs=[2, 1, 1], outputs=[1, 1, 1])
    assert parts.needed == [[0], []]
    assert len(parts.first(square, square)) == 2


def test_random_numbers_are_drawn_once() -> None:
    def function(x: Tensor, slope: Tensor, direction: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mask = torch.rand_like(x) * 2
        free = torch.randn(SIDE, SIDE)  # depends on no input at all
        return x * mask + free, slope * mask, direction * mask * free

    x, slope, direction = torch.randn(3, SIDE, SIDE, generator=torch.Generator().manual_seed(0)).unbind()
    parts = cut(traced(function, x, slope, direction), inputs=[1, 1, 1], outputs=[1, 1, 1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        expected = list(function(x, slope, direction))
        torch.manual_seed(1)
        found = parts.first(x)
        state = torch.get_rng_state()
        for number, own in enumerate((slope, direction)):
            (result,) = parts.later[number](*(found[1 + i] for i in parts.needed[number]), own)
            assert_close(result, expected[1 + number])
        assert torch.equal(torch.get_rng_state(), state)
    assert_close(found[0], expected[0])


def test_constants_come_along() -> None:
    table = torch.arange(9.0).view(SIDE, SIDE)

    def function(x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        return x @ table, slope @ table.T

    x, slope = torch.eye(SIDE), 2 * torch.eye(SIDE)
    parts = cut(make_fx(function)(x, slope), inputs=[1, 1], outputs=[1, 1])
    assert_close(run(parts, [[x], [slope]], [1, 1]), [table, 2 * table.T])
