"""Numbers about found wrong labels, against scikit-learn and plain counting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from narl import audit
from narl.bench import findings

pairs = st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=2, max_size=60)


@given(pairs)
@settings(deadline=None, max_examples=30)
def test_rankings_are_scikit_learns_and_ties_count_as_their_mean(drawn: list[tuple[int, bool]]) -> None:
    score, wrong = np.array([s / 12 for s, _ in drawn]), np.array([w for _, w in drawn])
    found = findings.ranking(score, wrong)
    if not wrong.any():
        assert set(found.values()) == {None}
        return
    if not wrong.all():
        assert found["auroc"] == pytest.approx(roc_auc_score(wrong, -score), abs=1e-5)
    assert found["ap"] == pytest.approx(average_precision_score(wrong, -score), abs=1e-5)
    best = max(f1_score(wrong, score <= cut) for cut in set(score))
    assert found["best_f1"] == pytest.approx(best, abs=1e-5)
    k = int(wrong.sum())
    rng = np.random.default_rng(0)
    drawn_orders = [np.lexsort((rng.random(len(score)), score))[:k] for _ in range(300)]
    assert found["precision_at_k"] == pytest.approx(np.mean([wrong[order].mean() for order in drawn_orders]), abs=0.1)


@given(pairs)
def test_the_flagged_set_is_scored_as_by_scikit_learn(drawn: list[tuple[int, bool]]) -> None:
    flagged, wrong = np.array([s > 6 for s, _ in drawn]), np.array([w for _, w in drawn])
    found = findings.flagging(flagged, wrong)
    if wrong.any():
        assert found["f1"] == pytest.approx(f1_score(wrong, flagged), abs=1e-5)
    else:
        assert found["f1"] is None
    assert found["flagged"] == pytest.approx(flagged.mean(), abs=1e-5)


def test_calibration_is_a_mean_over_bins() -> None:
    rng = np.random.default_rng(0)
    chance = rng.random(5000)
    wrong = rng.random(5000) < chance
    slow = 0.0
    for low in np.arange(15) / 15:
        inside = (chance >= low) & (chance < low + 1 / 15)
        slow += abs(chance[inside].mean() - wrong[inside].mean()) * inside.mean()
    assert findings.calibration(chance, wrong) == pytest.approx(slow, abs=1e-3)
    assert findings.calibration(chance, wrong) < 0.03 < findings.calibration(1 - chance, wrong)
    assert findings.calibration(np.array([1.0, 0.0]), np.array([True, False])) == 0


def test_numbers_of_an_audit() -> None:
    rng = np.random.default_rng(0)
    true = rng.integers(0, 3, 600)
    given_ = np.where(rng.random(600) < 0.2, (true + 1) % 3, true)
    logits = 6 * np.eye(3)[true] + rng.normal(size=(600, 3))
    found = findings.of_verdicts(audit.from_logits(logits, given_), true)
    assert found["auroc"] > 0.99
    assert found["f1"] > 0.95
    assert found["suggested_accuracy"] > 0.98 > 0.85 > (given_ == true).mean()
    assert found["suggested_accuracy_of_wrong"] > 0.95
    assert found["calibration_error"] is None
    assert found["low"] <= (given_ != true).mean() <= found["high"]
    assert found["matrix_error"] < 0.05
    right = findings.of_verdicts(audit.from_logits(logits, true), true)
    assert (right["auroc"], right["f1"], right["suggested_accuracy_of_wrong"]) == (None, None, None)
