"""The derivative of one operation, as a linear map from the tangents of what goes in to those of what comes out.

Each rule looks at a call that has just been made, keeps the values that its derivative needs (the ones that torch keeps
for the backward pass anyway) and nothing else of the call, and returns the map. Convolutions, matrix products, batch
normalisation, ReLUs and sums, which is where a network's time goes, have rules of their own; any other operation is run
again with dual numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import Tensor

from narl.bilevel.compositions import Composed

Tangents = Sequence[Tensor | None]  # by slot; None is zero
LinearMap = Callable[[Tangents], Tangents]


class Unrecorded(Exception):
    """A forward pass that cannot be written down, and why."""


@final
@dataclass(frozen=True)
class Call:
    """An operation that has been called.

    Args:
        function: as ``__torch_function__`` gets it.
        args: positional arguments.
        kwargs: named arguments.
        result: what came out.
        sources: slots of the tensors among the arguments that have a tangent, by their identity.
        hold: keeps a tensor's value until the tangent is asked for.
        random_state: of torch's generator before the call, if it has drawn from it.
        in_place: whether the result is written over the first argument.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any
    sources: Mapping[int, int]
    hold: Callable[[Tensor], Tensor]
    random_state: Tensor | None
    in_place: bool

    def source(self, argument: object) -> int | None:
        """The slot of an argument's tangent, None for constants."""
        return self.sources.get(id(argument)) if isinstance(argument, Tensor) else None


def any_operation(call: Call) -> LinearMap:
    """Run the operation again, with dual numbers."""
    if call.in_place:
        raise Unrecorded("an operation that cannot be run again writes over its input")
    if call.kwargs.get("generator") is not None:
        raise Unrecorded("an operation that cannot be run again draws from a generator of the model's own")
    arguments = _replaced((call.args, dict(call.kwargs)), lambda tensor: _Held(call.source(tensor), call.hold(tensor)))
    wanted = [tensor.requires_grad for tensor in tensors_in(call.result)]
    function, random_state = call.function, call.random_state

    def linear_map(tangents: Tangents) -> Tangents:
        def dual(held: _Held) -> Tensor:
            along = None if held.source is None else tangents[held.source]
            value = held.value.detach()
            return value if along is None else forward_ad.make_dual(value, along)  # type: ignore[no-untyped-call]

        with torch.random.fork_rng(devices=[], enabled=random_state is not None), _duals():
            if random_state is not None:
                torch.set_rng_state(random_state)
            args, kwargs = _replaced(arguments, dual)
            results = list(tensors_in(function(*args, **kwargs)))
            found = [forward_ad.unpack_dual(r).tangent for r in results]  # type: ignore[no-untyped-call]
        return [tangent for tangent, is_wanted in zip(found, wanted, strict=True) if is_wanted]

    return linear_map


@contextlib.contextmanager
def _duals() -> Iterator[None]:
    # nothing requires a gradient, but forward mode is off where gradients are
    with torch.enable_grad(), forward_ad.dual_level(), Composed():
        yield


def bilinear(call: Call) -> LinearMap:
    """Operations that are linear in their first two arguments each, with a third one added: layers with weights."""
    function = call.function

    def rule(input: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any, **options: Any) -> LinearMap:
        sources = call.source(input), call.source(weight), call.source(bias)
        # where only the input moves, its values are not needed, and torch has not kept them either
        input_value = None if sources[1:] == (None, None) else call.hold(input)
        weight_value = call.hold(weight)

        def linear_map(tangents: Tangents) -> Tangents:
            by_input, by_weight, by_bias = (None if source is None else tangents[source] for source in sources)
            if by_input is None and by_weight is None:  # the bias alone moves
                by_weight = torch.zeros_like(weight_value)
            total = None
            if by_weight is not None and input_value is not None:
                total, by_bias = function(input_value, by_weight, by_bias, *rest, **options), None
            if by_input is not None:
                moved = function(by_input, weight_value, by_bias, *rest, **options)
                total = moved if total is None else moved.add_(total)
            return [total]

        return linear_map

    return rule(*call.args, **call.kwargs)


def product(call: Call) -> LinearMap:
    """Matrix products: linear in each of the two."""
    function = call.function

    def rule(input: Tensor, other: Tensor) -> LinearMap:
        sources = call.source(input), call.source(other)
        first, second = call.hold(input), call.hold(other)

        def linear_map(tangents: Tangents) -> Tangents:
            by_first, by_second = (None if source is None else tangents[source] for source in sources)
            if by_first is None:
                return [function(first, by_second)]
            moved = function(by_first, second)
            return [moved if by_second is None else moved.add_(function(first, by_second))]

        return linear_map

    return rule(*call.args, **call.kwargs)


