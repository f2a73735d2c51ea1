"""What an engine is: who does the steps that a method says."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from narl.bilevel import StepReport
from narl.bilevel.passes import autocast
from narl.train.methods import Method


class Engine:
    """Does a method's steps as the method has written them.

    Args:
        method: what a step is.
        precision: of autocast; None: the model's own.
    """

    def __init__(self, method: Method, precision: torch.dtype | None = None) -> None:
        self.method, self.precision = method, precision

    def step(self, x: Any, y: Tensor, ids: Tensor) -> StepReport:
        """Train on one batch, as :meth:`narl.train.methods.Method.step` does."""
        return self.eagerly(x, y, ids)

    def eagerly(self, x: Any, y: Tensor, ids: Tensor) -> StepReport:
        """The method's own step."""
        with autocast(y.device.type, self.precision):
            return self.method.step(x, y, ids)

    def check(self) -> None:
        """Refuse to go on once a step was not finite, for engines that do not look at every step."""

    def reset(self) -> None:
        """Model, optimiser or method have been given another state."""
