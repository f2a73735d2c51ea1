"""The usual step of a classifier: forward, backward, the optimiser's update, and what all methods refuse."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from narl.bilevel import Processes
from narl.bilevel.calls import Inputs, call, restore, snapshot
from narl.bilevel.hypergradient import check_training_allowed
from narl.bilevel.memory_format import faster_layout
from narl.bilevel.refusals import Noted, refuse_no_labels, refuse_not_finite
from narl.bilevel.turns import Turn, give_gradients, met, take_gradients
from narl.checks import check_targets
from narl.errors import NarlError, OptionError

_ALONE = Processes.alone()


def descend(
    model: nn.Module,
    optimizer: Optimizer,
    x: Inputs,
    y: Tensor,
    values: Callable[[Tensor], Tensor],
    *,
    processes: Processes = _ALONE,
    wait: bool = False,
    noted: Noted | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of the classifier down a loss: forward, backward, the optimiser's step.

    A batch that is refused leaves weights, optimiser and buffers (BatchNorm's statistics) as they were.

    Args:
        model: any classifier that gives logits ``(N, c)``.
        optimizer: the model's.
        x: inputs: a tensor, a tuple of positional arguments or a mapping of named ones.
        y: labels, class indices ``(N,)`` or probabilities ``(N, c)``.
        values: the loss, from logits ``(N, c)`` to ``(N,)``, or to their mean.
        processes: who trains together, each with its share of the batch: :attr:`Setting.processes`.
        wait: whether ``values`` exchanges sums with other processes, so that all must get that far.
        noted: where to note whether loss and gradient are finite, instead of refusing a step that is not at once.

    Returns:
        The mean loss of all processes and the logits of this one, without gradient.

    Raises:
        NonFiniteError: the loss or its gradient is not finite.

    Example:
        >>> from narl import losses
        >>> model = nn.Linear(4, 3)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> y = torch.tensor([0, 2])
        >>> loss, logits = descend(model, optimizer, torch.randn(2, 4), y, lambda logits: losses.mae(logits, y))
        >>> logits.shape
        torch.Size([2, 3])
    """
    check_training_allowed()
    buffers = snapshot(model)

    def forward() -> Tensor:
        refuse_no_labels(y)
        logits = call(model, faster_layout(model, x), len(y))
        check_targets(y, num_classes=logits.shape[1], num_samples=len(logits))
        return logits

    try:
        with Turn(processes) as turn, torch.enable_grad():
            logits = met(forward, processes, wait=wait)
            loss = _mean(values(logits), len(y))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            give_gradients(turn, loss.detach(), optimizer, len(y))
        loss = take_gradients(turn, optimizer)
        if noted is None:
            refuse_not_finite(loss, optimizer)
        else:
            noted.note(loss, optimizer)
    except NarlError:
        restore(model, buffers)
        raise
    optimizer.step()
    return loss, logits.detach()


def _mean(values: Tensor, num_samples: int) -> Tensor:
    if values.dim() and values.shape != (num_samples,):
        raise OptionError(
            f"the method's loss has shape {tuple(values.shape)} for {num_samples} samples: it must give one value a "
            f"sample, shape ({num_samples},), or their mean"
        )
    if not values.requires_grad:
        raise OptionError("the method's loss does not depend on the logits: compute it from them, without detach()")
    return values.mean()
