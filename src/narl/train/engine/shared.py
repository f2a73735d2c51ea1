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
        with seat.random.in_use():
            reports.append(seat.eagerly(*batch))
    return reports


@final
class Shared:
    """One adjuster that several trainings learn together."""

    def __init__(self) -> None:
        self.first: MetaMethod | None = None

    def tie(self, seats: Sequence[Seat]) -> None:
        """Give all trainings the parameters of the first one's adjuster, and its optimiser."""
        if len({seat.steps for seat in seats}) > 1:
            steps = ", ".join(sorted({f"{seat.steps:,}" for seat in seats}))
            raise OptionError(
                f"tasks of {steps} steps cannot learn one adjuster together: it is learned along the training, so give "
                "tasks with the same number of samples"
            )
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
            with seat.random.in_use(), autocast(batch[1].device.type, seat.precision):
                found.append(learner.look_ahead(*batch))
        due = [meta.gradients for meta in found if meta is not None]
        if due:
            for parameter, gradients in zip(learners[0].parameters(), zip(*due, strict=True), strict=True):
                parameter.grad = torch.stack(gradients).sum(dim=0) / len(due)
            learners[0].adjuster_optimizer.step()
        reports = []
        for seat, learner, batch, meta in zip(seats, learners, batches, found, strict=True):
            with seat.random.in_use(), autocast(batch[1].device.type, seat.precision):
                report = learner.follow(*batch)
            reports.append(report if meta is None else replace(report, meta_loss=meta.meta_loss))
        return reports


def _learner(seat: Seat) -> MetaMethod:
    if not isinstance(seat.method, MetaMethod):
        raise OptionError(f"{seat.method.name} learns no adjuster: share one among A-* methods of one loss")
    return seat.method
