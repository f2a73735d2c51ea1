"""The learning rate over the run, as a function of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import final

from torch.optim import Optimizer

from narl.errors import OptionError, UnknownNameError, nearest


def _constant(progress: float) -> float:
    return 1.0


def _cosine(progress: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * progress))


def _step(progress: float) -> float:
    # The paper's: 120 epochs, a tenth after 80, a hundredth after 100.
    return 1.0 if progress < 2 / 3 else 0.1 if progress < 5 / 6 else 0.01


_SHAPES: dict[str, Callable[[float], float]] = {"constant": _constant, "cosine": _cosine, "step": _step}


def names() -> tuple[str, ...]:
    """Names of all schedules.

    Example:
        >>> names()
        ('constant', 'cosine', 'step')
    """
    return tuple(sorted(_SHAPES))


@final
class Schedule:
    r"""Learning rate over the run: a linear warm-up, then a shape.

    .. math:: \alpha_t = \alpha \cdot \min\big(1, \tfrac{t + 1}{T_0}\big) \cdot s\big(\tfrac{t - T_0}{T - T_0}\big)

    with s = 1 (``"constant"``), half a cosine wave down to zero (``"cosine"``), or a tenth after two thirds and a
    hundredth after five sixths (``"step"``, as in the paper's runs). With milestones the last is divided by ten at each
    of them instead.

    Args:
        name: one of :func:`names`.
        total_steps: T, steps of the whole run.
        warmup_steps: :math:`T_0`.
        milestones: steps, counted from the run's first, at which ``"step"`` divides by ten; empty: as above.

    Example:
        >>> schedule = Schedule("step", total_steps=120, warmup_steps=0)
        >>> [schedule.factor(step) for step in (0, 79, 80, 100)]
        [1.0, 1.0, 0.1, 0.01]
        >>> schedule = Schedule("step", total_steps=120, milestones=(40,))
        >>> [schedule.factor(step) for step in (39, 40, 119)]
        [1.0, 0.1, 0.1]
    """

    def __init__(self, name: str, total_steps: int, warmup_steps: int = 0, milestones: Sequence[int] = ()) -> None:
        if name not in _SHAPES:
            raise UnknownNameError(f"no schedule is called {name!r}: {nearest(name, _SHAPES)}")
        if total_steps < 1 or not 0 <= warmup_steps < total_steps:
            raise OptionError(
                f"{warmup_steps} steps of warm-up do not fit into a run of {total_steps}: warm up less, train longer"
            )
        if milestones and name != "step":
            raise OptionError(f"the {name} schedule has no milestones: leave them out, or choose the step schedule")
        borders = [max(0, warmup_steps - 1), *milestones, total_steps]
        if any(later <= earlier for earlier, later in pairwise(borders)):
            raise OptionError(
                f"the learning rate cannot fall at steps {', '.join(map(str, milestones))} of {total_steps} with "
                f"{warmup_steps} of warm-up: give milestones after it, before the end and at least a step apart"
            )
        self.name, self.total_steps, self.warmup_steps = name, total_steps, warmup_steps
        self.milestones = tuple(milestones)

    def factor(self, step: int) -> float:
        """The learning rate of this step (from 0), as a share of the base rate."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.milestones:
            return 10.0 ** -sum(step >= milestone for milestone in self.milestones)
        return _SHAPES[self.name](min(1.0, (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)))

    def apply(self, optimizer: Optimizer, base: float, step: int) -> float:
        """Give the optimiser the learning rate of this step, and return it."""
        rate = base * self.factor(step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        return rate
