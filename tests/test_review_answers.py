"""Answers are on the disk when they are confirmed, nobody's overwrite another's, and what stands can be told."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from full_disk import file_size_limit
from narl.audit.review.agreement import agreed, read_agreed, write_list
from narl.audit.review.answers import FILE, Answer, Answers
from narl.data.id_file import is_id_file, read_id_file
from narl.errors import AnswersError, DataError
from review_desk import NASTY


def says(answers: Answers, who: str, sample: str, label: str | None, *, tab: str = "t", given: str = "cat") -> int:
    verdict = "unsure" if label is None else "keep" if label == given else "relabel"
    return answers.add(who, tab, sample, given=given, verdict=verdict, label=label)


def test_answers_are_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    answers = Answers(tmp_path / FILE)
    says(answers, "Ada", "1", "dog")
    says(answers, "Ada", "2", None)
    answers.close()
    again = Answers(tmp_path / FILE, create=False)
    assert [(one.sample, one.verdict, one.label) for one in again.standing()] == [
        ("1", "relabel", "dog"),
        ("2", "unsure", None),
    ]
    assert again.standing()[0].at.endswith("Z")
    again.close()


def test_every_write_reaches_the_disk_before_it_returns(tmp_path: Path) -> None:
    answers = Answers(tmp_path / FILE)
    connection = answers._connection
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    answers.close()


def test_a_later_answer_replaces_the_earlier_and_undo_brings_it_back(tmp_path: Path) -> None:
    answers = Answers(tmp_path / FILE)
    says(answers, "Ada", "1", "cat")
    says(answers, "Ada", "1", "dog")
    assert [one.label for one in answers.standing()] == ["dog"]
    undone = answers.undo("Ada", "t")
    assert undone is not None
    assert undone.label == "dog"
    assert [one.label for one in answers.standing()] == ["cat"]
    assert answers.undo("Ada", "t") is not None
    assert answers.undo("Ada", "t") is None
    assert answers.standing() == []
    answers.close()


def test_the_same_answer_sent_twice_counts_once(tmp_path: Path) -> None:
    answers = Answers(tmp_path / FILE)
    assert says(answers, "Ada", "1", "dog") == says(answers, "Ada", "1", "dog")
    answers.undo("Ada", "t")
    assert answers.standing() == []
    answers.close()


def test_undo_takes_the_tabs_own_answer_first(tmp_path: Path) -> None:
    answers = Answers(tmp_path / FILE)
    says(answers, "Ada", "1", "dog", tab="left")
    says(answers, "Ada", "2", "dog", tab="right")
    says(answers, "Bob", "3", "dog", tab="left")
    undone = [answers.undo("Ada", "left"), answers.undo("Ada", "left"), answers.undo("Ada", "left")]
    assert [one and one.sample for one in undone] == ["1", "2", None]
    assert [one.labeller for one in answers.standing()] == ["Bob"]
    answers.close()


def test_two_processes_learn_of_each_other(tmp_path: Path) -> None:
    first, second = Answers(tmp_path / FILE), Answers(tmp_path / FILE)
    assert first.news() == second.news() == []
    says(first, "Ada", "1", "dog")
    says(second, "Bob", "1", "cat")
    for one in (first, second):
        assert sorted((who, sample, answer and answer.label) for who, sample, answer in one.news()) == [
            ("Ada", "1", "dog"),
            ("Bob", "1", "cat"),
        ]
        assert one.news() == []
    second.undo("Ada", "t")
    assert first.news() == [("Ada", "1", None)]
    first.close()
    second.close()


def test_many_can_begin_at_the_same_moment(tmp_path: Path) -> None:
    gate = threading.Barrier(6)
    failed: list[BaseException] = []

    def begin(name: str) -> None:
        gate.wait()
        try:
            answers = Answers(tmp_path / FILE)
            says(answers, name, "1", "dog")
            answers.close()
        except AnswersError as error:
            failed.append(error)

    threads = [threading.Thread(target=begin, args=(f"labeller {k}",)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers = Answers(tmp_path / FILE, create=False)
    assert failed == []
    assert sorted(answer.labeller for answer in answers.standing()) == [f"labeller {k}" for k in range(6)]
    answers.close()


def test_names_that_are_no_utf8_are_kept(tmp_path: Path) -> None:
    answers = Answers(tmp_path / FILE)
    for name in NASTY:
        says(answers, "Ada", name, name, given=name)
    assert {(one.sample, one.label) for one in answers.standing()} == {(name, name) for name in NASTY}
    assert {sample for _, sample, _ in answers.news()} == set(NASTY)
    answers.close()


def test_files_of_something_else_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AnswersError, match="check some labels with narl review first"):
        Answers(tmp_path / FILE, create=False)
    (tmp_path / "text").write_text("no database, " * 200)
    with pytest.raises(AnswersError, match="not a database"):
        Answers(tmp_path / "text")
    other = sqlite3.connect(tmp_path / "other")
    other.execute("CREATE TABLE x (y)")
    other.close()
    with pytest.raises(AnswersError, match="something else"):
        Answers(tmp_path / "other")
    Answers(tmp_path / "newer").close()
    newer = sqlite3.connect(tmp_path / "newer")
    newer.execute("PRAGMA user_version = 2")
    newer.close()
    with pytest.raises(AnswersError, match="upgrade narl"):
        Answers(tmp_path / "newer")
    with pytest.raises(AnswersError, match="cannot be opened"):
        Answers(tmp_path / "nowhere" / FILE)


def test_a_full_disk_loses_nothing_that_was_confirmed(tmp_path: Path) -> None:
    answers = Answers(tmp_path / FILE)
    confirmed = []

    def answer_many() -> None:
        for number in range(1000):
            says(answers, "Ada", str(number) * 1000, "dog")
            confirmed.append(str(number) * 1000)

    with file_size_limit(120_000), pytest.raises(AnswersError, match="answer again"):
        answer_many()
    assert [one.sample for one in answers.standing()] == confirmed
    says(answers, "Ada", "after", "dog")
    answers.close()
    again = Answers(tmp_path / FILE)
    assert [one.sample for one in again.standing()] == [*confirmed, "after"]
    again.close()


moves = st.lists(
    st.tuples(
        st.sampled_from("AB"),
        st.sampled_from("lr"),
        st.sampled_from("123"),
        st.sampled_from(["cat", "dog", None, "undo"]),
    ),
    max_size=25,
)


@given(moves)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_stands_is_what_a_plain_list_says(tmp_path: Path, done: list[tuple[str, str, str, str | None]]) -> None:
    path = tmp_path / FILE
    for file in tmp_path.iterdir():
        file.unlink()
    answers, watcher = Answers(path), Answers(path)
    answers._connection.execute("PRAGMA synchronous = OFF")  # hundreds of writes: the disk is not what is tried here
    told: dict[tuple[str, str], str | None] = {}
    log: list[tuple[str, str, str, str | None]] = []
    for who, tab, sample, label in done:
        if label == "undo":
            answers.undo(who, tab)
            own = [one for one in log if one[:2] == (who, tab)] or [one for one in log if one[0] == who]
            if own:
                del log[len(log) - 1 - log[::-1].index(own[-1])]
        else:
            says(answers, who, sample, label, tab=tab)
            last = [one for one in log if (one[0], one[2]) == (who, sample)][-1:]
            if last != [(who, tab, sample, label)]:
                log.append((who, tab, sample, label))
        for one, about, answer in watcher.news():
            told[one, about] = "gone" if answer is None else answer.label
    expected = {(who, sample): label for who, _, sample, label in log}
    assert {(one.labeller, one.sample): one.label for one in answers.standing()} == expected
    assert {pair: label for pair, label in told.items() if label != "gone"} == expected
    answers.close()
    watcher.close()


labels = st.sampled_from(["cat", "dog", None])


@given(st.dictionaries(st.tuples(st.sampled_from("ABC"), st.sampled_from("1234")), labels))
def test_agreed_is_unanimous_among_those_who_named_a_label(said: dict[tuple[str, str], str | None]) -> None:
    found = agreed(
        Answer(n, who, sample, "cat", "skip" if label is None else "keep", label, "")
        for n, ((who, sample), label) in enumerate(said.items())
    )
    for sample in {sample for _, sample in said}:
        named = {label for (_, other), label in said.items() if other == sample and label is not None}
        assert found.labels.get(sample) == (next(iter(named)) if len(named) == 1 else None)
        assert (sample in found.conflicts) == (len(named) > 1)
        assert (sample in found.undecided) == (not named)


def test_the_list_of_agreed_samples_is_read_as_a_clean_set(tmp_path: Path) -> None:
    answers = Answers(tmp_path / FILE)
    with pytest.raises(AnswersError, match="no sample with an agreed label"):
        write_list(read_agreed(tmp_path), tmp_path, tmp_path)
    nasty = [name for name in NASTY if "\udcff" not in name]
    for name in nasty:
        says(answers, "Ada", name, 'dog, "small"')
    first = write_list(read_agreed(tmp_path), tmp_path, tmp_path)
    assert is_id_file(first)
    assert read_id_file(first) == (sorted(nasty), ['dog, "small"'] * len(nasty))
    assert write_list(read_agreed(tmp_path), tmp_path, tmp_path) == first
    says(answers, "Bob", nasty[0], "fox")
    second = write_list(read_agreed(tmp_path), tmp_path, tmp_path)
    assert second != first
    assert first.exists()
    assert len(read_id_file(second)[0]) == len(nasty) - 1
    says(answers, "Ada", "name\udcff", "dog")
    with pytest.raises(DataError, match="no UTF-8"):
        write_list(read_agreed(tmp_path), tmp_path, tmp_path)
    answers.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({first.name, second.name, FILE})
