"""What several trainings need for a step, side by side: losses, clean batches, and what moves their adjusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from narl.bilevel.optimizers import Rule, fill_state
from narl.errors import OptionError
from narl.train.engine.captured import Clean
from narl.train.engine.seats import Seat
from narl.train.methods import Move
from narl.train.methods.base import LookAhead

OF = ": "  # between a training's number and the name of a value of it
LOSS, META, MARGIN = " loss", " meta loss", " margin"  # no hyperparameter's name begins with a space


@final
class Losses:
    """The losses of several trainings, each for its part of the logits."""

    def __init__(self, moves: Sequence[Move]) -> None:
        self._losses, self._observers = [move.loss for move in moves], [move.observe for move in moves]

    def loss(self, logits: Tensor, targets: Tensor, ids: Tensor) -> Tensor:
        """The sum of theirs, ``(N,)``: its slope is that of each."""
        parts = _parts(logits, targets, ids, len(self._losses))
        values = [loss(*part) for loss, part in zip(self._losses, parts, strict=True)]
        return torch.stack(values).sum(dim=0)

    @torch.no_grad()
    def observe(self, logits: Tensor, targets: Tensor, ids: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Mean loss, values and margins of each by name; and all margins, ``(N, R)``."""
        found: dict[str, Tensor] = {}
        margins = []
        for number, part in enumerate(_parts(logits, targets, ids, len(self._losses))):
            found[f"{number}{OF}{LOSS}"] = self._losses[number](*part).mean()  # before it remembers this batch
            values, margin = self._observers[number](*part)
            margins.append(margin)
            found |= {f"{number}{OF}{name}": value for name, value in {**values, MARGIN: margin}.items()}
        return found, torch.stack(margins, dim=1)


@final
class Objectives(nn.Module):
    """Learned losses, as :class:`Losses`, that are learned together."""

    def __init__(self, learned: Sequence[nn.Module]) -> None:
        super().__init__()
        self.learned = nn.ModuleList(learned)
        self._all = Losses([Move((), one.loss, one.observe) for one in learned])  # type: ignore[arg-type]

    def loss(self, logits: Tensor, targets: Tensor, ids: Tensor) -> Tensor:
        """The sum of theirs, ``(N,)``."""
        return self._all.loss(logits, targets, ids)

    def observe(self, logits: Tensor, targets: Tensor, ids: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Mean loss, values and margins of each by name."""
        return self._all.observe(logits, targets, ids)


@final
class Metas:
    """What moves several learned losses: one optimiser, that works on what theirs remember."""

    def __init__(self, metas: Sequence[LookAhead], adjuster: nn.Module) -> None:
        if len({meta.rule for meta in metas}) > 1:
            raise OptionError("trainings that look ahead by different steps cannot be stacked")
        self.rule: Rule = metas[0].rule
        self._metas, self.clean_loss = list(metas), metas[0].clean_loss
        self.adjuster = adjuster
        self._own = list(dict.fromkeys(meta.adjuster_optimizer for meta in metas))  # one, if they share an adjuster
        for own in self._own:
            if type(own) is not Adam:
                raise OptionError(f"an adjuster that {type(own).__name__} moves cannot be stacked: use Adam")
            fill_state(own)
        self._groups = [group for own in self._own for group in own.param_groups]
        self.adjuster_optimizer: Optimizer = Adam([dict(group) for group in self._groups])
        for own in self._own:
            for parameter, state in own.state.items():
                self.adjuster_optimizer.state[parameter] = state

    def refresh(self) -> None:
        """Take over the rates that the trainings have set, and what they are judged by now."""
        if len({meta.clean_loss for meta in self._metas}) > 1:
            raise OptionError("trainings whose steps are judged by different clean losses cannot be stacked")
        self.clean_loss = self._metas[0].clean_loss
        for group, own in zip(self.adjuster_optimizer.param_groups, self._groups, strict=True):
            group["lr"], group["weight_decay"] = own["lr"], own["weight_decay"]


@final
class Cleans:
    """Clean batches of several trainings, side by side."""

    def __init__(self, cleans: Sequence[Clean]) -> None:
        self._cleans = cleans

    @classmethod
    def of(cls, seats: Sequence[Seat]) -> Cleans | None:
        """Those of the trainings; None where one has no clean set."""
        cleans = [seat.clean for seat in seats if seat.clean is not None]
        return cls(cleans) if len(cleans) == len(seats) else None

    def __call__(self) -> tuple[Tensor, Tensor]:
        """The next batch of each."""
        return _side_by_side([clean() for clean in self._cleans])

    def example(self) -> tuple[Tensor, Tensor]:
        """Some batch of each; nothing is drawn for it."""
        return _side_by_side([clean.example() for clean in self._cleans])


def _side_by_side(batches: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return joint_inputs([x for x, _ in batches]), torch.stack([y for _, y in batches], dim=1)


def joint_inputs(inputs: Sequence[Tensor]) -> Tensor:
    """Inputs ``(N, C, …)`` side by side, ``(N, R·C, …)``."""
    if len({tuple(x.shape) for x in inputs}) > 1:
        raise OptionError("trainings with inputs of several sizes cannot be stacked")
    return torch.cat(list(inputs), dim=1)


def _parts(logits: Tensor, targets: Tensor, ids: Tensor, count: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Logits, labels and ids of each training."""
    parts = logits.reshape(len(logits), count, -1).unbind(1)
    return list(zip(parts, targets.unbind(1), ids.unbind(1), strict=True))
