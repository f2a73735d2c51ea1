"""An adjuster that is learned inside another library's training loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from narl.adjuster import AdjustedLoss, Adjuster
from narl.adjuster.turns import meant_for
from narl.adjuster.worth import IGNORED
from narl.bilevel import MetaStep, Processes, StepReport
from narl.bilevel.reports import observed
from narl.errors import CheckpointError, OptionError
from narl.train.adjusters import load_adjusters
from narl.train.methods.meta import auto_every, auto_learning_rate

Given = Adjuster | Sequence[Adjuster] | str | PathLike[str] | Sequence[str] | None

_DECAYS = {True: 1e-5, False: 1e-4}  # of adjusters that remember margins, and that do not


@final
class Learning:
    """What learns an adjuster while somebody else's loop trains the model.

    Args:
        adjuster: what is learned.
        every: steps from one meta step to the next; None: 1 to 10 by the training's length.
        adjuster_lr: the adjuster's learning rate; None: 0.01 to 0.001 by the training's length. It falls with the
            model's.
        virtual: see :class:`narl.MetaStep`.
        tangent: see :class:`narl.MetaStep`.

    Example:
        >>> model = nn.Linear(4, 2)
        >>> learning = Learning(Adjuster("gce", [5, 5]))
        >>> learning.begin(model, torch.optim.SGD(model.parameters(), lr=0.1), total_steps=100)
        >>> learning.meta.every, learning.is_due(0)
        (1, True)
    """

    def __init__(
        self,
        adjuster: Adjuster,
        *,
        every: int | None = None,
        adjuster_lr: float | None = None,
        virtual: str = "optimizer",
        tangent: str = "auto",
    ) -> None:
        self.adjuster = adjuster
        self._every, self._adjuster_lr = every, adjuster_lr
        self._virtual, self._tangent = virtual, tangent
        self._meta: MetaStep | None = None
        self._largest_lr = 0.0
        self._lr = self._decay = 0.0

    @property
    def meta(self) -> MetaStep:
        """The meta step of the training that has begun."""
        if self._meta is None:
            raise OptionError("the training has not begun: there is no meta step yet")
        return self._meta

    def belongs_to(self, optimizer: Optimizer) -> bool:
        """Whether a training with this optimiser has begun."""
        return self._meta is not None and self._meta.optimizer is optimizer

    def begin(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        total_steps: int,
        *,
        processes: Processes | None = None,
        clip: float | None = None,
    ) -> None:
        """Take part in a training.

        Args:
            model: from what :meth:`narl.MetaStep.step` takes to logits ``(N, c)``, on its device.
            optimizer: the model's.
            total_steps: of the optimiser.
            processes: who trains together; None: this one alone.
            clip: the norm that gradients are clipped to.
        """
        self.adjuster.to(next(model.parameters()).device)
        self._lr = auto_learning_rate(total_steps) if self._adjuster_lr is None else self._adjuster_lr
        self._decay = _DECAYS[self.adjuster.remembers]
        self._largest_lr = 0.0
        self._meta = MetaStep(
            model,
            optimizer,
            self.adjuster,
            every=auto_every(total_steps) if self._every is None else self._every,
            virtual=self._virtual,
            tangent=self._tangent,
            adjuster_optimizer=Adam(self.adjuster.parameters(), lr=self._lr, weight_decay=self._decay),
            processes=Processes.alone() if processes is None else processes,
            clip=clip,
        )

    def leave(self) -> None:
        """Forget the training; what was learned stays."""
        self._meta = None

    def is_due(self, step: int) -> bool:
        """Whether the optimiser's step with this number, from 0, is a meta step; called before each step.

        A step whose learning rate is 0, as warm-ups begin, moves nothing and teaches nothing.
        """
        now = max(float(group["lr"]) for group in self.meta.optimizer.param_groups)
        self._largest_lr = max(self._largest_lr, now)
        share = now / self._largest_lr if self._largest_lr else 1.0
        for group in self.meta.adjuster_optimizer.param_groups:
            group["lr"], group["weight_decay"] = self._lr * share, self._decay * share
        return step % self.meta.every == 0 and now > 0

    def at(self, step: int, total_steps: int) -> None:
        """Say where the training stands: how many of the optimiser's steps are done."""
        self.adjuster.progress.fill_(min(step / max(total_steps, 1), 1.0))

    def values(self, logits: Tensor, labels: Tensor, ids: Tensor | None = None) -> tuple[Tensor, StepReport]:
        """The losses of the samples of a step that is no meta step, and what the adjuster made of them.

        Args:
            logits: ``(N, c)``, with the graph of the model's pass.
            labels: ``(N,)``.
            ids: sample ids ``(N,)``.

        Returns:
            One value a sample, ``(N,)``, constant in the adjuster's weights; and the report.
        """
        self.adjuster.requires_grad_(False)
        try:
            values = self.adjuster.loss(logits, labels, ids)
        finally:
            self.adjuster.requires_grad_(True)
        hyperparameters, margins = observed(self.adjuster, logits.detach(), labels, ids, self.meta.processes)
        return values, StepReport(values.detach().mean(), None, hyperparameters, margins)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold; all of it tensors, numbers and texts."""
        state: dict[str, Any] = {"adjuster": dict(self.adjuster.state_dict()), "largest_lr": self._largest_lr}
        return state if self._meta is None else {**state, "meta": self._meta.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken; after :meth:`begin`."""
        try:
            self.adjuster.load_state_dict(state["adjuster"])
            self._largest_lr = state["largest_lr"]
            if "meta" in state:
                self.meta.load_state_dict(state["meta"])
        except (KeyError, RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"the checkpoint does not fit the adjuster of this training ({str(error).splitlines()[0]}): "
                "give the loss, the margin and the class counts that it was begun with"
            ) from error


