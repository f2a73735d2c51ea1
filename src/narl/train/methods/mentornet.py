"""MentorNet: a curriculum that says how much each sample counts, given by a rule or learned on the clean set."""

from __future__ import annotations

from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from narl.adjuster import margin
from narl.bilevel import StepReport
from narl.bilevel.calls import Inputs, call
from narl.bilevel.hypergradient import checked_clean_batch
from narl.bilevel.optimizers import load_state
from narl.bilevel.rivals import rivals
from narl.checks import at_least_float32
from narl.errors import CleanBatchError
from narl.train.methods.base import Method, Setting
from narl.train.methods.descent import descend
from narl.train.methods.fixed import cross_entropy
from narl.train.methods.mentor import Mentor, exchanged
from narl.train.methods.meta import auto_every
from narl.train.methods.modes import evaluating
from narl.train.methods.spec import MethodSpec, Option
from narl.train.methods.weights import weighed

_EARLY = 0.17  # of the training, in the published runs
_EARLY_DROPOUT, _DROPOUT = 0.5, 0.05
_BURN_IN = 0.18


def predefined_weights(values: Tensor, threshold: Tensor | float, slope: float) -> Tensor:
    r"""The predefined curriculum: samples count fully below the threshold, less and less above it, then not at all.

    .. math:: v_i = \min\big(\max(1 - (\ell_i - \lambda_1) / \lambda_2,\ 0),\ 1\big)

    with :math:`\lambda_2 = 0`: 1 where the loss is at most :math:`\lambda_1`, else 0.

    Args:
        values: losses, ``(N,)``.
        threshold: :math:`\lambda_1`.
        slope: :math:`\lambda_2`.

    Returns:
        ``(N,)``.

    Example:
        >>> predefined_weights(torch.tensor([0.5, 1.5, 3.0]), 1.0, 1.0)
        tensor([1.0000, 0.5000, 0.0000])

    Reference: Jiang, Zhou, Leung, Li, Fei-Fei. MentorNet: learning data-driven curriculum for very deep neural networks
    on corrupted labels. ICML 2018, equation 6.
    """
    values = values.detach()
    if slope == 0:
        return (values <= threshold).to(values.dtype)
    return (1 - (values - threshold) / slope).clamp(0, 1)


