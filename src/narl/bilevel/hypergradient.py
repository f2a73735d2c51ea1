"""The exact gradient of the clean loss after a virtual step, by the parameters of the training loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from narl.bilevel.calls import Inputs, call, snapshot, substituted, uncompiled
from narl.bilevel.clean_losses import CleanLoss, clean_loss_of, cross_entropy
from narl.bilevel.memory_format import faster_layout
from narl.bilevel.optimizers import Rule, rule_of, trained_parameters
from narl.bilevel.processes import Processes, bare
from narl.bilevel.tangents import Product, TrainingPass, tangent_of_logits
from narl.bilevel.turns import Turn, couples, met
from narl.checks import at_least_float32, check_targets
from narl.errors import CleanBatchError, LabelError, NonFiniteError, OptionError


class Objective(Protocol):
    """A learnable loss: an ``nn.Module`` with ``loss(logits, targets) -> (N,)``, such as an adjuster."""

    @property
    def loss(self) -> Callable[..., Tensor]:
        """``(logits, targets) -> (N,)``, or the mean of that; also given ``ids=`` if it takes them."""
        ...

    def parameters(self) -> Any:
        """What is learned."""
        ...


@dataclass(frozen=True)
class Hypergradient:
    """The clean loss after the virtual step, its gradients by the objective's parameters and by the virtual weights.

    And the forward pass that all of it was made of, whose graph is still there.
    """

    gradients: tuple[Tensor, ...]
    meta_loss: Tensor
    by_weights: Sequence[Tensor | None]
    run: TrainingPass


def hypergradient(
    model: nn.Module,
    optimizer: Optimizer,
    objective: Objective,
    batch: Sequence[Any],
    clean_batch: Sequence[Any],
    *,
    virtual: str = "optimizer",
    tangent: str = "auto",
    processes: Processes | None = None,
    clip: float | None = None,
    clean_loss: str = "ce",
) -> tuple[Tensor, ...]:
    r"""How the clean loss after the next step depends on the parameters of the training loss.

    .. math:: \nabla_\theta\, \mathrm{CE}\big(f(x^c; \tilde w(\theta)), y^c\big)
              = -\Big\langle \frac{\partial g_z}{\partial \theta},\; J D\, \nabla_{\tilde w} \mathrm{CE} \Big\rangle

    where :math:`\tilde w` are the weights after the optimiser's step on the batch, :math:`J` the Jacobian of the
    batch's logits by the weights, :math:`g_z` the gradient of the training loss by the logits and :math:`D` the
    derivative of the optimiser's step by its gradient. Exact: equal to unrolling the step and differentiating twice,
    without a second-order graph of the network. Model, buffers, gradients and optimiser are left as they were.

    Args:
        model: any classifier that gives logits ``(N, c)``, in the mode (train or eval) that it is in.
        optimizer: the model's ``SGD``, ``Adam`` or ``AdamW``.
        objective: module with ``loss(logits, targets) -> (N,)``, whose parameters are differentiated by.
        batch: ``(x, y)`` or ``(x, y, ids)``, noisy labels.
        clean_batch: ``(x, y)``, labels that are right.
        virtual: ``"optimizer"`` for its own update, ``"sgd"`` for a plain step of the same learning rate.
        tangent: ``"forward"`` or ``"reverse"`` mode, the approximate ``"difference"``, or ``"auto"``: forward, or
            reverse for what has no forward mode.
        processes: who computes this together, each with its share of both batches; None: the processes of a model in
            ``DistributedDataParallel``, else this one alone.
        clip: the norm that a longer gradient is scaled down to before the step; None: it is left as it is.
        clean_loss: ``"ce"``: cross entropy, or ``"mae"``: how improbable the right labels are, which is bounded.

    Returns:
        One gradient for each of ``objective.parameters()``, in their order.

    Example:
        >>> import narl
        >>> model = nn.Linear(4, 3)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> adjuster = narl.Adjuster("gce", class_counts=[10, 10, 10])
        >>> noisy = torch.randn(8, 4), torch.randint(0, 3, (8,))
        >>> clean = torch.randn(6, 4), torch.randint(0, 3, (6,))
        >>> gradients = hypergradient(model, optimizer, adjuster, noisy, clean)
        >>> [tuple(g.shape) for g in gradients] == [tuple(p.shape) for p in adjuster.parameters()]
        True

    Reference: the derivation is in this folder's README.md.
    """
    check_training_allowed()
    processes = Processes.of(model) if processes is None else processes
    model = bare(model)
    inputs, targets, *rest = batch
    ids = rest[0] if rest else None
    rule = rule_of(optimizer, virtual)
    judged = clean_loss_of(clean_loss)

    def begin() -> tuple[TrainingPass, Sequence[Any]]:
        return TrainingPass.of(model, inputs, len(targets), snapshot(model), tangent=tangent), clean_batch

    with torch.enable_grad(), uncompiled(model), substituted(model, {}):
        meta = meta_gradient(
            begin,
            model,
            optimizer,
            objective,
            targets,
            ids,
            rule=rule,
            tangent=tangent,
            processes=processes,
            clip=clip,
            clean_loss=judged,
        )
    return meta.gradients


def meta_gradient(
    begin: Callable[[], tuple[TrainingPass, Sequence[Any]]],
    model: nn.Module,
    optimizer: Optimizer,
    objective: Objective,
    targets: Tensor,
    ids: Tensor | None,
    *,
    rule: Rule,
    tangent: str,
    processes: Processes,
    clip: float | None = None,
    clean_loss: CleanLoss = cross_entropy,
) -> Hypergradient:
    """The hypergradient on top of a forward pass, whose graph stays there; ``begin`` makes it and the clean batch."""
    parameters = trained_parameters(model, optimizer)
    wait = couples(objective)
    with Turn(processes) as turn:
        run, clean_batch = met(begin, processes, wait=wait)
        clean_inputs, clean_targets = checked_clean_batch(clean_batch)
        slope, _ = logit_gradient(objective, run.logits, targets, ids, create_graph=True)
        own: Sequence[Tensor | None] = torch.autograd.grad(
            run.logits, list(parameters.values()), slope.detach(), retain_graph=True, allow_unused=True
        )
        turn.give(own, weight=len(targets))
    gradients = turn.mean(list(parameters.values()))
    part = turn.part
    scaling = _Scaling.of(gradients, clip)
    moved, derivatives = _virtual_step(optimizer, rule, parameters, scaling.scaled(gradients))

    with Turn(processes) as turn, torch.enable_grad(), substituted(model, moved):
        clean_logits = call(model, faster_layout(model, clean_inputs), len(clean_targets))
        try:
            check_targets(clean_targets, num_classes=clean_logits.shape[1], num_samples=len(clean_logits))
        except LabelError as error:
            raise LabelError(f"in the clean batch, {error}") from None
        judged = clean_loss(clean_logits, clean_targets).mean()
        turn.give(
            [judged.detach(), *torch.autograd.grad(judged, list(moved.values()), allow_unused=True)],
            weight=len(clean_targets),
        )
    scalar = at_least_float32(next(iter(parameters.values())).new_zeros(()))
    meta_loss, *sensitivities = turn.mean([scalar, *moved.values()])
    assert meta_loss is not None
    learned = list(objective.parameters())
    wanted = [parameter for parameter in learned if parameter.requires_grad]
    with Turn(processes) as turn:
        directions = {
            name: derivatives[name] * _dense(sensitivity)
            for name, sensitivity in zip(moved, sensitivities, strict=True)
            if sensitivity is not None
        }
        directions = scaling.along(directions, dict(zip(parameters, gradients, strict=True)))
        # What the backward pass says of the tangent holds of one process's samples, and so of its own gradient.
        by_name = dict(zip(parameters, own, strict=True))
        shift = met(lambda: _shift(tangent, run, directions, slope, by_name), processes, wait=wait)
        pull = -shift if turn.alone else -shift * part
        turn.give(torch.autograd.grad(slope, wanted, pull.to(slope.dtype), allow_unused=True) if wanted else ())
    found = turn.sum(wanted)
    by_parameter = dict(zip(wanted, found, strict=True))
    result = tuple(_or_zero(by_parameter.get(parameter), parameter) for parameter in learned)
    _check_finite(meta_loss, result)
    return Hypergradient(result, meta_loss, sensitivities, run)


def _shift(
    tangent: str,
    run: TrainingPass,
    directions: dict[str, Tensor],
    slope: Tensor,
    gradients: dict[str, Tensor | None],
) -> Tensor:
    """How the logits move along the directions, ``(N, c)``."""
    if not directions:
        return torch.zeros_like(run.logits)
    terms = [_dense(gradients[name]) * along for name, along in directions.items() if gradients[name] is not None]
    terms = terms or [slope.new_zeros(())]  # other processes' samples alone reach the weights
    value, size = (torch.stack(sums).sum() for sums in ([t.sum() for t in terms], [t.abs().sum() for t in terms]))
    return tangent_of_logits(tangent, run, directions, Product(slope.detach(), value, size))


def with_slope(loss: Tensor, logits: Tensor, slope: Tensor) -> Tensor:
    """A loss, given as a number, whose derivative by the logits is the given one ``(N, c)``, and by nothing else."""
    found: Tensor = _Slope.apply(loss, logits, slope)  # type: ignore[no-untyped-call]
    return found


_CLIP_ROUNDING = 1e-6  # torch's, in clip_grad_norm_


class _Slope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, logits: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, None]:
        (slope,) = ctx.saved_tensors
        return None, gradients[0].to(slope.dtype) * slope, None


@dataclass(frozen=True)
class _Scaling:
    """The clipping of a gradient g by its norm n: c·g, with c = largest / n; its derivative is c·(1 - ĝ ĝᵀ), ĝ = g / n.

    Where the gradient is short enough, both are the identity, and so they are without clipping.
    """

    share: Tensor | None = None
    norm: Tensor | None = None

    @classmethod
    def of(cls, gradients: Sequence[Tensor | None], largest: float | None) -> _Scaling:
        """What this gradient, in parts, is scaled by: as ``torch.nn.utils.clip_grad_norm_`` does."""
        if largest is None:
            return cls()
        norm = get_total_norm([_dense(gradient) for gradient in gradients if gradient is not None])
        return cls(share=(largest / (norm + _CLIP_ROUNDING)).clamp(max=1.0), norm=norm)

    def scaled(self, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The gradient after clipping."""
        if self.share is None:
            return gradients
        return [None if gradient is None else _dense(gradient) * self.share for gradient in gradients]

    def along(self, directions: dict[str, Tensor], gradients: dict[str, Tensor | None]) -> dict[str, Tensor]:
        """The derivative of the clipping, which is symmetric, times directions in the space of the gradients."""
        if self.share is None or self.norm is None or not directions:
            return directions
        reached = {name: _dense(gradient) for name, gradient in gradients.items() if gradient is not None}
        length = torch.stack([(reached[name] * along).sum() for name, along in directions.items()]).sum()
        # Where nothing is cut off, the gradient's length stays free.
        lost = torch.where(self.share < 1, length / (self.norm * (self.norm + _CLIP_ROUNDING)), 0.0)
        nothing = torch.zeros(())
        return {
            name: self.share * (directions.get(name, nothing.to(gradient)) - lost * gradient)
            for name, gradient in reached.items()
        }


