"""Instance-dependent noise against a slow loop over samples that follows its definition word by word."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from narl import noise
from narl.noise import instance
from narl.noise.instance import PROJECTIONS, Standardised, label_probabilities, truncated_normal

# By its name: as an attribute of the package, ``instance`` is the function.
MODULE = importlib.import_module("narl.noise.instance")
KINDS = ["per-class", "shared", "per-sample"]
LABELS = np.random.default_rng(1).integers(0, 6, size=20_000)
FEATURES = np.random.default_rng(2).normal(3, 2, size=(20_000, 2, 3))


def truncated_mean(rate: float, std: float) -> float:
    """The textbook formula for the mean of a normal distribution cut off outside [0, 1]."""
    a, b = -rate / std, (1 - rate) / std
    density = [math.exp(-t * t / 2) / math.sqrt(2 * math.pi) for t in (a, b)]
    mass = (math.erf(b / math.sqrt(2)) - math.erf(a / math.sqrt(2))) / 2
    return rate + std * (density[0] - density[1]) / mass


def loop_probabilities(
    labels: NDArray[np.int64],
    flip_rates: NDArray[np.float64],
    features: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """One sample at a time, with its own projection ``weights[i]``, ``(d, c)``."""
    flat = features.reshape(len(labels), -1)
    x = (flat - flat.mean(axis=0)) / flat.std(axis=0)
    rows = []
    for i, y in enumerate(labels):
        scores = [float(x[i] @ weights[i][:, j]) for j in range(weights.shape[2])]
        scores[y] = -math.inf
        odds = [math.exp(s - max(scores)) for s in scores]
        p = [flip_rates[i] * o / sum(odds) for o in odds]
        p[y] = 1 - flip_rates[i]
        rows.append(p)
    return np.array(rows)


def vectorised_probabilities(
    projection: str, labels: NDArray[np.int64], q: NDArray[np.float64], x: NDArray[np.float64], c: int, seed: int
) -> NDArray[np.float64]:
    probabilities = np.full((len(labels), c), np.nan)
    features = Standardised.of(x.reshape(len(labels), -1))
    for rows, scores in PROJECTIONS[projection](labels, features, c, np.random.default_rng(seed)):
        probabilities[rows] = label_probabilities(labels[rows], q[rows], scores)
    return probabilities


@pytest.mark.parametrize("projection", ["per-class", "shared"])
@pytest.mark.parametrize("block", [2**22, 20])
def test_probabilities_equal_the_loop(projection: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "BLOCK_NUMBERS", block)
    labels, x = LABELS[:200], FEATURES[:200]
    q = truncated_normal(0.4, 0.1, 200, np.random.default_rng(0))
    rng = np.random.default_rng(9)
    matrices = rng.standard_normal((6, 6, 6) if projection == "per-class" else (6, 6))
    weights = matrices[labels] if projection == "per-class" else np.broadcast_to(matrices, (200, 6, 6))
    found = vectorised_probabilities(projection, labels, q, x, 6, seed=9)
    np.testing.assert_allclose(found, loop_probabilities(labels, q, x, weights), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-12)


def test_per_sample_scores_have_the_distribution_of_fresh_matrices() -> None:
    """The scores are drawn directly: their moments, by class, against those of x W with a matrix for each sample."""
    draws, x = 4_000, np.array([[3.0, -1.0], [0.0, 0.5], [-3.0, 0.5]])
    table = np.tile(x, (draws, 1))
    features = Standardised.of(table)
    labels = np.zeros(len(table), dtype=np.int64)
    scores = np.empty((len(table), 4))
    for rows, part in PROJECTIONS["per-sample"](labels, features, 4, np.random.default_rng(0)):
        scores[rows] = part
    fresh = np.einsum(
        "nd,ndc->nc", features[np.arange(len(table))], np.random.default_rng(1).standard_normal((len(table), 2, 4))
    )
    for sample in range(3):
        ours, theirs = scores[sample::3], fresh[sample::3]
        length = np.square(features[np.array([sample])]).sum()
        for found in (ours, theirs):
            np.testing.assert_allclose(found.mean(axis=0), 0, atol=5 * np.sqrt(length / draws))
            np.testing.assert_allclose(found.var(axis=0), length, rtol=5 * np.sqrt(2 / draws))
            correlation = np.corrcoef(found.T) - np.eye(4)
            np.testing.assert_allclose(correlation, 0, atol=5 / np.sqrt(draws))


@pytest.mark.parametrize("projection", KINDS)
def test_labels_are_drawn_from_these_probabilities(projection: str) -> None:
    """Sums over samples of (label is j) - P(label is j), for each true class and j, within five deviations."""
    rng = np.random.default_rng(4)
    q = truncated_normal(0.4, 0.1, len(LABELS), rng)
    rng.random(len(LABELS))  # the draws themselves
    expected = np.empty((len(LABELS), 6))
    for rows, scores in PROJECTIONS[projection](LABELS, Standardised.of(FEATURES.reshape(-1, 6)), 6, rng):
        expected[rows] = label_probabilities(LABELS[rows], q[rows], scores)
    got = np.eye(6)[instance(LABELS, 0.4, FEATURES, seed=4, projection=projection)]
    for y in range(6):
        p = expected[y == LABELS]
        excess = (got[y == LABELS] - p).sum(axis=0)
        assert (np.abs(excess) < 5 * np.sqrt((p * (1 - p)).sum(axis=0))).all()
    # and sample by sample: labels of high probability come up as often as they should
    for low, high in [(0, 0.05), (0.05, 0.2), (0.2, 0.5), (0.5, 1)]:
        here = (expected >= low) & (expected < high)
        p = expected[here]
        assert abs(got[here].sum() - p.sum()) < 5 * np.sqrt((p * (1 - p)).sum())


class ExtremeDraws(np.random.Generator):
    """Draws the smallest and the largest number that ``random`` can give."""

    def random(self, size: Any = None, *args: Any, **kwargs: Any) -> Any:
        return np.resize([0.0, 1 - 2.0**-53], size)


def test_labels_of_probability_zero_are_never_drawn() -> None:
    """At rate 1 without spread the true label, first or last in the row, has probability 0."""
    labels = np.array([0, 0, 5, 5])
    noisy = instance(labels, 1.0, np.ones((4, 1)), 6, std=0, seed=ExtremeDraws(np.random.PCG64(0)))
    np.testing.assert_array_equal(noisy, [1, 5, 0, 4])
    # and no label beyond the last where rounding makes a row of probabilities end below the largest draw
    noisy = instance(LABELS, 0.7, FEATURES, seed=ExtremeDraws(np.random.PCG64(0)))
    assert noisy.max() == 5


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.4, 0.6, 1.0])
@pytest.mark.parametrize("projection", KINDS)
def test_realised_rate(projection: str, rate: float) -> None:
    mean = truncated_mean(rate, 0.1)
    noisy = instance(LABELS, rate, FEATURES, projection=projection)
    assert abs(np.mean(noisy != LABELS) - mean) < 5 * np.sqrt(mean * (1 - mean) / len(LABELS))


@pytest.mark.parametrize(("rate", "mean"), [(0.1, 0.129), (0.2, 0.206), (0.3, 0.3), (0.7, 0.7), (1.0, 0.92)])
def test_mean_flip_rates_of_the_docstring(rate: float, mean: float) -> None:
    assert round(truncated_mean(rate, 0.1), 3) == mean
    draws = truncated_normal(rate, 0.1, 200_000, np.random.default_rng(0))
    assert abs(draws.mean() - truncated_mean(rate, 0.1)) < 5 * draws.std() / np.sqrt(len(draws))
    assert draws.min() >= 0
    assert draws.max() <= 1


def test_flip_rates_follow_the_truncated_normal() -> None:
    """Against rejection: normal draws, of which those outside [0, 1] are thrown away."""
    normal = np.random.default_rng(1).normal(0.15, 0.2, size=400_000)
    rejected = normal[(normal >= 0) & (normal <= 1)]
    ours = truncated_normal(0.15, 0.2, len(rejected), np.random.default_rng(2))
    at = np.linspace(0.02, 0.98, 9)
    share = np.searchsorted(np.sort(ours), np.quantile(rejected, at)) / len(ours)
    np.testing.assert_allclose(share, at, atol=5 * np.sqrt(0.5 / len(ours)))


def test_no_spread_gives_every_sample_the_rate() -> None:
    np.testing.assert_array_equal(truncated_normal(0.1, 0.0, 5, np.random.default_rng(0)), np.full(5, 0.1))
    noisy = instance(LABELS, 0.1, FEATURES, std=0)
    assert abs(np.mean(noisy != LABELS) - 0.1) < 5 * np.sqrt(0.09 / len(LABELS))
    assert (instance(LABELS, 1, FEATURES, std=0) != LABELS).all()


def flips_by_look(projection: str) -> NDArray[np.int64]:
    """Wrong labels of samples of class 0 and two looks; counts ``(2, c)`` of where they went."""
    look = np.arange(8_000) % 2
    features = np.random.default_rng(0).normal(size=(2, 40))[look]
    noisy = instance(np.zeros(8_000, dtype=np.int64), 0.5, features, 5, projection=projection, seed=1)
    return np.array([np.bincount(noisy[look == which], minlength=5)[1:] for which in (0, 1)])


@pytest.mark.parametrize("projection", ["per-class", "shared"])
def test_wrong_labels_depend_on_the_features(projection: str) -> None:
    counts = flips_by_look(projection)
    shares = counts / counts.sum(axis=1, keepdims=True)
    assert np.abs(shares[0] - shares[1]).sum() > 1, "another look, another wrong label"
    assert (shares.max(axis=1) > 0.5).all(), "one look, one likeliest wrong label"


def test_per_sample_projection_has_no_likeliest_wrong_label() -> None:
    counts = flips_by_look("per-sample")
    total = counts.sum(axis=1, keepdims=True)
    assert (np.abs(counts / total - 0.25) < 5 * np.sqrt(0.1875 / total)).all()


@pytest.mark.parametrize("projection", ["per-class", "shared"])
def test_same_features_same_distribution(projection: str) -> None:
    labels = np.array([2, 0, 2, 1, 2])
    x = np.random.default_rng(0).normal(size=(5, 4))
    x[2] = x[0]
    p = vectorised_probabilities(projection, labels, np.full(5, 0.4), x, 3, seed=0)
    np.testing.assert_allclose(p[0], p[2], rtol=1e-12)
    assert np.abs(p[0] - p[4]).max() > 1e-3


def test_only_per_class_tells_true_labels_apart() -> None:
    labels, x = np.array([0, 1, 0]), np.array([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0]])
    odds = {}
    for projection in ("per-class", "shared"):
        p = vectorised_probabilities(projection, labels, np.full(3, 0.5), x, 4, seed=0)
        odds[projection] = p[:2, 2] / p[:2, 3]  # of two labels that are wrong for both samples
    np.testing.assert_allclose(odds["shared"][0], odds["shared"][1], rtol=1e-9)
    assert abs(np.log(odds["per-class"][0] / odds["per-class"][1])) > 0.1


def test_standardised_features() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(5, 3, size=(1_000, 4)) * [1, 1e-9, 1e9, 1] + [0, 1, 0, 1e6]
    found = Standardised.of(x)[np.arange(1_000)]
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(found.std(axis=0), 1, rtol=1e-9)
    np.testing.assert_allclose(found, (x - x.mean(axis=0)) / x.std(axis=0), atol=1e-5)


def test_constant_features_become_zero() -> None:
    """0.1 a thousand times has a mean a rounding error off 0.1: dividing by that deviation would make it ±1."""
    x = np.column_stack([np.full(1_000, 0.1), np.arange(1_000) * 5e-324, np.full(1_000, -7.0)])
    found = Standardised.of(x)[np.arange(1_000)]
    np.testing.assert_array_equal(found[:, [0, 2]], 0)
    np.testing.assert_allclose(found[:, 1].std(), 1)
    # and labels can still be drawn: with nothing to depend on every wrong label is as likely
    noisy = instance(LABELS, 0.5, np.ones((len(LABELS), 3)))
    p = noise.realised(LABELS, noisy).matrix[~np.eye(6, dtype=bool)]
    assert (np.abs(p - 0.1) < 5 * np.sqrt(0.09 / np.bincount(LABELS).min())).all()


@pytest.mark.parametrize("projection", KINDS)
def test_blocks_do_not_change_the_labels(projection: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = instance(LABELS[:500], 0.4, FEATURES[:500], projection=projection)
    monkeypatch.setattr(MODULE, "BLOCK_NUMBERS", 100)
    np.testing.assert_array_equal(instance(LABELS[:500], 0.4, FEATURES[:500], projection=projection), whole)


@pytest.mark.parametrize("projection", KINDS)
def test_seed_decides(projection: str) -> None:
    one, same, other = (instance(LABELS, 0.4, FEATURES, seed=seed, projection=projection) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_kinds_of_features_agree() -> None:
    labels, pixels = LABELS[:300], np.random.default_rng(0).integers(0, 256, size=(300, 1, 4, 4), dtype=np.uint8)
    expected = instance(labels, 0.5, pixels)
    for features in (torch.from_numpy(pixels), torch.from_numpy(pixels).bfloat16(), pixels.tolist(), pixels / 1.0):
        np.testing.assert_array_equal(instance(labels, 0.5, features), expected)
    learned = torch.from_numpy(pixels).float().requires_grad_()
    np.testing.assert_array_equal(instance(torch.from_numpy(labels), 0.5, learned).numpy(), expected)
    assert len(instance(labels, 0.5, np.arange(300))) == 300, "one number a sample is enough"


def test_features_are_not_modified() -> None:
    features = FEATURES.copy()
    instance(LABELS, 0.4, features)
    np.testing.assert_array_equal(features, FEATURES)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=20),
    st.floats(0, 1),
    st.floats(0, 2),
    st.integers(0, 2**32),
    st.sampled_from(KINDS),
    st.sampled_from([0.0, 1e-300, 1.0, 1e100]),
)
@settings(max_examples=150, deadline=None)
def test_labels_stay_in_range(
    labels: list[int], rate: float, std: float, seed: int, projection: str, scale: float
) -> None:
    features = scale * np.random.default_rng(seed).normal(size=(len(labels), 3))
    noisy = instance(labels, rate, features, 5, seed=seed, projection=projection, std=std)
    assert len(noisy) == len(labels)
    assert set(noisy) <= set(range(5))
    if rate == 0:
        assert noisy == labels
