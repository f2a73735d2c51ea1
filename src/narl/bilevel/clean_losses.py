"""What a virtual step is judged by: a loss of the clean samples, whose mean counts."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from narl.checks import at_least_float32
from narl.errors import OptionError

CleanLoss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy, the paper's: it asks for right probabilities.

    A few clean samples that the model gets confidently wrong can make up most of it. Then whatever makes the model less
    sure lowers it, and wrong labels do that.

    Args:
        logits: ``(N, c)``.
        targets: class indices ``(N,)`` or probabilities ``(N, c)``.

    Returns:
        One value a sample, ``(N,)``, at least float32.
    """
    return F.cross_entropy(at_least_float32(logits), _as_classes(targets), reduction="none")


def absolute_error(logits: Tensor, targets: Tensor) -> Tensor:
    """How improbable the right labels are, ``1 - p``: in the mean a smooth form of the share of errors.

    Bounded, so that no clean sample counts for more than one.

    Args:
        logits: ``(N, c)``.
        targets: class indices ``(N,)`` or probabilities ``(N, c)``.

    Returns:
        One value a sample, ``(N,)``, at least float32.

    Example:
        >>> import torch
        >>> absolute_error(torch.zeros(3, 4), torch.tensor([0, 1, 2]))
        tensor([0.7500, 0.7500, 0.7500])
    """
    probabilities = at_least_float32(logits).softmax(dim=1)
    targets = _as_classes(targets)
    if targets.is_floating_point():
        return 1 - (probabilities * targets).sum(dim=1)
    return 1 - probabilities.gather(1, targets.unsqueeze(1)).squeeze(1)


CLEAN_LOSSES: dict[str, CleanLoss] = {"ce": cross_entropy, "mae": absolute_error}


def clean_loss_of(name: str) -> CleanLoss:
    """The clean loss of this name.

    Example:
        >>> clean_loss_of("mse")
        Traceback (most recent call last):
        narl.errors.OptionError: clean_loss = 'mse' is unknown: use 'ce' (the paper's) or 'mae'
    """
    if name not in CLEAN_LOSSES:
        raise OptionError(f"clean_loss = {name!r} is unknown: use 'ce' (the paper's) or 'mae'")
    return CLEAN_LOSSES[name]


def _as_classes(targets: Tensor) -> Tensor:
    return targets if targets.is_floating_point() else targets.long()