def logit_gradient(
    objective: Objective, logits: Tensor, targets: Tensor, ids: Tensor | None, *, create_graph: bool
) -> tuple[Tensor, Tensor]:
    """The mean loss's gradient by the logits, ``(N, c)``, cut off from the network, and the mean loss."""
    leaf = logits.detach().requires_grad_()
    with torch.enable_grad():
        values = objective.loss(leaf, targets, **({"ids": ids} if _takes_ids(objective, ids) else {}))
        if values.dim() and values.shape != targets.shape[:1]:
            raise OptionError(
                f"{type(objective).__name__}.loss returned shape {tuple(values.shape)} for {len(targets)} samples: "
                f"it must give one value a sample, shape ({len(targets)},), or their mean"
            )
        loss = values.mean()
        (gradient,) = torch.autograd.grad(loss, leaf, create_graph=create_graph)
    return gradient, loss.detach()


def _takes_ids(objective: Objective, ids: Tensor | None) -> bool:
    if ids is None:
        return False
    parameters = inspect.signature(objective.loss).parameters
    return "ids" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def check_training_allowed() -> None:
    """Refuse to train where torch keeps no graph."""
    if torch.is_inference_mode_enabled():
        raise OptionError("torch.inference_mode() is on, where nothing can be trained: call this outside of it")


