"""Which class stands against the label."""

from __future__ import annotations

import torch
from torch import Tensor


def rivals(logits: Tensor, targets: Tensor) -> Tensor:
    """The class with the largest logit beside the label's own; of equal ones, any.

    Where the margin is negative this is the classifier's prediction.

    Args:
        logits: ``(N, c)``.
        targets: class indices ``(N,)``, or probabilities ``(N, c)``, whose most likely class is then the label.

    Returns:
        Class indices ``(N,)``.

    Example:
        >>> rivals(torch.tensor([[3.0, 1.0, 0.0], [3.0, 1.0, 0.0]]), torch.tensor([0, 2]))
        tensor([1, 0])
    """
    label = targets.argmax(dim=1) if targets.dim() == 2 else targets.long()
    return logits.detach().scatter(1, label.unsqueeze(1), -torch.inf).argmax(dim=1)
