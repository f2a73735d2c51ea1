"""Estimates of the noise in all, and calibrated probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narl.audit import from_logits
from narl.audit.calibration import calibrated
from narl.audit.noise_estimate import estimate, priors, wilson

Z = 1.6448536269514722


@given(st.integers(1, 500), st.floats(0, 1))
@settings(max_examples=60)
def test_wilson_s_ends_are_where_the_share_is_just_plausible(total: int, part: float) -> None:
    found = round(part * total)
    low, high = (float(end[0]) for end in wilson(np.array([float(found)]), np.array([float(total)])))
    assert 0 <= low <= found / total <= high <= 1
    for end in (low, high):
        if 1e-9 < end < 1 - 1e-9:
            assert abs(found / total - end) == pytest.approx(Z * np.sqrt(end * (1 - end) / total), rel=1e-6)


def test_wilson_s_interval_holds_nine_times_in_ten() -> None:
    rng = np.random.default_rng(0)
    found = rng.binomial(80, 0.3, 4000).astype(float)
    low, high = wilson(found, np.full(4000, 80.0))
    assert 0.86 < ((low <= 0.3) & (high >= 0.3)).mean() < 0.94


def test_nothing_counted_nothing_known() -> None:
    low, high = wilson(np.zeros(1), np.zeros(1))
    assert (low[0], high[0]) == (0.0, 1.0)


@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_the_matrix_counts_suggestions(seed: int, classes: int, samples: int) -> None:
    rng = np.random.default_rng(seed)
    score, given_labels = rng.random(samples), rng.integers(0, classes, samples)
    rival = (given_labels + rng.integers(1, classes, samples)) % classes
    wrong = score < 0.5
    found = estimate(score, wrong, given_labels, rival, classes)
    true = [r if w else g for r, w, g in zip(rival, wrong, given_labels, strict=True)]
    for k in range(classes):
        for a in range(classes):
            here = [g for t, g in zip(true, given_labels, strict=True) if t == k]
            expected = here.count(a) / len(here) if here else float(k == a)
            assert found.matrix[k, a] == pytest.approx(expected)
    np.testing.assert_allclose(found.matrix.sum(axis=1), 1)
    assert found.rate == pytest.approx(wrong.mean())
    assert found.low <= found.rate <= found.high
    assert (found.matrix_low <= found.matrix).all()
    assert (found.matrix <= found.matrix_high).all()
    assert (found.matrix_low >= 0).all()
    assert (found.matrix_high <= 1).all()
    assert priors(wrong, given_labels, rival, classes).sum() == pytest.approx(1)


def test_doubtful_labels_widen_the_intervals() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 400)
    sure = np.where(rng.random(400) < 0.3, 0.1, 0.9)
    doubtful = np.where(sure < 0.5, 0.4, 0.6)
    a, b = (estimate(score, score < 0.5, labels, 1 - labels, 2) for score in (sure, doubtful))
    assert a.rate == b.rate
    assert b.high - b.low > 2 * (a.high - a.low)
    assert ((b.matrix_high - b.matrix_low) > (a.matrix_high - a.matrix_low)).all()


def clean_and_noisy(seed: int, separation: float, count: int) -> tuple[Any, ...]:
    """Clean logits and labels, and logits, given and true labels of as good predictions for noisy ones."""
    rng = np.random.default_rng(seed)
    parts = []
    for size in (300, count):
        true = rng.integers(0, 3, size)
        logits = rng.normal(size=(size, 3))
        logits[np.arange(size), true] += separation
        parts.append((logits, true))
    true = parts[1][1]
    given_labels = np.where(rng.random(count) < 0.3, (true + 1) % 3, true)
    return *parts[0], parts[1][0], given_labels, true


@pytest.mark.parametrize("separation", [1.5, 2.5, 4.0])
def test_probabilities_are_frequencies(separation: float) -> None:
    clean_logits, clean_labels, logits, labels, true = clean_and_noisy(0, separation, 6000)
    wrong = labels != true
    noise, shares = np.array([[0.7, 0.3, 0], [0, 0.7, 0.3], [0.3, 0, 0.7]]), np.full(3, 1 / 3)
    score = from_logits(logits, labels).score
    chance = calibrated(score, noise, shares, clean_logits, clean_labels)
    order = np.argsort(score)
    assert (np.diff(chance[order]) <= 1e-12).all()
    assert chance.mean() == pytest.approx(wrong.mean(), abs=0.03)
    for part in np.array_split(order, 6):
        assert chance[part].mean() == pytest.approx(wrong[part].mean(), abs=0.09)
    stretched = calibrated(score**5, noise, shares, clean_logits, clean_labels)
    np.testing.assert_allclose(stretched, chance, atol=1e-9)  # only the order of the scores counts


def test_a_clean_set_calibrates_an_audit() -> None:
    clean_logits, clean_labels, logits, labels, true = clean_and_noisy(1, 3.0, 4000)
    verdicts = from_logits(5 * logits, labels, clean=(5 * clean_logits, clean_labels))  # a classifier that is too sure
    assert verdicts.probability is not None
    wrong = labels != true
    before, after = (float(((p - wrong) ** 2).mean()) for p in (1 - verdicts.score, verdicts.probability))
    assert after < before
    least = 0.5 / 301
    assert verdicts.probability.min() >= least
    assert verdicts.probability.max() <= 1 - least
    kept = ~verdicts.wrong
    np.testing.assert_allclose(verdicts.confidence[kept], 1 - verdicts.probability[kept])
    assert (verdicts.confidence[verdicts.wrong] <= verdicts.probability[verdicts.wrong] + 1e-12).all()


@given(st.integers(0, 10_000), st.integers(2, 4), st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_pretended_labels_one_by_one(seed: int, classes: int, count: int) -> None:
    """At the margin of each pretended label, the probability is that of a slow isotonic fit."""
    rng = np.random.default_rng(seed)
    logits, labels = rng.normal(size=(count, classes)), rng.integers(0, classes, count)
    noise, shares = rng.dirichlet(np.ones(classes), classes), rng.dirichlet(np.ones(classes))
    pretended = []
    for row in range(count):
        for label in range(classes):
            others = [logits[row, k] for k in range(classes) if k != label]
            weight = shares[labels[row]] / (labels == labels[row]).sum() * noise[labels[row], label]
            pretended.append((logits[row, label] - max(others), weight, float(label != labels[row])))
    pretended.sort()
    blocks: list[list[float]] = []  # weight, weight · wrong, members; neighbours that rise are pooled
    for _, weight, wrong in pretended:
        blocks.append([weight, weight * wrong, 1])
        while len(blocks) > 1 and blocks[-2][1] / blocks[-2][0] < blocks[-1][1] / blocks[-1][0]:
            last = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], last, strict=True)]
    fitted = [block[1] / block[0] for block in blocks for _ in range(int(block[2]))]
    total = sum(weight for _, weight, _ in pretended)
    middles, so_far = [], 0.0
    for _, weight, _ in pretended:
        middles.append((so_far + weight / 2) / total)
        so_far += weight
    score = np.linspace(0.1, 0.9, 7)
    margins = [margin for margin, _, _ in pretended]
    expected = np.interp(np.interp((np.arange(7) + 0.5) / 7, middles, margins), margins, fitted)
    least = 0.5 / (count + 1)
    np.testing.assert_allclose(
        calibrated(score, noise, shares, logits, labels), expected.clip(least, 1 - least), atol=1e-5
    )


def test_isotonic_by_hand() -> None:
    """Two clean samples of two classes: four pretended labels, two of which are out of order and are pooled."""
    logits, labels = np.array([[1.0, 0.0], [3.0, 0.0]]), np.array([0, 1])  # the second one is misjudged
    noise, shares = np.array([[0.8, 0.2], [0.2, 0.8]]), np.array([0.5, 0.5])
    # margins −3: right (0.4); −1: wrong (0.1); 1: right (0.4); 3: wrong (0.1)
    expected = 0.2  # rising, so all four are pooled: 0.2 of the weight is wrong
    np.testing.assert_allclose(calibrated(np.array([0.1, 0.5, 0.9]), noise, shares, logits, labels), expected)
