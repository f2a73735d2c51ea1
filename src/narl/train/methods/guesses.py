"""Guesses in place of labels that are doubted: how strongly each label is, and what stands in for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from narl.adjuster import Adjuster, margin
from narl.adjuster.last_batch import moved_away
from narl.adjuster.margins import RunningMargin
from narl.errors import OptionError
from narl.train.methods.evidence import Evidence, elsewhere
from narl.train.methods.mixing import sharpened

DOUBTS = ("margin", "loss", "posterior")
"""What suspicion can go by."""


@final
@dataclass(frozen=True, eq=False)
class Guess:
    """What is guessed about a batch, as constants.

    Args:
        logits: of the one who guesses, on usual views as they are, ``(N, c)``.
        targets: the guesses, ``(N, c)``.
        weights: how much each counts, ``(N,)``: nothing for samples whose label is believed.
        taken: how much of the labels' own weight is theirs to take, ``(N,)``.
    """

    logits: Tensor
    targets: Tensor
    weights: Tensor
    taken: Tensor

    def of(self, order: Tensor) -> Guess:
        """Those of other samples of the batch, by their places ``(N,)``."""
        return Guess(self.logits[order], self.targets[order], self.weights[order], self.taken[order])


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
        chances: what is guessed, p, ``(N, c)``; None: the logits' softmax.

    Returns:
        The guesses, without gradient.

    Example:
        >>> logits, doubts = torch.tensor([[9.0, 0.0], [9.0, 0.0], [0.0, 0.0]]), torch.tensor([0.0, 0.9, 0.6])
        >>> guessed(logits, doubts, temperature=0.5, confidence=0.9, suspicion=0.5).weights
        tensor([0.0000, 0.9000, 0.0000])
    """
    probabilities = (logits.softmax(dim=1) if chances is None else chances).detach()
    is_doubted = (doubts >= suspicion) & (doubts > 0)
    doubted = torch.where(is_doubted, torch.ones_like(doubts) if certain else doubts, 0.0)
    weights = torch.where(probabilities.amax(dim=1) >= confidence, doubted, 0.0)
    taken = doubted if unsure == "drop" else weights
    weights = weights if ramp == 1 else ramp * weights
    return Guess(logits.detach(), sharpened(probabilities, temperature), weights, taken)


@final
class Doubts(nn.Module):
    r"""How strongly labels are doubted, from 0 to 1.

    ``"margin"``: by the margin :math:`\bar m`, averaged over the epochs, the probability of the label's strongest rival
    against the label,

    .. math:: s = \sigma(-\bar m), \qquad m = \log p_y - \log \max_{j \ne y} p_j

    which is above one half where the rival has mostly won. ``"loss"``: by the adjusted loss, the part of its target
    that it has moved away from the label (:class:`narl.adjuster.last_batch.LastBatch`); an adjuster that has made cross
    entropy of its loss doubts nobody. ``"posterior"``: the probability that the label is wrong, by what it says itself
    (:class:`narl.train.methods.evidence.Evidence`),

    .. math:: s = 1 - P(y \mid x, y)

    and then the guess is what it is if it is not the label.

    Args:
        kind: ``"margin"``, ``"loss"`` or ``"posterior"``.
        num_samples: whose margins are remembered.
        memory: weight of the past in a margin's average; 0: the latest margin alone.
        trusted: whether each sample's label is known to be right, and so not doubted, ``(num_samples,)``; None: of none
            it is.
        num_classes: c; only for ``"posterior"``.

    Example:
        >>> doubts, ids = Doubts("margin", 2), torch.tensor([0])
        >>> logits = torch.tensor([[0.0, 2.0]])
        >>> doubts(Adjuster("gce", [5, 5]), logits, torch.tensor([0]), ids)
        tensor([0.8808])
    """

    trusted: Tensor | None

    def __init__(
        self,
        kind: str,
        num_samples: int,
        memory: float = 0.9,
        trusted: Tensor | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        if kind not in DOUBTS or (kind == "posterior" and num_classes is None):
            raise OptionError(
                f"labels cannot be doubted by {kind!r}: give {', '.join(DOUBTS)}, the last with num_classes"
            )
        self._kind = kind
        self.evidence = Evidence(num_classes, num_samples, memory) if kind == "posterior" and num_classes else None
        self.register_buffer("trusted", trusted, persistent=False)
        self.running = RunningMargin(memory)
        self.running.reserve(num_samples)

    @torch.no_grad()
    def forward(self, adjuster: Adjuster, logits: Tensor, y: Tensor, ids: Tensor) -> Tensor:
        """Of a batch, ``(N,)``.

        Args:
            adjuster: that is at work.
            logits: of the one who judges, ``(N, c)``.
            y: given labels.
            ids: the samples' positions, ``(N,)``.
        """
        if self.evidence is not None:
            found, _ = elsewhere(self.evidence(logits, y), y)
        elif self._kind == "loss":
            found = moved_away(adjuster.robust_loss, logits, y, adjuster(logits, y, ids))
        else:
            found = torch.sigmoid(-self.running.blend(margin(logits, y), ids))
        return found if self.trusted is None else found.masked_fill(self.trusted[ids], 0.0)

    def chances(self, logits: Tensor, y: Tensor) -> Tensor | None:
        """What a doubted label is if it is wrong, ``(N, c)``; None: what the logits say."""
        return None if self.evidence is None else elsewhere(self.evidence(logits, y), y)[1]

    @torch.no_grad()
    def remember(self, logits: Tensor, y: Tensor, ids: Tensor) -> None:
        """Take the margins into the averages, and the labels into what is known of them: once a step."""
        self.running.store(margin(logits, y), ids)
        if self.evidence is not None:
            self.evidence.remember(logits, y, None if self.trusted is None else ~self.trusted[ids])
