"""Learned adjusters as a drop-in criterion."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import final

from torch import Tensor, nn

from narl.adjuster.families import Counts
from narl.adjuster.network import Adjuster
from narl.errors import OptionError


@final
class AdjustedLoss(nn.Module):
    """A criterion in place of ``nn.CrossEntropyLoss``: a learned adjuster, frozen, fitted to this data.

    With several snapshots of an adjuster, taken along its own training, each serves its share of the new training:
    of three, the first serves the first third.

    Args:
        adjusters: one adjuster or its snapshots in order. They are copied; the originals stay as they are.
        class_counts: number of training samples of every class by the given labels, ``(c,)``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> import torch
        >>> learned = Adjuster("gce", class_counts=[100, 100])
        >>> criterion = AdjustedLoss(learned, class_counts=[30, 20, 50])
        >>> logits = torch.zeros(2, 3, requires_grad=True)
        >>> loss = criterion(logits, torch.tensor([0, 2]), progress=0.1)
        >>> loss.backward()
        >>> loss
        tensor(0.9359, grad_fn=<MeanBackward0>)
    """

    def __init__(self, adjusters: Adjuster | Sequence[Adjuster], class_counts: Counts, reduction: str = "mean") -> None:
        super().__init__()
        given = [adjusters] if isinstance(adjusters, Adjuster) else list(adjusters)
        strangers = [type(adjuster).__name__ for adjuster in given if not isinstance(adjuster, Adjuster)]
        if strangers:
            raise OptionError(f"got {', '.join(sorted(set(strangers)))}, no adjuster: narl.Adjuster.load reads a file")
        if not given:
            raise OptionError("no adjuster given: pass one, or the snapshots of one in order")
        named = {adjuster.robust_loss.name for adjuster in given}
        if len(named) > 1:
            raise OptionError(f"snapshots of different losses ({', '.join(sorted(named))}): pass those of one adjuster")
        if len({adjuster.running is None for adjuster in given}) > 1:
            raise OptionError("snapshots with 'latest' and with 'running' margin: pass those of one adjuster")
        if reduction not in ("mean", "sum", "none"):
            raise OptionError(f"reduction = {reduction!r} is unknown: use 'mean', 'sum' or 'none'")
        snapshots = [copy.deepcopy(adjuster).refit(class_counts).requires_grad_(False) for adjuster in given]
        for snapshot in snapshots[1:]:
            snapshot.running = snapshots[0].running  # one memory of the samples, whichever snapshot is at work
        self.snapshots = nn.ModuleList(snapshots)
        self.reduction = reduction

    def forward(self, logits: Tensor, targets: Tensor, progress: float = 0.0, ids: Tensor | None = None) -> Tensor:
        """The adjusted loss of a batch.

        Args:
            logits: ``(N, c)``.
            targets: class indices ``(N,)`` or probabilities ``(N, c)``.
            progress: how much of the training is done, from 0 to 1; it chooses the snapshot.
            ids: sample ids ``(N,)``, for adjusters with ``margin="running"``; remembered in training mode.

        Returns:
            A scalar, or ``(N,)`` with ``reduction="none"``.
        """
        snapshot = self.at(progress)
        values = snapshot.loss(logits, targets, ids)
        if self.training and snapshot.running is not None:
            snapshot.observe(logits, targets, ids)
        if self.reduction == "none":
            return values
        return values.mean() if self.reduction == "mean" else values.sum()

    def at(self, progress: float) -> Adjuster:
        """The snapshot that serves at this point of the training, from 0 to 1."""
        if not 0 <= progress <= 1:
            raise OptionError(f"progress = {progress} is outside [0, 1]: give the share of the training that is done")
        chosen = self.snapshots[min(int(progress * len(self.snapshots)), len(self.snapshots) - 1)]
        assert isinstance(chosen, Adjuster)
        return chosen
