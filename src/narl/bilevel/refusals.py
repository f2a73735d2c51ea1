"""What every training step refuses: a batch without labels, and a loss or a gradient that is not finite."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from narl.errors import LabelError, NonFiniteError, OptionError


def refuse_no_labels(y: Tensor) -> None:
    """Refuse labels that are no tensor of one or more."""
    if not isinstance(y, Tensor) or not y.dim() or not len(y):
        got = f"a {type(y).__name__}" if not isinstance(y, Tensor) else "empty" if y.dim() else "a single number"
        raise LabelError(f"the batch's labels are {got}: pass one or more as a tensor, torch.as_tensor(y)")


def refuse_not_finite(loss: Tensor, optimizer: Optimizer) -> None:
    """Refuse a step whose loss or gradient is not finite; the gradient is forgotten.

    Args:
        loss: a scalar, without gradient.
        optimizer: whose parameters hold the gradient.
    """
    if bool(torch.isfinite(loss + _norm(optimizer))):  # one look, for which the host waits for the device once
        return
    optimizer.zero_grad(set_to_none=True)
    if not bool(torch.isfinite(loss)):
        raise NonFiniteError(
            f"the training loss is {float(loss)}: training diverged; lower the learning rate or check the inputs"
        )
    raise NonFiniteError(
        "the gradient of the training loss is not finite, though the loss is: lower the learning rate, or look for a "
        "square root or a division at zero in the model"
    )


@final
class Noted:
    """Whether every step so far was finite, noted on the device: the host waits for it in :meth:`check` only.

    For steps on a GPU whose host has to be ahead of it. What was not finite has moved the weights by then.

    Args:
        device: of the model.

    Example:
        >>> noted, weight = Noted(torch.device("cpu")), nn.Parameter(torch.zeros(1))
        >>> noted.note(torch.tensor(1.0), torch.optim.SGD([weight], lr=0.1))
        >>> noted.check()
    """

    def __init__(self, device: torch.device) -> None:
        self._nothing = torch.zeros((), device=device)

    def note(self, loss: Tensor, optimizer: Optimizer) -> None:
        """Take a step's loss and gradient into account.

        Args:
            loss: a scalar, without gradient.
            optimizer: whose parameters hold the gradient.
        """
        self._nothing = self._nothing + 0 * (loss + _norm(optimizer))  # zero times what is not finite is no number

    def check(self) -> None:
        """Refuse to go on once a step was not finite."""
        if not bool(torch.isfinite(self._nothing)):
            raise NonFiniteError(
                "the training loss or its gradient is not finite: training diverged; lower the learning rate or check "
                "the inputs"
            )


def _norm(optimizer: Optimizer) -> Tensor:
    """Of the gradient as a whole."""
    moving = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    return get_total_norm(moving)


def refuse_synchronised(model: nn.Module) -> None:
    """Refuse SyncBatchNorm: its exchange between processes has no tangent pass."""
    if any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
        raise OptionError(
            f"{type(model).__name__} has SyncBatchNorm, whose exchange between processes cannot be differentiated "
            "twice: use BatchNorm, which takes each process's own statistics, or a normalisation without batches"
        )
