"""Mean absolute error."""

from __future__ import annotations

from torch import Tensor

from narl.losses.inputs import over_labels
from narl.losses.spec import RobustLoss, register


def mae(logits: Tensor, targets: Tensor) -> Tensor:
    r"""Mean absolute error between the prediction and the label, halved.

    .. math:: \ell(z, y) = 1 - p_y, \qquad p = \operatorname{softmax}(z)

    Symmetric: summed over all labels it is ``c - 1`` for every prediction, so it tolerates symmetric noise.

    Args:
        logits: ``(N, c)``.
        targets: class indices ``(N,)`` or probabilities ``(N, c)``.

    Returns:
        One value a sample, ``(N,)``, at least float32.

    Example:
        >>> import torch
        >>> mae(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
        tensor([0.5000])

    Reference: Ghosh, Kumar, Sastry. Robust loss functions under label noise for deep neural networks. AAAI 2017.
    """
    return over_labels(_curve, logits, targets)


def _curve(log_p: Tensor) -> Tensor:
    return -log_p.expm1()


register(RobustLoss("mae", mae))
