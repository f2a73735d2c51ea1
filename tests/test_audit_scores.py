"""The score and what is made of it, against slow and obvious versions."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from narl.audit import evidence, from_logits
from narl.audit.threshold import centred, threshold
from narl.bilevel.rivals import rivals
from narl.errors import DataError, LabelError, LogitsError


def epochs(seed: int, times: int, samples: int, classes: int, missing: float = 0.0) -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, samples)
    margins = rng.normal(size=(times, samples)) * rng.exponential(3, (times, 1))
    others = (labels + rng.integers(1, classes, (times, samples))) % classes
    gaps = rng.random((times, samples)) < missing
    gaps[rng.integers(0, times, samples), np.arange(samples)] = False  # every sample has a margin
    margins[gaps] = np.nan
    return margins, np.where(gaps, np.nan, others), labels, rng.random(times)


def one_by_one(margins: Any, others: Any, labels: Any, weights: Any, sample: int) -> tuple[float, dict[int, float]]:
    """Support of one label and the evidence for other classes, epoch by epoch."""
    seen = [t for t in range(len(margins)) if not math.isnan(margins[t, sample])]
    total = sum(weights[t] for t in seen)
    support, against = 0.0, defaultdict[int, float](float)
    for t in seen:
        known = [abs(m) for m in margins[t] if not math.isnan(m)]
        scaled = margins[t, sample] / (sum(known) / len(known))
        part = weights[t] / total
        support += part * (1 + math.tanh(scaled)) / 2
        against[int(others[t, sample])] += part * (1 - math.tanh(scaled)) / 2
    return support, against


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 9), st.integers(2, 5), st.sampled_from([0.0, 0.4]))
@settings(max_examples=60, deadline=None)
def test_epochs_are_summed_as_by_hand(seed: int, times: int, samples: int, classes: int, missing: float) -> None:
    margins, others, labels, weights = epochs(seed, times, samples, classes, missing)
    found = evidence.from_epochs(margins, others, labels, weights, classes)
    for sample in range(samples):
        support, against = one_by_one(margins, others, labels, weights, sample)
        assert found.support[sample] == pytest.approx(support, abs=1e-12)
        strongest = max(against.values())
        assert against[int(found.rival[sample])] == pytest.approx(strongest, abs=1e-12)
        assert found.share[sample] == pytest.approx(strongest / sum(against.values()), abs=1e-9)
    assert (found.rival != labels).all()
    assert ((found.rival >= 0) & (found.rival < classes)).all()


def test_pieces_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    case = epochs(0, 5, 50, 4, 0.2)
    whole = evidence.from_epochs(*case, 4)
    logits = np.random.default_rng(0).normal(size=(50, 4))
    predicted = evidence.from_logits(logits, case[2])
    monkeypatch.setattr(evidence, "_BLOCK", 70)
    for one, other in ((whole, evidence.from_epochs(*case, 4)), (predicted, evidence.from_logits(logits, case[2]))):
        for name in ("support", "rival", "share", "margin"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_an_epoch_s_scale_does_not_matter_and_a_margin_raises_support() -> None:
    margins, others, labels, weights = epochs(1, 4, 20, 3)
    before = evidence.from_epochs(margins, others, labels, weights, 3).support
    scaled = evidence.from_epochs(margins * [[1.0], [50.0], [0.01], [3.0]], others, labels, weights, 3).support
    np.testing.assert_allclose(scaled, before, atol=1e-12)
    raised = margins.copy()
    raised[2, 5] += 0.5 * np.abs(margins[2]).mean()
    assert evidence.from_epochs(raised, others, labels, weights, 3).support[5] > before[5]


def test_weights_that_are_all_zero_count_alike() -> None:
    margins, others, labels, _ = epochs(2, 3, 8, 3)
    zero, equal = (evidence.from_epochs(margins, others, labels, w, 3).support for w in (np.zeros(3), np.ones(3)))
    np.testing.assert_allclose(zero, equal, atol=1e-15)


def test_margins_seen_only_when_the_rate_was_zero_still_count() -> None:
    margins = np.array([[1.0, np.nan], [2.0, -2.0]])
    found = evidence.from_epochs(
        margins, np.array([[1.0, np.nan], [1.0, 1.0]]), np.array([0, 0]), np.array([1.0, 0]), 2
    )
    assert found.support[1] == pytest.approx((1 + math.tanh(-1)) / 2)


def test_without_rivals_the_support_is_the_same() -> None:
    margins, others, labels, weights = epochs(3, 4, 10, 3)
    found = evidence.from_epochs(margins, None, labels, weights, 3)
    np.testing.assert_array_equal(found.support, evidence.from_epochs(margins, others, labels, weights, 3).support)
    assert not found.share.any()


@given(st.integers(0, 10_000), st.integers(2, 6), st.sampled_from([1.0, 30.0, 500.0]))
@settings(max_examples=50, deadline=None)
def test_predictions_are_the_softmax(seed: int, classes: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    logits, labels = rng.normal(size=(6, classes)) * size, rng.integers(0, classes, 6)
    found = evidence.from_logits(logits, labels)
    for row, label in enumerate(labels.tolist()):
        z = torch.tensor(logits[row])
        assert found.support[row] == pytest.approx(float(z.softmax(0)[label]), rel=1e-9, abs=1e-300)
        others = [k for k in range(classes) if k != label]
        assert found.rival[row] == max(others, key=lambda k: logits[row, k])
        assert found.share[row] == pytest.approx(float(z[others].softmax(0).max()), rel=1e-9)
        assert found.margin[row] == pytest.approx(logits[row, label] - max(logits[row, k] for k in others))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
@settings(max_examples=80, deadline=None)
def test_the_threshold_is_the_cheapest_cut(values: list[float]) -> None:
    support = np.array(values)
    cut = threshold(support)
    assert 0.45 <= cut <= 0.55
    binned = np.minimum(np.floor(support * 200), 199) / 200 + 1 / 400

    def cost(at: float) -> float:
        low, high = binned[binned < at], binned[binned >= at]
        if not len(low) or not len(high):
            return math.inf
        within = (((low - low.mean()) ** 2).sum() + ((high - high.mean()) ** 2).sum()) / len(binned)
        shares = (len(low) / len(binned), len(high) / len(binned))
        return math.log(max(within, (1 / 200) ** 2 / 12)) / 2 - sum(p * math.log(p) for p in shares)

    cheapest = min(cost(at / 200) for at in range(90, 111))
    if math.isinf(cheapest):
        assert cut == 0.5
    elif math.isinf(cost(cut)) or cost(cut) > cheapest + 1e-6:  # between cheapest cuts that are not side by side
        cheap = [at / 200 for at in range(90, 111) if cost(at / 200) <= cheapest + 1e-6]
        assert cheap[0] < cut < cheap[-1]


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20), st.floats(0.4, 0.6))
def test_centring_keeps_the_order_and_moves_the_cut_to_one_half(values: list[float], cut: float) -> None:
    support = np.sort(np.array(values))
    score = centred(support, cut)
    assert (np.diff(score) >= 0).all()
    assert ((score >= 0) & (score <= 1)).all()
    assert centred(np.array([cut]), cut)[0] == pytest.approx(0.5)


def planted(seed: int, samples: int = 600, classes: int = 4, rate: float = 0.25) -> tuple[Any, Any, Any]:
    """Logits of a good classifier, given labels, true labels."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, classes, samples)
    shift = rng.integers(1, classes, samples)
    labels = np.where(rng.random(samples) < rate, (true + shift) % classes, true)
    logits = rng.normal(size=(samples, classes))
    logits[np.arange(samples), true] += 5
    return logits, labels, true


