"""A-*: a robust loss whose hyperparameters an adjuster sets, sample by sample, learned on the clean set."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, final

from narl.adjuster import Adjuster
from narl.adjuster.families import uneven
from narl.adjuster.margins import known_inputs
from narl.bilevel.clean_losses import CLEAN_LOSSES
from narl.losses import RobustLoss
from narl.train.methods import meta
from narl.train.methods.base import Setting
from narl.train.methods.spec import MethodSpec, Option

_DECAYS = {"running": 1e-5, "latest": 1e-4}


@final
class Adjusted(meta.MetaMethod):
    """Trains the classifier with an adjusted loss, and its adjuster with it.

    ``snapshots`` are copies of the adjuster, by default at one third, two thirds and the end of the training; for
    what has not been reached yet, or never is because the training ends early, the adjuster as it is now stands in.
    ``start`` is a copy from before the training. They are on the CPU, without the samples' running margins, and know
    when they were taken.

    Args:
        setting: what there is to work with.
        loss: name of a registered loss with hyperparameters.
        margin: the adjuster's input: ``"running"``, or the paper's ``"latest"``.
        input: what the adjuster sees of a margin; see :class:`narl.Adjuster`.
        families: the largest number of task families.
        merge_even: have one family where the classes' sizes differ by no more than chance; None:
            :func:`narl.train.methods.meta.auto_beginning`.
        hidden: units of the adjuster's hidden layer.
        snapshots: how many copies are taken along the training, at even distances.
        adjuster_weight_decay: None: 1e-5 for running margins, which do not drift together, and the paper's 1e-4 for the
            latest ones, which do once wrong labels are memorised.
        clean_loss: what the look-ahead is judged by, see :class:`narl.train.methods.meta.MetaMethod`; None:
            :func:`narl.train.methods.meta.auto_beginning`.
        robust_start: share of the steps that are trained with the loss's fixed hyperparameters; the adjuster begins to
            learn after them, from there. 0: it begins at once, near cross entropy. None:
            :func:`narl.train.methods.meta.auto_beginning`.
        warmup: share of the steps before the first meta step, if that is more.
        wrap: what makes an objective of the adjuster, from a function that gives it, and itself; None: it is its own.
        options: see :class:`narl.train.methods.meta.MetaMethod`.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> def clean():
        ...     return torch.randn(6, 4), torch.randint(0, 2, (6,))
        >>> setting = Setting(model, optimizer, torch.tensor([5, 5]), clean, total_steps=6, num_samples=10,
        ...                   generator=torch.Generator())
        >>> method = Adjusted(setting, "gce")
        >>> reports = [method.step(torch.randn(3, 4), torch.tensor([0, 1, 1]), torch.arange(3)) for _ in range(4)]
        >>> reports[0].hyperparameters["q"].shape, len(method.snapshots)
        (torch.Size([3]), 3)
    """

    adjuster: Adjuster

    def __init__(
        self,
        setting: Setting,
        loss: str,
        *,
        margin: str = "running",
        input: str = "margin",
        families: int = 3,
        merge_even: bool | None = None,
        hidden: int = 100,
        snapshots: int = 3,
        adjuster_weight_decay: float | None = None,
        clean_loss: str | None = None,
        robust_start: float | None = None,
        warmup: float = 0.0,
        wrap: Callable[[Callable[[], Adjuster], Adjuster], meta.LearnedLoss] | None = None,
        **options: Any,
    ) -> None:
        usual = meta.auto_beginning(setting.kind, setting.total_steps, setting.num_samples, setting.epochs)
        merge_even = usual["merge_even"] if merge_even is None else merge_even
        families = 1 if merge_even and not uneven(setting.class_counts) else families
        adjuster = Adjuster(
            loss, setting.class_counts, families, hidden, margin, input=input, generator=setting.generator
        )
        self.adjuster = adjuster.to(setting.device)
        if self.adjuster.running is not None:
            self.adjuster.running.reserve(setting.num_samples)
        decay = _DECAYS[margin] if adjuster_weight_decay is None else adjuster_weight_decay
        learned = self.adjuster if wrap is None else wrap(lambda: self.adjuster, self.adjuster)
        if robust_start is None:
            robust_start = usual["robust_start"]
        if robust_start > 0:
            self.adjuster.begin_at()
        super().__init__(
            setting,
            learned,
            adjuster_weight_decay=decay,
            warmup=max(warmup, robust_start),
            clean_loss=usual["clean_loss"] if clean_loss is None else clean_loss,
            **options,
        )
        self.fields = tuple(self.adjuster.spans)
        self.start = _copy(self.adjuster, 0.0)
        self._wanted = snapshots
        self._taken: tuple[Adjuster, ...] = ()

    def before_step(self) -> None:
        """Tell the adjuster how much of the training is done."""
        if self.adjuster.sees_progress:
            self.adjuster.progress.fill_(self._progress)

    def after_step(self) -> None:
        """Take a snapshot when it is due."""
        while len(self._taken) < self._wanted and self.steps >= self._due(len(self._taken)):
            self._taken += (_copy(self.adjuster, self._progress),)

    @property
    def snapshots(self) -> tuple[Adjuster, ...]:
        """The adjuster along the training, the last time at its end, or as near to that as it got."""
        missing = self._wanted - len(self._taken)
        return self._taken + tuple(_copy(self.adjuster, self._progress) for _ in range(missing))

    @property
    def kept(self) -> tuple[Adjuster, ...]:
        """The adjuster before the training, then along it."""
        return (self.start, *self.snapshots)

    @property
    def _progress(self) -> float:
        return min(self.steps / self.setting.total_steps, 1.0)

    def _due(self, taken: int) -> int:
        return math.ceil((taken + 1) * self.setting.total_steps / self._wanted)

    def state_dict(self) -> dict[str, Any]:
        """What the adjuster has learned, how its optimiser stands, and the snapshots."""
        return {
            **super().state_dict(),
            "snapshots": [dict(snapshot.state_dict()) for snapshot in self._taken],
            "taken": [snapshot.taken for snapshot in self._taken],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken."""
        super().load_state_dict(state)
        self._taken = ()
        for number, learned in enumerate(state["snapshots"]):
            # Checkpoints of narl before snapshots knew when they were taken: when they were due.
            known = state.get("taken", [])
            taken = known[number] if known else self._due(number) / self.setting.total_steps
            snapshot = _copy(self.adjuster, taken)
            snapshot.load_state_dict(learned)
            self._taken += (snapshot,)


