"""The contract of every registered loss: a new one is tested by being registered (and given a formula below)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from narl import losses
from narl.losses import RobustLoss

every_loss = pytest.mark.parametrize("name", losses.names())
quick = settings(max_examples=20, deadline=None, derandomize=True, database=None)


def softmax(z: Sequence[float]) -> list[float]:
    top = max(z)
    weights = [math.exp(value - top) for value in z]
    return [weight / sum(weights) for weight in weights]


def slow_ce(z: Sequence[float], y: int) -> float:
    return -math.log(softmax(z)[y])


def slow_mae(z: Sequence[float], y: int) -> float:
    return sum(abs(p - (j == y)) for j, p in enumerate(softmax(z))) / 2


def slow_gce(z: Sequence[float], y: int, q: float) -> float:
    return (1 - math.pow(softmax(z)[y], q)) / q


def slow_sl(z: Sequence[float], y: int, gamma1: float, gamma2: float) -> float:
    log_label = [0.0 if j == y else -4.0 for j in range(len(z))]
    reverse = -sum(p * value for p, value in zip(softmax(z), log_label, strict=True))
    return gamma1 * slow_ce(z, y) + gamma2 * reverse


def slow_polysoft(z: Sequence[float], y: int, lam: float, d: float) -> float:
    ce = slow_ce(z, y)
    return (d - 1) * lam / d * (1 - math.pow(1 - ce / lam, d / (d - 1)) if ce < lam else 1)


def slow_js(z: Sequence[float], y: int, pi1: float) -> float:
    def divergence(first: list[float], second: list[float]) -> float:
        return sum(a * math.log(a / b) for a, b in zip(first, second, strict=True) if a > 0)

    prediction, label = softmax(z), [float(j == y) for j in range(len(z))]
    mixture = [pi1 * e + (1 - pi1) * p for e, p in zip(label, prediction, strict=True)]
    total = pi1 * divergence(label, mixture) + (1 - pi1) * divergence(prediction, mixture)
    return total / (-(1 - pi1) * math.log(1 - pi1))


FORMULAS: dict[str, Callable[..., float]] = {
    "ce": slow_ce,
    "mae": slow_mae,
    "gce": slow_gce,
    "sl": slow_sl,
    "polysoft": slow_polysoft,
    "js": slow_js,
}


def hyperparameters(
    loss: RobustLoss, shares: Sequence[float] | Tensor, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """One value a sample of each hyperparameter: those shares of the way through its span."""
    share = torch.as_tensor(shares, dtype=dtype)
    return {
        h.name: h.span[0] + (h.span[1] - h.span[0]) * share.roll(place) for place, h in enumerate(loss.hyperparameters)
    }


def problem(
    loss: RobustLoss, n: int = 5, c: int = 4, seed: int = 0, scale: float = 2.0
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Random float64 logits, labels and hyperparameters well inside their spans."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, c, generator=generator, dtype=torch.float64)
    labels = torch.randint(c, (n,), generator=generator)
    return logits, labels, hyperparameters(loss, 0.02 + 0.96 * torch.rand(n, generator=generator, dtype=torch.float64))


def gradients(values: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Of the summed values, differentiable again."""
    return torch.autograd.grad(values.sum(), inputs, create_graph=True)


def test_every_loss_has_a_formula() -> None:
    assert set(FORMULAS) == set(losses.names()), "write a new loss's formula above, with the math module only"


# Values


@every_loss
@quick
@given(data=st.data())
def test_agrees_with_the_formula(name: str, data: st.DataObject) -> None:
    loss = losses.get(name)
    n, c = data.draw(st.integers(1, 4)), data.draw(st.integers(2, 6))
    z = data.draw(st.lists(st.lists(st.floats(-15, 15), min_size=c, max_size=c), min_size=n, max_size=n))
    labels = data.draw(st.lists(st.integers(0, c - 1), min_size=n, max_size=n))
    values = hyperparameters(loss, data.draw(st.lists(st.floats(0, 1), min_size=n, max_size=n)))
    columns = {key: value.tolist() for key, value in values.items()}
    expected = [
        FORMULAS[name](z[i], labels[i], **{key: column[i] for key, column in columns.items()}) for i in range(n)
    ]
    got = loss(torch.tensor(z, dtype=torch.float64), torch.tensor(labels), **values)
    assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-8, atol=1e-11)


