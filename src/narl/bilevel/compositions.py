"""Layers whose kernel can be differentiated once only, computed from ones that can be differentiated twice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode


class Composed(TorchFunctionMode):
    """Inside, ``embedding_bag`` is a lookup and a reduction: its own kernel has no forward mode and no second one.

    And ``torch.no_grad()`` in a model also stops forward mode, which would otherwise go through it. Afterwards forward
    mode is as it was before.
    """

    def __enter__(self) -> Composed:
        """Note whether forward mode is on."""
        self._forward_mode: bool = torch._C._is_fwd_grad_enabled()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        """Set it as it was: a gradient mode that was left inside has set it, too."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch._C._set_fwd_grad_enabled(self._forward_mode)

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Replace the calls that need it, pass the others on."""
        if function is torch._C._set_grad_enabled:
            torch._C._set_fwd_grad_enabled(args[0])
        target = embedding_bag if function is F.embedding_bag else function
        return target(*args, **(kwargs or {}))


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """What ``torch.nn.functional.embedding_bag`` computes, from operations with derivatives of every order.

    Takes the same arguments in the same order. ``max_norm`` would change the weights in place, and
    ``scale_grad_by_freq`` the gradient alone: both are refused.

    Example:
        >>> table, words = torch.eye(4), torch.tensor([[0, 1], [3, 3]])
        >>> torch.equal(embedding_bag(words, table), F.embedding_bag(words, table))
        True
    """
    if max_norm is not None or scale_grad_by_freq:
        raise NotImplementedError("embedding_bag with max_norm or scale_grad_by_freq has no second derivative")
    if input.dim() == 2:
        bags, length = input.shape
        bag_of = torch.arange(bags, device=input.device).repeat_interleave(length)
        input = input.reshape(-1)
        per_sample_weights = None if per_sample_weights is None else per_sample_weights.reshape(-1)
    else:
        assert offsets is not None
        starts = offsets[:-1] if include_last_offset else offsets
        bags = len(starts)
        bag_of = torch.searchsorted(starts, torch.arange(len(input), device=input.device), right=True) - 1
    if padding_idx is not None:
        kept = input != padding_idx % len(weight)
        input, bag_of = input[kept], bag_of[kept]
        per_sample_weights = None if per_sample_weights is None else per_sample_weights[kept]
    rows = weight[input]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    empty = rows.new_zeros(bags, weight.shape[1])
    if mode == "max":
        return empty.scatter_reduce(0, bag_of.unsqueeze(1).expand_as(rows), rows, "amax", include_self=False)
    total = empty.index_add(0, bag_of, rows)
    if mode == "sum":
        return total
    return total / torch.bincount(bag_of, minlength=bags).clamp(min=1).unsqueeze(1)


@contextlib.contextmanager
def differentiable_kernels(model: nn.Module) -> Iterator[None]:
    """Attention and recurrent cells by plain kernels: fused ones have no forward mode and no second derivative."""
    fast_path, cudnn = torch.backends.mha.get_fastpath_enabled(), torch.backends.cudnn.enabled
    torch.backends.mha.set_fastpath_enabled(False)
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):
        torch.backends.cudnn.enabled = False
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        torch.backends.cudnn.enabled = cudnn
