"""Cross entropy."""

from __future__ import annotations

from torch import Tensor

from narl.losses.inputs import over_labels
from narl.losses.spec import RobustLoss, register


def ce(logits: Tensor, targets: Tensor) -> Tensor:
    r"""Cross entropy, the loss that learns fastest and trusts every label.

    .. math:: \ell(z, y) = -\log p_y, \qquad p = \operatorname{softmax}(z)

    Args:
        logits: ``(N, c)``.
        targets: class indices ``(N,)`` or probabilities ``(N, c)``.

    Returns:
        One value a sample, ``(N,)``, at least float32.

    Example:
        >>> import torch
        >>> ce(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
        tensor([0.6931])
    """
    return over_labels(Tensor.neg, logits, targets)


register(RobustLoss("ce", ce))
