"""Guesses in place of labels that are doubted: how strongly each label is, and what stands in for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from narl.adjuster import Adjuster, margin
from narl.adjuster.last_batch import moved_away
from narl.adjuster.margins import RunningMargin
from narl.train.methods.evidence import Evidence, if_wrong
from narl.train.methods.mixing import sharpened


@final
@dataclass(frozen=True, eq=False)
class Guess:
    """What is guessed about a batch, as constants.

    Args:
        logits: of the one who guesses, on usual views as they are, ``(N, c)``.
        targets: the guesses, ``(N, c)``.
        weights: how much each counts, ``(N,)``: nothing for samples whose label is believed.
        taken: how much of the labels' own weight is theirs to take, ``(N,)``.
        doubts: how strongly the labels are doubted, ``(N,)``.
    """

    logits: Tensor
    targets: Tensor
    weights: Tensor
    taken: Tensor
    doubts: Tensor

    def of(self, order: Tensor) -> Guess:
        """Those of other samples of the batch, by their places ``(N,)``."""
        return Guess(**{name: value[order] for name, value in vars(self).items()})


def guessed(
    logits: Tensor,
    doubts: Tensor,
    *,
    temperature: float,
    confidence: float,
    suspicion: float,
    certain: bool = False,
    unsure: str = "keep",
    ramp: float = 1.0,
    chances: Tensor | None = None,
) -> Guess:
    r"""What someone's logits say of a batch: sharpened guesses for samples whose labels are doubted.

    With the suspicion s and the probabilities p, a guess weighs
    :math:`c = s \cdot [s \ge s_0] \cdot [\max p \ge p_0]`, and as much is taken from the label. One that is not doubted
    at all (s = 0) keeps its weight whatever the options are.

    Args:
        logits: of the one who guesses, ``(N, c)``.
        doubts: s, ``(N,)``.
        temperature: of the sharpening.
        confidence: :math:`p_0`.
        suspicion: :math:`s_0`.
        certain: whether a doubted label is held for wrong altogether: 1 in place of the factor s.
        unsure: what becomes of a doubted label whose guess is not confident: ``"keep"``: its weight, ``"drop"``: as
            much is taken from it as if the guess were.
        ramp: a factor of the guesses' weights, not of what is taken from the labels.
        chances: what is guessed, p, ``(N, c)``, without gradient; None: the logits' softmax.

    Returns:
        The guesses, without gradient.

    Example:
        >>> logits, doubts = torch.tensor([[9.0, 0.0], [9.0, 0.0], [0.0, 0.0]]), torch.tensor([0.0, 0.9, 0.6])
        >>> guessed(logits, doubts, temperature=0.5, confidence=0.9, suspicion=0.5).weights
        tensor([0.0000, 0.9000, 0.0000])
    """
    probabilities = logits.detach().softmax(dim=1) if chances is None else chances
    is_doubted = (doubts >= suspicion) & (doubts > 0)
    doubted = torch.where(is_doubted, torch.ones_like(doubts) if certain else doubts, 0.0)
    weights = torch.where(probabilities.amax(dim=1) >= confidence, doubted, 0.0)
    taken = doubted if unsure == "drop" else weights
    weights = weights if ramp == 1 else ramp * weights
    return Guess(logits.detach(), sharpened(probabilities, temperature), weights, taken, doubts)


class Doubts(nn.Module, ABC):
    """How strongly labels are doubted, from 0 to 1, and what they are if they are wrong.

    Args:
        trusted: whether each sample's label is known to be right, and so not doubted, ``(num_samples,)``; None: of none
            it is.

    ``often`` says how often each sample comes up, beside once an epoch, ``(num_samples,)``; None: all alike.
    """

    trusted: Tensor | None
    often: Tensor | None

    def __init__(self, trusted: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("trusted", trusted, persistent=False)
        self.register_buffer("often", None, persistent=False)

    @torch.no_grad()
    def forward(self, adjuster: Adjuster, logits: Tensor, y: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Of a batch: how strongly each label is doubted ``(N,)``, and the classes' probabilities if it is ``(N, c)``.

        Args:
            adjuster: that is at work.
            logits: of the one who judges, ``(N, c)``.
            y: given labels.
            ids: the samples' positions, ``(N,)``.
        """
        found, chances = self.judged(adjuster, logits, y, ids)
        return found if self.trusted is None else found.masked_fill(self.trusted[ids], 0.0), chances

    @abstractmethod
    def judged(self, adjuster: Adjuster, logits: Tensor, y: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The same, as if no label were known to be right."""

    @abstractmethod
    def remember(self, logits: Tensor, y: Tensor, ids: Tensor) -> None:
        """Take in what later batches are judged by: once a step."""


@final
class ByMargin(Doubts):
    r"""By the margin :math:`\bar m`, averaged over the epochs: how likely the label's strongest rival is against it.

    .. math:: s = \sigma(-\bar m), \qquad m = \log p_y - \log \max_{j \ne y} p_j

    That is above one half where the rival has mostly won.

    Args:
        trusted: whether each sample's label is known to be right.
        num_samples: whose margins are remembered.
        memory: weight of the past in a margin's average; 0: the latest margin alone.

    Example:
        >>> doubts, ids = ByMargin(None, num_samples=2), torch.tensor([0])
        >>> logits = torch.tensor([[0.0, 2.0]])
        >>> doubts(Adjuster("gce", [5, 5]), logits, torch.tensor([0]), ids)[0]
        tensor([0.8808])
    """

    def __init__(self, trusted: Tensor | None, *, num_samples: int, memory: float = 0.9) -> None:
        super().__init__(trusted)
        self.running = RunningMargin(memory)
        self.running.reserve(num_samples)

    def judged(self, adjuster: Adjuster, logits: Tensor, y: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """By averaged margins."""
        return torch.sigmoid(-self.running.blend(margin(logits, y), ids)), logits.softmax(dim=1)

    @torch.no_grad()
    def remember(self, logits: Tensor, y: Tensor, ids: Tensor) -> None:
        """Take the margins into the averages."""
        self.running.store(margin(logits, y), ids)


@final
class ByLoss(Doubts):
    """By the adjusted loss: the part of its target that it has moved away from the label.

    See :class:`narl.adjuster.last_batch.LastBatch`. An adjuster that has made cross entropy of its loss doubts nobody.
    """

    def judged(self, adjuster: Adjuster, logits: Tensor, y: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """By the loss."""
        return moved_away(adjuster.robust_loss, logits, y, adjuster(logits, y, ids)), logits.softmax(dim=1)

    def remember(self, logits: Tensor, y: Tensor, ids: Tensor) -> None:
        """Nothing to remember."""


@final
class ByPosterior(Doubts):
    r"""By the probability that the label is wrong, the label being evidence, too (:class:`.evidence.Evidence`):

    .. math:: s = 1 - P(y \mid x, y)

    Then the classes' probabilities are those of a sample whose label is wrong.

    Args:
        trusted: whether each sample's label is known to be right; those say nothing of the noise.
        num_classes: c.
        num_samples: of an epoch.
        memory: weight of the past epochs in what is known of the noise.

    Example:
        >>> doubts = ByPosterior(None, num_classes=3, num_samples=2)
        >>> doubts(Adjuster("gce", [5, 5, 5]), torch.zeros(1, 3), torch.tensor([0]), torch.tensor([0]))
        (tensor([0.6667]), tensor([[0.0000, 0.5000, 0.5000]]))
    """

    def __init__(self, trusted: Tensor | None, *, num_classes: int, num_samples: int, memory: float = 0.9) -> None:
        super().__init__(trusted)
        self.evidence = Evidence(num_classes, num_samples, memory)

    def judged(self, adjuster: Adjuster, logits: Tensor, y: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """By Bayes' rule."""
        return if_wrong(self.evidence(logits, y), y)

    @torch.no_grad()
    def remember(self, logits: Tensor, y: Tensor, ids: Tensor) -> None:
        """Take the labels into what is known of the noise."""
        counted = torch.ones(len(ids), device=ids.device) if self.often is None else 1 / self.often[ids]
        if self.trusted is not None:
            counted = counted.masked_fill(self.trusted[ids], 0.0)
        self.evidence.remember(logits, y, counted)


DOUBTS: dict[str, Callable[[Tensor | None, int, int, float], Doubts]] = {
    "margin": lambda trusted, _, samples, memory: ByMargin(trusted, num_samples=samples, memory=memory),
    "loss": lambda trusted, *_: ByLoss(trusted),
    "posterior": lambda trusted, classes, samples, memory: ByPosterior(
        trusted, num_classes=classes, num_samples=samples, memory=memory
    ),
}
"""What labels can be doubted by: from which are trusted, the numbers of classes and samples, and the memory."""
