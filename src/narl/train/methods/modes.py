"""A network as it is when tested, for a moment in the middle of its training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Inside, the module is in evaluation mode; afterwards each of its parts is in the mode that it was in.

    Args:
        module: any; BatchNorm's statistics stay as they are.

    Example:
        >>> model = nn.Dropout().train()
        >>> with evaluating(model):
        ...     model.training
        False
        >>> model.training
        True
    """
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
