"""Engines: how a method's steps are computed.

``eager`` does them as the method has written them. ``auto`` does the same training faster where it can: on NVIDIA GPUs
a step is a few compiled functions (:mod:`narl.bilevel.passes`), captured as one CUDA graph; one that prepares another
method's is captured as that one's (:mod:`narl.train.engine.prepared`); of methods that do not say what their steps are,
the networks' passes are (:mod:`narl.train.engine.graphed`).
"""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.optim import Optimizer

from narl.errors import NarlWarning
from narl.train.engine.base import Engine
from narl.train.engine.captured import CapturedEngine, Clean
from narl.train.engine.graphed import GraphedEngine
from narl.train.engine.prepared import PreparedEngine
from narl.train.methods import Method
from narl.train.methods.base import PreparingMethod

__all__ = ["Engine", "make", "precision_of", "type_of"]

_TYPES = {"float32": None, "bfloat16": torch.bfloat16}

# Compiling takes about as long as this many A-GCE steps of ResNet-32 save by it.
STEPS_WORTH_COMPILING = 25_000


def make(
    name: str,
    method: Method,
    model: nn.Module,
    optimizer: Optimizer,
    clean: Clean | None,
    *,
    rows: int,
    steps: int,
    precision: str = "float32",
    processes: int = 1,
) -> Engine:
    """The engine of that name.

    Args:
        name: ``"auto"`` or ``"eager"``.
        method: what a step is.
        model: that it trains.
        optimizer: the model's.
        clean: draws clean batches; None without a clean set.
        rows: samples of a full batch.
        steps: of the whole run: a short one is over before compiling would have paid.
        precision: ``"float32"`` or ``"bfloat16"``.
        processes: how many train together; several run eagerly.
    """
    kind = next(model.parameters()).device.type
    if name != "eager" and kind == "cuda" and processes > 1:
        warnings.warn(f"{processes} processes train without CUDA graphs, for now", NarlWarning, stacklevel=2)
    if name == "eager" or kind != "cuda" or processes > 1:
        return Engine(method, type_of(precision))
    compiled = steps >= STEPS_WORTH_COMPILING
    if isinstance(method, PreparingMethod):
        return PreparedEngine(
            method, model, optimizer, clean, rows=rows, precision=type_of(precision), compiled=compiled
        )
    if type(method).move is Method.move:
        return GraphedEngine(method, model, type_of(precision))
    return CapturedEngine(
        method,
        model,
        optimizer,
        clean,
        rows=rows,
        precision=type_of(precision),
        compiled=compiled,
    )


def type_of(precision: str) -> torch.dtype | None:
    """The type that autocast computes in; None for float32.

    Example:
        >>> type_of("bfloat16"), type_of("float32")
        (torch.bfloat16, None)
    """
    return _TYPES[precision]


def precision_of(asked: str, device: str) -> str:
    """The precision that is meant: ``"auto"`` is bfloat16 on GPUs that have it, float32 elsewhere.

    Example:
        >>> precision_of("auto", "cpu")
        'float32'
    """
    if asked != "auto":
        return asked
    return "bfloat16" if device.startswith("cuda") and torch.cuda.is_bf16_supported(False) else "float32"