@final
class MentorNet(Method):
    """Cross entropy, weighted by a curriculum.

    Both curricula see a sample's loss beside a threshold: a running average of a percentile of the batches' losses. The
    predefined one is :func:`predefined_weights`. The learned one is a :class:`narl.train.methods.mentor.Mentor`: on
    clean batches, half of whose labels have been exchanged for others, it learns to tell from the classifier's losses
    which labels are right, and what it says of a training sample is the sample's weight.

    Args:
        setting: what there is to work with.
        curriculum: ``"predefined"`` or ``"learned"``; None: learned if there is a clean set.
        percentile: of a batch's losses, that the threshold follows; a share.
        decay: of the running average of it.
        slope: of the predefined curriculum.
        dropout: whether samples are left out at random: half of them in the first 17 % of the training, then 5 %.
        burn_in: the share of the training in which all samples count alike; None: 0.18 for the learned curriculum, none
            for the predefined one.
        every: steps from one step of the mentor to the next; None: 1 to 10 by the run's length, as
            :func:`narl.train.methods.meta.auto_every` says.
        mentor_lr: learning rate of the mentor, with Adam.

    Its reports give every sample's ``weight``, before any are left out at random.

    Example:
        >>> model = nn.Linear(4, 3)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> method = MentorNet(Setting(model, optimizer, torch.tensor([5, 5, 5]), None, 100, 15, torch.Generator()))
        >>> report = method.step(torch.randn(2, 4), torch.tensor([0, 2]), torch.tensor([7, 3]))
        >>> report.hyperparameters["weight"].shape, method.mentor is None
        (torch.Size([2]), True)

    Reference: Jiang et al., ICML 2018.
    """

    fields = ("weight",)
    unmoved = "its curriculum is drawn and learned step by step"

    def __init__(
        self,
        setting: Setting,
        *,
        curriculum: str | None = None,
        percentile: float = 0.75,
        decay: float = 0.5,
        slope: float = 1.0,
        dropout: bool = True,
        burn_in: float | None = None,
        every: int | None = None,
        mentor_lr: float = 0.01,
    ) -> None:
        learned = setting.clean is not None if curriculum is None else curriculum == "learned"
        if learned and setting.clean is None:
            raise CleanBatchError(
                "MentorNet's learned curriculum needs samples whose labels are right, and there is no clean set: give "
                "one, or choose curriculum=predefined"
            )
        self.setting, self.steps = setting, 0
        self.percentile, self.decay, self.slope, self.dropout = percentile, decay, slope, dropout
        self.burn_in = (_BURN_IN if learned else 0.0) if burn_in is None else burn_in
        self.every = auto_every(setting.total_steps) if every is None else every
        self.threshold: Tensor | None = None
        self.mentor: Mentor | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        if learned:
            self.mentor = Mentor(setting.num_classes, generator=setting.generator).to(setting.device)
            self._optimizer = torch.optim.Adam(self.mentor.parameters(), lr=mentor_lr)

    @property
    def progress(self) -> float:
        """How much of the training is done, from 0 to 1."""
        return min(self.steps / self.setting.total_steps, 1.0)

    def step(self, x: Inputs, y: Tensor, ids: Tensor) -> StepReport:
        """Train on the batch as the curriculum says; now and then, move the mentor."""
        seen: dict[str, Tensor] = {}
        present = self._present(len(y))

        def values(logits: Tensor) -> Tensor:
            losses = cross_entropy(logits, y)
            seen["threshold"] = self._moved(losses.detach())
            seen["weight"] = self._weights(losses.detach(), y, seen["threshold"])
            weights = seen["weight"] if present is None else seen["weight"] * present
            return weighed(losses * weights, self.setting.weights, ids)

        loss, logits = descend(self.setting.model, self.setting.optimizer, x, y, values)
        self.threshold = seen["threshold"]
        if self.mentor is not None and self.steps % self.every == 0:
            self._teach(self.threshold)
        self.steps += 1
        return StepReport(loss, None, {"weight": seen["weight"]}, margin(logits, y), rivals(logits, y))

    def _moved(self, losses: Tensor) -> Tensor:
        """What the threshold becomes with this batch."""
        latest = losses.quantile(self.percentile)
        return latest if self.threshold is None else self.decay * self.threshold + (1 - self.decay) * latest

    @torch.no_grad()
    def _weights(self, losses: Tensor, y: Tensor, threshold: Tensor) -> Tensor:
        if self.progress < self.burn_in:
            return torch.ones_like(losses)
        if self.mentor is None:
            return predefined_weights(losses, threshold, self.slope)
        labels = y.argmax(dim=1) if y.dim() == 2 else y
        scores: Tensor = self.mentor(losses, losses - threshold, labels, self.progress)
        return scores.sigmoid().to(losses.dtype)

    def _present(self, count: int) -> Tensor | None:
        """Which samples are not left out, at random; None: all."""
        if not self.dropout:
            return None
        rate = _EARLY_DROPOUT if self.progress < _EARLY else _DROPOUT
        drawn = torch.rand(count, generator=self.setting.generator) >= rate
        return drawn.to(self.setting.device, torch.float32, non_blocking=True)

    def _teach(self, threshold: Tensor) -> None:
        """One step of the mentor on a clean batch, half of whose labels are exchanged."""
        assert self.mentor is not None
        assert self._optimizer is not None
        assert self.setting.clean is not None
        x, y = checked_clean_batch(self.setting.clean())
        with torch.no_grad(), evaluating(self.setting.model):
            logits = at_least_float32(call(self.setting.model, x, len(y)))
        labels, right = exchanged(y, logits.softmax(dim=1), self.setting.generator)
        losses = cross_entropy(logits, labels)
        with torch.enable_grad():
            scores = self.mentor(losses, losses - threshold, labels, self.progress)
            error = F.binary_cross_entropy_with_logits(scores, right.to(scores.dtype))
        self._optimizer.zero_grad(set_to_none=True)
        error.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.mentor.parameters(), 5.0)
        self._optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Steps, threshold, random numbers, and the mentor with its optimiser."""
        learned = None
        if self.mentor is not None and self._optimizer is not None:
            learned = {"mentor": dict(self.mentor.state_dict()), "optimizer": self._optimizer.state_dict()}
        return {
            "steps": self.steps,
            "threshold": self.threshold,
            "generator": self.setting.generator.get_state(),
            "learned": learned,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken."""
        self.steps, threshold = state["steps"], state["threshold"]
        self.threshold = None if threshold is None else threshold.clone().to(self.setting.device)
        self.setting.generator.set_state(state["generator"])
        if self.mentor is not None and self._optimizer is not None:
            self.mentor.load_state_dict(state["learned"]["mentor"])
            load_state(self._optimizer, state["learned"]["optimizer"])


SPEC = MethodSpec(
    name="MentorNet",
    make=MentorNet,
    description="cross entropy with weights by a curriculum: a threshold on the losses, or learned on the clean set",
    uses_clean=True,
    ignores_clean=lambda options: options.get("curriculum") == "predefined",
    options={
        "curriculum": Option(
            None,
            "learned on the clean set, or predefined; none: learned if there is one",
            choices=("predefined", "learned"),
        ),
        "percentile": Option(0.75, "of a batch's losses, that the threshold follows", low=0, high=1),
        "decay": Option(0.5, "of the threshold's running average", low=0, high=1),
        "slope": Option(1.0, "of the predefined curriculum: how slowly weights fall above the threshold", low=0),
        "dropout": Option(True, "leave samples out at random: half in the first 17 % of the training, then 5 %"),
        "burn_in": Option(
            None, "share of the training in which all count alike; none: 0.18 if learned, else 0", float, low=0, high=1
        ),
        "every": Option(
            None, "steps from one step of the mentor to the next; none: 1 to 10 by the run's length", int, low=1
        ),
        "mentor_lr": Option(0.01, "learning rate of the mentor", low=0),
    },
)