def checked_clean_batch(clean_batch: object) -> tuple[Inputs, Tensor]:
    """Inputs and labels of the clean batch, or an error if it is empty or not a pair."""
    if not isinstance(clean_batch, Sequence) or len(clean_batch) != 2:
        raise CleanBatchError(
            f"the clean batch is a {type(clean_batch).__name__}: give (x, y), inputs and right labels, or a function "
            "without arguments that returns such a pair, such as lambda: next(batches)"
        )
    if not isinstance(clean_batch[1], Tensor):
        raise CleanBatchError(
            f"the clean batch's labels are a {type(clean_batch[1]).__name__}: give (x, y) with torch.as_tensor(y)"
        )
    if not len(clean_batch[1]):
        raise CleanBatchError("the clean batch is empty: the meta step needs samples with labels known to be right")
    return clean_batch[0], clean_batch[1]


def _virtual_step(
    optimizer: Optimizer,
    rule: Rule,
    parameters: dict[str, nn.Parameter],
    gradients: Sequence[Tensor | None],
) -> tuple[dict[str, Tensor], dict[str, Tensor | float]]:
    """Weights after the step that the optimiser would take, as leaves, and the step's derivatives by the gradient."""
    group_of = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    moved: dict[str, Tensor] = {}
    derivatives: dict[str, Tensor | float] = {}
    with torch.no_grad():
        for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
            if gradient is None:  # the optimiser leaves it alone, weight decay included
                continue
            state = optimizer.state.get(parameter, {})
            weights, derivatives[name] = rule(parameter, _dense(gradient), group_of[parameter], state)
            moved[name] = weights.detach().requires_grad_()
    return moved, derivatives


def _dense(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    return gradient.to_dense() if gradient.is_sparse else gradient


def _or_zero(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if gradient is None else gradient.detach()


def _check_finite(meta_loss: Tensor, gradients: Sequence[Tensor]) -> None:
    finite = torch.stack([torch.isfinite(value).all() for value in (meta_loss, *gradients)])
    if not bool(finite.all()):
        what = "the clean loss after the virtual step" if not bool(finite[0]) else "the hypergradient"
        raise NonFiniteError(
            f"{what} is not finite: training has diverged; lower the learning rate, or check the clean inputs"
        )