def batch_norm(call: Call) -> LinearMap:
    """Batch normalisation, with the statistics that the pass has found."""

    def rule(
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> LinearMap:
        if training:
            node = call.result.grad_fn
            mean, scale = getattr(node, "_saved_result1", None), getattr(node, "_saved_result2", None)
        else:
            assert running_mean is not None
            assert running_var is not None
            mean, scale = running_mean.clone(), (running_var + eps).rsqrt()
        if mean is None or scale is None or mean.shape != input.shape[1:2] or scale.shape != mean.shape:
            raise Unrecorded("batch normalisation by a kernel that does not leave its statistics")
        sources = call.source(input), call.source(weight), call.source(bias)
        x, shape = call.hold(input), (1, -1, *(1,) * (input.dim() - 2))
        slope = scale if weight is None else scale * weight.detach()
        return _BatchNorm(sources, x, mean.detach(), scale.detach(), slope, shape, training)

    return rule(*call.args, **call.kwargs)


@final
@dataclass(frozen=True)
class _BatchNorm:
    """ẏ = s (ẋ − mean(ẋ) − x̂ mean(ẋ x̂)) + ẇ x̂ + ḃ, with s = w/σ; running statistics do not move, so no means."""

    sources: tuple[int | None, int | None, int | None]
    x: Tensor
    mean: Tensor
    scale: Tensor
    slope: Tensor
    shape: tuple[int, ...]
    training: bool

    def __call__(self, tangents: Tangents) -> Tangents:
        by_x, by_weight, by_bias = (None if source is None else tangents[source] for source in self.sources)
        by_normalised = torch.zeros_like(self.mean) if by_weight is None else by_weight
        constant = torch.zeros_like(self.mean) if by_bias is None else by_bias
        if by_x is not None and self.training:
            count = self.x.numel() // len(self.mean)
            _, dot, total = torch.ops.aten.native_batch_norm_backward(
                by_x, self.x, None, None, None, self.mean, self.scale, True, 0.0, [False, True, True]
            )
            by_normalised = by_normalised - self.slope * dot / count
            constant = constant - self.slope * total / count
        # all that is left is one sum of two products, channel by channel
        factor = by_normalised * self.scale
        offset = constant - factor * self.mean
        result = torch.addcmul(offset.view(self.shape), self.x, factor.view(self.shape))
        return [result if by_x is None else result.addcmul_(by_x, self.slope.view(self.shape))]


def relu(call: Call) -> LinearMap:
    """Where the result is positive, the tangent goes on."""
    (source,) = call.sources.values()
    result = call.hold(call.result)
    return lambda tangents: [torch.ops.aten.threshold_backward(tangents[source], result, 0)]


def add(call: Call) -> LinearMap:
    """Tangents are added as the values were."""

    shape = call.result.shape

    def rule(input: Any, other: Any, *, alpha: float = 1) -> LinearMap:
        sources = call.source(input), call.source(other)

        def linear_map(tangents: Tangents) -> Tangents:
            first, second = (None if source is None else tangents[source] for source in sources)
            if first is not None and second is not None:
                return [torch.add(first, second, alpha=alpha)]
            if first is None:
                assert second is not None
                return [(second if alpha == 1 else second * alpha).expand(shape)]
            return [first.expand(shape)]

        return linear_map

    if not all(tensor.dtype == call.result.dtype for tensor in tensors_in((call.args, call.kwargs))):
        return any_operation(call)
    return rule(*call.args, **call.kwargs)


def refused(call: Call) -> LinearMap:
    """Operations that change buffers without saying so: running them again would change them twice."""
    raise Unrecorded(f"{call.function.__name__} is called by itself, not through torch.nn.functional")


_RELUS_IN_PLACE = (F.relu_, torch.relu_, Tensor.relu_)
_SUMS_IN_PLACE = (Tensor.add_, Tensor.__iadd__)
MAPS: Mapping[Callable[..., Any], Callable[[Call], LinearMap]] = {
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d, F.linear), bilinear),
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.mm), product),
    F.batch_norm: batch_norm,
    **dict.fromkeys((torch.batch_norm, torch.native_batch_norm, torch.instance_norm), refused),
    **dict.fromkeys((F.relu, torch.relu, Tensor.relu, *_RELUS_IN_PLACE), relu),
    **dict.fromkeys((torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, *_SUMS_IN_PLACE), add),
}
"""Rules by operation."""

IN_PLACE = frozenset({F.relu, *_RELUS_IN_PLACE, *_SUMS_IN_PLACE})
"""Operations that may write over their first argument: their maps don't need its value."""


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and dictionaries, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


@dataclass(frozen=True)
class _Held:
    source: int | None
    value: Tensor


def _replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same nested tuples, lists and dictionaries with other tensors."""
    if isinstance(value, (Tensor, _Held)):
        return change(value)
    if isinstance(value, (tuple, list)):
        items = [_replaced(item, change) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return {key: _replaced(item, change) for key, item in value.items()} if isinstance(value, dict) else value
