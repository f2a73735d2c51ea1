"""Whose fault it is that several trainings, done as one step, cannot go on, and since when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from narl.errors import NarlError

if TYPE_CHECKING:
    from narl.train.engine.seats import Seat


@final
class OfOne(NarlError):
    """An error of one training among several; who drives them says which one that is.

    Args:
        error: what went wrong.
        steps: the training, and which of the steps since its stack began it was, from 1; several where it may have been
            any of them.
    """

    def __init__(self, error: NarlError, steps: Mapping[Seat, int]) -> None:
        super().__init__(str(error))
        self.error, self.steps = error, dict(steps)

    def named(self, whose: str) -> NarlError:
        """The error as it would be of the training alone, with its name."""
        return type(self.error)(f"{whose}: {self.error}")


@final
class Culprits:
    """Which of the trainings side by side were not finite, noted on the device: nobody waits for it until it is asked.

    Gradients of the weights are not looked at, training by training: that would cost as much as a layer.

    Args:
        count: R, how many trainings.
        device: of their models.

    Example:
        >>> noted = Culprits(2, torch.device("cpu"))
        >>> for _ in range(3):
        ...     noted.note(torch.tensor([[0.5, 1.0, torch.nan, 2.0]]))
        ...     noted.count(torch.tensor(1.0))
        >>> noted.numbers, noted.ago
        ([1], 3)
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self._bad = torch.zeros(count, dtype=torch.bool, device=device)
        self._ago = torch.zeros((), dtype=torch.int64, device=device)

    def note(self, values: Tensor) -> None:
        """Look at values of all of them, side by side: ``(N, R·k)``."""
        largest = values.reshape(len(values), len(self._bad), -1).abs().amax(dim=(0, 2))  # a sum might overflow
        self._bad.logical_or_(~torch.isfinite(largest))

    def count(self, bad: Tensor) -> None:
        """A step is over; ``bad``, a scalar, is 1 if it or an earlier one was not finite, else 0."""
        self._ago.add_(bad.to(self._ago.dtype))

    @property
    def numbers(self) -> list[int]:
        """Which trainings; none where only a gradient was not finite."""
        return [number for number, bad in enumerate(self._bad.tolist()) if bad]

    @property
    def ago(self) -> int:
        """Steps since it happened, that step included."""
        return int(self._ago)
