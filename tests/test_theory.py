"""The bounds: inside them everywhere on the simplex, attained, the risks they promise, and what the paper misprints."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from narl import losses, theory
from narl.errors import HyperparameterError, LogitsError, NoiseError, OptionError, UnknownNameError
from narl.theory import Bounds, bounds, noise_aware_bounds, printed_bounds

ZERO = -1e30  # the logit of a class that has no probability at all
CLASSES = (2, 3, 10, 100)
SETTINGS: list[tuple[str, dict[str, float]]] = [
    ("ce", {}),
    ("mae", {}),
    *[("gce", {"q": q}) for q in (1e-12, 1e-3, 0.3, 0.7, 1.0)],
    *[("rce", {"a": a}) for a in (-0.1, -4.0, -100.0)],
    *[("sl", {"gamma1": g1, "gamma2": g2, "a": a}) for g1, g2, a in ((0.1, 1.0, -4.0), (2.0, 0.0, -1.0))],
    ("sl", {"gamma1": 0.0, "gamma2": 0.5, "a": -6.0}),
    *[("js", {"pi1": pi1}) for pi1 in (1e-12, 1e-3, 0.3, 0.5, 0.9, 1 - 1e-12)],
    *[
        ("polysoft", {"lam": lam, "d": d})
        for lam, d in itertools.product(
            (1e-3, 0.5, 1.5, 2.4, 3.0, 5.0, 12.0, 1e3, 1e6), (1.001, 1.1, 1.5, 2.0, 7.0, 1e6)
        )
    ],
]
BOUNDED = [(loss, chosen) for loss, chosen in SETTINGS if math.isfinite(bounds(loss, 3, **chosen).upper)]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """These tensors are small: on a busy machine threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def every_label(logits: Tensor) -> Tensor:
    """Targets under which a loss is its mean over all labels."""
    return torch.full_like(logits, 1 / logits.shape[1])


def label_sum(loss: str, logits: Tensor, **chosen: float) -> Tensor:
    """S(z)."""
    if loss == "rce":
        loss, chosen = "sl", {"gamma1": 0.0, "gamma2": 1.0, **chosen}
    return logits.shape[1] * losses.get(loss)(logits, every_label(logits), **chosen)


def logits_of(probabilities: np.ndarray | Tensor) -> Tensor:
    p = torch.as_tensor(probabilities, dtype=torch.float64)
    return torch.where(p > 0, p.clamp(min=1e-320).log(), ZERO)


def uniform_on(k: int, c: int) -> Tensor:
    return logits_of((torch.arange(c) < k).double().unsqueeze(0) / k)


