"""What each loss becomes at the ends of its hyperparameters, and its accuracy there and at the code's own seams."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import mpmath  # type: ignore[import-untyped]
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from narl import losses
from narl.losses.stable import expm1_over, log1p_over

quick = settings(max_examples=25, deadline=None, derandomize=True, database=None)


def random_logits(n: int = 50, c: int = 5, seed: int = 0, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, c, generator=generator, dtype=torch.float64)
    return logits, torch.randint(c, (n,), generator=generator)


def logits_with_cross_entropy(values: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Two-class logits, label 0, whose cross entropy is as given."""
    wanted = torch.tensor(values, dtype=torch.float64)
    logits = torch.stack([torch.zeros_like(wanted), wanted + torch.log(-torch.expm1(-wanted))], dim=1)
    return logits, torch.zeros(len(values), dtype=torch.int64)


# Limits


@quick
@given(seed=st.integers(0, 2**31), exponent=st.floats(-12, -1))
def test_gce_tends_to_cross_entropy_with_q(seed: int, exponent: float) -> None:
    logits, labels = random_logits(seed=seed)
    ce, q = losses.ce(logits, labels), 10**exponent
    gap = ce - losses.gce(logits, labels, q)
    assert bool((gap >= -1e-13 * ce).all())
    assert bool((gap <= q * ce**2 / 2 + 1e-13 * ce).all())


def test_gce_at_q_1_is_mae() -> None:
    logits, labels = random_logits()
    probability = logits.softmax(dim=1)[torch.arange(50), labels]
    assert_close(losses.gce(logits, labels, 1.0), 1 - probability)
    assert_close(losses.gce(logits, labels, 1.0), losses.mae(logits, labels))


@quick
@given(seed=st.integers(0, 2**31), c=st.integers(2, 12), scale=st.floats(0, 1e4), a=st.floats(-10, -0.1))
def test_mae_and_reverse_cross_entropy_are_symmetric(seed: int, c: int, scale: float, a: float) -> None:
    logits, _ = random_logits(n=6, c=c, seed=seed, scale=scale)
    every_label = [torch.full((6,), j) for j in range(c)]
    expected = torch.full((6,), c - 1.0, dtype=torch.float64)
    assert_close(torch.stack([losses.mae(logits, y) for y in every_label]).sum(0), expected)
    reverse = torch.stack([losses.sl(logits, y, gamma1=0.0, gamma2=1.0, a=a) for y in every_label]).sum(0)
    assert_close(reverse, -a * expected)


def test_sl_weights_its_two_parts() -> None:
    logits, labels = random_logits()
    ce, mae = losses.ce(logits, labels), losses.mae(logits, labels)
    assert_close(losses.sl(logits, labels, 1.0, 0.0), ce)
    assert_close(losses.sl(logits, labels, 0.0, 1.0), 4 * mae)
    assert_close(losses.sl(logits, labels, 0.25, 3.0, a=-2.0), 0.25 * ce + 6 * mae)


@pytest.mark.parametrize("lam", [0.5, 6.0, 50.0])
@pytest.mark.parametrize("d", [1.1, 1.5, 2.0, 3.0])
def test_polysoft_is_continuous_with_continuous_slope_at_lambda(lam: float, d: float) -> None:
    gaps = [1e-3, 1e-6, 1e-9]
    shares = [1 - gap for gap in gaps] + [1.0] + [1 + gap for gap in reversed(gaps)]
    logits, labels = logits_with_cross_entropy([share * lam for share in shares])
    logits.requires_grad_()
    values = losses.polysoft(logits, labels, lam, d)
    ceiling = (d - 1) * lam / d
    assert torch.equal(values[-3:], torch.full((3,), ceiling, dtype=torch.float64)), "flat above"
    assert_close(values[3].item(), ceiling)
    below = torch.tensor([ceiling * (1 - gap ** (d / (d - 1))) for gap in gaps], dtype=torch.float64)
    assert_close(values[:3].detach(), below)
    slope = torch.autograd.grad(values.sum(), logits)[0][:, 1] / logits.softmax(dim=1)[:, 1]  # by the cross entropy
    assert torch.equal(slope[-3:], torch.zeros(3, dtype=torch.float64))
    weight = torch.tensor(gaps, dtype=torch.float64) ** (1 / (d - 1))
    assert_close(slope[:3].detach(), weight, rtol=1e-5, atol=5e-7)  # rounding is divided by the gap
    assert slope[2] < 1e-4, "the slope reaches 0 from below too"


