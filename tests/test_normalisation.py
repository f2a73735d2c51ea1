"""Batch normalisation with its passes written out against torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from narl.bilevel.normalisation import batch_norm
from narl.bilevel.tangents import load_forward_mode

quick = settings(max_examples=30, deadline=None, derandomize=True, database=None)

SHAPES = [(7, 3), (5, 3, 4), (4, 3, 2, 5), (3, 3, 2, 2, 3)]
AFFINE = {"both": (True, True), "weight": (True, False), "bias": (False, True), "none": (False, False)}
STATISTICS = ["batch", "running", "eval"]


@pytest.fixture(autouse=True)
def forward_mode() -> None:
    load_forward_mode()  # without torch's own deprecation warning


def problem(shape: tuple[int, ...], affine: str, statistics: str, seed: int = 0) -> tuple[Tensor, dict[str, Any]]:
    """Inputs far from normalised, and the other arguments."""
    generator = torch.Generator().manual_seed(seed)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    channels = shape[1]
    x = 3 * random(*shape) + 2
    running = (None, None) if statistics == "batch" else (random(channels), random(channels).square() + 0.1)
    weight, bias = (random(channels) if has else None for has in AFFINE[affine])
    return x, {
        "running_mean": running[0],
        "running_var": running[1],
        "weight": weight,
        "bias": bias,
        "training": statistics != "eval",
        "momentum": 0.3,
        "eps": 1e-3,
    }


def copied(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in options.items()}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{len(shape)}d")
@pytest.mark.parametrize("affine", AFFINE)
@pytest.mark.parametrize("statistics", STATISTICS)
def test_values_statistics_and_gradients_are_torchs(shape: tuple[int, ...], affine: str, statistics: str) -> None:
    x, options = problem(shape, affine, statistics)
    slope = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    results = []
    for function in (batch_norm, F.batch_norm):
        own = copied(options)
        leaves = [x.clone().requires_grad_()]
        leaves += [own[name].requires_grad_() for name in ("weight", "bias") if own[name] is not None]
        y = function(leaves[0], **own)
        results.append([y, own["running_mean"], own["running_var"], *torch.autograd.grad(y, leaves, slope)])
    for found, expected in zip(*results, strict=True):
        assert_close(found, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("shape", SHAPES[::2], ids=lambda shape: f"{len(shape)}d")
@pytest.mark.parametrize("affine", AFFINE)
@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("moving", ["all", "input", "affine"])
def test_tangents_are_finite_differences(shape: tuple[int, ...], affine: str, statistics: str, moving: str) -> None:
    x, options = problem(shape, affine, statistics)
    values = {"input": x, **{name: options.pop(name) for name in ("weight", "bias")}}
    moved = [name for name, value in values.items() if value is not None and moving in ("all", _kind(name))]
    generator = torch.Generator().manual_seed(1)
    directions = {name: torch.randn(values[name].shape, generator=generator, dtype=torch.float64) for name in moved}

    def at(step: float) -> Tensor:
        there = {name: value + step * directions[name] if name in moved else value for name, value in values.items()}
        return batch_norm(**there, **copied(options))

    if moved:
        expected = (at(1e-5) - at(-1e-5)) / 2e-5
        assert_close(_tangent(values, directions, options), expected, rtol=1e-6, atol=1e-8)


def _kind(name: str) -> str:
    return "input" if name == "input" else "affine"


def _tangent(values: dict[str, Any], directions: dict[str, Tensor], options: dict[str, Any]) -> Tensor:
    with forward_ad.dual_level():
        dual = {name: forward_ad.make_dual(values[name], along) for name, along in directions.items()}  # type: ignore[no-untyped-call]
        out = batch_norm(**{**values, **dual}, **copied(options))
        tangent: Tensor = forward_ad.unpack_dual(out).tangent  # type: ignore[no-untyped-call]
    return tangent


@quick
@given(
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    affine=st.sampled_from(sorted(AFFINE)),
    momentum=st.floats(0, 1),
    eps=st.floats(1e-6, 1),
    seed=st.integers(0, 1000),
)
def test_both_modes_agree_with_torchs(sizes: list[int], affine: str, momentum: float, eps: float, seed: int) -> None:
    shape = (sizes[0] + 1, *sizes[1:])  # torch refuses a single number a channel
    x, options = problem(shape, affine, "running", seed)
    options |= {"momentum": momentum, "eps": eps}
    leaves = {"input": x, **{name: options.pop(name) for name in ("weight", "bias") if options[name] is not None}}
    directions = {name: value.sin() + 0.5 for name, value in leaves.items()}

    def function(of: Any) -> Any:
        own = copied(options)
        return lambda values: of(**values, **own), own

    (ours, own), (theirs, torchs) = function(batch_norm), function(F.batch_norm)
    y, along = torch.func.jvp(theirs, (leaves,), (directions,))[:2]
    assert_close(ours(leaves), y, rtol=1e-8, atol=1e-9)
    assert_close(_tangent(leaves, directions, options), along, rtol=1e-6, atol=1e-7)
    for name in ("running_mean", "running_var"):
        assert_close(own[name], torchs[name], rtol=1e-10, atol=1e-12)


def test_both_modes_at_once() -> None:
    """As when a network is traced: a graph for the backward pass is kept while the tangent goes through."""
    x, options = problem((6, 3, 2, 2), "both", "running")
    weight, bias = options.pop("weight").requires_grad_(), options.pop("bias").requires_grad_()
    leaf = x.clone().requires_grad_()
    direction, slope = (5 * x).sin(), (7 * x).cos()
    with forward_ad.dual_level():
        out = batch_norm(forward_ad.make_dual(leaf, direction), weight=weight, bias=bias, **copied(options))  # type: ignore[no-untyped-call]
        y, along = forward_ad.unpack_dual(out)  # type: ignore[no-untyped-call]
    by_input, by_weight, by_bias = torch.autograd.grad(y, [leaf, weight, bias], slope)
    assert_close((slope * along).sum(), (by_input * direction).sum())
    assert_close(by_bias, slope.sum((0, 2, 3)))
    plain = F.batch_norm(x, None, None, training=True, eps=options["eps"])
    assert_close(by_weight, (slope * plain).sum((0, 2, 3)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("statistics", STATISTICS)
def test_half_precision_comes_out_as_it_went_in(dtype: torch.dtype, statistics: str) -> None:
    exact, options = problem((8, 3, 4, 4), "both", statistics)
    single = {name: value.float() if isinstance(value, Tensor) else value for name, value in options.items()}
    x = exact.to(dtype)
    half, full = copied(single), copied(single)
    for own in (half, full):
        own["weight"].requires_grad_()
    leaf = x.clone().requires_grad_()
    y, expected = batch_norm(leaf, **half), F.batch_norm(x.float(), **full)
    assert y.dtype == dtype
    assert_close(y.float(), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)  # rounded once, at the end
    for name in ("running_mean", "running_var"):
        if half[name] is not None:
            assert half[name].dtype == torch.float32
            assert_close(half[name], full[name])
    by_input, by_weight = torch.autograd.grad(y, [leaf, half["weight"]], torch.ones_like(y))
    assert (by_input.dtype, by_weight.dtype) == (dtype, torch.float32)
    along = torch.ones_like(x)
    given = {name: single.pop(name) for name in ("weight", "bias")}
    assert _tangent({"input": x, **given}, {"input": along}, single).dtype == dtype


def test_large_means_do_not_cancel() -> None:
    x = 1000 + torch.randn(64, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    expected = F.batch_norm(x.double(), None, None, training=True)
    assert_close(batch_norm(x, None, None, training=True).double(), expected, rtol=0, atol=1e-3)


def test_a_constant_channel_stays_finite() -> None:
    x = torch.full((4, 2), 3.0, requires_grad=True)
    y = batch_norm(x, None, None, training=True)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(y, torch.zeros(4, 2))
    assert torch.isfinite(gradient).all()
