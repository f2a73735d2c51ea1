"""Learning rates and weight decays as tensors: captured steps read them, and schedules change them without ado."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor
from torch.optim import Optimizer


@final
class Rates:
    """The rates of an optimiser, on its parameters' device.

    Outside of :meth:`in_use` the optimiser holds plain numbers, which schedules set and checkpoints save.

    Args:
        optimizer: any.
        decay: whether the weight decay changes as well. Then inside :meth:`in_use` the optimiser has none, and
            :meth:`decayed` adds it to the gradients, which for ``SGD`` and ``Adam`` is the same.

    Example:
        >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
        >>> rates = Rates(optimizer)
        >>> optimizer.param_groups[0]["lr"] = 0.25
        >>> rates.refresh()
        >>> with rates.in_use():
        ...     optimizer.param_groups[0]["lr"]
        tensor(0.2500)
    """

    def __init__(self, optimizer: Optimizer, *, decay: bool = False) -> None:
        self._optimizer, self._decay = optimizer, decay
        self._known = self._wanted()
        self._tensors = [
            {name: torch.tensor(value, device=group["params"][0].device) for name, value in known.items()}
            for group, known in zip(optimizer.param_groups, self._known, strict=True)
        ]

    def _wanted(self) -> list[dict[str, float]]:
        names = ("lr", "weight_decay") if self._decay else ("lr",)
        return [{name: float(group[name]) for name in names} for group in self._optimizer.param_groups]

    def refresh(self) -> None:
        """Take over what the optimiser holds now."""
        wanted = self._wanted()
        for tensors, known, now in zip(self._tensors, self._known, wanted, strict=True):
            for name, value in now.items():
                if known[name] != value:
                    tensors[name].fill_(value)
        self._known = wanted

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, the optimiser computes with the tensors."""
        groups = self._optimizer.param_groups
        before = [{name: group[name] for name in known} for group, known in zip(groups, self._known, strict=True)]
        try:
            for group, tensors in zip(groups, self._tensors, strict=True):
                group["lr"] = tensors["lr"]
                if self._decay:
                    group["weight_decay"] = 0.0
            yield
        finally:
            for group, values in zip(groups, before, strict=True):
                group.update(values)

    @torch.no_grad()
    def decayed(self, gradients: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """Gradients by parameter, with the weight decay."""
        decays = {
            parameter: tensors["weight_decay"]
            for group, tensors in zip(self._optimizer.param_groups, self._tensors, strict=True)
            for parameter in group["params"]
        }
        return {p: torch.addcmul(gradient, p.detach(), decays[p]) for p, gradient in gradients.items()}
