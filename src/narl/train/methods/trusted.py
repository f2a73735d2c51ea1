"""Training samples whose labels have been checked: their loss is cross entropy, whatever the method's is."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from narl.errors import OptionError
from narl.losses import ce


def with_trusted(values: Tensor, logits: Tensor, y: Tensor, ids: Tensor, trusted: Tensor | None) -> Tensor:
    r"""The method's loss, and cross entropy for samples whose labels are right:

    .. math:: \ell_i = -\log p_{i, y_i} \text{ if } i \text{ is trusted, else } M_i

    A robust loss guards against wrong labels, and learns less from right ones for it.

    Args:
        values: the method's losses M, ``(N,)``; their mean is left as it is.
        logits: ``(N, c)``.
        y: labels, class indices ``(N,)`` or probabilities ``(N, c)``.
        ids: the samples' positions in the training set, ``(N,)``.
        trusted: whether each training sample's label is right; None: of none it is known.

    Returns:
        ``(N,)``.

    Example:
        >>> trusted, ids = torch.tensor([True, False, True]), torch.tensor([1, 2])
        >>> with_trusted(torch.tensor([0.5, 0.5]), torch.zeros(2, 2), torch.tensor([0, 1]), ids, trusted)
        tensor([0.5000, 0.6931])
    """
    return values if trusted is None or not values.dim() else where_right(values, logits, y, trusted[ids])


def where_right(values: Tensor, logits: Tensor, y: Tensor, right: Tensor | None) -> Tensor:
    """The same, told of each of these samples whether its label is right, ``(N,)``; None: of none it is known.

    Example:
        >>> where_right(torch.tensor([0.5, 0.5]), torch.zeros(2, 2), torch.tensor([0, 1]), torch.tensor([True, False]))
        tensor([0.6931, 0.5000])
    """
    return values if right is None else torch.where(right, ce(logits, y).to(values.dtype), values)


def check_trusted(trusted: Tensor, num_samples: int) -> None:
    """Refuse what does not say of every sample whether its label is right.

    Example:
        >>> check_trusted(torch.ones(3), 3)
        Traceback (most recent call last):
        narl.errors.OptionError: trusted has shape (3,) and type torch.float32: give bools of shape (3,)
    """
    if trusted.shape != (num_samples,) or trusted.dtype != torch.bool:
        raise OptionError(
            f"trusted has shape {tuple(trusted.shape)} and type {trusted.dtype}: give bools of shape ({num_samples},)"
        )


@final
class Trusting(nn.Module):
    """A learned loss that does not judge samples whose labels are right; in all else it is that loss.

    Args:
        learned: a module with ``loss(logits, targets, ids)`` and ``observe``.
        trusted: whether each training sample's label is right, ``(num_samples,)``.

    Example:
        >>> import narl
        >>> adjuster = narl.Adjuster("gce", class_counts=[5, 5])
        >>> logits, y, ids = torch.zeros(2, 2), torch.tensor([0, 1]), torch.tensor([1, 0])
        >>> own = Trusting(adjuster, torch.tensor([True, False])).loss(logits, y, ids)
        >>> torch.equal(own[0], adjuster.loss(logits, y, ids)[0]), own[1].detach()
        (True, tensor(0.6931))
    """

    trusted: Tensor

    def __init__(self, learned: nn.Module, trusted: Tensor) -> None:
        super().__init__()
        self.learned = learned
        self.register_buffer("trusted", trusted, persistent=False)

    def loss(self, logits: Tensor, targets: Tensor, ids: Tensor | None = None) -> Tensor:
        """One value a sample, ``(N,)``."""
        values: Tensor = self.learned.loss(logits, targets, ids)  # type: ignore[operator]
        return values if ids is None else with_trusted(values, logits, targets, ids, self.trusted)

    def __getattr__(self, name: str) -> Any:
        """What the module has, or else what the loss has."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "learned":  # a copy in the making has nothing yet
                raise
            return getattr(super().__getattr__("learned"), name)
