"""Many tensors side by side in one: what is elementwise then takes one kernel instead of one for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

_ALIGNED = 64  # numbers: every tensor begins where vectorised kernels like it


@final
class Layout:
    """Where each of a list of tensors lies in a flat one.

    Args:
        like: dense tensors of one type, whose shapes and strides count.

    Example:
        >>> layout = Layout([torch.zeros(2, 2), torch.zeros(3)])
        >>> flat = layout.joined([torch.ones(2, 2), 2 * torch.ones(3)])
        >>> [part.sum().item() for part in layout.parted(flat)]
        [4.0, 6.0]
    """

    def __init__(self, like: Sequence[Tensor]) -> None:
        self._shapes = [(tuple(t.shape), _dense_stride(t)) for t in like]
        sizes = [-(-t.numel() // _ALIGNED) * _ALIGNED for t in like]
        self._starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self._size = sum(sizes)

    def joined(self, tensors: Sequence[Tensor]) -> Tensor:
        """The tensors one after the other, ``(size,)``; zeros between them."""
        flat = torch.zeros(self._size, dtype=tensors[0].dtype, device=tensors[0].device)
        torch._foreach_copy_(self.parted(flat), list(tensors))
        return flat

    def parted(self, flat: Tensor) -> list[Tensor]:
        """The tensors that lie in a flat one, in their shapes; views of it."""
        return [
            flat.as_strided(shape, stride, start)
            for (shape, stride), start in zip(self._shapes, self._starts, strict=True)
        ]


def _dense_stride(tensor: Tensor) -> tuple[int, ...]:
    return tuple(torch.empty_like(tensor, device="meta").stride())
