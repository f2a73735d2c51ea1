"""How the logits of a batch move when the weights move: J·d, three ways.

``forward``: forward-mode differentiation, one pass, exact. ``reverse``: the derivative of a vector-Jacobian product,
exact, slower, for layers without forward mode. ``difference``: one more forward pass at shifted weights, about three
digits in float32.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from narl.bilevel.calls import Inputs, RandomState, call_with
from narl.bilevel.compositions import Composed
from narl.errors import NarlWarning, OptionError, TangentError

_WITHOUT_FORWARD_MODE: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_WITHOUT_CHANNELS_LAST: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_SHIFT = 3e-6  # of the weights' norm: less drowns in rounding, more crosses kinks of the ReLUs


@dataclass(frozen=True)
class TrainingPass:
    """The forward pass on the training batch: what it takes to run it again, and what came out."""

    model: nn.Module
    inputs: Inputs
    random_state: RandomState
    logits: Tensor


def tangent_of_logits(kind: str, run: TrainingPass, directions: Mapping[str, Tensor]) -> Tensor:
    """The logits' derivative along ``directions``.

    Args:
        kind: ``"auto"``, ``"forward"``, ``"reverse"`` or ``"difference"``.
        run: the pass to differentiate. Its random numbers are replayed, its buffers left alone.
        directions: a direction for each parameter that moves, by name.

    Returns:
        ``(N, c)``.
    """
    if kind == "auto":
        return _auto(run, directions)
    if kind not in _KINDS:
        raise OptionError(f"tangent = {kind!r} is unknown: use 'auto', {', '.join(map(repr, _KINDS))}")
    try:
        return _KINDS[kind](run, directions)
    except torch.OutOfMemoryError:
        raise
    except (NotImplementedError, RuntimeError) as error:
        raise TangentError(
            f"{type(run.model).__name__} has no {kind!r} tangent ({_first_line(error)}): "
            "use tangent='auto', or 'difference', which every model has"
        ) from error


def _auto(run: TrainingPass, directions: Mapping[str, Tensor]) -> Tensor:
    if run.model in _WITHOUT_FORWARD_MODE:
        return tangent_of_logits("reverse", run, directions)
    try:
        return _forward(run, directions)
    except torch.OutOfMemoryError:
        raise
    except (NotImplementedError, RuntimeError) as error:
        tangent = tangent_of_logits("reverse", run, directions)
        _WITHOUT_FORWARD_MODE.add(run.model)
        warnings.warn(
            f"{type(run.model).__name__} has no forward mode ({_first_line(error)}): its meta steps use the "
            "reverse-over-reverse product, as exact and slower",
            NarlWarning,
            stacklevel=2,
        )
        return tangent


def _forward(run: TrainingPass, directions: Mapping[str, Tensor]) -> Tensor:
    if _gains_from_channels_last(run):
        inputs = run.inputs.contiguous(memory_format=torch.channels_last)
        try:
            logits, tangent = _dual_pass(run, inputs, directions)
            # A model may look at the memory behind a tensor, and dropout draws its mask in memory order.
            expected = run.logits.detach()
            if torch.allclose(logits, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max())):
                return tangent
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # such as view() on what is no longer contiguous
            pass
        _WITHOUT_CHANNELS_LAST.add(run.model)
    return _dual_pass(run, run.inputs, directions)[1]


def _gains_from_channels_last(run: TrainingPass) -> bool:
    """Whether to lay images out channels last: on CPUs that is an eighth faster for a tangent pass of a ResNet-32."""
    return (
        isinstance(run.inputs, Tensor)
        and run.inputs.dim() == 4
        and run.inputs.device.type == "cpu"
        and run.inputs.is_contiguous()
        and run.model not in _WITHOUT_CHANNELS_LAST
        and any(isinstance(module, nn.Conv2d) for module in run.model.modules())
    )


def _dual_pass(run: TrainingPass, inputs: Inputs, directions: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The logits and their tangent."""
    _load_forward_mode()
    weights = dict(run.model.named_parameters())
    with (
        run.random_state.replayed(),
        _differentiable_kernels(run.model),
        torch.no_grad(),
        forward_ad.dual_level(),
        Composed(),
    ):
        duals = {name: _dual(weights[name].detach(), along) for name, along in directions.items()}
        logits, tangent = forward_ad.unpack_dual(call_with(run.model, duals, inputs))  # type: ignore[no-untyped-call]
        return logits.clone(), torch.zeros_like(logits) if tangent is None else tangent.clone()


def _reverse(run: TrainingPass, directions: Mapping[str, Tensor]) -> Tensor:
    weights = dict(run.model.named_parameters())
    leaves = {name: weights[name].detach().requires_grad_() for name in directions}
    with run.random_state.replayed(), _differentiable_kernels(run.model), torch.enable_grad(), Composed():
        logits = call_with(run.model, leaves, run.inputs)
        # Jᵀu is linear in u, so its derivative by u along the directions is J·d, whatever u is.
        probe = torch.zeros_like(logits, requires_grad=True)
        products: Sequence[Tensor | None] = torch.autograd.grad(
            logits, list(leaves.values()), probe, create_graph=True, allow_unused=True
        )
        reached = [
            (product, directions[name]) for name, product in zip(leaves, products, strict=True) if product is not None
        ]
        (tangent,) = torch.autograd.grad([p for p, _ in reached], probe, [d for _, d in reached])
    return tangent


def _difference(run: TrainingPass, directions: Mapping[str, Tensor]) -> Tensor:
    weights = dict(run.model.named_parameters())
    size = torch.stack([weights[name].detach().norm() for name in directions]).norm()
    length = torch.stack([along.norm() for along in directions.values()]).norm()
    shift = torch.where(length > 0, _SHIFT * size / length, 0.0)
    with run.random_state.replayed(), torch.no_grad():
        moved = {name: weights[name].detach() + shift * along for name, along in directions.items()}
        change = call_with(run.model, moved, run.inputs) - run.logits.detach()
    return torch.where(length > 0, change / shift, 0.0)


_KINDS: dict[str, Callable[[TrainingPass, Mapping[str, Tensor]], Tensor]] = {
    "forward": _forward,
    "reverse": _reverse,
    "difference": _difference,
}


@contextlib.contextmanager
def _differentiable_kernels(model: nn.Module) -> Iterator[None]:
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


def _dual(value: Tensor, along: Tensor) -> Tensor:
    dual: Tensor = forward_ad.make_dual(value, along)  # type: ignore[no-untyped-call]
    return dual


@functools.cache
def _load_forward_mode() -> None:
    """Make torch load what its forward mode needs, without the deprecation warning that this sets off inside torch."""
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.simplefilter("ignore", DeprecationWarning)
        _dual(torch.zeros(()), torch.zeros(()))


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")
