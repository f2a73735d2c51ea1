"""What is said of a step, and of the samples of its batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from narl.bilevel.processes import Processes


@dataclass(frozen=True)
class StepReport:
    """What happened in one step; tensors without gradient, on the model's device.

    With several processes the losses are those of all of them, the samples' values are of this one's.

    Args:
        loss: mean training loss, a scalar.
        meta_loss: mean loss of the clean batch after the virtual step; None in steps without one.
        hyperparameters: what the adjuster gave the samples, ``(N,)`` each, by name.
        margins: the samples' margins, ``(N,)``; None for objectives that have none.
        rivals: the class that stands most against each label, ``(N,)``; None where nobody has looked.

    Example:
        >>> import torch
        >>> StepReport(loss=torch.tensor(0.5), meta_loss=None, hyperparameters={}, margins=None).loss
        tensor(0.5000)
    """

    loss: Tensor
    meta_loss: Tensor | None
    hyperparameters: dict[str, Tensor]
    margins: Tensor | None
    rivals: Tensor | None = None


def observed(
    objective: Any, logits: Tensor, y: Tensor, ids: Tensor | None, processes: Processes
) -> tuple[dict[str, Tensor], Tensor | None]:
    """What an objective makes of a batch, and have it remember the batch, that of all processes.

    Args:
        objective: with ``observe(logits, targets, ids)``, or there is nothing to observe. One that remembers samples
            (its ``remembers`` is true) has ``describe``, which is ``observe`` without that, ``measure(margins,
            logits)``, which gives what it remembers, and ``remember(measured, ids)``.
        logits: of this process's samples, ``(N, c)``.
        y: their labels.
        ids: their ids ``(N,)``.
        processes: who trains together.

    Returns:
        Values by name and margins of this process's samples, ``(N,)``.
    """
    if not hasattr(objective, "observe"):
        return {}, None
    if processes.count == 1 or ids is None or not getattr(objective, "remembers", False):
        values, margins = objective.observe(logits, y, ids)
    else:
        values, margins = objective.describe(logits, y, ids)
        objective.remember(*processes.gathered(objective.measure(margins, logits), ids))
    return values, margins
