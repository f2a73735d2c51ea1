"""Adjusters that serve in many trainings at once, beside each other: much faster than one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import narl
from narl import AdjustedLoss, Adjuster
from narl.adjuster.margins import BESIDES, RunningMargin, parsed


class Judges:
    """Frozen adjusters of one loss that serve side by side, each in its own training: what each of them alone gives.

    Their numbers are in tensors that stay where they are, so that a CUDA graph can go on with the next snapshots.

    Args:
        criteria: the adjusters, each of which gets a copy of the same samples.
        rows: how many samples there are.
        device: where.
    """

    def __init__(self, criteria: Sequence[AdjustedLoss], rows: int, device: str = "cpu") -> None:
        snapshots = [snapshot for one in criteria for snapshot in one.snapshots]
        self._plain = all(str(snapshot.input).startswith("margin") for snapshot in snapshots)
        self._criteria, self._rows, self._device = criteria, rows, device
        self._units = max(len(snapshot.hidden.bias) for snapshot in snapshots)  # type: ignore[union-attr, arg-type]
        self._families = max(int(snapshot.num_families) for snapshot in snapshots)  # type: ignore[arg-type]
        self._loss = criteria[0].at(0.0).robust_loss
        self._spans = criteria[0].at(0.0).spans
        self._remembered = RunningMargin().to(device)
        self._remembered.reserve(rows * len(criteria))
        self._running = torch.tensor([[one.at(0.0).remembers] for one in criteria], device=device)
        self._unnamed = torch.tensor([[_unnamed(one)] for one in criteria], device=device)
        self._visits = torch.ones((), device=device)
        self._scale = criteria[0].at(0.0).scale
        self._worths = [None if one.worth is None else one.worth.to(device) for one in criteria]
        self._turns: list[Adjuster] = []
        self._parts: list[Tensor] = []

    @property
    def remembered(self) -> tuple[Tensor, ...]:
        """What changes from step to step: running margins, how often samples were seen, counts of wrong labels."""
        counts = [buffer for worth in self._worths if worth is not None for buffer in worth.buffers()]
        return self._remembered.table, self._visits, *counts

    @torch.no_grad()
    def turn(self, progress: float) -> None:
        """Have those snapshots serve that are to at this point."""
        serving = [one.at(progress) for one in self._criteria]
        if serving == self._turns:
            return
        made = [torch.stack(parts).to(self._device) for parts in zip(*map(self._numbers, serving), strict=True)]
        if not self._turns:
            self._parts = made
        for own, new in zip(self._parts, made, strict=True):
            own.copy_(new)
        self._turns = serving

    def _numbers(self, adjuster: Adjuster) -> tuple[Tensor, ...]:
        """Weights for margin, progress and number of classes; what it does not see, and units it has not, are zeros."""
        parts = parsed(adjuster.input)
        assert parts is not None
        own, families = len(adjuster.hidden.bias), adjuster.num_families
        hidden, bias = torch.zeros(1 + len(BESIDES), self._units), torch.zeros(1, self._units)
        hidden[[0, *(1 + BESIDES.index(name) for name in parts[1])], :own] = adjuster.hidden.weight.T.cpu()
        bias[0, :own] = adjuster.hidden.bias.cpu()
        heads = torch.zeros(self._units, self._families, len(self._spans))
        heads[:own, :families] = adjuster.heads.weight.T.cpu().view(own, families, -1)
        levels = torch.zeros(1, self._families, len(self._spans))
        levels[0, :families] = adjuster.heads.bias.cpu().view(families, -1)
        return hidden, bias, heads.flatten(1), levels.flatten(1), adjuster.of_class.cpu()

    def __call__(self, progress: Tensor, logits: Tensor, labels: Tensor, ids: Tensor) -> dict[str, Tensor]:
        """Every sample's hyperparameters, ``(trainings * N,)`` each; running margins are remembered."""
        hidden, bias, heads, levels, of_class = self._parts
        count = len(self._criteria)
        latest = narl.margin(logits.flatten(0, 1), labels.repeat(count))
        if not self._plain:
            pairs = zip(self._turns, latest.view(count, -1), logits, strict=True)
            latest = torch.cat([one.measure(margins, own) for one, margins, own in pairs])
        own_ids = (ids + self._rows * torch.arange(count, device=ids.device).unsqueeze(1)).flatten()
        average = self._remembered.blend(latest, own_ids).view(count, -1)
        self._remembered.store(latest, own_ids)
        guessed = self._remembered.share(self._visits) * latest.view(count, -1)
        self._visits.add_(len(ids) / self._rows)
        seen = torch.where(self._running, torch.where(self._unnamed, guessed, average), latest.view(count, -1))
        inputs = torch.stack([seen, progress.expand_as(seen), torch.full_like(seen, self._scale)], dim=2)
        shares = torch.baddbmm(levels, torch.baddbmm(bias, inputs, hidden).relu(), heads).sigmoid()
        own = shares.view(count, len(labels), self._families, len(self._spans))
        family = of_class[:, labels][..., None, None].expand(-1, -1, 1, len(self._spans))
        values = own.gather(2, family).squeeze(2)
        spans = enumerate(self._spans.items())
        return {name: (low + (high - low) * values[..., k]).flatten() for k, (name, (low, high)) in spans}

    def losses(self, progress: Tensor, logits: Tensor, labels: Tensor, ids: Tensor) -> Tensor:
        """What each training minimises, ``(trainings * N,)``; margins are remembered and wrong labels counted."""
        chosen, found = self(progress, logits.detach(), labels, ids), []
        if not any(self._worths):
            return self._loss(logits.flatten(0, 1), labels.repeat(len(logits)), **chosen)
        for number, (worth, own) in enumerate(zip(self._worths, logits, strict=True)):
            given = {name: values.view(len(logits), -1)[number] for name, values in chosen.items()}
            if worth is None:
                found.append(self._loss(own, labels, **given))
            else:
                found.append(worth.at(progress)(own, labels, given)[0])
                worth.count(*worth.looked(own, labels))
        return torch.cat(found)


def _unnamed(criterion: AdjustedLoss) -> bool:
    running = criterion.at(0.0).running
    return running is not None and running.seen is not None
