"""Algorithm 1, one step at a time, for any training loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from narl.bilevel.calls import Inputs, restore, snapshot, substituted, uncompiled
from narl.bilevel.clean_losses import clean_loss_of
from narl.bilevel.hypergradient import (
    Hypergradient,
    Objective,
    check_training_allowed,
    checked_clean_batch,
    logit_gradient,
    meta_gradient,
    with_slope,
)
from narl.bilevel.optimizers import load_state, optimizer_of, rule_of, trained_parameters, unmoved
from narl.bilevel.processes import Processes, bare
from narl.bilevel.refusals import Noted, refuse_no_labels, refuse_not_finite, refuse_synchronised
from narl.bilevel.reports import StepReport, observed
from narl.bilevel.rivals import rivals
from narl.bilevel.tangents import KINDS, TrainingPass
from narl.bilevel.turns import Turn, couples, give_gradients, met, take_gradients
from narl.checks import at_least_float32, check_targets, warn_of_probabilities
from narl.errors import CleanBatchError, OptionError

CleanBatch = Sequence[Any] | Callable[[], Sequence[Any]] | None


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
        processes: who trains together, each with its share of every batch; None: the processes of a model in
            ``DistributedDataParallel``, else this one alone. k processes with n/k samples each do what one does with n.
            They begin with the first one's adjuster.
        clip: a longer gradient is scaled down to this norm, as ``torch.nn.utils.clip_grad_norm_`` does, in the virtual
            step too, derivative included. None: gradients are left as they are.
        clean_loss: what the step is judged by. ``"ce"``: cross entropy, as in the paper. ``"mae"``: how improbable the
            right labels are; on a few hundred clean samples, of which some are gotten confidently wrong, it tells wrong
            labels from right ones earlier.

    Every step's loss and gradient are looked at, for which the host waits for the device. Where ``noted`` is set to a
    :class:`narl.bilevel.refusals.Noted`, they are noted there instead.

    What clips otherwise, such as a hook of ``optimizer.register_step_pre_hook``, the virtual step does not see.

    Other people's training loops have their own backward pass or their own optimiser's step: :meth:`loss` and
    :meth:`backward` do the part of :meth:`step` before it.

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
        processes: Processes | None = None,
        clip: float | None = None,
        clean_loss: str = "ce",
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
        if clip is not None and not clip > 0:
            raise OptionError(f"clip = {clip} is no norm of a gradient: use a number above 0, or None")
        if not callable(getattr(adjuster, "loss", None)):
            raise OptionError(
                f"{type(adjuster).__name__} has no method loss(logits, targets): pass a narl.Adjuster, "
                "or a module whose loss gives one value a sample"
            )
        self.processes = Processes.of(model) if processes is None else processes
        self.model, self.optimizer, self.adjuster = bare(model), optimizer, adjuster
        trained_parameters(self.model, optimizer)
        self.every, self.tangent, self.clip = every, tangent, clip
        self.adjuster_optimizer = optimizer_of(adjuster, adjuster_optimizer)
        self.steps = 0
        self.rule = rule_of(optimizer, virtual)
        self.clean_loss = clean_loss_of(clean_loss)
        if self.processes.count > 1:
            refuse_synchronised(self.model)
            self.processes.same(list(adjuster.parameters()))
        self.noted: Noted | None = None
        self._kept: Sequence[Tensor | None] = ()
        self._looked = False

    def step(self, x: Inputs, y: Tensor, clean: CleanBatch = None, ids: Tensor | None = None) -> StepReport:
        """Train on one batch.

        Args:
            x: inputs of the noisy batch: a tensor, a tuple of positional arguments or a mapping of named ones.
            y: its labels, class indices ``(N,)`` or probabilities ``(N, c)``.
            clean: ``(x, y)`` with labels that are right, or a function without arguments that returns such a pair and
                is called in meta steps only.
            ids: sample ids ``(N,)``, for adjusters with a running margin.

        Returns:
            What happened. A step that fails before the model's update leaves everything as it was.
        """
        return self._trained(x, y, clean, ids, self._move_model)

    def backward(self, x: Inputs, y: Tensor, clean: CleanBatch = None, ids: Tensor | None = None) -> StepReport:
        """:meth:`step` up to the backward pass, for loops that move the model themselves.

        The gradients, those of all processes, are added to what the parameters have. Clear them before, clip them by
        ``clip`` and move the model after.

        Args:
            x: inputs of the noisy batch.
            y: its labels.
            clean: ``(x, y)`` with labels that are right, or a function that returns such a pair.
            ids: sample ids ``(N,)``.

        Returns:
            What happened.

        Example:
            >>> import narl
            >>> model = nn.Linear(4, 3)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> meta = MetaStep(model, optimizer, narl.Adjuster("gce", class_counts=[10, 10, 10]), clip=1.0)
            >>> x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
            >>> report = meta.backward(x, y, clean=(x[:4], y[:4]))
            >>> norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            >>> optimizer.step()
        """
        return self._trained(x, y, clean, ids, self._add_gradients)

    def loss(
        self, x: Inputs, y: Tensor, clean: CleanBatch = None, ids: Tensor | None = None
    ) -> tuple[Tensor, StepReport]:
        """:meth:`step` up to the loss, for loops that have their own backward pass.

        Processes have to average the gradients themselves, as ``DistributedDataParallel`` does for a model whose
        ``forward`` this is called in.

        Args:
            x: inputs of the noisy batch.
            y: its labels.
            clean: ``(x, y)`` with labels that are right, or a function that returns such a pair.
            ids: sample ids ``(N,)``.

        Returns:
            The mean loss of this process's samples, a scalar with the graph of the model's pass, and what happened.

        Example:
            >>> import narl
            >>> model = nn.Linear(4, 3)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> meta = MetaStep(model, optimizer, narl.Adjuster("gce", class_counts=[10, 10, 10]))
            >>> x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
            >>> loss, report = meta.loss(x, y, clean=(x[:4], y[:4]))
            >>> loss.backward()
            >>> optimizer.step()
        """
        found: list[Tensor] = []

        def keep(forward: Callable[[], Tensor], y: Tensor, ids: Tensor | None) -> tuple[Tensor, Tensor]:
            with Turn(self.processes) as turn:
                logits = met(forward, self.processes, wait=couples(self.adjuster))
                gradient, loss = logit_gradient(self.adjuster, logits, y, ids, create_graph=False)
                found.append(with_slope(loss, logits, gradient))
                turn.give([loss], len(y))
            (mean,) = turn.mean([at_least_float32(next(self.model.parameters()).new_zeros(()))])
            assert mean is not None
            return mean, logits

        report = self._trained(x, y, clean, ids, keep)
        return found[0], report

    def _trained(
        self,
        x: Inputs,
        y: Tensor,
        clean: CleanBatch,
        ids: Tensor | None,
        move: Callable[[Callable[[], Tensor], Tensor, Tensor | None], tuple[Tensor, Tensor]],
    ) -> StepReport:
        """Move the adjuster if that is due, and then the model, given how: from its pass to the loss and the logits."""
        check_training_allowed()
        is_meta_step = self.is_due
        buffers = snapshot(self.model)
        meta_loss = None

        def begin() -> tuple[TrainingPass, Sequence[Any]]:
            refuse_no_labels(y)
            clean_batch = self._clean_batch(clean) if is_meta_step else ()
            run = TrainingPass.of(self.model, x, len(y), buffers, tangent=self.tangent if is_meta_step else None)
            check_targets(y, num_classes=run.logits.shape[1], num_samples=len(run.logits))
            return run, clean_batch

        try:
            with contextlib.ExitStack() as inside:
                inside.enter_context(torch.enable_grad())
                if is_meta_step:
                    inside.enter_context(uncompiled(self.model))
                    inside.enter_context(unmoved(self.adjuster_optimizer))
                    meta = self._move_adjuster(begin, y, ids)
                    meta_loss = meta.meta_loss
                    loss, logits = move(lambda: meta.run.logits, y, ids)
                else:
                    loss, logits = move(lambda: begin()[0].logits, y, ids)
        except Exception:
            restore(self.model, buffers)  # one bad batch would stay in BatchNorm's statistics
            raise
        self.steps += 1
        if not self._looked:
            self._looked = True
            warn_of_probabilities(logits, type(self.model).__name__)
        hyperparameters, margins = observed(self.adjuster, logits.detach(), y, ids, self.processes)
        return StepReport(loss, meta_loss, hyperparameters, margins, rivals(logits, y))

    def look_ahead(self, x: Inputs, y: Tensor, clean: CleanBatch, ids: Tensor | None = None) -> Hypergradient:
        """What a meta step would move the adjuster by; nothing is moved, counted or remembered.

        Args:
            x: inputs of the noisy batch.
            y: its labels.
            clean: ``(x, y)`` with labels that are right, or a function that returns such a pair.
            ids: sample ids ``(N,)``.
        """
        check_training_allowed()

        def begin() -> tuple[TrainingPass, Sequence[Any]]:
            refuse_no_labels(y)
            run = TrainingPass.of(self.model, x, len(y), snapshot(self.model), tangent=self.tangent)
            check_targets(y, num_classes=run.logits.shape[1], num_samples=len(run.logits))
            return run, self._clean_batch(clean)

        with torch.enable_grad(), uncompiled(self.model), substituted(self.model, {}):
            return self._meta_gradient(begin, y, ids)

    @property
    def is_due(self) -> bool:
        """Whether the next step is a meta step."""
        return self.steps % self.every == 0

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold besides the model, its optimiser and the adjuster."""
        return {"steps": self.steps, "adjuster_optimizer": self.adjuster_optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken."""
        self.steps = state["steps"]
        load_state(self.adjuster_optimizer, state["adjuster_optimizer"])

    def _move_adjuster(
        self, begin: Callable[[], tuple[TrainingPass, Sequence[Any]]], y: Tensor, ids: Tensor | None
    ) -> Hypergradient:
        meta = self._meta_gradient(begin, y, ids)
        for parameter, gradient in zip(self.adjuster.parameters(), meta.gradients, strict=True):
            parameter.grad = gradient if parameter.requires_grad else None
        self.adjuster_optimizer.step()
        # The last tensors to be made stay until the next meta step. Without them the top of the heap would be free
        # after every step, and the C library may hand it back to the system and fault it in again, page by page. GPUs
        # have an allocator that keeps what it has.
        self._kept = meta.by_weights if meta.meta_loss.device.type == "cpu" else ()
        return meta

    def _meta_gradient(
        self, begin: Callable[[], tuple[TrainingPass, Sequence[Any]]], y: Tensor, ids: Tensor | None
    ) -> Hypergradient:
        return meta_gradient(
            begin,
            self.model,
            self.optimizer,
            self.adjuster,
            y,
            ids,
            rule=self.rule,
            tangent=self.tangent,
            processes=self.processes,
            clip=self.clip,
            clean_loss=self.clean_loss,
        )

    def _move_model(self, forward: Callable[[], Tensor], y: Tensor, ids: Tensor | None) -> tuple[Tensor, Tensor]:
        loss, logits = self._add_gradients(forward, y, ids, clear=True)
        if self.clip is not None:
            clip_grad_norm_([p for group in self.optimizer.param_groups for p in group["params"]], self.clip)
        self.optimizer.step()
        return loss, logits

    def _add_gradients(
        self, forward: Callable[[], Tensor], y: Tensor, ids: Tensor | None, *, clear: bool = False
    ) -> tuple[Tensor, Tensor]:
        with Turn(self.processes) as turn:
            logits = met(forward, self.processes, wait=couples(self.adjuster))
            gradient, loss = logit_gradient(self.adjuster, logits, y, ids, create_graph=False)
            if clear:
                self.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(logits, gradient)
            give_gradients(turn, loss, self.optimizer, len(y))
        loss = take_gradients(turn, self.optimizer)
        if self.noted is None:
            refuse_not_finite(loss, self.optimizer)
        else:
            self.noted.note(loss, self.optimizer)
        return loss, logits

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
