"""An audit by a classifier that contradicts right labels, too, says so, and others do not."""

from __future__ import annotations

import numpy as np
import pytest

from narl import audit
from narl.audit.doubts import doubt_of
from narl.audit.report.data import page_data
from narl.cli.audit import _likely


def said(mistakes: float, noise: float, *, clean: bool = True) -> audit.Verdicts:
    """Of a classifier that is sure, and mistaken about a share of all samples."""
    rng = np.random.default_rng(0)
    true = rng.integers(0, 3, 900)
    seen = np.where(rng.random(900) < mistakes, (true + 1) % 3, true)
    logits = 6 * np.eye(3)[seen] + rng.normal(size=(900, 3))
    given = np.where(rng.random(900) < noise, (true + 2) % 3, true)
    return audit.from_logits(logits[300:], given[300:], clean=(logits[:300], true[:300]) if clean else None)


@pytest.mark.parametrize(("mistakes", "noise", "doubted"), [(0.02, 0.3, False), (0.4, 0.3, True), (0.2, 0.0, True)])
def test_mistakes_of_the_classifier_are_told_from_noise(mistakes: float, noise: float, doubted: bool) -> None:
    verdicts = said(mistakes, noise)
    assert verdicts.contradicted == pytest.approx(mistakes, abs=0.06)
    note = doubt_of(verdicts)
    assert (note is not None) is doubted
    notes = page_data(verdicts, title="run")["notes"]
    assert (len(notes) == 1 and "which are right" in notes[0]) if doubted else notes == []


def test_without_clean_samples_little_is_known() -> None:
    verdicts = said(0.1, 0.3, clean=False)
    assert verdicts.contradicted is None
    assert doubt_of(verdicts) is None


def test_a_classifier_that_contradicts_most_labels_is_doubted() -> None:
    verdicts = said(0.5, 0.3, clean=False)
    note = doubt_of(verdicts)
    assert note is not None
    assert f"contradicts {verdicts.wrong.mean():.1%} of all labels" in note
    assert note[1:] in page_data(verdicts, title="run")["notes"][0]


@pytest.mark.parametrize("stubborn", [0.0, 0.05, 0.3])
def test_a_classifier_with_one_class_for_everything_is_doubted(stubborn: float) -> None:
    rng = np.random.default_rng(0)
    given = rng.choice(3, 900, p=[0.6, 0.2, 0.2])
    right = rng.random(900) < stubborn  # of these it has learned something
    logits = 6 * np.eye(3)[np.where(right, given, 0)] + rng.normal(size=(900, 3))
    note = doubt_of(audit.from_logits(logits, given))
    if stubborn > 0.1:
        assert note is None
    else:
        assert note is not None
        assert "% of all samples '0'" in note


def test_few_of_another_class_are_no_reason_to_doubt() -> None:
    given = np.repeat([0, 1], [1990, 10])
    assert doubt_of(audit.from_logits(6 * np.eye(2)[np.zeros(2000, dtype=int)], given)) is None


def test_nothing_is_sure_to_the_last_digit() -> None:
    assert [_likely(chance) for chance in (0.9999, 0.876, 0)] == ["over 99% likely", "88% likely", "under 1% likely"]
