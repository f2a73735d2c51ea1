"""A training's place in a stack, and what it keeps for itself there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from narl.errors import NarlError
from narl.train.engine.base import Engine
from narl.train.engine.captured import Clean
from narl.train.engine.culprits import OfOne
from narl.train.methods import Method

Batch: TypeAlias = tuple[Tensor, Tensor, Tensor]


class Owner(Protocol):
    """Whose seats these are: :class:`narl.train.engine.stack.Stack`."""

    def check(self) -> None:
        """Refuse to go on once a step was not finite."""

    def reset(self) -> None:
        """Some training has been given another state."""


@final
class RandomState:
    """A training's own state of torch's generator on the CPU, which trainings side by side would else share."""

    def __init__(self) -> None:
        self._own: Tensor | None = None

    def keep(self) -> None:
        """Take the state as it is now for this training's."""
        self._own = torch.get_rng_state()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, the generator is this training's; afterwards it is what it was."""
        if self._own is None:
            yield
            return
        before = torch.get_rng_state()
        torch.set_rng_state(self._own)
        try:
            yield
        finally:
            self._own = torch.get_rng_state()
            torch.set_rng_state(before)


@final
class Seat(Engine):
    """One training's place in a stack.

    Args:
        stack: that does its steps.
        method: what a step is.
        model: that it trains.
        optimizer: the model's.
        clean: draws clean batches; None without a clean set.
        rows: samples of a full batch.
        steps: of the whole run.
        precision: of autocast; None: the model's own.
        captured: whether steps are to be captured as graphs.
    """

    def __init__(
        self,
        stack: Owner,
        method: Method,
        model: nn.Module,
        optimizer: Optimizer,
        clean: Clean | None,
        *,
        rows: int,
        steps: int,
        precision: torch.dtype | None,
        captured: bool,
    ) -> None:
        super().__init__(method, precision)
        self.model, self.optimizer, self.clean = model, optimizer, clean
        self.rows, self.steps, self.captured = rows, steps, captured
        self.random = RandomState()
        self.made = 0  # steps, since the stack began
        self._stack = stack

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Inside, this training alone makes its step; an error says that it was it."""
        try:
            with self.random.in_use():
                yield
        except NarlError as error:
            raise OfOne(error, {self: self.made + 1}) from error

    def check(self) -> None:
        """Refuse to go on once a step of any training in the stack was not finite."""
        self._stack.check()

    def reset(self) -> None:
        """Model, optimiser or method have been given another state."""
        self._stack.reset()
