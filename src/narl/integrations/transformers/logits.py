"""Models of Transformers as functions from batches to logits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from narl.errors import ModelOutputError

_DIFFERENTIABLE = ("eager", "sdpa")


@final
class Logits(nn.Module):
    """A model as a function from the parts of a batch, which its gradient is accumulated over, to the logits of all.

    With several parts, each is computed once more in a backward pass: as with accumulated gradients, no more than one
    of them is in memory.

    Args:
        model: takes named arguments, returns an object with ``logits``.

    Shape: mappings of n_i rows each to ``(Σ n_i, c)``.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *parts: Mapping[str, Any]) -> Tensor:
        """The logits."""
        if len(parts) == 1:
            return logits_of(self.model(**parts[0]))
        found = [checkpoint(self._part, part, use_reentrant=False) for part in parts]
        return torch.cat(found)

    def _part(self, part: Mapping[str, Any]) -> Tensor:
        return logits_of(self.model(**part))


def logits_of(outputs: Any) -> Tensor:
    """The class scores ``(N, c)`` among what a model returns."""
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if logits is None and isinstance(outputs, (tuple, list)) and outputs:
        logits = outputs[0]
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        got = f"logits of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else "no logits"
        raise ModelOutputError(
            f"the model returned {got}: narl needs one row of class scores a sample, (N, c), as "
            "AutoModelForSequenceClassification and AutoModelForImageClassification give; labels of tokens are not "
            "covered"
        )
    return logits


@contextlib.contextmanager
def plain_attention(model: nn.Module) -> Iterator[None]:
    """Inside, attention by an implementation that can be differentiated twice; fused ones cannot.

    Torch's own (``"sdpa"``) is one, since the tangent pass makes it take its plain kernel.
    """
    configs: dict[int, Any] = {id(config): config for config in map(_config, model.modules()) if config is not None}
    before = [(config, config._attn_implementation) for config in configs.values()]
    fused = [(config, name) for config, name in before if name not in _DIFFERENTIABLE]
    for config, _ in fused:
        config._attn_implementation = "sdpa" if getattr(model, "_supports_sdpa", False) else "eager"
    try:
        yield
    finally:
        for config, name in fused:
            config._attn_implementation = name


def _config(module: nn.Module) -> Any:
    """A module's configuration, if it says how attention is computed."""
    config = getattr(module, "config", None)
    return config if getattr(config, "_attn_implementation", None) is not None else None
