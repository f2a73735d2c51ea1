"""T-*: a robust loss with an adjuster that was learned elsewhere; no clean set."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn

from narl.adjuster import AdjustedLoss, Adjuster
from narl.adjuster.pretrained import open_pack
from narl.adjuster.turns import checked, meant_for
from narl.adjuster.worth import ESTIMATED, IGNORED
from narl.bilevel.processes import Processes
from narl.bilevel.reports import observed
from narl.errors import OptionError
from narl.losses import RobustLoss
from narl.train.methods.base import LossMethod, Setting
from narl.train.methods.meta import LearnedLoss, by_heart
from narl.train.methods.spec import MethodSpec, Option

ROBUST_START = 1 / 3
"""Share of the steps with fixed hyperparameters: as long as the untrained one of three snapshots would serve."""

KEPT = "kept"
"""What runs call how much of its weight each label keeps, where the noise rate has a say."""

Given: TypeAlias = Adjuster | str | os.PathLike[str]


def auto_robust_start(kind: str | None, rows: int, epochs: int | None) -> float:
    """The share where nobody said: :data:`ROBUST_START` for tables that are about to be known by heart, else 0.

    Args:
        kind: see :func:`narl.train.methods.meta.by_heart`, as the others.
        rows: training samples.
        epochs: passes over them.

    Example:
        >>> auto_robust_start("table", 1200, 30) == ROBUST_START, auto_robust_start("image", 1200, 30)
        (True, 0.0)
    """
    return ROBUST_START if by_heart(kind, rows, epochs) else 0.0


def beginning(adjusters: Sequence[Adjuster], kind: str | None, rows: int, epochs: int | None) -> float:
    """The share for adjusters: 0 for those that were learned for this kind of data, else :func:`auto_robust_start`.

    Example:
        >>> adjuster = Adjuster("gce", [5, 5])
        >>> beginning([adjuster], "table", 1200, 30) == ROBUST_START
        True
        >>> adjuster.data = "table"
        >>> beginning([adjuster], "table", 1200, 30)
        0.0
    """
    own = kind is not None and any(adjuster.data == kind for adjuster in adjusters)
    return 0.0 if own else auto_robust_start(kind, rows, epochs)


@final
class Transferred(LossMethod):
    """Trains with an adjusted loss whose adjuster stays as it is.

    Args:
        setting: what there is to work with.
        loss: name of the loss that the adjusters adjust.
        adjusters: an adjuster, or its snapshots, each of which serves a part of the training; adjusters or their files.
        serves: see :class:`narl.AdjustedLoss`.
        margin: see :class:`narl.AdjustedLoss`.
        robust_start: see :class:`narl.AdjustedLoss`; None: :func:`beginning`.
        data: kind of the data, of adjusters for several kinds; None: the setting's.
        noise_rate: see :class:`narl.AdjustedLoss`; with ``wrap`` it has no say.
        wrap: what makes an objective of the adjuster, from a function that gives the one that serves, and None for one
            that is learned; None: it is its own.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> setting = Setting(model, optimizer, torch.tensor([5, 5]), None, 100, 10, torch.Generator())
        >>> method = Transferred(setting, "gce", Adjuster("gce", [100, 100, 100]))
        >>> report = method.step(torch.randn(3, 4), torch.tensor([0, 1, 1]), torch.arange(3))
        >>> report.hyperparameters["q"]
        tensor([0.3000, 0.3000, 0.3000])
    """

    distributed = True

    def __init__(
        self,
        setting: Setting,
        loss: str,
        adjusters: Given | Sequence[Given] | None,
        *,
        serves: str = "from",
        margin: str | None = None,
        robust_start: float | None = None,
        data: str | None = None,
        noise_rate: float | str | None = None,
        wrap: Callable[[Callable[[], Adjuster], None], LearnedLoss] | None = None,
    ) -> None:
        super().__init__(setting)
        listed: Any = adjusters if isinstance(adjusters, (list, tuple)) else [adjusters]
        if adjusters is None or not listed:
            raise OptionError(
                f"an adjuster of {loss!r} is needed and none is given: pass adjusters=, those that an adjusted "
                "training has learned, or their files"
            )
        learned = [
            snapshot
            for given in listed
            for snapshot in (open_pack(given).snapshots if isinstance(given, (str, os.PathLike)) else [given])
        ]
        learned = meant_for(checked(learned), data or setting.kind, setting.total_steps)
        if robust_start is None:
            robust_start = beginning(learned, setting.kind, setting.num_samples, setting.epochs)
        criterion = AdjustedLoss(
            learned,
            setting.class_counts,
            reduction="none",
            serves=serves,
            margin=margin,
            robust_start=robust_start,
            data=data or setting.kind,
            noise_rate=noise_rate if wrap is None else IGNORED,
        )
        self.criterion = criterion.to(setting.device)
        first = self.criterion.at(0.0)
        if first.running is not None:
            first.running.reserve(setting.num_samples)
        if first.robust_loss.name != loss.lower():
            raise OptionError(
                f"the adjuster adjusts {first.robust_loss.name!r}, not {loss!r}: choose the method of its loss, "
                f"T-{first.robust_loss.title}, or another adjuster"
            )
        self.fields = tuple(first.spans)
        if criterion.worth is not None:
            self.fields += (KEPT,)
            self.processes = setting.processes  # values sum over them, so all must get that far
        self._in_place = _alike(self.criterion)
        self._serving = _stand_in(first) if self._in_place else first
        self._turn = 0
        self._held: nn.ModuleList | None = None
        self._objective = None if wrap is None else wrap(lambda: self.current, None)

    @property
    def progress(self) -> float:
        """How much of the training is done, from 0 to 1."""
        return min(self.steps / self.setting.total_steps, 1.0)

    @property
    def current(self) -> Adjuster:
        """What serves in this step: a stand-in that has the snapshots' weights in turn, for graphs go on with tensors.

        Snapshots of several shapes serve themselves.
        """
        return self._serving

    @property
    def _minimised(self) -> LearnedLoss:
        return self.current if self._objective is None else self._objective

    def before_step(self) -> None:
        """Bring in the snapshot that serves now, and tell it how much of the training is done."""
        turn = list(self.criterion.snapshots).index(self.criterion.at(self.progress))
        if turn != self._turn:
            self._bring(turn)
        if self.current.sees_progress:
            self.current.progress.fill_(self.progress)
        if self.criterion.worth is not None:
            self.criterion.worth.at(self.progress)

    @torch.no_grad()
    def _bring(self, turn: int) -> None:
        snapshot = self.criterion.snapshots[turn]
        assert isinstance(snapshot, Adjuster)
        self._turn = turn
        if not self._in_place:
            self._serving = snapshot
            return
        for own, learned in zip(self._serving.parameters(), snapshot.parameters(), strict=True):
            own.copy_(learned)

    @property
    def phase(self) -> int:
        """Which snapshot serves, where its weights cannot be taken over in place."""
        return 0 if self._in_place else self._turn

    @property
    def compiles_with(self) -> nn.Module | None:
        """What serves, and what says how much labels are worth."""
        if self._objective is not None:
            return None
        if self._held is None or self._held[0] is not self.current:
            worth = self.criterion.worth
            self._held = nn.ModuleList([self.current, *([] if worth is None else [worth])])
        return self._held

    def values(self, logits: Tensor, y: Tensor, ids: Tensor) -> Tensor:
        """The loss of every sample with its own hyperparameters, ``(N,)``."""
        worth = self.criterion.worth
        if worth is None:
            return self._minimised.loss(logits, y, ids)
        values: Tensor = worth(logits, y, self.current(logits, y, ids), self.setting.processes.add)[0]
        return values

    def observe(self, logits: Tensor, y: Tensor, ids: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Every sample's hyperparameters and margin; running margins are remembered, and wrong labels counted."""
        fields, margins = observed(self._minimised, logits, y, ids, self.setting.processes)
        assert margins is not None
        worth = self.criterion.worth
        if worth is not None:
            kept = worth(logits, y, fields, self.setting.processes.add)[1]
            trusted = self.setting.trusted
            fields = {**fields, KEPT: kept if trusted is None else kept.masked_fill(trusted[ids], 1.0)}
            worth.count(*_of_all(ids, worth.looked(logits, y), self.setting.processes))
        return fields, margins

    def state_dict(self) -> dict[str, Any]:
        """Steps and adjusters, with the samples' running margins."""
        return {**super().state_dict(), "criterion": dict(self.criterion.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken."""
        super().load_state_dict(state)
        self.criterion.load_state_dict(state["criterion"])
        self._bring(list(self.criterion.snapshots).index(self.criterion.at(self.progress)))


def _of_all(ids: Tensor, values: Sequence[Tensor], processes: Processes) -> Sequence[Tensor]:
    """What all processes have seen, ``(N,)`` each; a batch that each of them was given whole counts once."""
    everyone, *gathered = processes.gathered(ids, *values)
    whole = processes.count > 1 and torch.equal(everyone, ids.repeat(processes.count))
    return [part[: len(ids)] for part in gathered] if whole else gathered


def _alike(criterion: AdjustedLoss) -> bool:
    """Whether all snapshots are the same but for their weights' values."""

    def form(snapshot: Adjuster) -> tuple[Any, ...]:
        weights = tuple((weight.shape, weight.dtype) for weight in snapshot.parameters())
        return weights, tuple(snapshot.spans.items()), snapshot.num_families, tuple(snapshot.of_class.tolist())

    return len({form(snapshot) for snapshot in criterion.snapshots if isinstance(snapshot, Adjuster)}) == 1


def _stand_in(snapshot: Adjuster) -> Adjuster:
    """A copy that remembers samples where the snapshots do."""
    made = copy.deepcopy(snapshot)
    made.running = snapshot.running
    return made


def spec(loss: RobustLoss, title: str | None = None) -> MethodSpec:
    """The transferred form of a loss.

    Args:
        loss: a registered loss with hyperparameters.
        title: what follows ``T-`` in the method's name, instead of the loss's title.

    Returns:
        Its specification.
    """

    def make(setting: Setting, adjusters: Given | Sequence[Given] | None, **options: Any) -> Transferred:
        return Transferred(setting, loss.name, adjusters, **options)

    return MethodSpec(
        name=f"T-{title or loss.title}",
        make=make,
        description=f"{loss.title} loss, hyperparameters for every sample by an adjuster learned elsewhere",
        needs_adjuster=True,
        loss=loss.name,
        options={
            "adjusters": Option(None, "the adjuster, or its snapshots in order: adjusters or their files"),
            "serves": Option(
                "from",
                "a snapshot serves from the time on at which it was taken, or until then, as in the paper",
                choices=("from", "until"),
            ),
            "margin": Option(
                None,
                "what the adjuster sees: running or latest margins; none: as it was learned",
                choices=("running", "latest"),
            ),
            "robust_start": Option(
                None,
                "share of the steps with the loss's fixed hyperparameters, before what was learned serves; none: a "
                "third on tables whose rows come up often, else 0",
                float,
                low=0,
                high=1,
            ),
            "noise_rate": Option(
                None,
                "doubt no more labels than are wrong: the share of these, estimated, or ignored; none: as it was made",
                float,
                low=0,
                high=1,
                words=(ESTIMATED, IGNORED),
            ),
        },
    )
