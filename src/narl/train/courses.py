"""A training as a coroutine: it asks for one step after the other, whoever drives it does them.

So one process can go through several trainings side by side, and do a step of all of them as one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, final

import torch
from torch import Tensor

from narl.bilevel import StepReport
from narl.errors import NarlError
from narl.train.engine import Engine
from narl.train.engine.culprits import OfOne
from narl.train.engine.seats import Seat
from narl.train.engine.stack import Stack

T = TypeVar("T")


@final
@dataclass(frozen=True, eq=False)
class Batch:
    """What the next step is done on, and by whom.

    Args:
        engine: of the training that asks.
        x: inputs ``(N, …)``.
        y: given labels.
        ids: the samples' positions in the training set, ``(N,)``.
    """

    engine: Engine
    x: Any
    y: Tensor
    ids: Tensor


Course: TypeAlias = Generator[Batch, StepReport, T]


def driven(course: Course[T]) -> T:
    """Go through a training, each step done by its own engine.

    Args:
        course: at its beginning.

    Returns:
        What it returns at its end.
    """
    try:
        batch = next(course)
        while True:
            try:
                report = batch.engine.step(batch.x, batch.y, batch.ids)
            except BaseException as error:
                batch = course.throw(error)  # the training cleans up, and the error comes back
            else:
                batch = course.send(report)
    except StopIteration as end:
        result: T = end.value
        return result


def driven_as_one(
    courses: Sequence[Course[T]],
    stack: Stack,
    names: Sequence[Callable[[int], str]],
    between: Callable[[], None],
) -> list[T]:
    """Go through several trainings side by side, a step of each whose turn it is at a time; the stack does it as one.

    What goes wrong in one of them ends all, and the error names it: those that have a checkpoint can be resumed.

    Args:
        courses: at their beginnings, with seats in the stack.
        stack: that does their steps.
        names: what to call each training in an error, given which of the steps since it began or went on it is about.
        between: called before each step that all of them make.

    Returns:
        What each returns at its end.
    """
    results: dict[int, T] = {}
    waiting: dict[int, Batch] = {}
    numbers: dict[Seat, int] = {}

    def advance(number: int, report: StepReport | None) -> None:
        try:
            if report is None:
                with torch.random.fork_rng(devices=[]):
                    waiting[number] = next(courses[number])
                    numbers[_seat(waiting[number])] = number
                    if not _seat(waiting[number]).captured:  # networks of one graph draw nothing
                        _seat(waiting[number]).random.keep()
            else:
                with _seat(waiting[number]).random.in_use(), _own_errors(_seat(waiting[number])):
                    waiting[number] = courses[number].send(report)
        except StopIteration as end:
            waiting.pop(number, None)
            results[number] = end.value

    before = torch.get_num_threads()
    try:
        for number in range(len(courses)):
            advance(number, None)
        while waiting:
            turns = stack.turn([_seat(batch) for batch in waiting.values()])
            if all(turns):
                between()  # what is heard here, all hear after the same step
            next_ = {number: batch for (number, batch), own in zip(waiting.items(), turns, strict=True) if own}
            reports = stack.step(
                [_seat(batch) for batch in next_.values()], [(batch.x, batch.y, batch.ids) for batch in next_.values()]
            )
            for number, report in zip(next_, reports, strict=True):
                advance(number, report)
    except BaseException as error:
        own = error.error if isinstance(error, OfOne) else error
        for course in courses:
            _tell(course, own)
        if isinstance(error, OfOne):
            raise error.named(" or ".join(names[numbers[seat]](step) for seat, step in error.steps.items())) from own
        raise
    finally:
        torch.set_num_threads(before)
    return [results[number] for number in range(len(courses))]


@contextlib.contextmanager
def _own_errors(seat: Seat) -> Iterator[None]:
    """Inside, an error is this training's, unless it is said to be another's."""
    try:
        yield
    except OfOne:
        raise
    except NarlError as error:
        raise OfOne(error, {seat: seat.made}) from error


def _tell(course: Course[Any], error: BaseException) -> None:
    """Let a training clean up as if the error were its own; one that has ended hears nothing."""
    with contextlib.suppress(BaseException):  # it comes back
        course.throw(error)


def _seat(batch: Batch) -> Seat:
    assert isinstance(batch.engine, Seat), "a training that is to be stacked needs a seat"
    return batch.engine
