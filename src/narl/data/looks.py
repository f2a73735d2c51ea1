"""What samples look like, as numbers: what noise that depends on the sample goes by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from narl.data.encoding import fit
from narl.data.pools import make_pool
from narl.data.samples import ImageFiles, Images, Inputs, Table
from narl.errors import OptionError

# Side of images that are in files: what matters is a likeness, not the detail.
_SIDE = 32


def looks(inputs: Inputs, on_progress: Callable[[int], None] | None = None) -> Any:
    """Pixels, or a table's numbers.

    Args:
        inputs: of the samples.
        on_progress: called with the number of files decoded so far.

    Returns:
        ``(N, …)``, a numpy array or a tensor.

    Raises:
        OptionError: text, or a table without a column of numbers.

    Example:
        >>> import numpy as np
        >>> looks(Images(np.zeros((2, 8, 8, 3), np.uint8))).shape
        (2, 8, 8, 3)
    """
    if isinstance(inputs, Images):
        return inputs.pixels
    if isinstance(inputs, Table) and inputs.number_names:
        return inputs.numbers
    if not isinstance(inputs, ImageFiles):
        raise OptionError(
            "instance noise needs images or columns of numbers, and there are none: choose another kind of noise"
        )
    pool = make_pool(inputs, fit(inputs, image_size=_SIDE), memory_limit=2**62, on_progress=on_progress)
    return pool.get(torch.arange(len(inputs)))
