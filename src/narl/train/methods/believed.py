"""Batches in which labels that are believed come up more often than others, as in semi-supervised learning."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

_ONE_IN = 50  # a draw takes at most one in so many of all samples, or else what a single batch wants
_HALVINGS, _WIDEST = 60, 1e9
_LEAST = 1e-6  # belief of a label that nobody believes: where all are such, they are drawn alike


def more_believed(
    batches: Sequence[Tensor], beliefs: Tensor, share: float, generator: Generator, kept: Tensor | None = None
) -> list[Tensor]:
    """Batches of the same sizes, in which a share of the rows gave way to samples that are believed.

    They are drawn with probabilities proportional to the beliefs, none twice for a batch. The rows that stay are the
    first ones of a batch that comes in random order. Where there are too few samples to draw, batches stay as they are.

    Args:
        batches: an epoch's, positions of samples, a tensor ``(n,)`` each.
        beliefs: how far each sample's label is believed, from 0 to 1, ``(N,)``.
        share: of the rows that give way, from 0 to 1.
        generator: where random numbers come from.
        kept: samples that stay wherever they are, and are not drawn, ``(N,)``; None: none.

    Example:
        >>> beliefs = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0])
        >>> found = more_believed([torch.tensor([0, 1, 2, 5])], beliefs, 0.5, torch.Generator())
        >>> found[0].sort().values
        tensor([0, 1, 3, 4])
    """
    weights = beliefs.detach().double().cpu().clamp_min(_LEAST)
    stays = torch.zeros(len(weights), dtype=torch.bool) if kept is None else kept.cpu()
    weights = weights.masked_fill(stays, 0.0)
    found: list[Tensor] = []
    for group in _groups(batches, share, len(weights)):
        rests = [_rest(rows, stays, share) for rows in group]
        counts = [len(rows) - len(rest) for rows, rest in zip(group, rests, strict=True)]
        if not sum(counts):
            found += group
            continue
        free = weights.clone()
        free[torch.cat(rests)] = 0.0
        places = free.nonzero().squeeze(1)
        if len(places) < sum(counts):
            found += group
            continue
        drawn = places[_drawn(free[places], sum(counts), generator)]
        found += [torch.cat(part) for part in zip(rests, torch.split(drawn, counts), strict=True)]
    return found


def _drawn(weights: Tensor, count: int, generator: Generator) -> Tensor:
    """Places drawn without replacement, with probabilities proportional to weights above 0, in a random order.

    Those that win a race are drawn, as in ``torch.multinomial``, which ends at 2²⁴ samples. The likeliest tend to win
    first: in that order the batches that are drawn for at once would not be alike.
    """
    times = torch.empty_like(weights).exponential_(generator=generator) / weights
    winners: Tensor = times.topk(count, largest=False).indices
    return winners[torch.randperm(count, generator=generator)]


def _groups(batches: Sequence[Tensor], share: float, samples: int) -> list[list[Tensor]]:
    """Batches that are drawn for at once: together they want a small part of all samples, so that all are there."""
    count = _at_once(len(batches), share * sum(map(len, batches)), samples)
    return [list(batches[first : first + count]) for first in range(0, len(batches), count)]


def _at_once(batches: int, wanted: float, samples: int) -> int:
    """For how many batches of an epoch, that wants so many samples, is drawn at once."""
    return max(1, int(batches * samples / max(wanted, 1.0) / _ONE_IN))


def _rest(rows: Tensor, stays: Tensor, share: float) -> Tensor:
    """The rows of a batch that do not give way, in their order."""
    movable = (~stays[rows]).nonzero().squeeze(1)
    gone = movable[len(movable) - round(share * len(movable)) :]
    rest = torch.ones(len(rows), dtype=torch.bool)
    rest[gone] = False
    return rows[rest]


def how_often(beliefs: Tensor, share: float, batch_size: int, kept: Tensor | None = None) -> Tensor:
    r"""How often each sample comes up then, beside how often it else would: on average.

    With the share s, G draws an epoch, and the part :math:`\rho = (1 - s) / G` of the samples that a draw finds in its
    batches already,

    .. math:: r_i = 1 - s + G (1 - \rho) \big(1 - e^{-\lambda b_i}\big)

    where λ is such that r is 1 in the mean. With many batches that is :math:`1 - s + s\, b_i / \bar b`; with few, a
    sample that is drawn in each cannot come up more often. That is about batches that would hold each sample once; that
    ``--clean-share`` repeats checked samples, and has fewer of the others in an epoch, is left out.

    Args:
        beliefs: b, ``(N,)``.
        share: s.
        batch_size: samples of a batch.
        kept: samples that stay where they are, ``(N,)``; 1 for them.

    Returns:
        r, ``(N,)``.

    Example:
        >>> how_often(torch.tensor([1.0, 0.0, 0.5, 0.5]).repeat(1000), 0.5, 10)[:4].round(decimals=1)
        tensor([1.5000, 0.5000, 1.0000, 1.0000])
        >>> how_often(torch.tensor([1.0, 0.0, 0.5, 0.5]), 0.5, 4)  # all are in the one batch anyway
        tensor([1., 1., 1., 1.])
    """
    weights = beliefs.clamp_min(_LEAST).double()
    may = torch.ones_like(weights, dtype=torch.bool) if kept is None else ~kept
    count = int(may.sum())
    if not count:
        return torch.ones_like(beliefs)
    weights = weights / weights[may].mean()
    batches = -(-count // batch_size)
    draws = -(-batches // _at_once(batches, share * count, len(beliefs)))
    there = 1 - (1 - share) / draws
    wanted = share / (draws * there)  # the mean share of the draws in which a sample comes up
    low, high = (torch.zeros_like(weights[:1]) + end for end in (0.0, _WIDEST))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        too_few = -torch.expm1(-middle * weights[may]).mean() < wanted
        low, high = torch.where(too_few, middle, low), torch.where(too_few, high, middle)
    often = 1 - share - draws * there * torch.expm1(-high * weights)
    return often.masked_fill(~may, 1.0).to(beliefs.dtype)
