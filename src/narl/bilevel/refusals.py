"""What every training step refuses: a batch without labels, and a loss or a gradient that is not finite."""

from __future__ import annotations

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
    moving = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if bool(torch.isfinite(loss + get_total_norm(moving))):  # one look, for which the host waits for the device once
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


def refuse_synchronised(model: nn.Module) -> None:
    """Refuse SyncBatchNorm: its exchange between processes has no tangent pass."""
    if any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
        raise OptionError(
            f"{type(model).__name__} has SyncBatchNorm, whose exchange between processes cannot be differentiated "
            "twice: use BatchNorm, which takes each process's own statistics, or a normalisation without batches"
        )
