"""What a step changes before it moves weights, put back where it ran out of memory, so that it can be done again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from narl.bilevel.calls import copy_all
from narl.train.methods import Method


@final
class Undo:
    """The buffers of networks, such as BatchNorm's statistics, and where random numbers stand.

    Args:
        networks: those in training mode change their buffers.
        method: whose own source of random numbers is one of them, if it has a setting.

    Example:
        >>> network = nn.BatchNorm1d(2)
        >>> undo = Undo([network], None)
        >>> undo.begin()
        >>> _ = network(torch.ones(3, 2))
        >>> undo.back()
        >>> network.running_mean
        tensor([0., 0.])
    """

    def __init__(self, networks: Sequence[nn.Module], method: Method | None) -> None:
        setting = getattr(method, "setting", None)
        self._generator: torch.Generator | None = getattr(setting, "generator", None)
        self._networks = [(network, [m._buffers for m in network.modules() if m._buffers]) for network in networks]
        self._devices = {p.device for network in networks for p in network.parameters() if p.device.type == "cuda"}
        self._buffers: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._random: list[Tensor] = []

    def begin(self) -> None:
        """Remember how it is now."""
        self._buffers, self._copies = [], []  # memory may not suffice even for these
        self._random = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in self._devices)]
        self._random += [] if self._generator is None else [self._generator.get_state()]
        held = [holder.values() for network, holders in self._networks if network.training for holder in holders]
        buffers = [buffer.detach() for values in held for buffer in values if buffer is not None]
        copies = [torch.empty_like(buffer) for buffer in buffers]
        copy_all(copies, buffers)
        self._buffers, self._copies = buffers, copies

    def back(self) -> None:
        """Have it as it was then."""
        copy_all(self._buffers, self._copies)
        states = iter(self._random)
        torch.set_rng_state(next(states))
        for device in self._devices:
            torch.cuda.set_rng_state(next(states), device)
        if self._generator is not None:
            self._generator.set_state(next(states))
