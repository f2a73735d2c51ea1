"""What a given label says about the true one, besides what a classifier says, by the noise as it is seen."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot


@final
class Evidence(nn.Module):
    r"""The probability of every class, once the given label is known.

    With the classifier's probabilities p and the probability :math:`T_{jk}` that a sample of class j is given the
    label k,

    .. math:: P(j \mid x, y) = \frac{p_j T_{jy}}{\sum_k p_k T_{ky}}

    So a label is not simply believed or not. With ten classes and 80 % symmetric noise it still multiplies the odds of
    its class by 2.25, with 40 % by 13.5. T is not known: it is the share of each label among what is held for class j,

    .. math:: T_{jk} \propto \epsilon + \sum_i P(j \mid x_i, y_i) [y_i = k]

    over the samples so far, of which the past epochs keep the share ``memory`` in every epoch. This is the EM algorithm
    for a noisy channel, a batch at a time. Before the first batch all labels are alike and say nothing.

    Args:
        num_classes: c.
        num_samples: of an epoch.
        memory: weight of the past epochs.

    Example:
        >>> evidence = Evidence(2, num_samples=4)
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])
        >>> evidence(logits, torch.tensor([0, 1]))  # nothing is known of labels yet
        tensor([[0.8808, 0.1192],
                [0.8808, 0.1192]])

    Reference: Dempster, Laird, Rubin. Maximum likelihood from incomplete data via the EM algorithm. JRSS B 39, 1977.
    For label noise: Lawrence, Schölkopf. Estimating a kernel Fisher discriminant in the presence of label noise. ICML
    2001.
    """

    seen: Tensor

    def __init__(self, num_classes: int, num_samples: int, memory: float = 0.9) -> None:
        super().__init__()
        self._num_samples, self._memory = max(num_samples, 1), memory
        self.register_buffer("seen", torch.zeros(num_classes, num_classes))

    @property
    def transition(self) -> Tensor:
        """T, ``(c, c)``: a row a true class."""
        counts = self.seen + 1 / len(self.seen)
        return counts / counts.sum(dim=1, keepdim=True)

    @torch.no_grad()
    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        """P(j | x, y), ``(N, c)``.

        Args:
            logits: of the one who judges, ``(N, c)``.
            y: given labels, indices ``(N,)`` or probabilities ``(N, c)``.
        """
        scores = logits.log_softmax(dim=1) + self._likelihood(y, logits).clamp_min(torch.finfo(logits.dtype).tiny).log()
        return scores.softmax(dim=1)

    @torch.no_grad()
    def remember(self, logits: Tensor, y: Tensor, counted: Tensor | None = None) -> None:
        """Count a batch: once a step.

        Args:
            logits: as of :meth:`forward`.
            y: as of :meth:`forward`.
            counted: which samples are, ``(N,)``; None: all.
        """
        found, labels = self(logits, y), _shares(y, logits)
        if counted is not None:
            found = found * counted.unsqueeze(1)
        self.seen.mul_(self._memory ** (len(y) / self._num_samples)).add_((found.T @ labels).to(self.seen.dtype))

    def _likelihood(self, y: Tensor, like: Tensor) -> Tensor:
        """How likely the given label is for each class, ``(N, c)``."""
        transition = self.transition.to(like.dtype)
        return transition.T[y] if y.dim() == 1 else y.to(like.dtype) @ transition.T


def _shares(y: Tensor, like: Tensor) -> Tensor:
    return (one_hot(y, like.shape[1]) if y.dim() == 1 else y).to(like.dtype)


@torch.no_grad()
def elsewhere(chances: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """That the label is wrong, and which class it is if so.

    Args:
        chances: of every class, ``(N, c)``.
        y: given labels, indices ``(N,)`` or probabilities ``(N, c)``.

    Returns:
        The probability that it is wrong ``(N,)``, and the classes' then ``(N, c)``, 0 for the label itself.

    Example:
        >>> elsewhere(torch.tensor([[0.6, 0.3, 0.1]]), torch.tensor([0]))
        (tensor([0.4000]), tensor([[0.0000, 0.7500, 0.2500]]))
    """
    others = chances * (1 - _shares(y, chances))
    wrong = others.sum(dim=1)
    return wrong, others / wrong.clamp_min(torch.finfo(chances.dtype).tiny).unsqueeze(1)
