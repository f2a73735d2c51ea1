"""Where samples are handed out and answers taken in: the review without its web pages."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from narl.audit.review import choice
from narl.audit.review.answers import DECIDED, VERDICTS, Answer, Answers
from narl.audit.review.contents import Contents
from narl.audit.review.waiting import Waiting
from narl.audit.verdicts import Verdicts
from narl.errors import DataError, LabelError, OptionError, SampleIdsError

A_CLASS: Final = 10
"""Checked samples of every class that make a good clean set."""

LONGEST_NAME: Final = 100
_MOST_LABELLERS: Final = 64


@final
class Desk:
    """The samples of a run and the answers about them. Safe to use from many threads.

    Args:
        verdicts: what the run says about its labels, N samples.
        contents: what can be seen of them, in the same order.
        path: the file of the answers.
        order: what comes first, see :func:`narl.audit.review.choice.order`.
        once: whether a sample that one labeller has answered is not shown to the others.

    Raises:
        AnswersError: the file cannot be used.
    """

    def __init__(
        self, verdicts: Verdicts, contents: Contents, path: Path, *, order: str = "informative", once: bool = False
    ) -> None:
        self.verdicts, self.contents, self.once = verdicts, contents, once
        self.classes = verdicts.class_names
        self._order = choice.order(verdicts, order)
        self._place = np.empty_like(self._order)
        self._place[self._order] = np.arange(len(self._order))
        self._by_name = np.argsort(verdicts.ids, kind="stable")
        self._goal = np.minimum(np.bincount(verdicts.given, minlength=len(self.classes)), A_CLASS)
        self._numbers = {name: number for number, name in enumerate(self.classes)}
        self._lock = threading.Lock()
        self._shared = Waiting(len(verdicts)) if once else None
        self._of: dict[str, _Labeller] = {}
        self._strangers: set[tuple[str, str]] = set()
        self._answers = Answers(path)
        with self._lock:
            self._catch_up()
        if contents.kind == "image" and len(contents):
            with suppress(DataError):  # the decoders are loaded now, not while somebody waits
                contents.png(0)

    def close(self) -> None:
        """Let go of the file of the answers."""
        with self._lock:
            self._answers.close()

    @property
    def strangers(self) -> int:
        """Answers in the file about samples that the run does not have; they are kept, and not counted."""
        return len(self._strangers)

    def next(self, labeller: str, tab: str) -> dict[str, Any]:
        """The sample that a tab shows next, and how far the labeller is.

        Args:
            labeller: who answers.
            tab: any name for the place where the sample is shown.

        Returns:
            ``sample``: see :meth:`sample`, None where all are answered; ``progress``: counts.

        Raises:
            OptionError: the labeller or the tab has an impossible name, or there are too many labellers.
        """
        check_name(labeller, "labeller")
        check_name(tab, "tab")
        with self._lock:
            self._catch_up()
            place = self._labeller(labeller).waiting.next(_holder(labeller, tab), time.monotonic())
            return self._shown(labeller, None if place is None else int(self._order[place]))

    def answer(self, labeller: str, tab: str, sample: int, verdict: str, label: int | None) -> dict[str, Any]:
        """Take an answer in; it is on the disk afterwards.

        Args:
            labeller: who answers.
            tab: where.
            sample: the number that :meth:`next` gave.
            verdict: ``"keep"``, ``"relabel"``, ``"unsure"`` or ``"skip"``.
            label: class index of the right label, for ``"relabel"`` only.

        Returns:
            The next sample, as :meth:`next` gives it, and the answer's number as ``answer``.

        Raises:
            SampleIdsError: there is no such sample.
            LabelError: there is no such class, or none was to be given.
            OptionError: there is no such verdict, or a name is impossible.
            AnswersError: the answer could not be written.
        """
        check_name(labeller, "labeller")
        check_name(tab, "tab")
        self.check(sample)
        given = int(self.verdicts.given[sample])
        chosen = self._chosen(verdict, label, given)
        with self._lock:
            self._labeller(labeller)
            number = self._answers.add(
                labeller,
                tab,
                str(self.verdicts.ids[sample]),
                given=self.classes[given],
                verdict=verdict,
                label=None if chosen is None else self.classes[chosen],
            )
        return {"answer": number, **self.next(labeller, tab)}

    def undo(self, labeller: str, tab: str) -> dict[str, Any]:
        """Take the labeller's last answer back and show its sample again.

        Returns:
            The sample, as :meth:`next` gives it, and ``undone``: the verdict that counts no longer, None where there
            was none.

        Raises:
            OptionError: a name is impossible.
            AnswersError: it could not be written.
        """
        check_name(labeller, "labeller")
        check_name(tab, "tab")
        with self._lock:
            undone = self._answers.undo(labeller, tab)
            self._catch_up()
            row = None if undone is None else self._row(undone.sample)
            if undone is not None and row is not None:
                waiting = self._labeller(labeller).waiting
                waiting.hold(_holder(labeller, tab), int(self._place[row]), time.monotonic())
                return {"undone": undone.verdict, **self._shown(labeller, row)}
        return {"undone": None if undone is None else undone.verdict, **self.next(labeller, tab)}

    def check(self, sample: int) -> None:
        """Refuse a number that no sample has."""
        if not 0 <= sample < len(self.verdicts):
            raise SampleIdsError(f"there is no sample {str(sample)[:20]}: the run has 0 … {len(self.verdicts) - 1}")

    def sample(self, sample: int) -> dict[str, Any]:
        """A sample with what the run says about its label, as plain values."""
        verdicts = self.verdicts
        return {
            "number": sample,
            "id": str(verdicts.ids[sample]),
            "given": int(verdicts.given[sample]),
            "suggested": int(verdicts.suggested[sample]),
            "confidence": _plain(verdicts.confidence[sample]),
            "score": _plain(verdicts.score[sample]),
            "wrong": bool(verdicts.wrong[sample]),
            "probability": None if verdicts.probability is None else _plain(verdicts.probability[sample]),
            "content": self.contents.of(sample),
        }

    def _shown(self, labeller: str, row: int | None) -> dict[str, Any]:
        about = self._labeller(labeller)
        reached = int(np.minimum(about.by_class, self._goal).sum())
        progress = {
            **{verdict: about.verdicts[verdict] for verdict in VERDICTS},
            "left": about.waiting.left,
            "reached": reached,
            "goal": int(self._goal.sum()),
            "uncovered": int(((about.by_class == 0) & (self._goal > 0)).sum()),
        }
        return {"sample": None if row is None else self.sample(row), "progress": progress}

    def _chosen(self, verdict: str, label: int | None, given: int) -> int | None:
        """The class that an answer says is right."""
        if verdict not in VERDICTS:
            raise OptionError(f"no answer is called {verdict!r:.80}: use {', '.join(VERDICTS)}")
        if verdict != "relabel":
            if label is not None:
                raise LabelError(f"{verdict} takes no label: leave it out, or answer relabel")
            return given if verdict == "keep" else None
        if label is None or not 0 <= label < len(self.classes):
            raise LabelError(f"there is no label {str(label)[:20]}: the classes are 0 … {len(self.classes) - 1}")
        if label == given:
            raise LabelError(f"the sample has label {label} already: answer keep, or choose another one")
        return label

    def _labeller(self, name: str, *, has_answered: bool = False) -> _Labeller:
        if name not in self._of:
            if len(self._of) >= _MOST_LABELLERS and not has_answered:
                raise OptionError(f"there are {_MOST_LABELLERS} labellers already: use one of their names")
            waiting = Waiting(len(self.verdicts)) if self._shared is None else self._shared
            self._of[name] = _Labeller(waiting, len(self.classes))
        return self._of[name]

    def _catch_up(self) -> None:
        """Learn of every answer that was written or undone, also by other processes."""
        for labeller, sample, answer in self._answers.news():
            row = self._row(sample)
            if row is None:
                self._strangers.add((labeller, sample))
                continue
            self._labeller(labeller, has_answered=True).note(int(self._place[row]), answer, self._numbers)

    def _row(self, sample: str) -> int | None:
        ids = self.verdicts.ids
        place = int(np.searchsorted(ids, sample, sorter=self._by_name))
        if place == len(ids) or ids[self._by_name[place]] != sample:
            return None
        return int(self._by_name[place])


@final
class _Labeller:
    """How far one labeller is."""

    def __init__(self, waiting: Waiting, num_classes: int) -> None:
        self.waiting = waiting
        self.verdicts: Counter[str] = Counter()
        self.by_class: NDArray[np.int64] = np.zeros(num_classes, np.int64)
        self._standing: dict[int, tuple[str, int]] = {}

    def note(self, place: int, answer: Answer | None, numbers: dict[str, int]) -> None:
        """What stands now about a place."""
        before = self._standing.pop(place, None)
        if before is not None:
            self._count(*before, -1)
        if answer is not None:
            decided = answer.verdict in DECIDED and answer.label is not None
            self._standing[place] = (answer.verdict, numbers.get(answer.label or "", -1) if decided else -1)
            self._count(*self._standing[place], 1)
        if before is None and answer is not None:
            self.waiting.answered(place)
        if before is not None and answer is None:
            self.waiting.reopened(place)

    def _count(self, verdict: str, label: int, by: int) -> None:
        self.verdicts[verdict] += by
        if label >= 0:
            self.by_class[label] += by


def check_name(name: str, what: str) -> None:
    """Refuse a name that is empty, very long, or has characters that cannot be seen."""
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable() or name != name.strip():
        raise OptionError(
            f"the {what}'s name must have 1 to {LONGEST_NAME} characters that can be seen: choose another one"
        )


def _holder(labeller: str, tab: str) -> str:
    return f"{labeller}\n{tab}"  # no name has a line's end


def _plain(value: np.floating[Any]) -> float | None:
    return float(value) if math.isfinite(value) else None