def test_wrong_labels_are_found_and_mended() -> None:
    logits, labels, true = planted(0)
    verdicts = from_logits(logits, labels, class_names=["a", "b", "c", "d"])
    wrong = labels != true
    assert (verdicts.wrong == wrong).mean() > 0.98
    assert (verdicts.suggested == true).mean() > 0.98
    assert verdicts.noise.low <= wrong.mean() <= verdicts.noise.high
    assert verdicts.noise.rate == pytest.approx(wrong.mean(), abs=0.02)
    np.testing.assert_array_equal(verdicts.wrong, verdicts.suggested != verdicts.given)
    np.testing.assert_array_equal(verdicts.wrong, verdicts.score < 0.5)
    assert ((verdicts.confidence >= 0) & (verdicts.confidence <= 1)).all()
    assert (verdicts.family == -1).all()


def test_arrays_lists_and_tensors_are_the_same() -> None:
    logits, labels, _ = planted(1, 40)
    arrays = from_logits(logits.astype(np.float32), labels.astype(np.int32))
    for other in (
        from_logits(torch.tensor(logits, dtype=torch.float32), torch.tensor(labels)),
        from_logits(logits.astype(np.float32).tolist(), labels.tolist(), ids=[str(row) for row in range(40)]),
    ):
        np.testing.assert_allclose(other.score, arrays.score)
        assert other.ids.tolist() == arrays.ids.tolist()
    half = from_logits(torch.tensor(logits, dtype=torch.bfloat16), torch.tensor(labels))
    np.testing.assert_allclose(half.score, arrays.score, atol=0.05)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"logits": np.zeros((4, 1))}, LogitsError, "two classes or more"),
        ({"logits": np.zeros(4)}, LogitsError, "shape"),
        ({"logits": [[0.0, 1.0], [0.0]]}, LogitsError, "one row a sample"),
        ({"logits": np.array([[0.0, np.nan]] * 4)}, LogitsError, "NaN or infinity in 4 of 4"),
        ({"labels": [0, 1, 1, 2]}, LabelError, "renumber"),
        ({"labels": [0, 1, 1]}, LabelError, "one class index a sample"),
        ({"labels": [0.0, 1.0, 1.0, 0.0]}, LabelError, "type float64"),
        ({"class_names": ["a"]}, DataError, "give every class a name of its own"),
        ({"class_names": ["a", "a"]}, DataError, "1 of them different"),
        ({"ids": ["a"]}, DataError, "one id a sample"),
        ({"clean": (np.zeros((2, 3)), [0, 1])}, LogitsError, "use one classifier"),
        ({"clean": (np.zeros((2, 2)), [0, 2])}, LabelError, "clean labels run from 0 to 2"),
    ],
)
def test_what_cannot_be_meant_is_refused(change: dict[str, Any], error: type[Exception], says: str) -> None:
    good: dict[str, Any] = {"logits": np.zeros((4, 2)), "labels": [0, 1, 1, 0]}
    with pytest.raises(error, match=says):
        from_logits(**{**good, **change})


@given(st.integers(0, 10_000), st.integers(2, 7), st.booleans())
@settings(max_examples=30, deadline=None)
def test_a_rival_is_the_best_class_beside_the_label(seed: int, classes: int, soft: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(5, classes, generator=generator)
    labels = torch.randint(0, classes, (5,), generator=generator)
    targets = torch.nn.functional.one_hot(labels, classes) * 0.8 + 0.2 / classes if soft else labels
    for row, rival in enumerate(rivals(logits, targets).tolist()):
        assert rival == max((k for k in range(classes) if k != labels[row]), key=lambda k: float(logits[row, k]))