def _copy(adjuster: Adjuster, taken: float) -> Adjuster:
    snapshot = copy.deepcopy(adjuster)
    snapshot.taken = taken
    snapshot.zero_grad(set_to_none=True)
    if snapshot.running is not None:
        snapshot.running.forget()  # a number a training sample, of no use to anybody else
    return snapshot.cpu()


def spec(loss: RobustLoss, title: str | None = None) -> MethodSpec:
    """The adjusted form of a loss.

    Args:
        loss: a registered loss with hyperparameters.
        title: what follows ``A-`` in the method's name, instead of the loss's title.

    Returns:
        Its specification.
    """

    def make(setting: Setting, **options: Any) -> Adjusted:
        return Adjusted(setting, loss.name, **options)

    return MethodSpec(
        name=f"A-{title or loss.title}",
        make=make,
        description=f"{loss.title} loss, hyperparameters for every sample, learned on the clean set",
        needs_clean=True,
        loss=loss.name,
        options={
            "margin": Option(
                "running", "what the adjuster sees: margins averaged over epochs, or the latest", choices=_MARGINS
            ),
            "input": Option(
                "margin",
                "what it sees of a margin: itself, scaled by the logits' spread, its rank in the batch; and progress, "
                "and the number of classes",
                choices=known_inputs(),
            ),
            **meta.options("the adjuster", None, "; none: 1e-5 for running margins, 1e-4 for the latest"),
            "clean_loss": Option(
                None,
                "what the look-ahead is judged by; late: ce, and mae once the learning rate has fallen; none: ce, for "
                "tables in short runs mae",
                str,
                choices=(*CLEAN_LOSSES, meta.LATE),
            ),
            "robust_start": Option(
                None,
                "share of the steps with the loss's fixed hyperparameters, from which the adjuster then begins; none: "
                "0, for tables in short runs 0.2",
                float,
                low=0,
                high=1,
            ),
            "families": Option(3, "groups of classes by size, each with its own head", low=1),
            "merge_even": Option(
                None,
                "one group if class sizes differ by no more than chance; none: for tables in short runs",
                bool,
            ),
            "hidden": Option(100, "hidden units of the adjuster", low=1, high=100_000),
            "snapshots": Option(3, "copies that are kept along the training, for transfer", low=1, high=100),
        },
    )


_MARGINS = ("running", "latest")
