"""What a robust loss is, and the registry that the adjuster, the theory and the tests read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from narl.errors import DuplicateNameError, HyperparameterError, OptionError, UnknownNameError, nearest


@dataclass(frozen=True)
class Hyperparameter:
    """One hyperparameter of a robust loss.

    Args:
        name: the argument's name in the loss function.
        low: smallest value that the loss accepts.
        high: largest value that the loss accepts.
        start: where an untrained adjuster begins: on the learnable side, near cross entropy. Beginning near MAE, a run
            can collapse, because a one-step look-ahead at a large learning rate likes whatever shrinks all gradients.
        default: the value of the loss when used with one fixed value.
        span: ``(low, high)`` of what an adjuster may give out; the whole range if omitted. Narrower than the range
            where the range's ends are only limits (``lam`` up to 10⁶) and no values to learn with.

    Example:
        >>> Hyperparameter("q", low=0.01, high=1.0, start=0.3, default=0.7).span
        (0.01, 1.0)
    """

    name: str
    low: float
    high: float
    start: float
    default: float
    span: tuple[float, float] = (math.nan, math.nan)

    def __post_init__(self) -> None:
        """Fill in the span and refuse values that contradict each other."""
        if all(math.isnan(end) for end in self.span):
            object.__setattr__(self, "span", (self.low, self.high))
        low, high = self.span
        fits = self.low <= low < self.start < high <= self.high and self.low <= self.default <= self.high
        if not (fits and math.isfinite(self.low) and math.isfinite(self.high)):
            raise HyperparameterError(
                f"hyperparameter {self.name!r} contradicts itself: low ≤ span's low < start < span's high ≤ high and "
                f"low ≤ default ≤ high must hold and be finite, got low={self.low}, high={self.high}, "
                f"span={self.span}, start={self.start}, default={self.default}"
            )


@dataclass(frozen=True)
class RobustLoss:
    r"""A loss by name: its function and its hyperparameters.

    Args:
        name: lower case, as in ``narl.losses.get(name)``.
        function: ``(logits, targets, **hyperparameters) -> Tensor (N,)``; each hyperparameter a float or ``(N,)``.
        hyperparameters: in the order in which the function takes them; empty for CE and MAE.
        title: how tables and figures write the name; in capitals if omitted.
        pull: of a loss that is a function of the label's log-probability alone, ``(log_p, **hyperparameters)`` to how
            much of cross entropy's pull at the label is in it, :math:`\mathrm{d}\ell / \mathrm{d}(-\log p_y)`,
            elementwise; None: not known.

    Called itself, it computes the loss, with defaults for hyperparameters that are not given.

    Example:
        >>> import torch
        >>> gce = get("gce")
        >>> [h.name for h in gce.hyperparameters]
        ['q']
        >>> gce(torch.zeros(1, 2), torch.tensor([0]), q=1.0)
        tensor([0.5000])
    """

    name: str
    function: Callable[..., Tensor]
    hyperparameters: tuple[Hyperparameter, ...] = ()
    title: str = ""
    pull: Callable[..., Tensor] | None = None

    def __post_init__(self) -> None:
        """Fill in the title."""
        object.__setattr__(self, "title", self.title or self.name.upper())

    def __call__(self, logits: Tensor, targets: Tensor, **hyperparameters: float | Tensor) -> Tensor:
        """One value a sample, ``(N,)``."""
        return self.function(logits, targets, **{**self.defaults, **hyperparameters})

    @property
    def defaults(self) -> dict[str, float]:
        """The fixed value of every hyperparameter."""
        return {h.name: h.default for h in self.hyperparameters}


_registry: dict[str, RobustLoss] = {}


def register(loss: RobustLoss) -> RobustLoss:
    """Make a loss known by its name; the adjuster then serves it as it serves the built-in ones.

    Args:
        loss: the loss. Its name must not be taken.

    Returns:
        The same loss.

    Example:
        >>> from narl import losses
        >>> def squared(logits, targets):
        ...     return losses.mae(logits, targets) ** 2
        >>> losses.register(losses.RobustLoss("squared-mae", squared)).name
        'squared-mae'
        >>> "squared-mae" in losses.names()
        True
        >>> losses.unregister("squared-mae")
    """
    if loss.name != loss.name.lower():
        raise OptionError(f"loss name {loss.name!r} is not lower case: register it as {loss.name.lower()!r}")
    if loss.name in _registry:
        raise DuplicateNameError(
            f"a loss called {loss.name!r} is registered already: choose another name, "
            f"or call narl.losses.unregister({loss.name!r}) first to replace it"
        )
    _registry[loss.name] = loss
    return loss


def unregister(name: str) -> None:
    """Forget a loss.

    Args:
        name: a registered name.

    Example:
        >>> unregister("no-such-loss")
        Traceback (most recent call last):
        narl.errors.UnknownNameError: no loss is called 'no-such-loss': known: ce, gce, js, mae, polysoft, sl
    """
    del _registry[get(name).name]


def get(name: str) -> RobustLoss:
    """The loss of that name.

    Args:
        name: ``"ce"``, ``"mae"``, ``"gce"``, ``"sl"``, ``"polysoft"``, ``"js"`` or a registered one; case is ignored.

    Returns:
        The loss with its hyperparameters.

    Example:
        >>> get("sl").defaults
        {'gamma1': 0.1, 'gamma2': 1.0}
    """
    if not isinstance(name, str):
        raise UnknownNameError(f"{name!r} is no loss's name: give a string, {nearest('', _registry)}")
    try:
        return _registry[name.lower()]
    except KeyError:
        raise UnknownNameError(f"no loss is called {name!r}: {nearest(name, _registry)}") from None


def names() -> tuple[str, ...]:
    """The names of all registered losses.

    Example:
        >>> names()
        ('ce', 'gce', 'js', 'mae', 'polysoft', 'sl')
    """
    return tuple(sorted(_registry))
