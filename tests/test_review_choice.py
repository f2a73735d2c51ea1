"""Samples come class by class in turn, the most doubtful first, some at random; no tab waits or sees another's."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narl.audit.review.choice import ORDERS, doubt, evenly, order
from narl.audit.review.waiting import Waiting
from narl.audit.verdicts import Verdicts
from narl.errors import UnknownNameError
from review_desk import made_up


def probable(verdicts: Verdicts) -> list[int]:
    return [int(k) for k in np.where(verdicts.wrong, verdicts.suggested, verdicts.given)]


@given(st.integers(1, 60), st.integers(1, 6), st.integers(0, 99), st.sampled_from([*ORDERS]), st.booleans())
@settings(deadline=None)
def test_classes_take_turns_and_in_each_the_best_comes_first(
    count: int, classes: int, seed: int, how: str, calibrated: bool
) -> None:
    verdicts = made_up(count, tuple(f"class {k}" for k in range(classes)), seed, calibrated=calibrated)
    found = order(verdicts, how, seed=seed)
    assert sorted(found.tolist()) == list(range(count))
    if how == "informative":
        return  # see below
    turns = np.zeros(classes, int)
    seen = [probable(verdicts)[row] for row in found]
    totals = np.bincount(seen, minlength=classes)
    for one in seen:
        # Whoever still has samples is at most one turn behind.
        assert turns[one] == min(turns[k] for k in range(classes) if turns[k] < totals[k])
        turns[one] += 1
    if how != "random":
        cost = verdicts.score if how == "suspicious" else np.abs(doubt(verdicts) - 0.5)
        for k in range(classes):
            own = [cost[row] for row in found if probable(verdicts)[row] == k]
            assert own == sorted(own)


@given(st.integers(0, 99), st.integers(1, 400))
@settings(deadline=None)
def test_informative_answers_stand_for_all_scores_however_many_there_are(seed: int, answers: int) -> None:
    verdicts = made_up(400, ("only",), seed)
    ranks = np.argsort(np.argsort(verdicts.score, kind="stable"), kind="stable") / 400
    taken = np.sort(ranks[order(verdicts, seed=seed)[:answers]])
    off = np.abs(taken - (np.arange(answers) + 0.5) / answers).max()
    assert off <= 2.5 * (1 + np.log2(answers)) / answers, "van der Corput's sequence; a draw would be off by 1/√answers"


def test_informative_answers_favour_small_classes_by_the_root_of_their_size() -> None:
    verdicts = made_up(1000, ("often", "rare", "never"), 0)
    given_ = np.array([0] * 900 + [1] * 100)
    verdicts = dataclasses.replace(verdicts, given=given_, wrong=np.zeros(1000, np.bool_))
    for answers in (8, 40, 200):
        rare = given_[order(verdicts)[:answers]].mean()
        assert rare == pytest.approx(0.25, abs=1.5 / answers)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3)), max_size=40), st.floats(0, 0.99))
def test_even_times_are_a_loop_over_binary_places(drawn: list[tuple[float, int]], begin: float) -> None:
    values, groups = np.array([v for v, _ in drawn]), np.array([g for _, g in drawn], dtype=np.int64)
    found = evenly(values, groups, begin)
    for group in set(groups.tolist()):
        own = np.flatnonzero(groups == group)
        for rank, row in enumerate(own[np.argsort(values[own], kind="stable")]):
            place = (rank + int(begin * len(own))) % len(own)
            backwards = sum(2.0 ** -(1 + bit) for bit, digit in enumerate(f"{place:b}"[::-1]) if digit == "1")
            assert found[row] == backwards


def test_most_doubtful_are_labels_about_to_be_held_for_wrong() -> None:
    verdicts = made_up(1000, ("only",), 3)
    first = verdicts.score[order(verdicts, "doubtful")[:20]]
    assert np.abs(first - 0.2).max() < 0.1
    assert np.all((doubt(verdicts) > 0.5) == verdicts.wrong)
    assert verdicts.score[order(verdicts, "suspicious")[0]] == verdicts.score.min()


@pytest.mark.parametrize("wrong", [True, False])
def test_with_all_labels_wrong_or_right_the_score_decides(wrong: bool) -> None:
    verdicts = dataclasses.replace(made_up(50), wrong=np.full(50, wrong))
    assert doubt(verdicts).tolist() == (1 - verdicts.score).tolist()


def test_scores_that_are_no_numbers_and_unknown_orders() -> None:
    verdicts = made_up(50)
    holes = dataclasses.replace(verdicts, score=np.where(np.arange(50) % 3 == 0, np.nan, verdicts.score))
    assert sorted(order(holes).tolist()) == list(range(50))
    with pytest.raises(UnknownNameError, match="suspicious"):
        order(verdicts, "suspicios")


steps = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["next", "answer", "reopen"]), st.integers(0, 7)))


@given(st.integers(0, 8), steps)
def test_waiting_is_what_a_plain_search_says(count: int, done: list[tuple[str, str, int]]) -> None:
    waiting = Waiting(count)
    answered = [0] * count
    held: dict[str, int] = {}
    for tab, what, place in done:
        if what == "next":
            if tab not in held or answered[held[tab]]:
                held.pop(tab, None)
                free = [at for at in range(count) if not answered[at] and at not in held.values()]
                if free:
                    held[tab] = free[0]
            assert waiting.next(tab, 0.0) == held.get(tab)
        elif place < count and what == "answer":
            answered[place] += 1
            waiting.answered(place)
        elif place < count and answered[place]:
            answered[place] -= 1
            waiting.reopened(place)
        assert waiting.left == answered.count(0)


def test_what_a_closed_tab_held_comes_again() -> None:
    waiting = Waiting(2)
    assert waiting.next("closed", 0.0) == 0
    assert waiting.next("open", 100.0) == 1
    waiting.answered(1)
    assert waiting.next("open", 101.0) is None
    assert waiting.next("open", 1000.0) == 0
