"""One adjuster that several trainings learn together, and their steps one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import torch

from narl.bilevel import StepReport
from narl.bilevel.hypergradient import Hypergradient
from narl.bilevel.passes import autocast
from narl.errors import OptionError
from narl.train.engine.seats import Batch, Seat
from narl.train.methods.meta import MetaMethod


def one_by_one(seats: Sequence[Seat], batches: Sequence[Batch], shared: Shared | None) -> list[StepReport]:
    """A step of each training by its own model, on inputs, labels and ids of its own.

    Args:
        seats: of the trainings.
        batches: one for each.
        shared: the adjuster that they learn together; None: each has its own.
    """
    if shared is not None:
        return shared.steps(seats, batches)
    reports = []
    for seat, batch in zip(seats, batches, strict=True):
        with seat.answering():
            reports.append(seat.eagerly(*batch))
    return reports


@final
class Shared:
    """One adjuster that several trainings learn together.

    The longest training makes a step at a time, the others theirs in between: after the longest has made t of its T
    steps, one of S steps has made ⌊t S / T⌋. So all are equally far at any time, their epochs end together where they
    have the same number of them, and the adjuster meets all stages of all trainings together. Its rate is the longest
    one's.
    """

    def __init__(self) -> None:
        self.first: MetaMethod | None = None
        self._longest: Seat | None = None

    def turn(self, seats: Sequence[Seat]) -> list[bool]:
        """Which trainings make a step next."""
        longest = max(seats, key=lambda seat: seat.steps)
        done = _learner(longest).steps + 1
        return [done * seat.steps // longest.steps > _learner(seat).steps for seat in seats]

    def tie(self, seats: Sequence[Seat]) -> None:
        """Give all trainings the parameters of the first one's adjuster, and its optimiser."""
        known = [seat for seat in (self._longest, *seats) if seat is not None]
        self._longest = max(known, key=lambda seat: seat.steps)
        for seat in seats:
            method = _learner(seat)
            if self.first is None:
                self.first = method
            elif method is not self.first:
                method.learn_with(self.first)

    def steps(self, seats: Sequence[Seat], batches: Sequence[Batch]) -> list[StepReport]:
        """Move the adjuster by the mean of the hypergradients that are due, then the classifiers one by one."""
        learners = [_learner(seat) for seat in seats]
        found: list[Hypergradient | None] = []
        for seat, learner, batch in zip(seats, learners, batches, strict=True):
            with seat.answering(), autocast(batch[1].device.type, seat.precision):
                found.append(learner.look_ahead(*batch))
        due = [meta.gradients for meta in found if meta is not None]
        if due:
            assert self._longest is not None
            _learner(self._longest).set_rate()  # each has set its own
            for parameter, gradients in zip(learners[0].parameters(), zip(*due, strict=True), strict=True):
                parameter.grad = torch.stack(gradients).sum(dim=0) / len(due)
            learners[0].adjuster_optimizer.step()
        reports = []
        for seat, learner, batch, meta in zip(seats, learners, batches, found, strict=True):
            with seat.answering(), autocast(batch[1].device.type, seat.precision):
                report = learner.follow(*batch)
            reports.append(report if meta is None else replace(report, meta_loss=meta.meta_loss))
        return reports


def _learner(seat: Seat) -> MetaMethod:
    if not isinstance(seat.method, MetaMethod):
        raise OptionError(f"{seat.method.name} learns no adjuster: share one among A-* methods of one loss")
    return seat.method