@every_loss
def test_probability_targets_give_the_expected_loss_of_a_drawn_label(name: str) -> None:
    loss = losses.get(name)
    logits, _, values = problem(loss)
    targets = torch.rand(5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64).softmax(dim=1)
    columns = {key: value.tolist() for key, value in values.items()}
    expected = [
        sum(
            targets[i, j].item() * FORMULAS[name](logits[i].tolist(), j, **{key: v[i] for key, v in columns.items()})
            for j in range(4)
        )
        for i in range(5)
    ]
    assert_close(loss(logits, targets, **values), torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)


@every_loss
def test_one_hot_targets_equal_labels(name: str) -> None:
    loss = losses.get(name)
    logits, labels, values = problem(loss)
    one_hot = torch.nn.functional.one_hot(labels, 4).double()
    assert_close(loss(logits, one_hot, **values), loss(logits, labels, **values))


@every_loss
def test_linear_in_probability_targets(name: str) -> None:
    loss = losses.get(name)
    logits, labels, values = problem(loss)
    one, other = (torch.nn.functional.one_hot(y, 4).double() for y in (labels, (labels + 1) % 4))
    mixed = loss(logits, 0.3 * one + 0.7 * other, **values)
    assert_close(mixed, 0.3 * loss(logits, one, **values) + 0.7 * loss(logits, other, **values))


@every_loss
def test_scalar_and_per_sample_hyperparameters_agree(name: str) -> None:
    loss = losses.get(name)
    logits, labels, _ = problem(loss)
    targets = torch.full((5, 4), 0.25, dtype=torch.float64)
    numbers = {h.name: h.start for h in loss.hyperparameters}
    for kind in (labels, targets):
        by_number = loss(logits, kind, **numbers)
        assert by_number.shape == (5,)
        scalars = {key: torch.tensor(value, dtype=torch.float64) for key, value in numbers.items()}
        assert_close(loss(logits, kind, **scalars), by_number)
        full = {key: torch.full((5,), value, dtype=torch.float64) for key, value in numbers.items()}
        assert_close(loss(logits, kind, **full), by_number)


@every_loss
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_labels_of_every_integer_type(name: str, dtype: torch.dtype) -> None:
    loss = losses.get(name)
    logits, labels, values = problem(loss)
    assert torch.equal(loss(logits, labels.to(dtype), **values), loss(logits, labels, **values))


@every_loss
def test_labels_beyond_127_in_a_small_type(name: str) -> None:
    loss = losses.get(name)
    logits = torch.randn(3, 256, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 200, 255])
    assert torch.equal(loss(logits, labels.to(torch.uint8)), loss(logits, labels))


@every_loss
def test_non_contiguous_inputs(name: str) -> None:
    loss = losses.get(name)
    logits, labels, values = problem(loss)
    expected = loss(logits, labels, **values)
    strided = {key: value.repeat_interleave(2)[::2] for key, value in values.items()}
    got = loss(logits.T.contiguous().T, labels.repeat_interleave(3)[::3], **strided)
    assert torch.equal(got, expected)
    targets = torch.full((4, 5), 0.25, dtype=torch.float64).T
    assert not targets.is_contiguous()
    assert_close(loss(logits, targets, **values), loss(logits, targets.contiguous(), **values))


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_empty_batch(name: str, dtype: torch.dtype) -> None:
    loss = losses.get(name)
    logits = torch.zeros(0, 3, dtype=dtype, requires_grad=True)
    for targets in (torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3)):
        for values in ({}, hyperparameters(loss, torch.zeros(0))):
            result = loss(logits, targets, **values)
            assert result.shape == (0,)
            assert result.dtype == torch.promote_types(dtype, torch.float32)
            assert gradients(result, [logits])[0].shape == (0, 3)


@every_loss
def test_inputs_stay_as_they_are(name: str) -> None:
    loss = losses.get(name)
    logits, labels, values = problem(loss)
    before = [tensor.clone() for tensor in (logits, labels, *values.values())]
    loss(logits, labels, **values)
    assert all(torch.equal(a, b) for a, b in zip(before, (logits, labels, *values.values()), strict=True))


# Shape of the curve


@every_loss
@quick
@given(seed=st.integers(0, 2**31), shift=st.floats(-1e3, 1e3))
def test_adding_a_constant_to_all_logits_changes_nothing(name: str, seed: int, shift: float) -> None:
    loss = losses.get(name)
    logits, labels, values = problem(loss, seed=seed)
    assert_close(loss(logits + shift, labels, **values), loss(logits, labels, **values), rtol=1e-8, atol=1e-9)


