"""How much checked samples count that are trained on beside given labels: a share of every batch.

Given labels are many, and where they are wrong in ways that look right they outvote the few that people have checked.
So the checked ones come up more often than the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import final

import torch
from torch import Tensor

from narl.train.batches import mixed

_ENOUGH = 20  # checked samples of a class that count as much as all given labels
_VERY_WRONG = 0.4  # share of wrong given labels from which on they do
_UNKNOWN = 0.2  # taken for that share where nobody knows


def auto_share(checked: int, given: int, num_classes: int, wrong: float | None, epochs: int) -> float:
    r"""The share of a batch that checked samples have where nobody said.

    .. math:: s = \max\Big(\frac{n}{n + m},\; \frac{n f}{n f + 20 c}\Big), \qquad f = \min(1, w / 0.4)

    for n checked samples among m others of c classes, w of whose labels are wrong: half, where twenty of every class
    are checked and many labels are wrong. Found on development data, not derived. It is less in a run so short that not
    every given label would come up: audits want to judge all of them.

    Args:
        checked: n.
        given: m.
        num_classes: c.
        wrong: w, a share; None: not known.
        epochs: of the run.

    Returns:
        Above 0; 1 only if there are no others.

    Example:
        >>> [auto_share(count, 4000, 6, 0.46, 30) for count in (100, 300, 1000)]
        [0.455, 0.714, 0.893]
        >>> auto_share(1000, 4000, 6, 0.0, 30)  # as often as the others
        0.2
    """
    weight = checked * min(1.0, (_UNKNOWN if wrong is None else wrong) / _VERY_WRONG)
    wanted, samples = round(weight / (weight + _ENOUGH * num_classes), 3), checked + given
    return max(checked / samples, min(wanted, 1 - (given / epochs + 1) / samples))


@final
@dataclass(frozen=True, eq=False)
class Mixture:
    """Batches of which checked samples are a given share.

    Both kinds come up in rounds, each sample once a round, so that all of a kind are seen equally often; a round of the
    others takes as many epochs as it needs.

    Args:
        checked: positions of the checked samples, ``(n,)``.
        others: of the others, ``(m,)``.
        share: of the checked ones, above 0 and below 1.

    Example:
        >>> mixture = Mixture(torch.tensor([8, 9]), torch.arange(8), share=0.5)
        >>> [(rows >= 8).sum().item() for rows in mixture.batches([4, 4, 2], seed=0, epoch=3)]
        [2, 2, 1]
    """

    checked: Tensor
    others: Tensor
    share: float

    def batches(self, sizes: Sequence[int], *, seed: int, epoch: int) -> list[Tensor]:
        """An epoch's batches, in an order that the seed and the epoch decide.

        Args:
            sizes: of the batches; every epoch's are the same.
            seed: of the run.
            epoch: from 0.
        """
        until = [round(self.share * end) for end in accumulate(sizes)]
        counts = [last - first for first, last in pairwise([0, *until])]
        total = until[-1]
        ours = _round(self.checked, epoch * total, total, (seed, 1))
        theirs = _round(self.others, epoch * (sum(sizes) - total), sum(sizes) - total, (seed, 2))
        draw = torch.Generator().manual_seed(mixed(seed, epoch, 3))
        rest = [size - count for size, count in zip(sizes, counts, strict=True)]
        parts = zip(torch.split(ours, counts), torch.split(theirs, rest), strict=True)
        return [_shuffled(torch.cat(part), draw) for part in parts]


def _round(rows: Tensor, start: int, count: int, seed: tuple[int, ...]) -> Tensor:
    """So many rows of an endless line, from a place on: all rows in one order, then in another, and so on."""
    first = start // len(rows)
    rounds = range(first, -(-(start + count) // len(rows)))
    orders = [_shuffled(rows, torch.Generator().manual_seed(mixed(*seed, number))) for number in rounds]
    line = torch.cat([rows[:0], *orders])
    begin = start - first * len(rows)
    return line[begin : begin + count]


def _shuffled(rows: Tensor, generator: torch.Generator) -> Tensor:
    return rows[torch.randperm(len(rows), generator=generator)]