@pytest.mark.parametrize("d", [1.001, 1.3, 2.0, 7.0, 1e6])
def test_polysoft_slope_is_the_self_paced_weight(d: float) -> None:
    shares = torch.linspace(0.05, 1.5, 30).double()
    logits, labels = logits_with_cross_entropy((4.0 * shares).tolist())
    logits.requires_grad_()
    (gradient,) = torch.autograd.grad(losses.polysoft(logits, labels, 4.0, d).sum(), logits)
    expected = (1 - shares).clamp(min=0) ** (1 / (d - 1))
    expected[shares >= 1] = 0.0
    assert_close(gradient[:, 1] / logits.detach().softmax(dim=1)[:, 1], expected, rtol=1e-8, atol=1e-12)


def test_polysoft_tends_to_cross_entropy_with_lambda_and_d() -> None:
    logits, labels = random_logits()
    ce = losses.ce(logits, labels)
    errors = [((losses.polysoft(logits, labels, n, n) - ce).abs() / ce).max().item() for n in (1e2, 1e4, 1e6)]
    assert errors[0] > 50 * errors[1] > 2500 * errors[2]
    assert errors[2] < 2e-5


@pytest.mark.parametrize("exponent", [2, 4, 6, 8, 10, 12])
def test_js_tends_to_cross_entropy_as_pi1_falls(exponent: int) -> None:
    logits, labels = random_logits()
    gap = (losses.js(logits, labels, 10.0**-exponent) - losses.ce(logits, labels)).abs()
    probability = losses.mae(logits, labels).neg().add(1)
    assert bool((gap <= 10.0**-exponent / probability + 1e-12).all())


def test_js_tends_to_half_the_l1_distance_as_pi1_rises() -> None:
    logits, labels = random_logits()
    prediction = logits.softmax(dim=1)
    one_hot = torch.nn.functional.one_hot(labels, 5).double()
    distance = (prediction - one_hot).abs().sum(dim=1) / 2
    p = prediction[torch.arange(50), labels]
    gaps = [10.0**-exponent for exponent in (3, 6, 9, 12)]
    errors = torch.stack([(losses.js(logits, labels, 1 - gap) - distance).abs() for gap in gaps])
    assert bool((errors.diff(dim=0) < 0).all())
    scaled = errors * torch.tensor([abs(math.log(gap)) for gap in gaps]).double().unsqueeze(1)
    constant = (1 - p + p * p.log()).expand(4, -1)  # the error falls as 1/|log(1 - π₁)|, and this is its numerator
    assert_close(scaled[1:], constant[1:], rtol=1e-3, atol=1e-6)


# Accuracy against 60 digits

LogitCurve = Callable[..., mpmath.mpf]


def log_probability(z: mpmath.mpf) -> mpmath.mpf:
    """Of class 0 under logits (z, 0)."""
    return -mpmath.log1p(mpmath.exp(-z))


def exact_gce(z: mpmath.mpf, q: mpmath.mpf) -> mpmath.mpf:
    return (1 - mpmath.exp(q * log_probability(z))) / q


def exact_js(z: mpmath.mpf, pi1: mpmath.mpf) -> mpmath.mpf:
    p, pi2 = mpmath.exp(log_probability(z)), 1 - pi1
    mixed, other = pi1 + pi2 * p, pi2 * (1 - p)
    from_label = -mpmath.log(mixed)
    from_prediction = p * mpmath.log(p / mixed) + (1 - p) * mpmath.log((1 - p) / other)
    return (pi1 * from_label + pi2 * from_prediction) / (-pi2 * mpmath.log(pi2))


def exact_polysoft(z: mpmath.mpf, lam: mpmath.mpf, d: mpmath.mpf) -> mpmath.mpf:
    share = -log_probability(z) / lam
    ceiling = (d - 1) * lam / d
    return ceiling * (1 - (1 - share) ** (d / (d - 1))) if share < 1 else ceiling


EXACT: dict[str, tuple[LogitCurve, list[tuple[float, ...]]]] = {
    "gce": (exact_gce, [(1e-12,), (1e-9,), (1e-5,), (0.01,), (0.1,), (0.5,), (1 - 1e-9,), (1.0,)]),
    "js": (
        exact_js,
        [(1e-12,), (1e-9,), (1e-5,), (0.01,), (0.3,), (0.5,), (0.7,), (0.99,), (1 - 1e-5,), (1 - 1e-9,)],
    ),
    "polysoft": (
        exact_polysoft,
        [(0.5, 1.1), (20.0, 1.1), (12.0, 1.8), (0.5, 2.0), (6.0, 5.0), (1e6, 1.5), (6.0, 1e4)],
    ),
}
LOGITS = (-200.0, -60.0, -20.0, -4.0, -1.0, -0.05, 0.3, 2.0, 8.0, 25.0)


