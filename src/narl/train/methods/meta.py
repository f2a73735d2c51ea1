"""What the methods share that learn their loss on the clean set: when and how fast, and what a checkpoint holds."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol, final

from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from narl.bilevel import MetaStep, StepReport
from narl.bilevel.calls import Inputs
from narl.bilevel.clean_losses import clean_loss_of
from narl.bilevel.hypergradient import Hypergradient
from narl.bilevel.reports import observed
from narl.bilevel.rivals import rivals
from narl.bilevel.tangents import KINDS
from narl.bilevel.turns import couples
from narl.errors import OptionError
from narl.train.methods.base import Method, Move, Setting
from narl.train.methods.descent import descend
from narl.train.methods.spec import Option
from narl.train.methods.trusted import Trusting
from narl.train.methods.weights import Weighed, weighed

LATE = "late"
"""Of clean losses: cross entropy first, then the bounded one."""
_LATE_SHARE = 0.5  # of the largest learning rate
_SHORT = 2000  # steps
_FEW_EPOCHS, _ROWS_AN_EPOCH = 8, 800  # before so many epochs a table is not known by heart


def auto_every(total_steps: int) -> int:
    """Steps from one meta step to the next: 10, as in the paper's runs of 50,000 steps, and fewer in shorter runs.

    Example:
        >>> [auto_every(steps) for steps in (500, 10_000, 60_000)]
        [1, 2, 10]
    """
    return min(max(round(total_steps / 5000), 1), 10)


def auto_learning_rate(total_steps: int) -> float:
    """The adjuster's learning rate: 1e-2 in runs of up to 3,000 steps, the paper's 1e-3 from 30,000 steps on.

    Example:
        >>> [auto_learning_rate(steps) for steps in (100, 3000, 6000, 50_000)]
        [0.01, 0.01, 0.005, 0.001]
    """
    return min(max(30 / total_steps, 1e-3), 1e-2)


def by_heart(kind: str | None, rows: int, epochs: int | None) -> bool:
    """Whether a network is about to know all labels by heart, wrong ones included: that of a table that comes up often.

    That is in 8 epochs or more, and in one for every 800 rows.

    Args:
        kind: of the data: ``"image"``, ``"table"``, ``"text"``; None: not known.
        rows: training samples.
        epochs: passes over them; None: not known.

    Example:
        >>> by_heart("table", 16_000, 30), by_heart("table", 16_000, 10), by_heart("image", 1200, 30)
        (True, False, False)
    """
    return kind == "table" and epochs is not None and epochs >= max(_FEW_EPOCHS, rows / _ROWS_AN_EPOCH)


def auto_beginning(kind: str | None, total_steps: int, rows: int, epochs: int | None) -> dict[str, Any]:
    """How an adjusted loss begins and what it is judged by, where nobody said: otherwise than usual on small tables.

    A perceptron knows the labels of a few thousand rows by heart after some hundred steps, wrong ones included. Until
    then the look-ahead sees that trusting all labels pays, and after that there is nothing left to learn it from. So it
    is with tables in runs of up to 2,000 steps, if every row comes up often enough (:func:`by_heart`). There the
    adjuster begins late, from the loss's fixed hyperparameters.

    Args:
        kind: of the data: ``"image"``, ``"table"``, ``"text"``; None: not known.
        total_steps: of the run.
        rows: training samples.
        epochs: passes over them; None: not known.

    Returns:
        ``clean_loss``, ``robust_start`` and ``merge_even``, see :class:`narl.train.methods.adjusted.Adjusted`.

    Example:
        >>> auto_beginning("table", 360, 1200, 30)
        {'clean_loss': 'mae', 'robust_start': 0.2, 'merge_even': True}
        >>> auto_beginning("table", 1580, 15_738, 10) == auto_beginning("image", 360, 1200, 30)
        True
    """
    if total_steps <= _SHORT and by_heart(kind, rows, epochs):
        return {"clean_loss": "mae", "robust_start": 0.2, "merge_even": True}
    return {"clean_loss": "ce", "robust_start": 0.0, "merge_even": False}


class LearnedLoss(Protocol):
    """A learnable loss that also says what it made of a batch: a :class:`narl.Adjuster`, for one."""

    def loss(self, logits: Tensor, targets: Tensor, ids: Tensor | None = None) -> Tensor:
        """One value a sample, ``(N,)``."""
        ...

    def observe(self, logits: Tensor, targets: Tensor, ids: Tensor | None = None) -> tuple[dict[str, Tensor], Tensor]:
        """Values by name and margins, each ``(N,)``; once a step."""
        ...

    def parameters(self) -> Any:
        """What is learned."""
        ...

    def state_dict(self) -> Any:
        """For a checkpoint."""
        ...

    def load_state_dict(self, state_dict: Any) -> Any:
        """From a checkpoint."""
        ...


def options(learned: str, decay: float | None = 1e-4, decay_note: str = "") -> dict[str, Option]:
    """The options of :class:`MetaMethod`, described for what is learned, such as ``"the adjuster"``."""
    return {
        "every": Option(None, "steps from one meta step to the next; none: 1 to 10 by the run's length", int, low=1),
        "adjuster_lr": Option(
            None, f"learning rate of {learned}; none: 0.01 to 0.001 by the run's length", float, low=0, high=10
        ),
        "adjuster_weight_decay": Option(decay, f"weight decay of {learned}{decay_note}", float, low=0),
        "warmup": Option(0.0, f"share of the steps before {learned} is first moved", low=0, high=1),
        "follow_schedule": Option(
            True, f"let learning rate and weight decay of {learned} fall with the classifier's learning rate"
        ),
        "virtual": Option(
            "optimizer", "look ahead by the optimiser's own step, or by a plain one", choices=("optimizer", "sgd")
        ),
        "tangent": Option("auto", "how the look-ahead is differentiated; see narl.hypergradient", choices=KINDS),
    }


class MetaMethod(Method):
    """A method that learns its loss so that the classifier's next step lowers the loss of the clean set.

    Args:
        setting: what there is to work with.
        learned: the loss that is learned, on the model's device.
        every: steps from one meta step to the next; None: :func:`auto_every`.
        adjuster_lr: learning rate of what is learned; None: :func:`auto_learning_rate`.
        adjuster_weight_decay: its weight decay.
        warmup: share of the steps before the first meta step.
        follow_schedule: scale its learning rate and weight decay by the ratio of the classifier's learning rate to the
            largest that it has had. The hypergradient falls with that rate; a weight decay that does not would win in
            the end and flatten what was learned.
        virtual: see :class:`narl.MetaStep`.
        tangent: see :func:`narl.hypergradient`.
        clean_loss: see :class:`narl.MetaStep`; or ``"late"``: ``"ce"``, and ``"mae"`` once the classifier's learning
            rate has fallen to half of the largest that it has had. Then the classifier gets sure of itself, and cross
            entropy likes wrong labels for making it less so.
    """

    distributed = True
    unmoved = "it weighs its samples, or has its own tangent"

    def __init__(
        self,
        setting: Setting,
        learned: LearnedLoss,
        *,
        every: int | None = None,
        adjuster_lr: float | None = None,
        adjuster_weight_decay: float = 1e-4,
        warmup: float = 0.0,
        follow_schedule: bool = True,
        virtual: str = "optimizer",
        tangent: str = "auto",
        clean_loss: str = "ce",
    ) -> None:
        if not 0 <= warmup <= 1:
            raise OptionError(f"warmup = {warmup} is outside [0, 1]: give a share of the steps")
        every = auto_every(setting.total_steps) if every is None else every
        self.setting, self.steps = setting, 0
        self.warmup_steps = round(warmup * setting.total_steps)
        self.adjuster_lr = auto_learning_rate(setting.total_steps) if adjuster_lr is None else adjuster_lr
        self.adjuster_weight_decay = adjuster_weight_decay
        self._learned, self._follow, self._late = learned, follow_schedule, clean_loss == LATE
        self._objective: LearnedLoss = learned
        self._largest_lr = 0.0
        self.trusts = isinstance(learned, nn.Module)
        if setting.trusted is not None and isinstance(learned, nn.Module):
            self._objective = Trusting(learned, setting.trusted)
        self._meta = MetaStep(
            setting.model,
            setting.optimizer,
            self._objective if setting.weights is None else Weighed(self._objective, setting.weights),
            every=every,
            virtual=virtual,
            tangent=tangent,
            adjuster_optimizer=Adam(
                learned.parameters(),
                lr=self.adjuster_lr,
                weight_decay=adjuster_weight_decay,
                fused=setting.device.type == "cuda",
                capturable=setting.device.type == "cuda",
            ),
            processes=setting.processes,
            clean_loss="ce" if self._late else clean_loss,
        )
        self._meta.noted = setting.noted

    @property
    def every(self) -> int:
        """Steps from one meta step to the next."""
        return self._meta.every

    @property
    def adjuster_optimizer(self) -> Optimizer:
        """What moves the learned loss."""
        return self._meta.adjuster_optimizer

    @final
    def parameters(self) -> list[nn.Parameter]:
        """Of the learned loss."""
        return list(self._learned.parameters())

    @final
    def step(self, x: Inputs, y: Tensor, ids: Tensor) -> StepReport:
        """Train on one batch."""
        self._prepare()
        warm = self._is_warm
        report = self._meta.step(x, y, self.setting.clean, ids) if warm else self._plain_step(x, y, ids)
        self._count()
        return report

    @final
    def look_ahead(self, x: Inputs, y: Tensor, ids: Tensor) -> Hypergradient | None:
        """What the next step would move the learned loss by; None if it is no meta step. Nothing is moved."""
        self._prepare()
        if not (self._is_warm and self._meta.is_due):
            return None
        return self._meta.look_ahead(x, y, self.setting.clean, ids)

    @final
    def follow(self, x: Inputs, y: Tensor, ids: Tensor) -> StepReport:
        """Train the classifier alone on one batch, with the learned loss as it is; a step like any other."""
        report = self._plain_step(x, y, ids)
        self.moved()
        return report

    @final
    def learn_with(self, other: MetaMethod) -> None:
        """From now on have the parameters of another method's learned loss, and the optimiser that moves them.

        What belongs to the data, such as families and the samples' running margins, stays this method's own.
        """
        ours, theirs = self._learned, other._learned
        if not isinstance(ours, nn.Module) or not isinstance(theirs, nn.Module) or _alike(ours) != _alike(theirs):
            raise OptionError(
                f"{self.name} and {other.name} do not learn the same kind of loss: for one adjuster give trainings "
                "with the same loss, margin, families and hidden units"
            )
        for name, parameter in theirs.named_parameters():
            path, _, key = name.rpartition(".")
            setattr(ours.get_submodule(path), key, parameter)
        self._meta.adjuster_optimizer = other._meta.adjuster_optimizer

    @final
    def move(self) -> Move | None:
        """What the step is; None if what is learned is no module, for other tangents, or weights."""
        if not isinstance(self._objective, nn.Module) or self._meta.tangent not in ("auto", "forward"):
            return None
        if self.setting.weights is not None:
            return None
        self._prepare()
        meta = self._meta if self._is_warm and self._meta.is_due else None
        phase = "plain" if meta is None else ("meta", self._meta.clean_loss)
        return Move(phase, self._objective.loss, self._objective.observe, self._objective, meta)

    @final
    def moved(self) -> None:
        """Count the step."""
        if self._is_warm:
            self._meta.steps += 1
        self._count()

    @property
    def _is_warm(self) -> bool:
        return self.steps >= self.warmup_steps

    def _count(self) -> None:
        self.steps += 1
        self.after_step()

    def _prepare(self) -> None:
        self.set_rate()
        self.before_step()

    @final
    def set_rate(self) -> None:
        """Set how fast is learned, with what weight decay and by what it is judged, as the classifier's rate is now."""
        share = self._share_of_rate()
        if self._late:
            self._meta.clean_loss = clean_loss_of("mae" if share <= _LATE_SHARE else "ce")
        share = share if self._follow else 1.0
        for group in self._meta.adjuster_optimizer.param_groups:
            group["lr"] = self.adjuster_lr * share
            group["weight_decay"] = self.adjuster_weight_decay * share

    def before_step(self) -> None:
        """Called before each step, also one that an engine does: a place to set what graphs read from tensors."""

    @abstractmethod
    def after_step(self) -> None:
        """Called when a step is done and counted."""

    def state_dict(self) -> dict[str, Any]:
        """Steps, what has been learned and how its optimiser stands."""
        return {
            "steps": self.steps,
            "largest_lr": self._largest_lr,
            "learned": dict(self._learned.state_dict()),
            "meta": self._meta.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken."""
        self.steps, self._largest_lr = state["steps"], state["largest_lr"]
        self._learned.load_state_dict(state["learned"])
        self._meta.load_state_dict(state["meta"])

    def _plain_step(self, x: Inputs, y: Tensor, ids: Tensor) -> StepReport:
        loss, logits = descend(
            self.setting.model,
            self.setting.optimizer,
            x,
            y,
            lambda logits: weighed(self._objective.loss(logits, y, ids), self.setting.weights, ids),
            processes=self.setting.processes,
            wait=couples(self._learned),
            noted=self.setting.noted,
        )
        self._meta.adjuster_optimizer.zero_grad(set_to_none=True)  # the backward pass came by
        fields, margins = observed(self._learned, logits, y, ids, self.setting.processes)
        return StepReport(loss, None, fields, margins, rivals(logits, y))

    def _share_of_rate(self) -> float:
        """The classifier's learning rate over the largest that it has had."""
        now = max(float(group["lr"]) for group in self.setting.optimizer.param_groups)
        self._largest_lr = max(self._largest_lr, now)
        return now / self._largest_lr if self._largest_lr else 1.0


def _alike(learned: nn.Module) -> list[object]:
    """What two learned losses must have in common to have the same parameters."""
    kinds = [getattr(learned, name, None) for name in ("spans", "num_families", "remembers", "input")]
    loss = getattr(getattr(learned, "robust_loss", None), "name", type(learned).__name__)
    return [loss, *kinds, [(name, tuple(p.shape)) for name, p in learned.named_parameters()]]
