"""narl in Hugging Face's Transformers: a trainer that learns its loss, and a loss for trainers that do not."""

from __future__ import annotations

from narl.errors import MissingExtraError

try:
    from transformers import Trainer as _Trainer  # noqa: F401 (whether it is there)
except ImportError as error:
    raise MissingExtraError(
        f"narl.integrations.transformers needs the packages transformers and accelerate ({error}): "
        "pip install 'narl[transformers]'"
    ) from error

from narl.integrations.transformers.callback import AdjustedLossCallback
from narl.integrations.transformers.trainer import NoiseAwareTrainer

__all__ = ["AdjustedLossCallback", "NoiseAwareTrainer"]
