"""Models and optimisers inside what accelerate and Lightning Fabric put around them."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from narl.bilevel import MetaStep, Objective, Processes
from narl.errors import OptionError

_DIVIDED = ("FullyShardedDataParallel", "DeepSpeedEngine", "FSDPModule")


def meta_step(model: nn.Module, optimizer: Optimizer, adjuster: Objective, **options: Any) -> MetaStep:
    """:class:`narl.MetaStep` of a model and an optimiser as ``accelerator.prepare`` or ``fabric.setup`` return them.

    Processes that the model is shared by train together. In mixed precision, call its step inside
    ``accelerator.autocast()`` or ``fabric.autocast()``; ``step`` takes the place of backward pass and optimiser's step.

    Args:
        model: the classifier, wrapped or not.
        optimizer: its optimiser, wrapped or not.
        adjuster: see :class:`narl.MetaStep`.
        options: of :class:`narl.MetaStep`.

    Returns:
        The meta step.

    Raises:
        OptionError: the weights are divided among processes, or the loss is scaled.

    Example:
        >>> import narl, torch
        >>> model = nn.Linear(4, 3)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> meta_step(model, optimizer, narl.Adjuster("gce", class_counts=[10, 10, 10]), every=5)
        MetaStep(Linear, SGD, Adjuster, every=5, tangent='auto', steps=0)
    """
    scaler = getattr(optimizer, "scaler", None)  # accelerate's
    strategy = getattr(optimizer, "_strategy", None)  # Fabric's
    if scaler is not None or getattr(getattr(strategy, "precision", None), "scaler", None) is not None:
        raise OptionError(
            "float16 scales the loss and skips steps, which a look-ahead cannot know: use bfloat16 ('bf16', "
            "'bf16-mixed'), or float32"
        )
    shared = _outer(model)
    options.setdefault("processes", Processes.of(shared))
    return MetaStep(bare_model(shared), bare_optimizer(optimizer), adjuster, **options)


def bare_optimizer(optimizer: Optimizer) -> Optimizer:
    """The torch optimiser inside what accelerate and Lightning put around it."""
    inside = getattr(optimizer, "optimizer", None)
    return bare_optimizer(inside) if isinstance(inside, Optimizer) else optimizer


def bare_model(model: nn.Module) -> nn.Module:
    """The model inside what accelerate, Lightning and torch put around it to share it among processes."""
    refuse_divided(model)
    outer = _outer(model)
    if outer is not model:
        return bare_model(outer)
    if isinstance(model, DistributedDataParallel):
        return bare_model(model.module)
    return model


def refuse_divided(model: nn.Module) -> None:
    """Refuse a model whose weights are divided among processes."""
    names = {kind.__name__ for kind in type(model).__mro__}
    if names & set(_DIVIDED):
        raise OptionError(
            f"{type(model).__name__} divides the weights among processes, and the look-ahead needs them whole: use "
            "plain data parallelism, or narl.AdjustedLoss with an adjuster that was learned before"
        )


def _outer(model: nn.Module) -> nn.Module:
    """Without Fabric's wrapper, which hides the one that shares the model."""
    inside = getattr(model, "_forward_module", None)
    return inside if isinstance(inside, nn.Module) else model
