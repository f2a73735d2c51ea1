"""The network of MentorNet's learned curriculum, and the labels that it learns on."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Generator, Tensor, nn

_PERCENTS = 100
_LITTLE = 1e-6


@final
class Mentor(nn.Module):
    """The small network of the learned curriculum.

    A bidirectional LSTM of one unit reads a sample's loss and its distance from the threshold; its label and the
    progress of the training, in per cent, are looked up in tables; a hidden layer makes a score of all.

    Args:
        num_classes: c.
        hidden: units of the hidden layer.
        label_size: numbers that stand for a label.
        progress_size: numbers that stand for a per cent of the training; they begin at 0.
        generator: where the initial weights come from.

    Example:
        >>> mentor = Mentor(3, generator=torch.Generator().manual_seed(0))
        >>> mentor(torch.tensor([0.1, 4.0]), torch.tensor([-0.9, 3.0]), torch.tensor([0, 2]), 0.5).shape
        torch.Size([2])

    Reference: Jiang et al., ICML 2018.
    """

    def __init__(
        self,
        num_classes: int,
        hidden: int = 20,
        label_size: int = 2,
        progress_size: int = 5,
        *,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        # On the meta device nothing is drawn from the global random state.
        made: dict[str, Any] = {"device": "meta"}
        self.history = nn.LSTM(2, 1, batch_first=True, bidirectional=True, **made)
        self.label = nn.Embedding(num_classes, label_size, **made)
        self.progress = nn.Embedding(_PERCENTS, progress_size, **made)
        self.hidden = nn.Linear(2 + label_size + progress_size, hidden, **made)
        self.output = nn.Linear(hidden, 1, **made)
        self.to_empty(device="cpu")
        for parameter in self.parameters():
            bound = parameter.shape[-1] ** -0.5
            nn.init.uniform_(parameter, -bound, bound, generator=generator)
        nn.init.zeros_(self.progress.weight)

    def forward(self, values: Tensor, distances: Tensor, labels: Tensor, progress: float) -> Tensor:
        """Scores of the samples, ``(N,)``: the larger, the likelier is the label right.

        Args:
            values: losses, ``(N,)``.
            distances: of the losses from the threshold, ``(N,)``.
            labels: class indices, ``(N,)``.
            progress: of the training, from 0 to 1.
        """
        with torch.autocast(values.device.type, enabled=False):
            pairs = torch.stack([values, distances], dim=1).to(self.hidden.weight.dtype)
            _, (state, _) = self.history(pairs.unsqueeze(1))
            percent = min(int(progress * _PERCENTS), _PERCENTS - 1)
            time = self.progress.weight[percent].expand(len(values), -1)
            known = torch.cat([state.transpose(0, 1).flatten(1), self.label(labels.long()), time], dim=1)
            scores: Tensor = self.output(torch.tanh(self.hidden(known))).squeeze(1)
            return scores


def exchanged(y: Tensor, predictions: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Labels of which every second one, on average, has been exchanged for another class.

    A classifier of noisy labels has learned which class is taken for which: a wrong label is drawn from its prediction,
    the right class left out, so that it is wrong in the way of the training set's.

    Args:
        y: right labels, class indices ``(N,)`` or probabilities ``(N, c)``.
        predictions: of the samples, probabilities ``(N, c)``.
        generator: on the CPU.

    Returns:
        Class indices, and which of them are still right, ``(N,)`` each.

    Example:
        >>> y = torch.tensor([0, 1, 1, 0])
        >>> labels, right = exchanged(y, torch.full((4, 3), 1 / 3), torch.Generator().manual_seed(0))
        >>> bool(((labels == y) == right).all())
        True
    """
    labels = y.argmax(dim=1) if y.dim() == 2 else y.long()
    draws = torch.rand(2, len(y), generator=generator).to(predictions.device, torch.float64, non_blocking=True)
    # A little of every class: a prediction that is sure of the right one must leave something to draw from.
    others = (predictions.double() + _LITTLE).scatter(1, labels.unsqueeze(1), 0.0)
    sums = others.cumsum(dim=1)
    wrong = (sums <= draws[:1].t() * sums[:, -1:]).sum(dim=1)
    right = draws[1] < 0.5
    return torch.where(right, labels, wrong), right
