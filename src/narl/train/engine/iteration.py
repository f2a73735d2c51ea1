"""One step of training as a sequence of plain functions on plain tensors: no autograd graph, no look at a value.

The same training as ``Method.step``, in a form that can be compiled and captured. The order of a meta iteration is in
``narl/bilevel/README.md``; here the tangent pass takes the values that the forward pass left.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from narl.bilevel import StepReport
from narl.bilevel.clean_losses import CleanLoss
from narl.bilevel.flat import Layout
from narl.bilevel.optimizers import fill_state, trained_parameters
from narl.bilevel.passes import Compile, Left, Passes
from narl.bilevel.rivals import rivals
from narl.bilevel.slopes import CleanSlope, Slopes
from narl.errors import NonFiniteError, OptionError, TangentError
from narl.train.engine.culprits import Culprits
from narl.train.engine.rates import Rates
from narl.train.methods import Move
from narl.train.methods.base import LookAhead

_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}


@final
class Iteration:
    """The steps of a model at one batch shape.

    :meth:`prepare` traces and compiles; :meth:`run` does a step, and can be captured once it has been prepared.

    Args:
        model: the classifier, in training mode.
        optimizer: its optimiser, whose state is filled in.
        precision: of autocast; None: the model's own.
        compile: makes a fast function of a graph; None: graphs run as they are.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        precision: torch.dtype | None = None,
        compile: Compile | None = None,
    ) -> None:
        if len(optimizer.param_groups) > 1:
            raise OptionError("its optimiser has several groups of parameters")
        self._model, self._optimizer, self._precision, self._compile = model, optimizer, precision, compile
        self._trained = trained_parameters(model, optimizer)
        if len({(parameter.dtype, parameter.device) for parameter in self._trained.values()}) > 1:
            raise OptionError("its weights are of several types, or on several devices")
        self._buffers = [(m._buffers, name, b) for m in model.modules() for name, b in m._buffers.items()]
        self._weights = [parameter.detach() for parameter in model.parameters()]
        self._place_of = {name: place for place, (name, _) in enumerate(model.named_parameters())}
        self._layout = Layout([parameter.detach() for parameter in self._trained.values()])
        self._passes: dict[tuple[Any, ...], Passes] = {}
        self._slopes: Slopes | None = None
        self._compiled: dict[Hashable, Slopes | None] = {}  # losses that are not learned, by phase; None: cannot be
        self._clean: dict[CleanLoss, CleanSlope] = {}
        device = self._weights[0].device
        self._bad = torch.zeros((), device=device)
        self._bad_tangent = torch.zeros((), device=device)
        self.culprits: Culprits | None = None  # of trainings side by side
        fill_state(optimizer)
        self._rates = Rates(optimizer)
        self._learned_rates: Rates | None = None
        self._guard(optimizer)

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over what schedules have set, and buffers that the model has replaced in a step of its own."""
        self._rates.refresh()
        if self._learned_rates is not None:
            self._learned_rates.refresh()
        for holder, name, buffer in self._buffers:  # a captured step goes on with the tensors it was captured with
            if (now := holder.get(name)) is not buffer and now is not None and buffer is not None:
                holder[name] = buffer.copy_(now)

    def check(self) -> None:
        """Refuse to go on once a step was not finite; its update and all later ones have been left out."""
        if bool(self._bad):
            raise NonFiniteError(
                "the training loss, the clean loss or a gradient is not finite: training diverged; lower the learning "
                "rate or check the inputs"
            )
        if bool(self._bad_tangent):
            raise TangentError(
                f"{type(self._model).__name__} gives another function when its tangent pass repeats the first one: "
                "use --engine eager"
            )

    def prepare(self, move: Move, x: Tensor, y: Tensor, ids: Tensor, clean: tuple[Tensor, Tensor] | None) -> None:
        """Trace what a step needs and run each function once; weights and memories stay as they are.

        Args:
            move: what the step is.
            x: inputs ``(N, …)``; only the shape counts, here and below.
            y: labels.
            ids: of the samples, ``(N,)``.
            clean: a clean batch, for a meta step.
        """
        left = self._try(x, tangents=self._needs_tangents(move))
        if move.trainings is not None and self.culprits is None:
            self.culprits = Culprits(move.trainings, left.logits.device)
        if move.learned is not None and self._slopes is None:
            self._slopes = Slopes(move.learned, left.logits, y, ids, compile=self._compile)
            self._slopes.slope(left.logits, y, ids)
            self._slopes.observed(left.logits, y, ids, remember=False)
            self._slopes.response(left.logits, y, ids, torch.zeros_like(left.logits))
        if move.holder is not None and self._compile is not None and move.phase not in self._compiled:
            self._compiled[move.phase] = self._try_loss(move, move.holder, left.logits, y, ids)
        if move.meta is not None:
            assert clean is not None
            if self._learned_rates is None:
                fill_state(move.meta.adjuster_optimizer)
                self._learned_rates = Rates(move.meta.adjuster_optimizer, decay=True)
                self._guard(move.meta.adjuster_optimizer)
            logits = self._try(clean[0], tangents=False).logits
            judged = move.meta.clean_loss
            if judged not in self._clean:
                self._clean[judged] = CleanSlope(
                    logits, clean[1], loss=judged, trainings=move.trainings, compile=self._compile
                )
            self._clean[judged](logits, clean[1])

    def _try_loss(self, move: Move, holder: nn.Module, logits: Tensor, y: Tensor, ids: Tensor) -> Slopes | None:
        """The move's loss, compiled; None where it cannot be: then it runs as it is written."""
        judged = _Judged(holder, move)
        try:
            slopes = Slopes(judged, logits, y, ids, compile=self._compile, learned=False)
            slopes.observed(logits, y, ids, remember=False)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # it looks at other tensors, or is compiled already; what is wrong otherwise will be raised
            return None
        return slopes

    def _needs_tangents(self, move: Move) -> bool:
        """Compiling once for all steps is cheaper than keeping a little less; otherwise steps between do without."""
        return move.meta is not None or (move.learned is not None and self._compile is not None)

    def _key(self, x: Tensor, *, tangents: bool) -> tuple[Any, ...]:
        """Where the passes for a batch are; what has been compiled with tangents serves without as well."""
        shared = self._compile is not None and (True, *x.shape) in self._passes
        return (tangents or shared, *x.shape)

    def _try(self, x: Tensor, *, tangents: bool) -> Left:
        key = self._key(x, tangents=tangents)
        if key not in self._passes:
            before = drawn_on_host(x.device)
            self._passes[key] = Passes(
                self._model,
                list(self._trained),
                x,
                precision=self._precision,
                tangents=tangents,
                compile=self._compile,
            )
            if drawn_on_host(x.device) != before:
                raise OptionError("it draws random numbers on the host, which a graph would fix")
        passes = self._passes[key]
        left = self._forward(passes, x)
        passes.backward(left, torch.zeros_like(left.logits))
        if tangents:
            passes.tangent(left, [torch.zeros_like(p) for p in self._trained.values()])
        return left

    @torch.no_grad()
    def run(
        self, move: Move, x: Tensor, y: Tensor, ids: Tensor, clean: tuple[Tensor, Tensor] | None = None
    ) -> StepReport:
        """Do the step."""
        passes = self._passes[self._key(x, tangents=self._needs_tangents(move))]
        left = self._forward(passes, x)
        meta_loss = None
        if move.meta is not None:
            assert clean is not None
            meta_loss = self._move_adjuster(move, move.meta, passes, left, x, y, ids, *clean)
        traced = self._slopes if move.learned is not None else self._compiled.get(move.phase)
        if traced is not None:
            slope, loss, fields, margins = traced.observed(left.logits, y, ids)
        else:
            slope, loss = _slope(move.loss, left.logits, y, ids)
            fields, margins = move.observe(left.logits, y, ids)
        gradients = passes.backward(left, slope)
        self._watch(loss + get_total_norm(gradients))
        if self.culprits is not None:
            self.culprits.note(slope)
            self.culprits.count(self._bad)
        self._update(gradients, passes.unused)
        _copy(list(self._model.buffers()), left.buffers)
        return StepReport(loss, meta_loss, fields, margins, _rivals(left.logits, y, move.trainings))

    def _forward(
        self, passes: Passes, x: Tensor, weights: Sequence[Tensor] | None = None, buffers: Sequence[Tensor] = ()
    ) -> Left:
        given = list(buffers) if buffers else list(self._model.buffers())
        return passes.forward(self._weights if weights is None else weights, given, x)

    def _move_adjuster(
        self,
        move: Move,
        meta: LookAhead,
        passes: Passes,
        left: Left,
        x: Tensor,
        y: Tensor,
        ids: Tensor,
        clean_x: Tensor,
        clean_y: Tensor,
    ) -> Tensor:
        assert self._slopes is not None
        assert self._learned_rates is not None
        slopes, of_clean = self._slopes, self._passes[self._key(clean_x, tangents=False)]
        slope = slopes.slope(left.logits, y, ids)
        gradient = self._layout.joined(passes.backward(left, slope))
        moved, derivative = self._virtual(meta, gradient)
        clean = self._forward(of_clean, clean_x, self._with(self._layout.parted(moved)), left.buffers)
        clean_slope, meta_loss = self._clean[meta.clean_loss](clean.logits, clean_y)
        clean_gradients = of_clean.backward(clean, clean_slope)
        direction = derivative * self._layout.joined(clean_gradients)
        shift = self._shift(passes, left, x, self._layout.parted(direction))
        self._watch_product(slope, shift, gradient, direction)
        found = slopes.response(left.logits, y, ids, shift)
        if move.shared and move.trainings:
            found = [gradient / move.trainings for gradient in found]
        self._watch(meta_loss.sum() + get_total_norm(found))
        if self.culprits is not None:
            self.culprits.note(meta_loss.unsqueeze(0))
            self.culprits.note(shift)
        learned = [p for p in meta.adjuster.parameters() if p.requires_grad]
        for parameter, value in self._learned_rates.decayed(dict(zip(learned, found, strict=True))).items():
            parameter.grad = value
        with self._learned_rates.in_use():
            meta.adjuster_optimizer.step()
        return meta_loss

    def _shift(self, passes: Passes, left: Left, x: Tensor, direction: Sequence[Tensor]) -> Tensor:
        """How the logits move with the weights."""
        return passes.tangent(left, direction)

    def _virtual(self, meta: LookAhead, gradient: Tensor) -> tuple[Tensor, Tensor | float]:
        """Weights after the optimiser's step, flat, and the step's derivative."""
        (group,) = self._optimizer.param_groups
        states = [self._optimizer.state[parameter] for parameter in self._trained.values()]
        flat: dict[str, Any] = {
            name: value if name == "step" else self._layout.joined([state[name] for state in states])
            for name, value in states[0].items()
            if isinstance(value, Tensor)
        }
        weights = self._layout.joined([parameter.detach() for parameter in self._trained.values()])
        with self._rates.in_use():
            return meta.rule(weights, gradient, group, flat)

    def _with(self, moved: Sequence[Tensor]) -> list[Tensor]:
        """All weights, the trained ones replaced."""
        weights = list(self._weights)
        for name, value in zip(self._trained, moved, strict=True):
            weights[self._place_of[name]] = value
        return weights

    def _update(self, gradients: Sequence[Tensor], unused: frozenset[str]) -> None:
        for (name, parameter), gradient in zip(self._trained.items(), gradients, strict=True):
            parameter.grad = None if name in unused else gradient  # without one, weight decay leaves it alone
        with self._rates.in_use():
            self._optimizer.step()
        for parameter in self._trained.values():
            parameter.grad = None

    def _guard(self, optimizer: Optimizer) -> None:
        """Have fused updates left out once something was not finite."""
        if optimizer.param_groups[0].get("fused"):
            optimizer.found_inf = self._bad  # type: ignore[attr-defined]

    def _watch(self, value: Tensor) -> None:
        self._bad.copy_(torch.where(torch.isfinite(value), self._bad, 1.0))

    def _watch_product(self, slope: Tensor, shift: Tensor, gradient: Tensor, direction: Tensor) -> None:
        """⟨g_z, J d⟩ = ⟨Jᵀ g_z, d⟩, unless a pass was of another function; half precision hides the difference."""
        if self._precision is not None or slope.dtype not in _TOLERANCE:
            return
        one, other = slope * shift, gradient * direction
        size = one.abs().sum() + other.abs().sum()
        wrong = (one.sum() - other.sum()).abs() > _TOLERANCE[slope.dtype] * size
        self._bad_tangent.copy_(torch.where(wrong, 1.0, self._bad_tangent))


