"""How much an epoch has to say: against slow versions, and where the answer is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import roc_auc_score

from narl.audit import epochs
from narl.audit.threshold import threshold


def values(seed: int, times: int, samples: int, missing: float = 0.0) -> Any:
    rng = np.random.default_rng(seed)
    found = np.tanh(rng.normal(size=(times, samples)) * rng.exponential(3, (times, 1)))
    found[rng.random((times, samples)) < missing] = np.nan
    return found


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 40), st.sampled_from([0.0, 0.4]))
@settings(max_examples=60, deadline=None)
def test_clearness_is_the_variance_between_two_groups(seed: int, times: int, samples: int, missing: float) -> None:
    x = values(seed, times, samples, missing)
    for weight, epoch in zip(epochs.clearness(x), x, strict=True):
        known = sorted(v for v in epoch.tolist() if not math.isnan(v))
        between = [
            cut * (len(known) - cut) / len(known) ** 2 * (np.mean(known[cut:]) - np.mean(known[:cut])) ** 2
            for cut in range(1, len(known))
        ]
        best = max(between, default=0.0)
        assert weight <= best**2 + 0.01 + 1e-12
        assert weight >= max(best - 0.02, 0.0) ** 2 + 0.01  # the cuts lie a hundredth apart


def case(seed: int = 0, samples: int = 2_000) -> tuple[Any, Any]:
    """Margins of an unsure epoch, of one that parts the labels, and of one that learned them by heart."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(samples) < 0.3
    unsure = rng.normal(np.where(wrong, -0.2, 0.3), 1.0)
    parted = rng.normal(np.where(wrong, -5.0, 5.0), 1.5)
    by_heart = rng.normal(np.where(wrong, 8.5, 9.0), 1.5)
    return np.stack([unsure, parted, by_heart]), wrong


def test_epochs_that_part_labels_count_more_than_unsure_ones_and_those_that_learned_them_by_heart() -> None:
    margins, _ = case()
    first, second, third = epochs.weights_of(margins)
    assert second > 0.8
    assert second > 5 * max(first, third)
    sized = np.tanh(margins / np.abs(margins).mean(axis=1, keepdims=True))
    clear = epochs.clearness(sized)
    assert clear[1] > clear[0] > 5 * clear[2]


def test_the_weights_solve_the_stated_problem() -> None:
    rng = np.random.default_rng(3)
    wrong = rng.random(500) < 0.3
    x = np.tanh(rng.normal(np.where(wrong, -1.0, 1.0), 1.0, (6, 500)) + rng.normal(size=(1, 500)))
    x[4] = np.tanh(rng.normal(np.where(wrong, 0.5, -0.5)))  # says the contrary: must not count
    low, high = x[:, wrong].mean(axis=1), x[:, ~wrong].mean(axis=1)
    within = (np.cov(x[:, wrong], bias=True) * wrong.sum() + np.cov(x[:, ~wrong], bias=True) * (~wrong).sum()) / 500
    within += np.trace(within) / 6 * np.eye(6)
    slow = minimize(
        lambda w: w @ within @ w / 2 - w @ (high - low), np.ones(6), bounds=[(0, None)] * 6, options={"ftol": 1e-14}
    )
    found = epochs._discriminant(x, wrong)
    np.testing.assert_allclose(found, slow.x, atol=1e-5)
    assert found[4] == 0


def test_without_limits_it_is_the_usual_discriminant() -> None:
    rng = np.random.default_rng(4)
    wrong = rng.random(3_000) < 0.4
    x = np.clip(rng.normal(np.where(wrong, -0.3, 0.3), [[0.1], [0.2], [0.4]], (3, 3_000)), -1, 1)
    found = epochs._discriminant(x, wrong)
    assert (found > 0).all()  # so the limit does nothing
    target = np.trace(LinearDiscriminantAnalysis(solver="lsqr", store_covariance=True).fit(x.T, wrong).covariance_) / 3
    within = LinearDiscriminantAnalysis(solver="lsqr", store_covariance=True).fit(x.T, wrong).covariance_
    direction = np.linalg.solve(within + target * np.eye(3), x[:, ~wrong].mean(axis=1) - x[:, wrong].mean(axis=1))
    np.testing.assert_allclose(found / found.sum(), direction / direction.sum(), rtol=1e-6)


def test_epochs_that_say_the_same_share_their_weight() -> None:
    margins, _ = case()
    alone = epochs.weights_of(margins)
    twice = epochs.weights_of(np.concatenate([margins, margins[1:2]]))
    assert twice[1] == pytest.approx(twice[3])
    assert twice[1] + twice[3] == pytest.approx(alone[1], abs=0.05)


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 60), st.sampled_from([0.0, 0.3, 1.0]))
@settings(max_examples=60, deadline=None)
def test_weights_are_shares_whatever_the_margins(seed: int, times: int, samples: int, missing: float) -> None:
    margins = values(seed, times, samples, missing) * 7
    found = epochs.weights_of(margins)
    assert found.shape == (times,)
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(1)
    np.testing.assert_allclose(epochs.weights_of(margins * 1000), found, rtol=1e-6)  # the scale of logits says nothing


def test_one_group_of_labels_is_weighed_by_clearness() -> None:
    margins = np.full((2, 500), 3.0)
    np.testing.assert_allclose(epochs.weights_of(margins), 0.5)


def test_many_samples_are_looked_at_in_part() -> None:
    margins, wrong = case(1, 120_000)
    np.testing.assert_allclose(epochs.weights_of(margins), epochs.weights_of(margins[:, ::3]), atol=1e-12)
    score = epochs.weights_of(margins) @ np.tanh(margins / np.abs(margins).mean(axis=1, keepdims=True))
    assert roc_auc_score(wrong, -score) > 0.999
    assert 0.45 <= threshold((1 + score) / 2) <= 0.55