@functools.cache
def predictions(c: int) -> Tensor:
    """Corners, edges, faces and the inside of the simplex, logits of ordinary and of huge size; float64."""
    rng = np.random.default_rng(0)
    few = 60 if c > 10 else 300
    points = [logits_of(np.eye(c)), *[uniform_on(k, c) for k in range(1, c + 1)]]
    shares = np.concatenate([np.linspace(0, 1, 41), np.exp(-np.linspace(0, 40, 41))])
    for k in sorted({1, 2, c // 2, c - 1} & set(range(1, c))):  # one class against k equal ones
        edge = np.zeros((len(shares), c))
        edge[:, 0], edge[:, 1 : k + 1] = shares, (1 - shares[:, None]) / k
        points.append(logits_of(edge))
    for concentration in (0.003, 0.05, 0.3, 1.0, 20.0):
        face = rng.dirichlet(np.full(c, concentration), size=few)
        points.append(logits_of(face))
        kept = face * (rng.random(face.shape) < 0.5)
        points.append(logits_of(kept[kept.sum(axis=1) > 0] / kept[kept.sum(axis=1) > 0].sum(axis=1, keepdims=True)))
    for scale in (1.0, 10.0, 1e4, 1e12):
        points.append(torch.from_numpy(scale * rng.standard_normal((few, c))))
    return torch.cat(points)


def slack(value: float) -> float:
    return 1e-10 * (1 + abs(value)) if math.isfinite(value) else 0.0


@pytest.mark.parametrize("c", CLASSES)
@pytest.mark.parametrize(("loss", "chosen"), SETTINGS, ids=str)
def test_sums_stay_inside_and_reach_both_ends(loss: str, chosen: dict[str, float], c: int) -> None:
    ends = bounds(loss, c, **chosen)
    sums = label_sum(loss, predictions(c), **chosen)
    assert bool(torch.isfinite(sums).all())
    assert ends.lower - slack(ends.lower) <= float(sums.min())
    assert float(sums.max()) <= ends.upper + slack(ends.upper)
    if loss != "polysoft":  # its ends lie between grid points; see below
        assert float(sums.min()) == pytest.approx(ends.lower, rel=1e-9)
        assert float(sums.max()) > 1e15 if ends.upper == math.inf else float(sums.max()) == pytest.approx(ends.upper)


@pytest.mark.parametrize("loss", losses.names())
def test_the_sum_is_one_label_after_another(loss: str) -> None:
    logits = predictions(3)
    table = [losses.get(loss)(logits, torch.full((len(logits),), j)) for j in range(3)]
    torch.testing.assert_close(label_sum(loss, logits), torch.stack(table).sum(dim=0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("c", CLASSES)
def test_symmetric_losses_have_no_gap(c: int) -> None:
    assert bounds("mae", c) == Bounds(c - 1, c - 1)
    assert bounds("gce", c, q=1.0).gap == pytest.approx(0, abs=1e-12)
    assert bounds("rce", c) == Bounds(4.0 * (c - 1), 4.0 * (c - 1))
    assert bounds("sl", c, gamma1=0.0).gap == 0


def test_values_by_hand() -> None:
    assert bounds("gce", 4, q=0.5) == Bounds(4.0, 6.0)  # (4 - √4) / 0.5 and 3 / 0.5
    assert bounds("ce", 2) == Bounds(2 * math.log(2), math.inf)
    assert bounds("js", 10, pi1=0.5).upper == pytest.approx(9 * 2)  # JS of a wrong vertex is 2 there, not 1
    for pi1 in (1e-9, 0.2, 0.6, 1 - 1e-9):
        at_zero = 1 + pi1 * math.log(pi1) / ((1 - pi1) * math.log1p(-pi1))
        assert bounds("js", 3, pi1=pi1).upper == pytest.approx(2 * at_zero, rel=1e-9)
    assert bounds("sl", 2, gamma1=0.5, gamma2=3.0, a=-2.0).lower == pytest.approx(math.log(2) + 6)


@pytest.mark.parametrize("loss", ["gce", "sl", "polysoft", "js"])
def test_omitted_hyperparameters_are_the_registered_defaults(loss: str) -> None:
    assert bounds(loss, 10) == bounds(loss.upper(), 10, **losses.get(loss).defaults)
    assert bounds("rce", 10) == bounds("rce", 10, a=-4.0)


# PolySoft. The oracle knows only that the loss is a function of p: it searches.


def polysoft_curve(p: np.ndarray, lam: float, d: float) -> np.ndarray:
    weight_left = np.clip(1 + np.log(np.maximum(p, 1e-300)) / lam, 0, None)
    return np.asarray((d - 1) * lam / d * (1 - weight_left ** (d / (d - 1))))


def searched_polysoft_ends(c: int, lam: float, d: float) -> Bounds:
    """The extremes over one class of any probability, k equal ones and nothing for the rest, on a fine grid."""
    odd = np.concatenate(
        [np.linspace(0, 1, 2001), np.exp(-np.linspace(0, lam, 2001)), 1 - np.geomspace(1e-12, 1, 2001)]
    )
    low, high = math.inf, -math.inf
    for k in range(1, c):
        sums = polysoft_curve(odd, lam, d) + k * polysoft_curve((1 - odd) / k, lam, d)
        sums += (c - 1 - k) * (d - 1) * lam / d
        low, high = min(low, float(sums.min())), max(high, float(sums.max()))
    even = np.exp(-np.linspace(math.log(c), max(lam, math.log(c)), 200_001)) * (1 - 1e-15)
    sums = polysoft_curve(1 - (c - 1) * even, lam, d) + (c - 1) * polysoft_curve(even, lam, d)
    return Bounds(min(low, float(sums.min())), max(high, float(sums.max())))


@settings(deadline=None, max_examples=60)
@given(
    c=st.integers(2, 24),
    d=st.floats(-2.9, 3.0).map(lambda exponent: 1 + 10**exponent),
    place=st.floats(0.0, 2.0),
    around=st.sampled_from(["log c", "turn", "anywhere"]),
)
@example(c=10, d=2.0, place=1.0423, around="log c")  # λ = 2.4, the docstring's
@example(c=2, d=2.0, place=1.0, around="turn")  # the uniform prediction turns from a maximum to a saddle
def test_polysoft_ends_are_those_of_a_search(c: int, d: float, place: float, around: str) -> None:
    turn = math.log(c) + 1 / (d - 1)
    lam = {"log c": place * math.log(c), "turn": place * turn, "anywhere": 10 ** (3 * place - 3)}[around]
    assume(1e-3 <= lam <= 600)
    ends, found = bounds("polysoft", c, lam=lam, d=d), searched_polysoft_ends(c, lam, d)
    assert ends.lower == pytest.approx(found.lower, rel=1e-9)
    assert ends.upper == pytest.approx(found.upper, rel=1e-6)
    assert found.upper <= ends.upper + slack(ends.upper)


@pytest.mark.parametrize(
    ("c", "lam", "d"), [(3, 1.5, 2.0), (4, 2.4, 1.6), (5, 3.0, 4.0), (6, 2.5, 2.0), (8, 4.0, 1.3), (10, 2.4, 2.0)]
)
def test_polysoft_ends_are_those_of_free_optimisation(c: int, lam: float, d: float) -> None:
    rng = np.random.default_rng(0)

    def total(logits: np.ndarray, sign: float) -> tuple[float, np.ndarray]:
        z = torch.from_numpy(logits).unsqueeze(0).requires_grad_()
        value = sign * label_sum("polysoft", z, lam=lam, d=d).sum()
        (slope,) = torch.autograd.grad(value, z)
        return float(value.detach()), slope.squeeze(0).numpy()

    def best(sign: float) -> float:
        starts = [rng.standard_normal(c) * scale for scale in (0.3, 1.0, 3.0) for _ in range(8)]
        return min(float(minimize(total, z, args=(sign,), jac=True, tol=1e-14).fun) for z in starts)

    ends = bounds("polysoft", c, lam=lam, d=d)
    low, high = best(1.0), -best(-1.0)
    assert ends.lower - 1e-9 <= low <= ends.lower + 1e-6
    assert ends.upper - 1e-6 <= high <= ends.upper + 1e-9


def test_polysoft_lower_end_is_attained_where_it_is_said_to_be() -> None:
    """At c = 1000 the best support is neither a vertex nor everything."""
    lam, d, c = 6.0, 3.0, 1000
    sums = {k: float(label_sum("polysoft", uniform_on(k, c), lam=lam, d=d)) for k in (1, 88, 89, 90, 91, 92, 1000)}
    assert min(sums, key=sums.__getitem__) == round(math.exp(lam - d / (d - 1))) == 90
    assert bounds("polysoft", c, lam=lam, d=d).lower == pytest.approx(sums[90], rel=1e-12)


def test_polysoft_upper_end_where_three_predictions_compete() -> None:
    """Here equal slopes are found twice, close together, and only the further one is the maximum."""
    c, lam, d = 1857, 8.147672867921603, 1.4849097922759333
    even = np.exp(-np.linspace(math.log(c), lam, 1_000_001)) * (1 - 1e-15)
    sums = polysoft_curve(1 - (c - 1) * even, lam, d) + (c - 1) * polysoft_curve(even, lam, d)
    assert bounds("polysoft", c, lam=lam, d=d).upper == pytest.approx(float(sums.max()), rel=1e-9)


def test_polysoft_becomes_cross_entropy_for_large_lambda() -> None:
    assert bounds("polysoft", 10, lam=1e6, d=2.0).lower == pytest.approx(bounds("ce", 10).lower, rel=1e-5)


# What the paper prints.


@pytest.mark.parametrize("c", CLASSES)
@pytest.mark.parametrize(
    ("loss", "chosen"), [("gce", {"q": 0.3}), ("gce", {}), ("rce", {"a": -2.0}), ("js", {"pi1": 0.7})], ids=str
)
def test_printed_bounds_that_are_right(loss: str, chosen: dict[str, float], c: int) -> None:
    assert printed_bounds(loss, c, **chosen) == bounds(loss, c, **chosen)


def test_printed_polysoft_lower_bound_fails_at_a_vertex() -> None:
    printed = printed_bounds("polysoft", 10, lam=2.4, d=2.0)
    vertex = float(label_sum("polysoft", uniform_on(1, 10), lam=2.4, d=2.0))
    assert vertex == pytest.approx(10.8)
    assert printed.lower == pytest.approx(5 * math.log(10))
    assert printed.upper == pytest.approx(12.0)
    assert vertex < printed.lower - 0.7
    assert bounds("polysoft", 10, lam=2.4, d=2.0).lower < vertex  # two classes are lower still
    assert printed_bounds("polysoft", 10, lam=2.0, d=2.0).gap < 0


@pytest.mark.parametrize("c", CLASSES)
@pytest.mark.parametrize("d", [1.2, 1.5, 2.0, 3.0, 1e3])
def test_where_the_printed_polysoft_bounds_hold(c: int, d: float) -> None:
    def lower_fails(lam: float) -> bool:
        return bounds("polysoft", c, lam=lam, d=d).lower < printed_bounds("polysoft", c, lam=lam, d=d).lower

    assert all(lower_fails(share * c * math.log(c) / (c - 1)) for share in (0.1, 0.6, 0.99))
    assert not any(lower_fails(1 + math.log(c) + more) for more in (0.0, 0.3, 2.0, 50.0))
    for share in (0.2, 0.9, 1.1, 2.0):
        lam = share * math.log(c)
        right, printed = bounds("polysoft", c, lam=lam, d=d).upper, printed_bounds("polysoft", c, lam=lam, d=d).upper
        assert right == pytest.approx(printed) if share < 1 else right < printed


def test_printed_polysoft_lower_bound_in_between_depends_on_d() -> None:
    def right_minus_printed(d: float) -> float:
        return bounds("polysoft", 10, lam=2.6, d=d).lower - printed_bounds("polysoft", 10, lam=2.6, d=d).lower

    assert right_minus_printed(2.0) > 0 > right_minus_printed(3.0)


# Theorem 1 on finite problems: a few x, three classes, a grid on the simplex.

STEPS = 12
GRID = torch.tensor(
    [(i, j, STEPS - i - j) for i in range(STEPS + 1) for j in range(STEPS + 1 - i)], dtype=torch.float64
).div(STEPS)


def loss_table(loss: str, **chosen: float) -> Tensor:
    """The loss of every grid point, a row, under every label, a column."""
    logits = logits_of(GRID)
    if loss == "rce":
        loss, chosen = "sl", {"gamma1": 0.0, "gamma2": 1.0, **chosen}
    return torch.stack([losses.get(loss)(logits, torch.full((len(GRID),), j), **chosen) for j in range(3)], dim=1)


def risks(table: Tensor, classifiers: Tensor, posterior: Tensor, weights: Tensor) -> Tensor:
    """Expected loss of each classifier, a row of grid indices, one an x."""
    by_x = table @ posterior.T  # (G, X)
    return (by_x[classifiers, torch.arange(len(weights))] * weights).sum(dim=1)


def random_posterior(rng: np.random.Generator, kind: str, x: int = 3) -> Tensor:
    if kind == "deterministic":
        return torch.eye(3, dtype=torch.float64)[torch.from_numpy(rng.integers(3, size=x))]
    return torch.from_numpy(rng.dirichlet(np.full(3, 0.7), size=x))


def best_two(
    table: Tensor, posterior: Tensor, noisy: Tensor, weights: Tensor, classifiers: Tensor
) -> tuple[float, float]:
    """R^η(f*) - R^η(f̂) and R(f̂) - R(f*) over the given classifiers."""
    clean_risk = risks(table, classifiers, posterior, weights)
    noisy_risk = risks(table, classifiers, noisy, weights)
    star, hat = int(clean_risk.argmin()), int(noisy_risk.argmin())
    return float(noisy_risk[star] - noisy_risk[hat]), float(clean_risk[hat] - clean_risk[star])


def every_best(table: Tensor, posterior: Tensor, noisy: Tensor) -> Tensor:
    """f* and f̂ over all functions from x to the grid: the best point at each x."""
    return torch.stack([(table @ posterior.T).argmin(dim=0), (table @ noisy.T).argmin(dim=0)])


def symmetric(rate: float, c: int = 3) -> Tensor:
    matrix = torch.full((c, c), rate / (c - 1), dtype=torch.float64)
    return matrix.fill_diagonal_(1 - rate)


@pytest.mark.parametrize("rate", [0.1, 0.4, 0.6])
@pytest.mark.parametrize("kind", ["deterministic", "mixed"])
@pytest.mark.parametrize(
    ("loss", "chosen"),
    [
        ("mae", {}),
        ("rce", {}),
        ("gce", {"q": 0.2}),
        ("gce", {}),
        ("js", {"pi1": 0.2}),
        ("js", {}),
        ("polysoft", {"lam": 1.0, "d": 2.0}),
        ("polysoft", {"lam": 1.2, "d": 5.0}),
        ("polysoft", {}),
    ],
    ids=str,
)
def test_risks_stay_within_theorem_1(loss: str, chosen: dict[str, float], kind: str, rate: float) -> None:
    rng = np.random.default_rng(1)
    table, ends = loss_table(loss, **chosen), bounds(loss, 3, **chosen)
    excess = theory.excess_risk_bound(ends, 3, rate)
    gap = theory.clean_risk_gap_bound(ends, 3, rate)
    for _ in range(40):
        posterior, weights = random_posterior(rng, kind), torch.from_numpy(rng.dirichlet(np.ones(3)))
        noisy = posterior @ symmetric(rate)
        some = torch.from_numpy(rng.integers(len(GRID), size=(30, 3)))
        for classifiers in (every_best(table, posterior, noisy), some, some[:2]):
            noisy_excess, clean_gap = best_two(table, posterior, noisy, weights, classifiers)
            assert -1e-12 <= noisy_excess <= excess + 1e-12
            assert -1e-12 <= clean_gap <= gap + 1e-12


@pytest.mark.parametrize(("loss", "chosen"), [("gce", {"q": 0.3}), ("js", {"pi1": 0.3})], ids=str)
def test_theorem_1_cannot_be_improved(loss: str, chosen: dict[str, float]) -> None:
    """With a vertex and the uniform prediction to choose from, and labels that barely prefer one, both are reached."""
    rate, table, ends = 0.3, loss_table(loss, **chosen), bounds(loss, 3, **chosen)
    vertex = int((GRID[:, 0] == 1).nonzero())
    even = int((GRID == 4 / STEPS).all(dim=1).nonzero())
    classifiers, weights = torch.tensor([[vertex], [even]]), torch.ones(1, dtype=torch.float64)
    price = float(table[even, 0] / table[vertex, 1])  # both risks are equal if the vertex's class has 1 - price

    def reached(first: float) -> tuple[float, float]:
        posterior = torch.tensor([[first, (1 - first) / 2, (1 - first) / 2]], dtype=torch.float64)
        return best_two(table, posterior, posterior @ symmetric(rate), weights, classifiers)

    assert reached(1 - price + 1e-9)[0] == pytest.approx(theory.excess_risk_bound(ends, 3, rate), rel=1e-6)
    noisy_equal = (1 - price - rate / 2) / (1 - 1.5 * rate)  # here the noisy risks are
    assert reached(noisy_equal - 1e-9)[1] == pytest.approx(theory.clean_risk_gap_bound(ends, 3, rate), rel=1e-6)


def test_printed_polysoft_bounds_break_theorem_1() -> None:
    """λ = 1.12 > log 3, so the printed gap is positive; the excess risk is more than twice what it allows."""
    chosen, rate = {"lam": 1.12, "d": 30.0}, 0.3
    table, printed = loss_table("polysoft", **chosen), printed_bounds("polysoft", 3, **chosen)
    rng = np.random.default_rng(0)
    weights = torch.ones(1, dtype=torch.float64)
    worst = 0.0
    for _ in range(2000):
        posterior = torch.from_numpy(rng.dirichlet(np.ones(3), size=1))
        pair = torch.from_numpy(rng.integers(len(GRID), size=(2, 1)))
        worst = max(worst, best_two(table, posterior, posterior @ symmetric(rate), weights, pair)[0])
    assert worst > 2 * theory.excess_risk_bound(printed, 3, rate) > 0
    assert worst <= theory.excess_risk_bound(bounds("polysoft", 3, **chosen), 3, rate)


@pytest.mark.parametrize("bound", [theory.excess_risk_bound, theory.clean_risk_gap_bound])
def test_risk_bounds_by_hand(bound: Callable[[Bounds, int, float], float]) -> None:
    below = 9 if bound is theory.excess_risk_bound else 9 - 4
    assert bound(Bounds(2.0, 7.0), 10, 0.4) == pytest.approx(0.4 * 5 / below)
    assert bound(Bounds(7.0, 7.0), 10, 0.4) == 0
    assert bound(bounds("ce", 10), 10, 0.4) == math.inf
    assert bound(bounds("ce", 10), 10, 0.0) == 0  # and not 0 · ∞


# Class-dependent noise.


def random_transition(rng: np.random.Generator) -> Tensor:
    """More of every class stays than goes to any other one."""
    while True:
        matrix = rng.dirichlet(np.ones(3), size=3)
        if all(matrix[i, i] > matrix[i, j] for i in range(3) for j in range(3) if i != j):
            return torch.from_numpy(matrix)


@pytest.mark.parametrize(("loss", "chosen"), BOUNDED[::3], ids=str)
def test_asymmetric_excess_risk(loss: str, chosen: dict[str, float]) -> None:
    rng = np.random.default_rng(2)
    table, ends = loss_table(loss, **chosen), bounds(loss, 3, **chosen)
    for _ in range(60):
        posterior, weights = random_posterior(rng, "deterministic"), torch.from_numpy(rng.dirichlet(np.ones(3)))
        transition = random_transition(rng)
        noisy = posterior @ transition
        both = every_best(table, posterior, noisy)
        assert bool((GRID[both[0]] == posterior).all())  # the clean risk of f* is zero
        excess, _ = best_two(table, posterior, noisy, weights, both)
        bound = theory.asymmetric_excess_risk_bound(ends, 1 - transition.diagonal(), weights @ posterior)
        assert -1e-12 <= excess <= bound + slack(ends.upper)


def test_asymmetric_excess_risk_is_nearly_reached() -> None:
    table, rates = loss_table("gce", q=0.3), [0.666] * 3
    posterior, weights = torch.eye(3, dtype=torch.float64), torch.full((3,), 1 / 3, dtype=torch.float64)
    noisy = posterior @ symmetric(0.666)
    excess, _ = best_two(table, posterior, noisy, weights, every_best(table, posterior, noisy))
    bound = theory.asymmetric_excess_risk_bound(bounds("gce", 3, q=0.3), rates)
    assert 0.98 * bound < excess <= bound


def test_asymmetric_excess_risk_needs_zero_clean_risk() -> None:
    posterior, weights = torch.tensor([[0.6, 0.4, 0.0]], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    transition = torch.tensor([[0.6, 0.4, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    table, noisy = loss_table("mae"), posterior @ transition
    excess, _ = best_two(table, posterior, noisy, weights, every_best(table, posterior, noisy))
    assert theory.asymmetric_excess_risk_bound(bounds("mae", 3), [0.4, 0.0, 0.0], [0.6, 0.4, 0.0]) == 0
    assert excess == pytest.approx(0.28)


def test_asymmetric_bound_by_hand() -> None:
    ends = Bounds(1.0, 3.0)
    assert theory.asymmetric_excess_risk_bound(ends, [0.4, 0.0]) == pytest.approx(2 * 0.8)
    assert theory.asymmetric_excess_risk_bound(ends, torch.tensor([0.4, 0.0]), [0.75, 0.25]) == pytest.approx(2 * 0.7)


# Theorem 2.


def clear_predictions(c: int) -> Tensor:
    """Predictions with one largest class."""
    nearly_uniform = torch.zeros(1, c, dtype=torch.float64)
    nearly_uniform[0, 0] = 1e-7
    logits = torch.cat([predictions(c), nearly_uniform])
    return logits[theory.positive_margins(logits) == 1]


def aware_sum(logits: Tensor, ideal: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor]) -> Tensor:
    """The sum over labels of one loss on the largest class and another on the others."""
    top = logits.argmax(dim=1)
    return ideal(top) + logits.shape[1] * other(every_label(logits)) - other(top)


@pytest.mark.parametrize("c", CLASSES)
def test_noise_aware_gce(c: int) -> None:
    logits = clear_predictions(c)
    ends = noise_aware_bounds("gce", c)
    sums = aware_sum(logits, lambda y: losses.gce(logits, y, q=1e-12), lambda y: losses.gce(logits, y, q=1.0))
    assert ends.gap == pytest.approx(math.log(c) + 1 / c - 1)
    assert ends.lower - 1e-9 <= float(sums.min()) == pytest.approx(ends.lower, abs=1e-6)
    assert ends.upper + 1e-9 >= float(sums.max()) == pytest.approx(ends.upper, abs=1e-6)


@pytest.mark.parametrize("c", CLASSES)
def test_noise_aware_js_comes_near_as_slowly_as_said(c: int) -> None:
    logits = clear_predictions(c)
    ends = noise_aware_bounds("js", c)
    assert ends == noise_aware_bounds("gce", c)
    for pi2 in (1e-3, 1e-6, 1e-12):
        near_ce, near_mae = (functools.partial(losses.js, logits, pi1=pi1) for pi1 in (1e-12, 1 - pi2))
        sums = aware_sum(logits, near_ce, near_mae)
        passed = (c - 1) / abs(math.log(pi2))
        assert ends.lower - 1e-6 <= float(sums.min())
        assert ends.upper < float(sums.max()) <= ends.upper + passed + 1e-6


@pytest.mark.parametrize("c", CLASSES)
@pytest.mark.parametrize(("lam", "d"), [(0.5, 2.0), (2.0, 1.2), (6.0, 2.0), (20.0, 5.0)])
def test_noise_aware_polysoft(c: int, lam: float, d: float) -> None:
    logits = clear_predictions(c)
    printed, tight = (noise_aware_bounds("polysoft", c, lam=lam, d=d, tight=tight) for tight in (False, True))
    sums = aware_sum(
        logits,
        lambda y: losses.polysoft(logits, y, lam=lam, d=d),
        lambda y: losses.polysoft(logits, y, lam=1e-3, d=1.001),  # at most 1e-6, as near to 0 as it gets
    )
    assert printed.lower == 0
    assert printed.upper == pytest.approx((d - 1) * lam / d)
    assert float(sums.min()) == pytest.approx(0, abs=1e-6 * c)
    assert float(sums.max()) == pytest.approx(tight.upper, abs=2e-6 * c)
    assert tight.upper == pytest.approx(printed.upper) if lam <= math.log(c) else tight.upper < printed.upper


def test_tight_changes_polysoft_only() -> None:
    for loss in ("gce", "js"):
        assert noise_aware_bounds(loss, 7, tight=True) == noise_aware_bounds(loss, 7)


@pytest.mark.parametrize("rate", [0.2, 0.6])
def test_noise_aware_gce_keeps_the_risks_of_theorem_2(rate: float) -> None:
    rng = np.random.default_rng(3)
    logits = logits_of(GRID)
    clear = theory.positive_margins(logits) == 1
    ce, mae = loss_table("ce"), loss_table("mae")
    top = torch.nn.functional.one_hot(logits.argmax(dim=1), 3).bool()
    table = torch.where(top, ce, mae)[clear]
    ends = noise_aware_bounds("gce", 3)
    excess, gap = theory.excess_risk_bound(ends, 3, rate), theory.clean_risk_gap_bound(ends, 3, rate)
    largest = 0.0
    for _ in range(500):
        posterior, weights = random_posterior(rng, "mixed", x=1), torch.ones(1, dtype=torch.float64)
        pair = torch.from_numpy(rng.integers(len(table), size=(2, 1)))
        reached = best_two(table, posterior, posterior @ symmetric(rate), weights, pair)
        assert 0 <= reached[0] <= excess + 1e-12
        assert 0 <= reached[1] <= gap + 1e-12
        largest = max(largest, reached[0])
    assert largest > 0.3 * excess


# Propositions.


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-3, 3), min_size=4, max_size=4), min_size=1, max_size=8))
def test_positive_margins(rows: list[list[int]]) -> None:
    def count(row: list[int]) -> int:
        return sum(z > max(row[:i] + row[i + 1 :]) for i, z in enumerate(row))

    found = theory.positive_margins(torch.tensor(rows, dtype=torch.float32))
    assert found.dtype == torch.int64
    assert found.tolist() == [count(row) for row in rows]
    assert set(found.tolist()) <= {0, 1}


def adjusted_sum(probabilities: Tensor, q: Tensor) -> Tensor:
    logits = logits_of(probabilities)
    columns = [losses.gce(logits, torch.full((len(q),), j), q=q[:, j]) for j in range(q.shape[1])]
    return torch.stack(columns).sum(dim=0)


@pytest.mark.parametrize("c", CLASSES)
def test_adjusted_gce_sum_stays_inside(c: int) -> None:
    rng = np.random.default_rng(4)
    p = predictions(c).softmax(dim=1)[:: max(1, c // 20)]
    for low in (1e-12, 0.05, 0.5, 0.9):
        q = torch.from_numpy(rng.uniform(low, 1.0, size=tuple(p.shape)))
        lower, upper = theory.adjusted_gce_bounds(p, q)
        sums = adjusted_sum(p, q)
        assert lower.shape == upper.shape == (len(p),)
        assert bool((lower <= sums * (1 + 1e-10)).all())
        assert bool((sums <= upper * (1 + 1e-10)).all())


def test_adjusted_gce_bounds_are_reached_with_one_q_for_all_others() -> None:
    p = torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.6, 0.4, 0.0, 0.0]], dtype=torch.float64)
    for q in (0.3, 1.0):
        each = torch.full((2, 4), q, dtype=torch.float64)
        each[:, 0] = 0.8
        lower, upper = theory.adjusted_gce_bounds(p, each)
        sums = adjusted_sum(p, each)
        assert float(lower[0]) == pytest.approx(float(sums[0]))  # the others equal
        if q == 1:
            torch.testing.assert_close(lower, upper)  # where the printed remark has a negative gap
            torch.testing.assert_close(sums, upper)


def test_adjusted_gce_bounds_as_printed_with_names_exchanged() -> None:
    p, q = [0.5, 0.3, 0.2], [0.4, 0.6, 0.9]
    lower, upper = theory.adjusted_gce_bounds(torch.tensor([p]).double(), torch.tensor([q]).double())
    own = (1 - 0.5**0.4) / 0.4
    assert float(lower) == pytest.approx((2 - 2**0.4 * 0.5**0.6) / 0.9 + own)
    assert float(upper) == pytest.approx(1.5 / 0.6 + own)


def test_adjusted_gce_bounds_lift_half_precision() -> None:
    p = torch.tensor([[0.5, 0.25, 0.25]])
    for dtype in (torch.bfloat16, torch.float16):
        lower, upper = theory.adjusted_gce_bounds(p.to(dtype), torch.full((1, 3), 0.5, dtype=dtype))
        expected = theory.adjusted_gce_bounds(p, torch.full((1, 3), 0.5))
        assert lower.dtype == upper.dtype == torch.float32
        torch.testing.assert_close((lower, upper), expected)


# Errors.


@pytest.mark.parametrize(
    ("function", "name", "message"),
    [
        (bounds, "gcee", "did you mean 'gce'"),
        (bounds, "zzz", "'zzz': known: ce, gce, js, mae, polysoft, rce, sl"),
        (printed_bounds, "ce", "Known: gce, js, polysoft, rce"),
        (noise_aware_bounds, "mae", "known: gce, js, polysoft"),
    ],
)
def test_unknown_losses(function: Callable[..., Bounds], name: str, message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        function(name, 10)


@pytest.mark.parametrize("function", [bounds, printed_bounds])
@pytest.mark.parametrize(
    ("loss", "chosen", "message"),
    [
        ("gce", {"q": 0.0}, "q = 0.0 is not a number in its range"),
        ("gce", {"q": 1.5}, "0.7 is the default"),
        ("gce", {"q": math.nan}, "q = nan"),
        ("gce", {"q": torch.tensor(0.5)}, "not a number"),
        ("gce", {"p": 0.5}, "gce has no hyperparameter 'p': known: q"),
        ("js", {"pi1": 1.0}, "pi1 = 1.0"),
        ("polysoft", {"lam": -1.0}, "lam = -1.0"),
        ("polysoft", {"lam": 2.0, "d": 1.0}, "d = 1.0"),
        ("rce", {"a": 0.0}, "a = 0.0"),
        ("rce", {"a": -math.inf}, "a = -inf"),
        ("rce", {"gamma2": 1.0}, "rce has no hyperparameter 'gamma2'"),
    ],
)
def test_bad_hyperparameters(
    function: Callable[..., Bounds], loss: str, chosen: dict[str, float], message: str
) -> None:
    with pytest.raises(HyperparameterError, match=message):
        function(loss, 10, **chosen)


def test_losses_without_hyperparameters_take_none() -> None:
    with pytest.raises(HyperparameterError, match="it takes none here"):
        bounds("mae", 10, q=0.7)
    with pytest.raises(HyperparameterError, match="it takes none here"):
        noise_aware_bounds("gce", 10, q=0.7)


def test_noise_aware_sl_has_no_bounds() -> None:
    with pytest.raises(OptionError, match=r"unbounded.*rce"):
        noise_aware_bounds("SL", 10)


@pytest.mark.parametrize("function", [bounds, printed_bounds, noise_aware_bounds])
@pytest.mark.parametrize("num_classes", [1, 0, -3, 2.5, "10", None])
def test_bad_numbers_of_classes(function: Callable[..., Bounds], num_classes: object) -> None:
    with pytest.raises(OptionError, match="give an int from 2 on"):
        function("gce", num_classes)


@pytest.mark.parametrize("bound", [theory.excess_risk_bound, theory.clean_risk_gap_bound])
def test_bad_arguments_of_the_risk_bounds(bound: Callable[..., float]) -> None:
    ends = bounds("gce", 10)
    for rate in (-0.1, 1.1, math.nan, "0.4"):
        with pytest.raises(NoiseError, match="share from 0 to 1"):
            bound(ends, 10, rate)
    for c in (2, 3, 7, 10, 100):
        with pytest.raises(NoiseError, match="give a smaller rate"):
            bound(ends, c, math.nextafter((c - 1) / c, 0))
        assert bound(ends, c, (c - 1) / c - 1e-9) > 0
    with pytest.raises(OptionError, match="from 2 on"):
        bound(ends, 1, 0.1)
    with pytest.raises(OptionError, match=r"use bounds\(\) instead"):
        bound(printed_bounds("polysoft", 10, lam=2.0), 10, 0.1)


@pytest.mark.parametrize(
    ("rates", "priors", "error", "message"),
    [
        ([0.1], None, NoiseError, r"shape \(1,\)"),
        ([[0.1, 0.2]], None, NoiseError, "one noise rate a class"),
        ([0.1, -0.2], None, NoiseError, "share from 0 to 1"),
        ([0.1, 0.5], None, NoiseError, "give a smaller rate"),
        ([0.1, 0.2], [0.2, 0.3, 0.5], OptionError, "give 2 shares"),
        ([0.1, 0.2], [3, 1], OptionError, "divide by their sum"),
        ([0.1, 0.2], [1.5, -0.5], OptionError, "at least 0"),
        ([0.1, 0.2], [math.nan, 0.5], OptionError, "at least 0"),
    ],
)
def test_bad_arguments_of_the_asymmetric_bound(
    rates: list[float], priors: list[float] | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        theory.asymmetric_excess_risk_bound(Bounds(1.0, 2.0), rates, priors)


def test_asymmetric_bound_refuses_bounds_that_contradict_themselves() -> None:
    with pytest.raises(OptionError, match="above the upper bound"):
        theory.asymmetric_excess_risk_bound(Bounds(2.0, 1.0), [0.1, 0.1])


@pytest.mark.parametrize(
    ("p", "q", "error", "message"),
    [
        (torch.tensor([0.5, 0.5]), torch.ones(2), LogitsError, r"shape \(N, c\)"),
        (torch.ones(2, 1), torch.ones(2, 1), LogitsError, "two or more classes"),
        (torch.ones(1, 2, dtype=torch.int64), torch.ones(1, 2), LogitsError, "give floats"),
        (torch.tensor([[0.5, 0.6]]), torch.ones(1, 2), LogitsError, "sum to 1"),
        (torch.tensor([[1.5, -0.5]]), torch.ones(1, 2), LogitsError, "at least 0"),
        (torch.tensor([[math.nan, 0.5]]), torch.ones(1, 2), LogitsError, "sum to 1"),
        (torch.tensor([[0.5, 0.5]]), torch.ones(2), HyperparameterError, "one q a sample and label"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([[0.5, 0.0]]), HyperparameterError, "q = 0 … 0.5 is outside"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([[0.5, 1.1]]), HyperparameterError, "0.7 is the default"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([[0.5, math.nan]]), HyperparameterError, "outside its range"),
    ],
)
def test_bad_arguments_of_adjusted_gce(p: Tensor, q: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        theory.adjusted_gce_bounds(p, q)


def test_positive_margins_refuse_what_are_no_logits() -> None:
    with pytest.raises(LogitsError, match="shape"):
        theory.positive_margins(torch.zeros(3))
