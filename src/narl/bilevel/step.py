"""Algorithm 1, one step at a time, for any training loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from narl.bilevel.calls import Inputs, RandomState, call, restore, snapshot, uncompiled
from narl.bilevel.hypergradient import (
    Objective,
    check_training_allowed,
    checked_clean_batch,
    logit_gradient,
    meta_gradient,
)
from narl.bilevel.optimizers import rule_of, trained_parameters
from narl.bilevel.refusals import refuse_no_labels, refuse_not_finite
from narl.bilevel.tangents import KINDS, TrainingPass
from narl.checks import check_targets
from narl.errors import CleanBatchError, NarlError, OptimizerError, OptionError

CleanBatch = Sequence[Any] | Callable[[], Sequence[Any]] | None


@dataclass(frozen=True)
class StepReport:
    """What happened in one step; tensors without gradient, on the model's device.

    Args:
        loss: mean training loss, a scalar.
        meta_loss: mean cross entropy of the clean batch after the virtual step; None in steps without one.
        hyperparameters: what the adjuster gave the samples, ``(N,)`` each, by name.
        margins: the samples' margins, ``(N,)``; None for objectives that have none.

    Example:
        >>> StepReport(loss=torch.tensor(0.5), meta_loss=None, hyperparameters={}, margins=None).loss
        tensor(0.5000)
    """

    loss: Tensor
    meta_loss: Tensor | None
    hyperparameters: dict[str, Tensor]
    margins: Tensor | None


@final
class MetaStep:
    """Trains a classifier and the adjuster of its loss together: the lines between loading a batch and the next one.

    Every ``every`` steps the adjuster is moved so that the optimiser's step on the noisy batch lowers the cross entropy
    of the clean batch; every step the classifier is moved by the adjusted loss. Gradients are exact. The virtual and
    the clean pass leave the model's buffers (BatchNorm's statistics) alone.

    Args:
        model: any classifier that gives logits ``(N, c)``.
        optimizer: the model's ``SGD``, ``Adam`` or ``AdamW``; schedules work as usual.
        adjuster: an :class:`narl.Adjuster`, or any module with ``loss(logits, targets) -> (N,)``.
        every: steps from one meta step to the next; the first step is one.
        virtual: ``"optimizer"``: look ahead by the optimiser's own update; ``"sgd"``: by a plain step (the paper's).
        tangent: see :func:`narl.hypergradient`.
        adjuster_optimizer: what moves the adjuster; Adam with learning rate 1e-3 and weight decay 1e-4 if omitted.
            Short runs (a few thousand steps) want 1e-2. Weight decay keeps the adjuster from saturating, but once the
            model's learning rate has fallen it also wins over the ever smaller hypergradient and flattens what was
            learned: an adjuster to be kept is best saved before.

    Gradients can be clipped in a hook: ``optimizer.register_step_pre_hook``. The virtual step does not see it.

    Example:
        >>> import narl
        >>> model = nn.Linear(4, 3)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> meta = MetaStep(model, optimizer, narl.Adjuster("gce", class_counts=[10, 10, 10]), every=2)
        >>> x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
        >>> clean = torch.randn(6, 4), torch.randint(0, 3, (6,))
        >>> reports = [meta.step(x, y, clean) for _ in range(3)]
        >>> [report.meta_loss is not None for report in reports]
        [True, False, True]
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        adjuster: Objective,
        every: int = 10,
        virtual: str = "optimizer",
        tangent: str = "auto",
        *,
        adjuster_optimizer: Optimizer | None = None,
    ) -> None:
        if not isinstance(model, nn.Module) or not isinstance(optimizer, Optimizer):
            raise OptionError(
                f"MetaStep takes a model and its optimiser, got {type(model).__name__} and {type(optimizer).__name__}: "
                "MetaStep(model, optimizer, adjuster)"
            )
        if not isinstance(every, int) or every < 1:
            raise OptionError(f"every = {every} is not a number of steps: use 1 or more (10 in the paper's runs)")
        if tangent not in KINDS:
            raise OptionError(f"tangent = {tangent!r} is unknown: use {', '.join(map(repr, KINDS))}")
        if not callable(getattr(adjuster, "loss", None)):
            raise OptionError(
                f"{type(adjuster).__name__} has no method loss(logits, targets): pass a narl.Adjuster, "
                "or a module whose loss gives one value a sample"
            )
        trained_parameters(model, optimizer)
        self.model, self.optimizer, self.adjuster = model, optimizer, adjuster
        self.every, self.tangent = every, tangent
        self.adjuster_optimizer = _optimizer_of(adjuster, adjuster_optimizer)
        self.steps = 0
        self._rule = rule_of(optimizer, virtual)
        self._kept: Sequence[Tensor | None] = ()

    def step(self, x: Inputs, y: Tensor, clean: CleanBatch = None, ids: Tensor | None = None) -> StepReport:
        """Train on one batch.

        Args:
            x: inputs of the noisy batch: a tensor, a tuple of positional arguments or a mapping of named ones.
            y: its labels, class indices ``(N,)`` or probabilities ``(N, c)``.
            clean: ``(x, y)`` with labels that are right, or a function without arguments that returns such a pair and
                is called in meta steps only.
            ids: sample ids ``(N,)``, for adjusters with a running margin.

        Returns:
            What happened.
        """
        check_training_allowed()
        refuse_no_labels(y)
        is_meta_step = self.steps % self.every == 0
        clean_batch = self._clean_batch(clean) if is_meta_step else None
        random_state, buffers = RandomState.now(self.model), snapshot(self.model)
        meta_loss = None
        try:
            with torch.enable_grad(), uncompiled(self.model) if is_meta_step else contextlib.nullcontext():
                logits = call(self.model, x, len(y))
                check_targets(y, num_classes=logits.shape[1], num_samples=len(logits))
                if clean_batch is not None:
                    run = TrainingPass(self.model, x, random_state, buffers, logits)
                    meta_loss = self._move_adjuster(run, y, ids, clean_batch)
                loss = self._move_model(logits, y, ids)
        except NarlError:
            restore(self.model, buffers)  # one bad batch would stay in BatchNorm's statistics
            raise
        self.steps += 1
        hyperparameters, margins = self._observed(logits.detach(), y, ids)
        return StepReport(loss, meta_loss, hyperparameters, margins)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold besides the model, its optimiser and the adjuster."""
        return {"steps": self.steps, "adjuster_optimizer": self.adjuster_optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken."""
        self.steps = state["steps"]
        self.adjuster_optimizer.load_state_dict(state["adjuster_optimizer"])

    def _move_adjuster(self, run: TrainingPass, y: Tensor, ids: Tensor | None, clean_batch: Sequence[Any]) -> Tensor:
        meta = meta_gradient(
            run, self.optimizer, self.adjuster, y, ids, clean_batch, rule=self._rule, tangent=self.tangent
        )
        for parameter, gradient in zip(self.adjuster.parameters(), meta.gradients, strict=True):
            parameter.grad = gradient if parameter.requires_grad else None
        self.adjuster_optimizer.step()
        # The last tensors to be made stay until the next meta step. Without them the top of the heap would be free
        # after every step, and the C library may hand it back to the system and fault it in again, page by page. GPUs
        # have an allocator that keeps what it has.
        self._kept = meta.by_weights if meta.meta_loss.device.type == "cpu" else ()
        return meta.meta_loss

    def _move_model(self, logits: Tensor, y: Tensor, ids: Tensor | None) -> Tensor:
        gradient, loss = logit_gradient(self.adjuster, logits, y, ids, create_graph=False)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(logits, gradient)
        refuse_not_finite(loss, self.optimizer)
        self.optimizer.step()
        return loss

    def _observed(self, logits: Tensor, y: Tensor, ids: Tensor | None) -> tuple[dict[str, Tensor], Tensor | None]:
        observe = getattr(self.adjuster, "observe", None)
        if observe is None:
            return {}, None
        hyperparameters, margins = observe(logits, y, ids)
        return hyperparameters, margins

    def __repr__(self) -> str:
        """What is trained, and how."""
        return (
            f"MetaStep({type(self.model).__name__}, {type(self.optimizer).__name__}, {type(self.adjuster).__name__}, "
            f"every={self.every}, tangent={self.tangent!r}, steps={self.steps})"
        )

    def _clean_batch(self, clean: CleanBatch) -> Sequence[Any]:
        batch = clean() if callable(clean) else clean
        if batch is None:
            raise CleanBatchError(
                f"step {self.steps} is a meta step and has no clean batch: pass clean=(x, y), or a function that "
                "returns such a pair"
            )
        checked_clean_batch(batch)
        return batch


def _optimizer_of(adjuster: Objective, given: Optimizer | None) -> Optimizer:
    learned = [parameter for parameter in adjuster.parameters() if parameter.requires_grad]
    if not learned:
        raise OptionError(
            f"{type(adjuster).__name__} has no parameter that requires a gradient, so there is nothing to learn: "
            "call its requires_grad_(), or use narl.AdjustedLoss for an adjuster that stays as it is"
        )
    if given is None:
        return Adam(learned, lr=1e-3, weight_decay=1e-4)
    if not isinstance(given, Optimizer):
        raise OptionError(
            f"adjuster_optimizer is a {type(given).__name__}: give an optimiser, "
            "such as torch.optim.Adam(adjuster.parameters(), lr=1e-2, weight_decay=1e-4)"
        )
    held = {parameter for group in given.param_groups for parameter in group["params"]}
    if not held <= set(adjuster.parameters()):
        raise OptimizerError(
            "adjuster_optimizer holds parameters that are not the adjuster's: build it from adjuster.parameters()"
        )
    return given
