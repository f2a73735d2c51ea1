"""Training samples that count more or less than others."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from narl.errors import OptionError


def weighed(values: Tensor, weights: Tensor | None, ids: Tensor) -> Tensor:
    """Losses times their samples' weights.

    Args:
        values: ``(N,)``, or their mean.
        weights: of all training samples; None: they count alike.
        ids: the samples' positions in the training set, ``(N,)``.

    Example:
        >>> weighed(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 1.0, 3.0]), torch.tensor([2, 0]))
        tensor([3., 1.])
    """
    return values if weights is None else values * weights[ids].to(values.dtype)


def check_weights(weights: Tensor, num_samples: int) -> None:
    """Refuse what is not one weight a sample.

    Example:
        >>> check_weights(torch.tensor([1.0, -1.0]), 2)
        Traceback (most recent call last):
        narl.errors.OptionError: weights must be finite, at least 0, and not all 0: leave samples out by a weight of 0
    """
    if weights.shape != (num_samples,) or not weights.is_floating_point():
        raise OptionError(
            f"weights of shape {tuple(weights.shape)} and type {weights.dtype} do not fit {num_samples} training "
            f"samples: give floats of shape ({num_samples},)"
        )
    if not bool(torch.isfinite(weights).all() & (weights >= 0).all() & (weights > 0).any()):
        raise OptionError("weights must be finite, at least 0, and not all 0: leave samples out by a weight of 0")


@final
class Weighed:
    """A learned loss whose values are multiplied by weights; in all else it is that loss.

    Args:
        learned: with ``loss(logits, targets, ids)``.
        weights: of all training samples.

    Example:
        >>> import narl
        >>> adjuster = narl.Adjuster("gce", class_counts=[5, 5])
        >>> logits, y, ids = torch.zeros(2, 2), torch.tensor([0, 1]), torch.tensor([1, 0])
        >>> ratio = Weighed(adjuster, torch.tensor([0.5, 2.0])).loss(logits, y, ids) / adjuster.loss(logits, y, ids)
        >>> ratio.detach()
        tensor([2.0000, 0.5000])
    """

    def __init__(self, learned: Any, weights: Tensor) -> None:
        self._learned, self._weights = learned, weights

    def loss(self, logits: Tensor, targets: Tensor, ids: Tensor) -> Tensor:
        """One value a sample, ``(N,)``."""
        return weighed(self._learned.loss(logits, targets, ids), self._weights, ids)

    def __getattr__(self, name: str) -> Any:
        """What the loss has."""
        if name == "_learned":  # a copy in the making has nothing yet
            raise AttributeError(name)
        return getattr(self._learned, name)
