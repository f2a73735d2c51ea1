"""Many tensors in one flat one: where each lies, and that nothing is lost on the way."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from narl.bilevel.flat import Layout

quick = settings(max_examples=60, deadline=None, derandomize=True, database=None)

ALIGNED = 64


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """A tensor of any small shape, in memory in any order of its dimensions, now and then with gaps."""
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    order = draw(st.permutations(range(len(shape))))
    gaps = draw(st.booleans()) and len(shape) > 0
    sizes = [shape[i] for i in order]
    if gaps:
        sizes[-1] *= 2
    values = torch.arange(1.0, 1 + math.prod(sizes), dtype=torch.float64).view(sizes)
    if gaps:
        values = values[..., ::2]
    return values.permute([order.index(i) for i in range(len(shape))])


@quick
@given(like=st.lists(tensors(), min_size=1, max_size=5))
def test_what_is_joined_can_be_parted(like: list[Tensor]) -> None:
    layout = Layout(like)
    flat = layout.joined(like)
    parts = layout.parted(flat)
    assert flat.dim() == 1
    assert len(flat) % ALIGNED == 0
    for part, tensor in zip(parts, like, strict=True):
        assert torch.equal(part, tensor)
        assert part.storage_offset() % ALIGNED == 0
        assert part.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()


@quick
@given(like=st.lists(tensors(), min_size=1, max_size=5))
def test_the_tensors_do_not_overlap_and_only_zeros_lie_between(like: list[Tensor]) -> None:
    layout = Layout(like)
    flat = layout.joined([torch.ones_like(tensor) for tensor in like])
    assert flat.count_nonzero() == sum(tensor.numel() for tensor in like)
    assert torch.equal(flat, flat.clamp(0, 1))
    assert len(flat) < sum(tensor.numel() + ALIGNED for tensor in like)
    for number, part in enumerate(layout.parted(flat)):
        part.fill_(number + 2)  # a view: what is written there is written to the flat one
    for number, tensor in enumerate(like):
        assert (flat == number + 2).sum() == tensor.numel()


@quick
@given(like=st.lists(tensors(), min_size=1, max_size=4), factor=st.integers(-3, 3))
def test_elementwise_operations_on_the_flat_one_are_those_on_each(like: list[Tensor], factor: int) -> None:
    layout = Layout(like)
    others = [torch.full(tensor.shape, 0.5, dtype=tensor.dtype) for tensor in like]  # laid out in another way
    found = layout.parted(factor * layout.joined(like) + layout.joined(others))
    for part, tensor in zip(found, like, strict=True):
        assert torch.equal(part, factor * tensor + 0.5)


def test_parts_lie_in_memory_as_their_weights_do() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 8, 1), nn.Linear(5, 7))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    weights = [*(p.detach() for p in model.parameters()), torch.zeros(3, 4).T, torch.zeros(())]
    layout = Layout(weights)
    parts = layout.parted(layout.joined(weights))
    assert [part.stride() for part in parts] == [weight.stride() for weight in weights]
    assert weights[0].stride() == (27, 1, 9, 3)  # else channels last were not among them
    assert all(torch.equal(part, weight) for part, weight in zip(parts, weights, strict=True))


def test_gaps_in_a_tensor_are_left_out() -> None:
    layout = Layout([torch.zeros(4, 6)[:, ::2], torch.zeros(1).expand(5)])
    parts = layout.parted(layout.joined([torch.ones(4, 3), torch.ones(5)]))
    assert [part.stride() for part in parts] == [(3, 1), (1,)]


def test_the_type_is_that_of_what_is_joined() -> None:
    layout = Layout([torch.zeros(2), torch.zeros(3)])
    assert layout.joined([torch.ones(2).bfloat16(), torch.ones(3).bfloat16()]).dtype == torch.bfloat16
