"""How the logits of a batch move when the weights move: J·d, three ways.

``forward``: forward-mode differentiation, exact; from the values that the first pass left where that pass could be
written down, else by running the model again with dual numbers. ``reverse``: the derivative of a vector-Jacobian
product, exact, slower, for layers without forward mode. ``difference``: one more forward pass at shifted weights,
approximate.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn

from narl.bilevel.calls import Inputs, RandomState, call, substituted
from narl.bilevel.compositions import Composed, differentiable_kernels
from narl.bilevel.linear_maps import Unrecorded
from narl.bilevel.memory_format import faster_layout
from narl.bilevel.tape import Tape
from narl.errors import NarlWarning, OptionError, TangentError

KINDS = ("auto", "forward", "reverse", "difference")

_WITHOUT_FORWARD_MODE: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_SHIFT = 3e-6  # of the weights' norm: less drowns in rounding, more crosses kinks of the ReLUs


@dataclass(frozen=True)
class TrainingPass:
    """The forward pass on the training batch: what it takes to run it again, and what came out.

    Args:
        model: the classifier.
        inputs: of the batch.
        random_state: before the pass.
        buffers: before the pass, by name.
        logits: what came out, ``(N, c)``, with the graph.
        tape: what happened in between, if it was written down.
    """

    model: nn.Module
    inputs: Inputs
    random_state: RandomState
    buffers: dict[str, Tensor]
    logits: Tensor
    tape: Tape | None = None

    @classmethod
    def of(
        cls, model: nn.Module, inputs: Inputs, num_samples: int, buffers: dict[str, Tensor], *, tangent: str | None
    ) -> TrainingPass:
        """Run the model on a batch, as the kind of tangent that will be asked for wants it; None: none will be."""
        inputs = faster_layout(model, inputs)
        random_state = RandomState.now(model)
        wanted = tangent in ("auto", "forward") and model not in _WITHOUT_FORWARD_MODE
        tape = Tape() if wanted and _may_be_recorded(model) else None
        with contextlib.nullcontext() if tape is None else tape:
            logits = call(model, inputs, num_samples)
        return cls(model, inputs, random_state, buffers, logits, tape)


@dataclass(frozen=True)
class Product:
    """J·d as seen from the backward pass: for the loss's gradient g_z by the logits, ⟨g_z, J d⟩ = ⟨Jᵀ g_z, d⟩.

    Args:
        slope: g_z, ``(N, c)``.
        value: ⟨Jᵀ g_z, d⟩, a scalar.
        size: the sum of what cancels in it: the rounding error of ``value`` is a small part of this.
    """

    slope: Tensor
    value: Tensor
    size: Tensor

    def fits(self, tangent: Tensor) -> bool:
        """Whether a tangent can be J·d: not if the pass that should repeat the first one was of another function."""
        if not self.checkable:
            return True
        found = self.slope * tangent
        tolerance = 1e-6 if tangent.dtype == torch.float64 else 1e-3
        return bool((found.sum() - self.value).abs() <= tolerance * (found.abs().sum() + self.size))

    @property
    def checkable(self) -> bool:
        """In half precision the rounding errors hide the difference."""
        exact = self.slope.dtype in (torch.float32, torch.float64)
        return exact and not torch.is_autocast_enabled(self.slope.device.type)


def tangent_of_logits(kind: str, run: TrainingPass, directions: Mapping[str, Tensor], product: Product) -> Tensor:
    """The logits' derivative along ``directions``.

    Args:
        kind: ``"auto"``, ``"forward"``, ``"reverse"`` or ``"difference"``.
        run: the pass to differentiate. Its random numbers and buffers are replayed, the model's own left alone.
        directions: a direction for each parameter that moves, by name.
        product: what the backward pass says about the result.

    Returns:
        ``(N, c)``.
    """
    if kind == "difference":
        return _difference(run, directions)
    if kind not in KINDS:
        raise OptionError(f"tangent = {kind!r} is unknown: use {', '.join(map(repr, KINDS))}")
    if kind == "auto":
        return _auto(run, directions, product)
    return _exact(kind, run, directions, product)


def _auto(run: TrainingPass, directions: Mapping[str, Tensor], product: Product) -> Tensor:
    if run.model in _WITHOUT_FORWARD_MODE:
        return _exact("reverse", run, directions, product)
    tangent = _attempt("forward", run, directions, product)
    if isinstance(tangent, Tensor):
        return tangent
    reason, tangent = tangent, _exact("reverse", run, directions, product)
    _WITHOUT_FORWARD_MODE.add(run.model)
    warnings.warn(
        f"{reason}: its meta steps use the reverse-over-reverse product, exact but slower", NarlWarning, stacklevel=2
    )
    return tangent


def _exact(kind: str, run: TrainingPass, directions: Mapping[str, Tensor], product: Product) -> Tensor:
    tangent = _attempt(kind, run, directions, product)
    if isinstance(tangent, Tensor):
        return tangent
    raise TangentError(f"{tangent}: change that, or use tangent='difference', which is approximate")


def _attempt(kind: str, run: TrainingPass, directions: Mapping[str, Tensor], product: Product) -> Tensor | str:
    """An exact tangent, or why there is none."""
    name = type(run.model).__name__
    try:
        tangent = _forward(run, directions, product) if kind == "forward" else _reverse(run, directions)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # NotImplementedError is one
        return f"{name} has no {kind} mode ({_first_line(error)})"
    if product.fits(tangent):
        return tangent
    return (
        f"{name} gives another function when its {kind} pass repeats the first one (random numbers that are not from "
        "torch's own generator, state outside of buffers, or a function that can be differentiated once only)"
    )


def _may_be_recorded(model: nn.Module) -> bool:
    """The rules of a tape are for CPUs, and its check is blind in half precision."""
    plain = all(p.device.type == "cpu" and p.dtype in (torch.float32, torch.float64) for p in model.parameters())
    return plain and not torch.is_autocast_enabled("cpu")


def _forward(run: TrainingPass, directions: Mapping[str, Tensor], product: Product) -> Tensor:
    if run.tape is not None:
        weights = dict(run.model.named_parameters())
        load_forward_mode()
        try:
            with differentiable_kernels(run.model):
                tangent = run.tape.tangent(run.logits, {weights[name]: along for name, along in directions.items()})
            if product.fits(tangent):
                return tangent
        except torch.OutOfMemoryError:
            raise
        except (Unrecorded, RuntimeError):  # an operation without forward mode: whether the model has one is seen below
            pass
    return _dual_pass(run, directions)


def _dual_pass(run: TrainingPass, directions: Mapping[str, Tensor]) -> Tensor:
    load_forward_mode()
    weights = dict(run.model.named_parameters())
    with (
        run.random_state.replayed(),
        differentiable_kernels(run.model),
        torch.enable_grad(),  # nothing requires a gradient; a no_grad() in the model must make a difference
        forward_ad.dual_level(),
    ):
        duals = {name: _dual(weights[name].detach(), along) for name, along in directions.items()}
        still = {name: weight.detach() for name, weight in weights.items() if name not in duals}
        with substituted(run.model, {**still, **duals}, run.buffers), Composed():
            logits = call(run.model, run.inputs, len(run.logits))
        tangent: Tensor | None = forward_ad.unpack_dual(logits).tangent  # type: ignore[no-untyped-call]
        if tangent is None:
            raise NotImplementedError("no tangent reaches the logits")
        return tangent.detach().clone()


def _reverse(run: TrainingPass, directions: Mapping[str, Tensor]) -> Tensor:
    weights = dict(run.model.named_parameters())
    leaves = {name: weights[name].detach().requires_grad_() for name in directions}
    with (
        run.random_state.replayed(),
        differentiable_kernels(run.model),
        torch.enable_grad(),
        substituted(run.model, leaves, run.buffers),
        Composed(),
    ):
        logits = call(run.model, run.inputs, len(run.logits))
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
    if run.logits.dtype in (torch.float16, torch.bfloat16):
        raise TangentError(
            f"tangent='difference' subtracts nearly equal logits, and in {run.logits.dtype} nothing but rounding is "
            "left: use tangent='auto', or float32"
        )
    weights = dict(run.model.named_parameters())
    size = torch.stack([weights[name].detach().norm() for name in directions]).norm()
    length = torch.stack([along.norm() for along in directions.values()]).norm()
    shift = torch.where(length > 0, _SHIFT * size / length, 0.0)
    moved = {name: weights[name].detach() + shift * along for name, along in directions.items()}
    with run.random_state.replayed(), torch.no_grad(), substituted(run.model, moved, run.buffers):
        change = call(run.model, run.inputs, len(run.logits)) - run.logits.detach()
    return torch.where(length > 0, change / shift, 0.0)


def _dual(value: Tensor, along: Tensor) -> Tensor:
    dual: Tensor = forward_ad.make_dual(value, along)  # type: ignore[no-untyped-call]
    return dual


@functools.cache
def load_forward_mode() -> None:
    """Make torch load what its forward mode needs, without the deprecation warning that this sets off inside torch."""
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.simplefilter("ignore", DeprecationWarning)
        _dual(torch.zeros(()), torch.zeros(()))


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:160].rstrip(".")
