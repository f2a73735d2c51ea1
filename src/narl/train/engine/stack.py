"""Steps of several trainings as one: their models are one wide model, their losses one loss.

The network of a small image leaves most of a GPU idle. Of trainings that differ in data, method or seed, but not in
network, batch size and learning rate, every step can be one step: the models are joined (:mod:`narl.models.stacking`),
each keeps its weights, its optimiser's memory and its batch statistics as a part of the joint ones, and each training
goes on as if it were alone, evaluations and checkpoints included. No number of one reaches another.

Trainings in one stack can also learn one adjuster together (multi-task meta-training): then θ moves by the mean of
their hypergradients, all taken at the same θ, before each of them makes its step.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import final

import torch
from torch import nn
from torch.optim import Optimizer

from narl.bilevel import StepReport
from narl.errors import LogitsError, NarlError, NarlWarning, NonFiniteError, OptionError
from narl.train import engine
from narl.train.engine.captured import CapturedEngine, Clean
from narl.train.engine.culprits import OfOne
from narl.train.engine.joint import Joint
from narl.train.engine.seats import Batch, Seat
from narl.train.engine.shared import Shared, one_by_one
from narl.train.engine.side_by_side import Cleans, joint_inputs
from narl.train.methods import Method


@final
class Stack:
    """Where the steps of several trainings become one.

    Args:
        shared: whether they learn one adjuster together; then all are adjusted losses of one kind.

    Example:
        >>> from narl.train import methods
        >>> stack, seats = Stack(), []
        >>> for _ in range(2):
        ...     model = nn.Linear(4, 2)
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ...     setting = methods.Setting(model, optimizer, torch.tensor([5, 5]), None, 9, 10, torch.Generator())
        ...     method = methods.build("GCE", setting)
        ...     seats.append(stack.seat("auto", method, model, optimizer, None, rows=3, steps=9))
        >>> batches = [(torch.randn(3, 4), torch.tensor([0, 1, 1]), torch.arange(3)) for _ in seats]
        >>> [report.margins.shape for report in stack.step(seats, batches)]
        [torch.Size([3]), torch.Size([3])]
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = Shared() if shared else None
        self._seats: list[Seat] = []
        self._joint: Joint | None = None
        self._engine: CapturedEngine | None = None
        self._batches: Sequence[Batch] = ()  # of the last step
        self._unlike = False  # what learns together may be too different to be one step

    def turn(self, seats: Sequence[Seat]) -> list[bool]:
        """Which trainings make a step next: all of them, unless some that learn together have fewer steps."""
        if self._shared is None:
            return [True] * len(seats)
        if len({seat.steps for seat in seats}) > 1:
            self._do_apart("they have other numbers of steps", seats[0])
        return self._shared.turn(seats)

    def _do_apart(self, reason: str, first: Seat) -> None:
        """From now on make the steps of trainings that learn together one by one."""
        if first.captured and not self._unlike:
            warnings.warn(f"the tasks train without CUDA graphs ({reason})", NarlWarning, stacklevel=3)
        self._unlike = True

    @property
    def count(self) -> int:
        """How many trainings made the last step."""
        return len(self._seats)

    def seat(
        self,
        name: str,
        method: Method,
        model: nn.Module,
        optimizer: Optimizer,
        clean: Clean | None,
        *,
        rows: int,
        steps: int,
        precision: str = "float32",
        processes: int = 1,
    ) -> Seat:
        """A place for a training; takes what :func:`narl.train.engine.make` takes."""
        if processes > 1:
            raise OptionError(f"{processes} processes cannot train as one stack: stack in one process")
        captured = name != "eager" and next(model.parameters()).device.type == "cuda"
        return Seat(
            self,
            method,
            model,
            optimizer,
            clean,
            rows=rows,
            steps=steps,
            precision=engine.type_of(precision),
            captured=captured,
        )

    def step(self, seats: Sequence[Seat], batches: Sequence[Batch]) -> list[StepReport]:
        """One step of each training.

        Args:
            seats: of all that go on; one that has ended is left out from then on.
            batches: inputs, labels and ids of each; where their sizes differ, the steps are done one by one.

        Returns:
            What each training's own step would report.

        Raises:
            OfOne: one of them could not make its step, or has not been finite for a while.
        """
        if self._seats != list(seats):
            self._build(list(seats))
        self._batches = batches
        with self._naming():
            reports = self._step(seats, batches)
        for seat in seats:
            seat.made += 1
        return reports

    def _step(self, seats: Sequence[Seat], batches: Sequence[Batch]) -> list[StepReport]:
        if self._joint is None or self._engine is None:
            return one_by_one(seats, batches, self._shared)
        if len({len(y) for _, y, _ in batches}) > 1:
            self._engine.check()  # steps as written would go on with what graphs have left
            return self._joint.one_by_one(batches)
        x, y, ids = (list(part) for part in zip(*batches, strict=True))
        report = self._engine.step(joint_inputs(x), torch.stack(y, dim=1), torch.stack(ids, dim=1))
        return self._joint.apart(report)

    def check(self) -> None:
        """Refuse to go on once a step was not finite."""
        if self._engine is not None:
            with self._naming():
                self._engine.check()

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        """Inside, that something was not finite becomes an error of those whose it was."""
        before = 0 if self._engine is None else self._engine.steps
        try:
            yield
        except NonFiniteError as error:
            if self._engine is None or (noted := self._engine.culprits) is None:
                raise
            guilty = [self._seats[number] for number in noted.numbers] or list(self._by_their_own()) or self._seats
            since = noted.ago - (self._engine.steps - before)  # the seats have not counted this step yet
            raise OfOne(error, {seat: seat.made + 1 - since for seat in guilty}) from error

    def _by_their_own(self) -> Iterator[Seat]:
        """Trainings whose own step is not finite either; the weights are still those before it happened."""
        for seat, batch in zip(self._seats, self._batches, strict=True):
            try:
                seat.eagerly(*batch)  # moves the others; but nothing of this stack will be saved
            except (LogitsError, NonFiniteError):
                yield seat
            except (NarlError, RuntimeError):  # which says nothing about it
                continue

    def reset(self) -> None:
        """Some training has been given another state."""
        self._engine = self._joint = None
        self._seats, self._batches = [], ()

    def _build(self, seats: list[Seat]) -> None:
        self.check()
        first = seats[0]
        if self._shared is not None:
            self._shared.tie(seats)
        self._seats, self._joint, self._engine = seats, None, None
        try:
            if len({(seat.rows, seat.precision, seat.captured) for seat in seats}) > 1:
                raise OptionError("trainings with other batch sizes, precisions or engines cannot be stacked")
            if not first.captured or self._unlike:
                return
            joint = Joint(seats, self._shared)
        except OptionError as error:
            if self._shared is None:
                raise  # each does better alone
            self._do_apart(str(error), first)
            return
        self._joint = joint
        self._engine = CapturedEngine(
            joint,
            joint.model,
            joint.optimizer,
            Cleans.of(seats),
            rows=first.rows,
            precision=first.precision,
            compiled=first.steps >= engine.STEPS_WORTH_COMPILING,
        )