@final
class _Judged(nn.Module):
    """The loss of a move that is not learned as a module, which has the tensors of what holds them."""

    def __init__(self, holder: nn.Module, move: Move) -> None:
        super().__init__()
        self.holder = holder
        self.loss, self.observe = move.loss, move.observe


def drawn_on_host(device: torch.device) -> tuple[Any, ...]:
    """Where the random numbers stand that a kernel does not draw itself."""
    numbers: Any = np.random.get_state(legacy=False)  # noqa: NPY002  only looked at
    of_torch = [] if device.type == "cpu" else torch.get_rng_state().tolist()
    return random.getstate(), numbers["state"]["pos"], numbers["state"]["key"].tolist(), of_torch


def _slope(loss: Callable[..., Tensor], logits: Tensor, y: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logits.detach().requires_grad_()
    with torch.enable_grad():
        mean = loss(leaf, y, ids).mean()
        (slope,) = torch.autograd.grad(mean, leaf)
    return slope, mean.detach()


def _rivals(logits: Tensor, y: Tensor, trainings: int | None) -> Tensor:
    """Which class stands against each label, ``(N,)``; ``(N, R)`` for trainings side by side."""
    if trainings is None:
        return rivals(logits, y)
    return rivals(logits.reshape(len(y) * trainings, -1), y.flatten(0, 1)).reshape(len(y), trainings)


def _copy(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy a list into another, in one kernel for each type of number."""
    for kind in {target.dtype for target in targets}:
        pairs = [(t, v) for t, v in zip(targets, values, strict=True) if t.dtype == kind]
        torch._foreach_copy_([t for t, _ in pairs], [v for _, v in pairs])