def loaded(given: Given) -> list[Adjuster]:
    """Adjusters that were learned before.

    Args:
        given: adjusters, or files of them; a run's folder; the name of a shipped one.

    Example:
        >>> len(loaded(Adjuster("gce", [5, 5])))
        1
    """
    if given is None:
        raise OptionError(
            "there are neither clean samples to learn the loss from nor an adjuster that was learned before: give one "
            "of the two; some ten samples a class whose labels were checked are a good beginning, and adjuster='sl' is "
            "one that narl ships"
        )
    if isinstance(given, Adjuster):
        return [given]
    if isinstance(given, (str, PathLike)):
        return load_adjusters([fspath(given)])
    if all(isinstance(one, Adjuster) for one in given):
        return [one for one in given if isinstance(one, Adjuster)]
    return load_adjusters([fspath(one) for one in given if isinstance(one, (str, PathLike))])


def criterion_of(given: Given, class_counts: Tensor, margin: str, data: str | None) -> AdjustedLoss:
    """The drop-in loss of adjusters that were learned before; one value a sample.

    The noise rate has no say: batches are small here, and a resumed training would have to know what was counted.
    """
    given = loaded(given)
    return AdjustedLoss(given, class_counts, reduction="none", margin=margin, data=data, noise_rate=IGNORED)


def means(margins: Tensor | None, hyperparameters: Mapping[str, Tensor]) -> dict[str, float]:
    """Means over a batch, by name, for a log.

    Example:
        >>> means(torch.tensor([1.0, 2.0]), {"q": torch.tensor([0.5, 0.5])})
        {'margin': 1.5, 'q': 0.5}
    """
    found = {} if margins is None else {"margin": float(margins.mean())}
    return found | {name: float(values.mean()) for name, values in hyperparameters.items()}


def start(loss: str, class_counts: Tensor, given: Given, margin: str, seed: int, data: str | None = None) -> Adjuster:
    """The adjuster that is to be learned: a new one, or one that was learned before, fitted to this data.

    Args:
        loss: name of the loss, for a new one.
        class_counts: by the noisy labels, ``(c,)``.
        given: None: a new one.
        margin: ``"latest"`` or ``"running"``.
        seed: of a new one's weights.
        data: of adjusters for several kinds of data, which to use; None: what is for any data.
    """
    if given is None:
        if data is not None:
            raise OptionError(f"data = {data!r} says which adjuster to use, and none is given: leave it out")
        return Adjuster(loss, class_counts, margin=margin, generator=torch.Generator().manual_seed(seed))
    found = meant_for(loaded(given), data)
    last = AdjustedLoss(found[-1], class_counts, margin=margin, data=data, noise_rate=IGNORED).at(0.0)
    last.data = last.least_steps = last.noise_rate = None  # what is learned from here on is learned on this data
    return last.requires_grad_(True)