@every_loss
@quick
@given(seed=st.integers(0, 2**31), scale=st.floats(0, 100))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_never_negative(name: str, dtype: torch.dtype, seed: int, scale: float) -> None:
    loss = losses.get(name)
    logits, labels, values = problem(loss, seed=seed, scale=scale, n=20)
    assert bool((loss(logits.to(dtype), labels, **{key: v.to(dtype) for key, v in values.items()}) >= 0).all())


@every_loss
def test_zero_where_the_prediction_is_certainly_right(name: str) -> None:
    loss = losses.get(name)
    _, _, values = problem(loss, n=1)
    assert loss(torch.tensor([[800.0, 0.0, 0.0]]).double(), torch.tensor([0]), **values).item() == 0


@every_loss
@quick
@given(seed=st.integers(0, 2**31), scale=st.floats(0, 30), step=st.floats(0, 10))
def test_never_rises_with_the_labels_probability(name: str, seed: int, scale: float, step: float) -> None:
    loss = losses.get(name)
    logits, labels, values = problem(loss, seed=seed, scale=scale)
    higher = logits.scatter_add(1, labels.unsqueeze(1), torch.full((5, 1), step).double())
    lower_loss, upper_loss = loss(higher, labels, **values), loss(logits, labels, **values)
    assert bool((lower_loss <= upper_loss * (1 + 1e-12) + 1e-14).all())


@every_loss
def test_falls_strictly_at_moderate_probabilities(name: str) -> None:
    z = torch.linspace(-1, 1, 21).double()
    values = losses.get(name)(torch.stack([z, -z], dim=1), torch.zeros(21, dtype=torch.int64))
    assert bool((values.diff() < -1e-3).all())


# Derivatives


@every_loss
@pytest.mark.parametrize(("kind", "seed"), [("labels", 0), ("labels", 1), ("probabilities", 0)])
def test_first_and_second_derivatives_by_gradcheck(name: str, kind: str, seed: int) -> None:
    loss = losses.get(name)
    logits, labels, values = problem(loss, n=2, c=3, seed=seed)
    targets = labels if kind == "labels" else logits.flip(0).softmax(dim=1)
    inputs = tuple(tensor.requires_grad_() for tensor in (logits, *values.values()))

    def function(z: Tensor, *settings: Tensor) -> Tensor:
        return loss(z, targets.detach(), **dict(zip(values, settings, strict=True)))

    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@every_loss
@quick
@given(data=st.data())
def test_first_and_second_derivatives_by_central_differences(name: str, data: st.DataObject) -> None:
    """All of the gradient and the Hessian in (z, Λ), the mixed part that drives the hypergradient included."""
    loss = losses.get(name)
    c = data.draw(st.integers(2, 3))
    label = data.draw(st.integers(0, c - 1))
    z = data.draw(st.lists(st.floats(-2, 2), min_size=c, max_size=c))
    widths = [h.span[1] - h.span[0] for h in loss.hyperparameters]
    inner = [
        h.span[0] + data.draw(st.floats(0.25, 0.75)) * width
        for h, width in zip(loss.hyperparameters, widths, strict=True)
    ]
    point = torch.tensor(z + inner, dtype=torch.float64)
    steps = 2e-3 * torch.tensor([1.0] * c + widths, dtype=torch.float64)

    def function(points: Tensor) -> Tensor:
        columns = dict(zip((h.name for h in loss.hyperparameters), points[:, c:].unbind(dim=1), strict=True))
        return loss(points[:, :c], torch.full((len(points),), label), **columns)

    leaf = point.clone().requires_grad_()
    (gradient,) = gradients(function(leaf.unsqueeze(0)), [leaf])
    hessian = torch.stack([torch.autograd.grad(g, leaf, retain_graph=True)[0] for g in gradient])

    def differences(step: Tensor) -> tuple[Tensor, Tensor]:
        moves = torch.diag(step)
        first = (function(point + moves) - function(point - moves)) / (2 * step)
        signs = list(itertools.product((1, -1), repeat=2))
        corners = [point + a * moves[:, None] + b * moves[None, :] for a, b in signs]
        values = [function(corner.flatten(0, 1)).view(len(point), -1) for corner in corners]
        second = sum(a * b * value for (a, b), value in zip(signs, values, strict=True)) / (4 * torch.outer(step, step))
        assert isinstance(second, Tensor)
        return first, second

    near, far = differences(steps), differences(2 * steps)
    first, second = ((4 * a - b) / 3 for a, b in zip(near, far, strict=True))  # Richardson: the error is O(step⁴)
    assert_close(gradient, first, rtol=1e-6, atol=1e-7)
    assert_close(hessian, second, rtol=1e-5, atol=1e-6)


