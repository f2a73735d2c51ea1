"""How well a classifier does on labelled samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from narl.bilevel.calls import call
from narl.bilevel.memory_format import faster_layout


@final
@dataclass(frozen=True)
class Evaluation:
    """Accuracy and cross entropy over a set.

    Args:
        accuracy: share of samples whose most probable class is the label.
        loss: mean cross entropy.
        by_class: accuracy on the samples of each class; None for a class without samples.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])
        >>> evaluation = Evaluation.of(logits, torch.tensor([0, 1]))
        >>> evaluation.accuracy, evaluation.by_class
        (0.5, (1.0, 0.0))
    """

    accuracy: float
    loss: float
    by_class: tuple[float | None, ...]

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor) -> Evaluation:
        """From logits ``(N, c)`` and labels ``(N,)``."""
        right = (logits.argmax(1) == labels).double()
        classes = logits.shape[1]
        counts = torch.bincount(labels, minlength=classes)
        hits = torch.bincount(labels, weights=right, minlength=classes)
        by_class = [float(hit / count) if count else None for hit, count in zip(hits, counts, strict=True)]
        loss = F.cross_entropy(logits.double(), labels)
        return cls(float(right.mean()), float(loss), tuple(by_class))


@torch.no_grad()
def logits_of(
    model: nn.Module, batches: Iterator[Tensor], finish: Callable[[Tensor], Tensor], num_classes: int
) -> Tensor:
    """A model's logits in evaluation mode, on the host; the model goes back to the mode it was in.

    Args:
        model: any classifier.
        batches: encoded samples, on the model's device.
        finish: what makes them the model's input.
        num_classes: c.

    Returns:
        ``(N, c)``, float32.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        parts = [call(model, faster_layout(model, finish(batch)), len(batch)).float().cpu() for batch in batches]
    finally:
        for module, training in modes:
            module.training = training
    return torch.cat(parts) if parts else torch.empty(0, num_classes)


def separation(margins: NDArray[Any], mislabelled: NDArray[np.bool_]) -> float | None:
    """How well a low margin finds mislabelled samples: the area under the ROC curve.

    Args:
        margins: ``(N,)``.
        mislabelled: ``(N,)``.

    Returns:
        1 is perfect, 0.5 is chance; None if all or none are mislabelled.

    Example:
        >>> separation(np.array([-1.0, 2.0, 3.0]), np.array([True, False, False]))
        1.0
    """
    wrong = int(mislabelled.sum())
    right = len(mislabelled) - wrong
    if not wrong or not right or not np.isfinite(margins).all():
        return None
    _, inverse, counts = np.unique(margins, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]  # ties share their mean rank
    return float((ranks[~mislabelled].sum() - right * (right + 1) / 2) / (wrong * right))
