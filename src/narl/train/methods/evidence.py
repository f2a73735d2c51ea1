"""What a given label says about the true one, besides what a classifier says, by the noise as it is seen."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from narl.checks import at_least_float32, check_logits, check_targets
from narl.errors import LabelError
from narl.train.methods.mixing import one_hot

_LEAST_MEMORY = 0.1  # of an epoch ago: with none, the noise would be counted from the latest batch alone


@final
class Evidence(nn.Module):
    r"""The probability of every class, once the given label is known.

    With the classifier's probabilities p and the probability :math:`T_{jk}` that a sample of class j is given the
    label k,

    .. math:: P(j \mid x, y) = \frac{p_j T_{jy}}{\sum_k p_k T_{ky}}

    So a label is not simply believed or not. With ten classes and 80 % symmetric noise it still multiplies the odds of
    its class by 2.25, with 40 % by 13.5. T is not known: it is the share of each label among what is held for class j,

    .. math:: T_{jk} \propto \frac1c + \sum_i P(j \mid x_i, y_i) [y_i = k]

    over the samples so far, of which those of past epochs keep the share ``memory``, at least a tenth, in every epoch.
    That is the EM algorithm's estimate of a noisy channel, a batch at a time. Before the first batch all labels are
    alike and say nothing.

    Args:
        num_classes: c.
        num_samples: of an epoch.
        memory: weight of the past epochs.

    Example:
        >>> evidence = Evidence(2, num_samples=4)
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])
        >>> evidence(logits, torch.tensor([0, 1])).exp()  # nothing is known of labels yet
        tensor([[0.8808, 0.1192],
                [0.8808, 0.1192]])

    Reference: Dempster, Laird, Rubin. Maximum likelihood from incomplete data via the EM algorithm. JRSS B 39, 1977.
    For label noise: Lawrence, Schölkopf. Estimating a kernel Fisher discriminant in the presence of label noise. ICML
    2001.
    """

    seen: Tensor

    def __init__(self, num_classes: int, num_samples: int, memory: float = 0.9) -> None:
        super().__init__()
        self._num_samples, self._memory = max(num_samples, 1), max(memory, _LEAST_MEMORY)
        self.register_buffer("seen", torch.zeros(num_classes, num_classes))

    @property
    def transition(self) -> Tensor:
        """T, ``(c, c)``: a row a true class."""
        counts = self.seen + 1 / len(self.seen)
        return counts / counts.sum(dim=1, keepdim=True)

    @torch.no_grad()
    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        """log P(j | x, y), ``(N, c)``, at least float32.

        Args:
            logits: of the one who judges, ``(N, c)``.
            y: given labels, ``(N,)``.
        """
        check_logits(logits)
        check_targets(y, num_classes=len(self.seen), num_samples=len(logits))
        if y.dim() != 1:
            raise LabelError("labels that are probabilities are no evidence: give classes, or doubt by margin or loss")
        scores = at_least_float32(logits)
        likelihoods = self.transition.T[y.long()].clamp_min(torch.finfo(torch.float32).tiny).log()
        return (scores.log_softmax(dim=1) + likelihoods.to(scores.dtype)).log_softmax(dim=1)

    @torch.no_grad()
    def remember(self, logits: Tensor, y: Tensor, counted: Tensor | None = None) -> None:
        """Count a batch: once a step.

        Args:
            logits: as of :meth:`forward`.
            y: as of :meth:`forward`.
            counted: how much each sample counts, ``(N,)``; None: all alike.
        """
        found = self(logits, y).exp().to(self.seen.dtype)
        if counted is not None:
            found = found * counted.unsqueeze(1)
        with torch.autocast(logits.device.type, enabled=False):
            batch = found.T @ one_hot(y, found.shape[1]).to(found.dtype)
        self.seen.mul_(self._memory ** (len(y) / self._num_samples)).add_(batch)


@torch.no_grad()
def if_wrong(log_chances: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """How likely the label is wrong, and which class it is then.

    Args:
        log_chances: logarithms of the classes' probabilities, ``(N, c)``.
        y: given labels, ``(N,)``.

    Returns:
        The probability that it is wrong ``(N,)``, and the classes' then ``(N, c)``, 0 for the label itself.

    Example:
        >>> if_wrong(torch.tensor([[0.6, 0.3, 0.1]]).log(), torch.tensor([0]))
        (tensor([0.4000]), tensor([[0.0000, 0.7500, 0.2500]]))
    """
    others = log_chances.masked_fill(one_hot(y, log_chances.shape[1]).bool(), -math.inf)
    return others.logsumexp(dim=1).exp(), others.softmax(dim=1)