@every_loss
def test_torch_func_grad(name: str) -> None:
    loss = losses.get(name)
    logits, labels, values = problem(loss)
    by_func = torch.func.grad(lambda z, v: loss(z, labels, **v).sum(), argnums=(0, 1))(logits, values)
    inputs = [tensor.requires_grad_() for tensor in (logits, *values.values())]
    expected = gradients(loss(logits, labels, **values), inputs)
    assert_close((by_func[0], *by_func[1].values()), expected)


# Extreme logits, every floating type


def extreme_problem(loss: RobustLoss, dtype: torch.dtype) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Every mix of large logits, labels and ends of the hyperparameters' ranges and spans, one a sample."""
    rows = [
        [scale * factor for factor in pattern]
        for scale in (0.0, 1.0, 17.0, 88.0, 104.0, 1e3, 1e4)
        for pattern in ((1.0, -1.0, 0.0), (-1.0, 1.0, 0.5), (1.0, 1.0, 1.0), (-1.0, -1.0, 1.0))
    ]
    ends = [(h.low, h.span[0], h.start, h.default, h.span[1], h.high) for h in loss.hyperparameters]
    samples = list(itertools.product(rows, range(3), itertools.product(*ends)))
    logits = torch.tensor([row for row, _, _ in samples], dtype=torch.float64).to(dtype)
    labels = torch.tensor([label for _, label, _ in samples])
    half = dtype in (torch.float16, torch.bfloat16)
    columns = {
        h.name: torch.tensor([chosen[place] for _, _, chosen in samples], dtype=torch.float32 if half else dtype)
        for place, h in enumerate(loss.hyperparameters)
    }
    return logits, labels, columns


@every_loss
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["labels", "probabilities"])
def test_value_and_derivatives_are_finite_everywhere(name: str, dtype: torch.dtype, kind: str) -> None:
    loss = losses.get(name)
    logits, labels, values = extreme_problem(loss, dtype)
    probability = logits.double().softmax(dim=1).gather(1, labels.unsqueeze(1))
    assert bool((probability == 0).any())
    assert bool((probability == 1).any())
    smooth = torch.tensor([[0.2, 0.8, 0.0], [0.0, 0.1, 0.9], [1.0, 0.0, 0.0]])[labels]
    inputs = [tensor.requires_grad_() for tensor in (logits, *values.values())]
    result = loss(logits, labels if kind == "labels" else smooth, **values)
    assert result.dtype == torch.promote_types(dtype, torch.float32)
    first = gradients(result, inputs)
    second = [
        derivative
        for gradient in first
        if gradient.requires_grad
        for column in (gradient.unbind(dim=1) if gradient.dim() == 2 else [gradient])
        for derivative in torch.autograd.grad(
            column.sum(), inputs, retain_graph=True, allow_unused=True, materialize_grads=True
        )
    ]
    assert second
    for tensor in (result, *first, *second):
        assert bool(tensor.isfinite().all())


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    loss = losses.get(name)
    logits, labels, values = extreme_problem(loss, dtype)
    lifted = logits.float().requires_grad_()
    logits.requires_grad_()
    result, expected = loss(logits, labels, **values), loss(lifted, labels, **values)
    assert result.dtype == torch.float32
    assert bool(result.isfinite().all())
    assert_close(result, expected, rtol=1e-6, atol=1e-9)
    (gradient,), (reference,) = gradients(result, [logits]), gradients(expected, [lifted])
    assert gradient.dtype == dtype
    assert bool(reference.isfinite().all())
    assert_close(gradient, reference.to(dtype))  # float16 overflows beyond 65504, in both


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_targets_and_hyperparameters(name: str, dtype: torch.dtype) -> None:
    loss = losses.get(name)
    logits, _, values = problem(loss)
    rounded = {key: value.to(dtype) for key, value in values.items()}
    targets = logits.flip(0).softmax(dim=1).to(dtype)
    result = loss(logits.float(), targets, **rounded)
    assert result.dtype == torch.float32
    assert_close(result, loss(logits.float(), targets.float(), **{key: v.float() for key, v in rounded.items()}))


@every_loss
def test_float32_agrees_with_float64(name: str) -> None:
    loss = losses.get(name)
    logits, labels, values = problem(loss, n=200, scale=5.0)
    rounded = {key: value.float() for key, value in values.items()}
    exact = loss(logits.float().double(), labels, **{key: value.double() for key, value in rounded.items()})
    assert_close(loss(logits.float(), labels, **rounded).double(), exact, rtol=2e-5, atol=2e-6)
