"""A registered loss with the same hyperparameters for every sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch.nn.functional as F
from torch import Tensor, nn

from narl import losses
from narl.checks import at_least_float32
from narl.losses import Hyperparameter, RobustLoss
from narl.train.methods.base import LossMethod, Setting
from narl.train.methods.spec import MethodSpec, Option

# SL's first candidate is the one published for CIFAR-10. PolySoft's λ stays above log c for up to 50 classes. JS with
# π₁ = 0.1 is still far from cross entropy where there are many classes.
_GRIDS: dict[str, tuple[dict[str, float], ...]] = {
    "gce": tuple({"q": q} for q in (0.1, 0.3, 0.5, 0.7, 0.9)),
    "js": tuple({"pi1": pi1} for pi1 in (0.01, 0.1, 0.3, 0.5, 0.7, 0.9)),
    "sl": tuple(
        {"gamma1": ce, "gamma2": reverse}
        for ce, reverse in ((0.1, 1.0), (0.3, 1.0), (1.0, 1.0), (1.0, 0.3), (1.0, 0.1))
    ),
    "polysoft": tuple(
        {"lam": lam, "d": d} for lam, d in ((4.0, 2.0), (6.0, 1.5), (6.0, 2.0), (12.0, 1.5), (12.0, 2.0))
    ),
}
_SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """:func:`narl.losses.ce` by torch's fused kernel, for logits and targets that have been checked.

    Args:
        logits: ``(N, c)``.
        targets: class indices ``(N,)`` or probabilities ``(N, c)``.

    Returns:
        ``(N,)``, at least float32.

    Example:
        >>> import torch
        >>> cross_entropy(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
        tensor([0.6931])
    """
    values = at_least_float32(logits)
    classes = targets.long() if targets.dim() == 1 else targets.to(values.dtype)
    return F.cross_entropy(values, classes, reduction="none")


# Half the time of a small network's step would go into the loss.
_FUSED: dict[Callable[..., Tensor], Callable[..., Tensor]] = {losses.ce: cross_entropy}


@final
class FixedLoss(LossMethod):
    """A registered loss with fixed hyperparameters.

    Args:
        setting: what there is to work with.
        loss: its name.
        hyperparameters: of the loss; those not given have the loss's defaults.

    Example:
        >>> import torch
        >>> from narl.train import methods
        >>> model = torch.nn.Linear(4, 3)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> setting = Setting(model, optimizer, torch.tensor([5, 5, 5]), None, 100, 15, torch.Generator())
        >>> methods.build("GCE", setting, q=0.5).hyperparameters
        {'q': 0.5}
    """

    def __init__(self, setting: Setting, loss: str, **hyperparameters: float) -> None:
        super().__init__(setting)
        self.loss = losses.get(loss)
        self.hyperparameters = spec(self.loss).checked(hyperparameters)
        self._nothing = nn.Module()
        self._function = _FUSED.get(self.loss.function, self.loss.function)

    @property
    def phase(self) -> tuple[()]:
        """Always the same."""
        return ()

    @property
    def compiles_with(self) -> nn.Module:
        """It has no tensors; a registered loss that has runs as it is written."""
        return self._nothing

    def values(self, logits: Tensor, y: Tensor, ids: Tensor) -> Tensor:
        """The loss of every sample, ``(N,)``."""
        return self._function(logits, y, **self.hyperparameters)


def spec(loss: RobustLoss, title: str | None = None) -> MethodSpec:
    """The method of a loss.

    Args:
        loss: a registered loss.
        title: the method's name, instead of the loss's title.

    Returns:
        Its specification.
    """

    def make(setting: Setting, **hyperparameters: float) -> FixedLoss:
        return FixedLoss(setting, loss.name, **hyperparameters)

    kind = "the same hyperparameters for every sample" if loss.hyperparameters else "no hyperparameters"
    return MethodSpec(
        name=title or loss.title,
        make=make,
        description=f"{loss.title} loss, {kind}",
        loss=loss.name,
        options={
            h.name: Option(h.default, f"hyperparameter of {loss.title}", float, low=h.low, high=h.high)
            for h in loss.hyperparameters
        },
        candidates=grid(loss),
    )


def grid(loss: RobustLoss) -> tuple[dict[str, float], ...]:
    """A handful of settings of a loss's hyperparameters, for validation to choose from.

    Losses that are not the package's own get five points along each hyperparameter's span, the others at their
    defaults; where the span's ends are more than a factor of 100 apart, the points are spaced by equal factors.

    Args:
        loss: a registered loss.

    Returns:
        The settings, none of them twice; none for a loss without hyperparameters.

    Example:
        >>> grid(losses.get("gce"))
        ({'q': 0.1}, {'q': 0.3}, {'q': 0.5}, {'q': 0.7}, {'q': 0.9})
    """
    listed = _GRIDS.get(loss.name, ())
    if listed and all(set(candidate) == set(loss.defaults) for candidate in listed):
        return tuple(dict(candidate) for candidate in listed)
    found = [{**loss.defaults, h.name: value} for h in loss.hyperparameters for value in _points(h)]
    return tuple(candidate for i, candidate in enumerate(found) if candidate not in found[:i])


def _points(hyperparameter: Hyperparameter) -> list[float]:
    """Values inside the span: its ends are often limits that nobody wants."""
    low, high = hyperparameter.span
    if low > 0 and high / low > 100:
        return [low * (high / low) ** share for share in _SHARES]
    return [low + (high - low) * share for share in _SHARES]
