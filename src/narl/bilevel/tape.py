"""A forward pass written down, so that its tangent can be had from the values that it has computed already.

Running a model with dual numbers computes every layer's value again beside its tangent. The values are all there: the
backward pass needs them too. A :class:`Tape` listens while the model runs, and keeps for each operation that depends
on the weights the linear map from the tangents of what went in to the tangent of what came out (`linear_maps.py`).
Playing these maps one after the other is forward mode without the values, at about half the cost, and without calling
the model a second time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from narl.bilevel.linear_maps import IN_PLACE, MAPS, Call, LinearMap, Unrecorded, any_operation, tensors_in


@final
class Tape(TorchFunctionMode):
    """Inside, operations that depend on a leaf with gradients are written down; nothing else changes.

    What cannot be followed (an operation that torch does not show, a tensor changed in place) makes the tape useless
    rather than wrong: :meth:`tangent` then says why.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> with Tape() as tape:
        ...     logits = model(torch.tensor([[1.0, 2.0]])).relu() + 1
        >>> along = {model.weight: torch.zeros(1, 2), model.bias: torch.ones(1)}
        >>> bool(tape.tangent(logits, along) == (logits > 1))
        True
    """

    def __init__(self) -> None:
        super().__init__()
        self._entries: list[tuple[LinearMap, tuple[int, ...], tuple[int, ...]]] = []
        self._slots: dict[int, tuple[weakref.ref[Tensor], int, int]] = {}
        self._leaves: dict[int, tuple[Tensor, int]] = {}
        self._held: list[tuple[Tensor, int]] = []
        self._count = 0
        self._refusal = ""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call, and write down what was called."""
        kwargs = kwargs or {}
        given = [] if self._refusal else list(tensors_in((args, kwargs)))
        active = [tensor for tensor in given if tensor.requires_grad]
        if not active:
            return function(*args, **kwargs)
        try:
            sources = {id(tensor): self._source(tensor) for tensor in active}
        except Unrecorded as reason:
            self._refuse(reason)
            return function(*args, **kwargs)
        versions, random_state = [_changes(tensor) for tensor in given], torch.get_rng_state()
        result = function(*args, **kwargs)
        try:
            changed = [t for t, version in zip(given, versions, strict=True) if _changes(t) != version]
            if changed and not (function in IN_PLACE and all(tensor is result for tensor in changed)):
                raise Unrecorded(f"{_name(function)} changes a tensor in place")
            drawn = None if torch.equal(torch.get_rng_state(), random_state) else random_state
            self._write(Call(function, args, kwargs, result, sources, self._hold, drawn, bool(changed)))
        except Unrecorded as reason:
            self._refuse(reason)
        return result

    def tangent(self, output: Tensor, directions: Mapping[Tensor, Tensor]) -> Tensor:
        """How ``output`` moves along a direction of the leaves.

        Args:
            output: what came out of the pass that was written down.
            directions: by leaf; leaves that are not named stay where they are.

        Returns:
            As ``output``.

        Raises:
            Unrecorded: the pass could not be followed, and why.
        """
        if not self._refusal and any(_changes(tensor) != version for tensor, version in self._held):
            self._refuse(Unrecorded("a tensor that the pass has used was changed in place afterwards"))
        if self._refusal:
            raise Unrecorded(self._refusal)
        wanted = self._source(output)
        tangents: list[Tensor | None] = [None] * self._count
        for leaf, along in directions.items():
            if id(leaf) in self._leaves:
                tangents[self._leaves[id(leaf)][1]] = along
        spent = self._last_uses(wanted)
        with torch.no_grad():
            for number, (linear_map, sources, targets) in enumerate(self._entries):
                if any(tangents[source] is not None for source in sources):
                    for target, tangent in zip(targets, linear_map(tangents), strict=True):
                        tangents[target] = tangent
                for slot in spent.get(number, ()):
                    tangents[slot] = None
        found = tangents[wanted]
        if found is None:
            raise Unrecorded("no tangent reaches the logits")
        return found.detach().clone()

    def _last_uses(self, wanted: int) -> dict[int, list[int]]:
        """Which tangents are of no use any more after each entry: kept, they would double a step's memory."""
        last: dict[int, int] = {}
        for number, (_, sources, targets) in enumerate(self._entries):
            last |= dict.fromkeys((*sources, *targets), number)
        last.pop(wanted, None)
        spent: dict[int, list[int]] = {}
        for slot, number in last.items():
            spent.setdefault(number, []).append(slot)
        return spent

    def _write(self, call: Call) -> None:
        outputs = [tensor for tensor in tensors_in(call.result) if tensor.requires_grad]
        if not call.in_place:
            outputs = [tensor for tensor in outputs if id(tensor) not in call.sources]  # such as contiguous()
        if not outputs:
            return
        if torch.is_autocast_enabled("cpu"):
            raise Unrecorded("it switches to half precision")
        if _activations_are_packed():
            raise Unrecorded("its activations are checkpointed or offloaded")
        rule = any_operation if call.random_state is not None else MAPS.get(call.function, any_operation)
        linear_map = rule(call)
        targets = tuple(self._new_slot(tensor) for tensor in outputs)
        self._entries.append((linear_map, tuple(call.sources.values()), targets))

    def _source(self, tensor: Tensor) -> int:
        """The slot of a tensor's tangent."""
        if tensor.is_leaf:
            if id(tensor) not in self._leaves:
                self._leaves[id(tensor)] = (tensor, self._count)
                self._count += 1
            return self._leaves[id(tensor)][1]
        held, slot, version = self._slots.get(id(tensor), (None, 0, 0))
        if held is None or held() is not tensor:
            raise Unrecorded("a layer computes by something that torch does not show (a function or kernel of its own)")
        if tensor._version != version:
            raise Unrecorded("a tensor is changed in place through a view of it")
        return slot

    def _new_slot(self, tensor: Tensor) -> int:
        self._slots[id(tensor)] = (weakref.ref(tensor), self._count, tensor._version)
        self._count += 1
        return self._count - 1

    def _hold(self, tensor: Tensor) -> Tensor:
        held = tensor.detach()
        self._held.append((held, _changes(held)))  # detach() shares the count of changes
        return held

    def _refuse(self, reason: Unrecorded) -> None:
        self._refusal = str(reason)
        for kept in (self._entries, self._slots, self._leaves, self._held):
            kept.clear()


def _changes(tensor: Tensor) -> int:
    """How often a tensor has been changed in place; those made in inference mode, which cannot be, do not count."""
    return 0 if tensor.is_inference() else tensor._version


def _activations_are_packed() -> bool:
    """Whether hooks take the values that the backward pass needs somewhere else: holding them would undo that."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", str(function))