@pytest.mark.parametrize(("name", "settings"), [(name, chosen) for name, (_, rows) in EXACT.items() for chosen in rows])
def test_value_and_derivatives_against_60_digits(name: str, settings: tuple[float, ...]) -> None:
    """In float64 the error is rounding only, where a naive formula loses every digit."""
    curve = EXACT[name][0]
    logits = torch.tensor([[z, 0.0] for z in LOGITS], dtype=torch.float64, requires_grad=True)
    values = [torch.full((len(LOGITS),), value, dtype=torch.float64, requires_grad=True) for value in settings]
    result = losses.get(name).function(logits, torch.zeros(len(LOGITS), dtype=torch.int64), *values)
    by_logits, *by_settings = torch.autograd.grad(result.sum(), [logits, *values], create_graph=True)
    mixed = [torch.autograd.grad(first.sum(), logits, retain_graph=True)[0][:, 0] for first in by_settings]
    with mpmath.workdps(60):
        exact_settings = [mpmath.mpf(value) for value in settings]
        for row, z in enumerate(LOGITS):
            point = (mpmath.mpf(z), *exact_settings)
            order = [(0,) * len(point), (1, *([0] * len(settings)))]
            got = [result[row], by_logits[row, 0]]
            for place in range(len(settings)):
                own = [int(place == other) for other in range(len(settings))]
                order += [(0, *own), (1, *own)]
                got += [by_settings[place][row], mixed[place][row]]
            for which, value in zip(order, got, strict=True):
                exact = mpmath.diff(curve, point, which, h=mpmath.mpf(10) ** -22) if any(which) else curve(*point)
                tolerance = 1e-9 * abs(exact) + mpmath.mpf(10) ** -13
                assert abs(value.item() - exact) <= tolerance, (which, z, value.item(), float(exact))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("function", "exact"),
    [
        (expm1_over, lambda x: mpmath.expm1(x) / x),
        (log1p_over, lambda x: mpmath.log1p(x) / x),
    ],
    ids=["expm1_over", "log1p_over"],
)
def test_quotients_and_three_derivatives_across_their_seam(
    function: Callable[[Tensor], Tensor], exact: Callable[[mpmath.mpf], mpmath.mpf], dtype: torch.dtype
) -> None:
    eps = torch.finfo(dtype).eps
    seam = [0.1, 0.1 - eps, 0.1 + eps, 0.09, 0.11]
    points = [sign * x for x in (*seam, 1e-3, 1e-8, 1e-20, 0.05, 0.5) for sign in (1, -1)]
    x = torch.tensor(points, dtype=dtype, requires_grad=True)
    orders = [function(x)]
    for _ in range(3):
        orders.append(torch.autograd.grad(orders[-1].sum(), x, create_graph=True)[0])
    with mpmath.workdps(120):
        for row, point in enumerate(x.detach().double().tolist()):
            series = mpmath.taylor(exact, mpmath.mpf(point), 3, h=mpmath.mpf(10) ** -30)
            for order, (values, coefficient) in enumerate(zip(orders, series, strict=True)):
                expected = coefficient * mpmath.factorial(order)
                allowed = 10 ** (order + 1) * eps * (1 + abs(expected))  # a quotient at 0.1 loses a digit an order
                assert abs(values[row].item() - expected) <= allowed, (order, point)


@pytest.mark.parametrize("function", [expm1_over, log1p_over])
def test_quotients_are_1_at_zero_with_exact_derivatives(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    value = function(x)
    (first,) = torch.autograd.grad(value, x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    slope, curvature = (1 / 2, 1 / 3) if function is expm1_over else (-1 / 2, 2 / 3)
    assert_close(torch.cat([value, first, second]), torch.tensor([1.0, slope, curvature], dtype=torch.float64))


@pytest.mark.parametrize(
    ("name", "left", "right"),
    [("js", 0.5 - 2**-53, 0.5), ("gce", 0.1 - 2**-55, 0.1 + 2**-55)],  # with L = 1, q·L crosses 0.1
)
def test_first_and_second_derivatives_are_continuous_across_the_seams(name: str, left: float, right: float) -> None:
    logits, labels = random_logits(n=20)
    crossing, _ = logits_with_cross_entropy([1.0])
    logits = torch.cat([logits[:, :2], crossing])
    labels = torch.cat([labels % 2, torch.zeros(1, dtype=torch.int64)])

    def derivatives(value: float) -> list[Tensor]:
        z = logits.clone().requires_grad_()
        setting = torch.full((21,), value, dtype=torch.float64, requires_grad=True)
        result = losses.get(name).function(z, labels, setting)
        first = torch.autograd.grad(result.sum(), [z, setting], create_graph=True)
        second = [torch.autograd.grad(g[..., 0].sum(), [z, setting], retain_graph=True) for g in first]
        return [result, *first, *second[0], *second[1]]

    assert left < right
    for a, b in zip(derivatives(left), derivatives(right), strict=True):
        assert_close(a, b, rtol=1e-11, atol=1e-12)
