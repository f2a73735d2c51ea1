"""Several classifiers that decide together, and averages of their weights along the training."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from narl.errors import OptionError


@final
@dataclass(frozen=True)
class Networks:
    """How many networks a method trains, and whether it keeps averages of them.

    Args:
        count: of the networks that are trained.
        averaged: whether an exponential average of each one's weights is kept.

    Example:
        >>> Networks(2).of(lambda: nn.Linear(4, 3))
        Committee(
          (members): ModuleList(
            (0-1): 2 x Linear(in_features=4, out_features=3, bias=True)
          )
        )
        >>> Networks().of(lambda: nn.Linear(4, 3))
        Linear(in_features=4, out_features=3, bias=True)
    """

    count: int = 1
    averaged: bool = False

    def __post_init__(self) -> None:
        """Refuse a number that is none."""
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise OptionError(f"{self.count!r} networks cannot be trained: give 1 or more")

    @property
    def plain(self) -> bool:
        """Whether it is one network and nothing else."""
        return self.count == 1 and not self.averaged

    def of(self, make: Callable[[], nn.Module]) -> nn.Module:
        """The model: what ``make`` gives, or a committee of what it gives one time after the other."""
        return make() if self.plain else Committee([make() for _ in range(self.count)], averaged=self.averaged)


@final
class Committee(nn.Module):
    r"""Classifiers that predict together: the mean of their probabilities, as logits.

    .. math:: z(x) = \log \frac1K \sum_{k=1}^K \operatorname{softmax} z_k(x)

    Args:
        members: the classifiers, alike; they are trained.
        averaged: whether exponential averages of their weights are kept. The averages then predict.

    ``members`` and ``averages`` are ``nn.ModuleList``; ``averages`` is None without averages. Averages have no gradient
    and are always in evaluation mode; :meth:`follow` moves them.

    Example:
        >>> committee = Committee([nn.Linear(4, 3), nn.Linear(4, 3)])
        >>> x = torch.randn(2, 4)
        >>> mean = sum(member(x).softmax(1) for member in committee.members) / 2
        >>> torch.allclose(committee(x).softmax(1), mean)
        True
    """

    def __init__(self, members: Sequence[nn.Module], averaged: bool = False) -> None:
        super().__init__()
        if not members:
            raise OptionError("a committee of nobody cannot predict: give one member or more")
        self.members = nn.ModuleList(members)
        self.averages: nn.ModuleList | None = None
        if averaged:
            self.averages = nn.ModuleList(copy.deepcopy(member) for member in members).requires_grad_(False).eval()

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(N, c)`` of the averages, where there are some, else of the members."""
        predicting = self.members if self.averages is None else self.averages
        found = torch.stack([member(x).log_softmax(dim=1) for member in predicting])
        return found.logsumexp(dim=0) - math.log(len(predicting))

    def train(self, mode: bool = True) -> Committee:
        """Set the members' mode; averages stay in evaluation mode."""
        self.training = mode
        self.members.train(mode)  # of the averages nothing is changed: a step begins here, and they are many modules
        return self

    @torch.no_grad()
    def follow(self, decay: float, members: Sequence[int] | None = None) -> None:
        r"""Move the averages towards the members.

        .. math:: \bar w \leftarrow \beta \bar w + (1 - \beta)\, w

        Buffers, such as BatchNorm's statistics, go the same way; whole numbers are copied.

        Args:
            decay: :math:`\beta`, from 0 (a copy) to 1 (nothing moves).
            members: which ones' averages; all if omitted.

        Example:
            >>> committee = Committee([nn.Linear(1, 1, bias=False)], averaged=True)
            >>> _ = nn.init.zeros_(committee.averages[0].weight), nn.init.ones_(committee.members[0].weight)
            >>> committee.follow(0.75)
            >>> committee.averages[0].weight.item()
            0.25
        """
        if self.averages is None:
            raise OptionError("this committee keeps no averages: make it with averaged=True")
        if not 0 <= decay <= 1:
            raise OptionError(f"decay = {decay} is outside [0, 1]: 0 copies the members, 1 stands still")
        behind: list[Tensor] = []
        ahead: list[Tensor] = []
        whole: list[Tensor] = []
        counted: list[Tensor] = []
        for number in range(len(self.members)) if members is None else members:
            average, member = self.averages[number], self.members[number]
            for own, new in zip(_tensors(average), _tensors(member), strict=True):
                averaged = own.is_floating_point()
                (behind if averaged else whole).append(own)
                (ahead if averaged else counted).append(new)
        # A few kernels for hundreds of tensors.
        if behind:
            torch._foreach_lerp_(behind, ahead, 1 - decay)
        if whole:
            torch._foreach_copy_(whole, counted)


def _tensors(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers, each once: one walk through the modules, for it is done in every step."""
    held = (
        tensor
        for part in module.modules()
        for holder in (part._parameters, part._buffers)
        for tensor in holder.values()
    )
    return list({id(tensor): tensor.detach() for tensor in held if tensor is not None}.values())
