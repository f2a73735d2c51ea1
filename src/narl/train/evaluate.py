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

TOP5_ABOVE = 10
"""Up to so many classes, being among the five most probable ones says little, and is not looked at."""


@final
@dataclass(frozen=True)
class Evaluation:
    """Accuracy and cross entropy over a set.

    Args:
        accuracy: share of samples whose most probable class is the label.
        loss: mean cross entropy.
        by_class: accuracy on the samples of each class; None for a class without samples.
        top5_accuracy: share of samples whose label is among the five most probable classes; None for ten classes or
            fewer.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])
        >>> evaluation = Evaluation.of(logits, torch.tensor([0, 1]))
        >>> evaluation.accuracy, evaluation.by_class, evaluation.top5_accuracy
        (0.5, (1.0, 0.0), None)
        >>> Evaluation.of(torch.arange(20.0).expand(2, 20), torch.tensor([15, 14])).top5_accuracy
        0.5
    """

    accuracy: float
    loss: float
    by_class: tuple[float | None, ...]
    top5_accuracy: float | None = None

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor) -> Evaluation:
        """From logits ``(N, c)`` and labels ``(N,)``."""
        right = (logits.argmax(1) == labels).double()
        classes = logits.shape[1]
        counts = torch.bincount(labels, minlength=classes)
        hits = torch.bincount(labels, weights=right, minlength=classes)
        by_class = [float(hit / count) if count else None for hit, count in zip(hits, counts, strict=True)]
        loss = F.cross_entropy(logits.double(), labels)
        top5 = float((_places(logits, labels) < 5).double().mean()) if classes > TOP5_ABOVE else None
        return cls(float(right.mean()), float(loss), tuple(by_class), top5)


def _places(logits: Tensor, labels: Tensor) -> Tensor:
    """How many classes are more probable than the label, ``(N,)``; of equals, as for ``argmax``, the first counts.

    What is no number is ahead of everything: a label never gets a good place by it.
    """
    own = logits.gather(1, labels[:, None])
    earlier = torch.arange(logits.shape[1], device=logits.device) < labels[:, None]
    return (~(logits <= own) | ((logits == own) & earlier)).sum(1)


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
