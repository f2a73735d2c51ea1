"""Several trainings' steps as one step of one joint model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from narl.bilevel import StepReport
from narl.bilevel.optimizers import fill_state
from narl.errors import OptionError
from narl.models.stacking import joined, piece
from narl.train.engine.seats import Batch, Seat
from narl.train.engine.shared import Shared, one_by_one
from narl.train.engine.side_by_side import LOSS, MARGIN, META, OF, Losses, Metas, Objectives
from narl.train.methods import Method, Move
from narl.train.methods.base import LookAhead


@final
class Joint(Method):
    """Several methods as one, whose step moves one joint model.

    ``model`` is that model, ``optimizer`` its optimiser. The trainings' own models and optimisers hold parts of them
    from now on: what changes in one is changed in the other.

    Args:
        seats: of the trainings.
        shared: the adjuster that they learn together; None: each has its own.
    """

    def __init__(self, seats: Sequence[Seat], shared: Shared | None = None) -> None:
        self.seats, self.shared = list(seats), shared
        self.unmoved = "their steps do not go together"
        self.name = ", ".join(seat.method.name for seat in seats)
        self.model = joined([seat.model for seat in self.seats]).train()
        self.optimizer = _joint_optimizer(self.model, [seat.optimizer for seat in self.seats])
        self._objectives: Objectives | None = None
        self._metas: Metas | None = None
        self._loose = True
        self._tie_weights()

    def step(self, x: Any, y: Tensor, ids: Tensor) -> StepReport:
        """Train each on its part of a batch, by its own model.

        Args:
            x: the inputs side by side, ``(N, R·C, …)``.
            y: the labels side by side, ``(N, R)`` or ``(N, R, c)``.
            ids: side by side, ``(N, R)``.
        """
        parts = zip(x.chunk(len(self.seats), dim=1), y.unbind(1), ids.unbind(1), strict=True)
        reports = self.one_by_one(list(parts))
        values = {
            f"{number}{OF}{name}": value
            for number, report in enumerate(reports)
            for name, value in {LOSS: report.loss, **report.hyperparameters, **_besides(report)}.items()
        }
        rivals = [report.rivals for report in reports if report.rivals is not None]
        return StepReport(
            torch.stack([report.loss for report in reports]).sum(),
            None,
            values,
            None,
            torch.stack(rivals, dim=1) if len(rivals) == len(reports) else None,
        )

    def one_by_one(self, batches: Sequence[Batch]) -> list[StepReport]:
        """The same, each on a batch of its own."""
        self._loose = True
        return one_by_one(self.seats, batches, self.shared)

    def apart(self, report: StepReport) -> list[StepReport]:
        """What is to be said of each training."""
        found: list[dict[str, Tensor]] = [{} for _ in self.seats]
        for name, value in report.hyperparameters.items():
            number, _, own = name.partition(OF)
            found[int(number)][own] = value
        if report.meta_loss is not None:
            for values, loss in zip(found, report.meta_loss.unbind(), strict=True):
                values[META] = loss
        rivals: Sequence[Tensor | None] = [None] * len(found) if report.rivals is None else report.rivals.unbind(1)
        return [  # the losses are copied: a graph's next run writes to the same memory
            StepReport(values.pop(LOSS).clone(), values.pop(META, None), values, values.pop(MARGIN, None), rival)
            for values, rival in zip(found, rivals, strict=True)
        ]

    def moved(self) -> None:
        """Count the step, for each."""
        for seat in self.seats:
            seat.method.moved()

    def move(self) -> Move | None:
        """The joint step; None where one of the trainings has none, or they do not go together in this one."""
        moves = [move for seat in self.seats if (move := seat.method.move()) is not None]
        rates = {float(group["lr"]) for seat in self.seats for group in seat.optimizer.param_groups}
        if len(moves) < len(self.seats) or len(rates) > 1:
            return None
        learned = [move.learned for move in moves if move.learned is not None]
        metas = [move.meta for move in moves if move.meta is not None]
        if len(learned) not in (0, len(moves)) or len(metas) not in (0, len(moves)):
            return None
        self.optimizer.param_groups[0]["lr"] = rates.pop()
        if self._loose:
            self._tie_buffers()
        if learned and self._objectives is None:
            self._objectives = Objectives(learned)
        objectives = self._objectives if learned else Losses(moves)
        assert objectives is not None
        return Move(
            tuple(move.phase for move in moves),
            objectives.loss,
            objectives.observe,
            self._objectives if learned else None,
            self._look_ahead(metas) if metas else None,
            trainings=len(moves),
            shared=self.shared is not None,
            holder=None if learned else _holder([move.holder for move in moves]),
        )

    def _look_ahead(self, metas: list[LookAhead]) -> Metas:
        assert self._objectives is not None
        if self._metas is None:
            self._metas = Metas(metas, self._objectives)
        self._metas.refresh()
        return self._metas

    def _tie_weights(self) -> None:
        """Make the trainings' weights, and what their optimisers remember of them, parts of the joint ones."""
        whole = dict(self.model.named_parameters())
        for number, seat in enumerate(self.seats):
            for name, own in seat.model.named_parameters():
                own.data = piece(whole[name].data, number, own)
                if own.requires_grad:
                    state, of_all = seat.optimizer.state[own], self.optimizer.state[whole[name]]
                    for key, value in of_all.items():
                        part = piece(value, number, own)
                        state[key] = part.copy_(state[key])

    @torch.no_grad()
    def _tie_buffers(self) -> None:
        """The same for buffers, some of which a model's own step may have replaced."""
        self._loose = False
        for name, whole in self.model.named_buffers():
            path, _, key = name.rpartition(".")
            for number, seat in enumerate(self.seats):
                holder = seat.model.get_submodule(path)._buffers
                own = holder[key]
                assert own is not None
                part = piece(whole, number, own)
                if part.data_ptr() != own.data_ptr():
                    part.copy_(own)
                holder[key] = part


def _joint_optimizer(model: nn.Module, optimizers: Sequence[Optimizer]) -> Optimizer:
    """The parts' optimiser for the joint model, with zeros for what it is to remember."""
    settings = []
    for optimizer in optimizers:
        if type(optimizer) is not SGD or len(optimizer.param_groups) > 1:
            raise OptionError("only trainings by SGD, with one group of parameters, can be stacked")
        fill_state(optimizer)
        (group,) = optimizer.param_groups
        settings.append({name: value for name, value in group.items() if name not in ("params", "lr")})
    if any(other != settings[0] for other in settings):
        raise OptionError("trainings with other momentum or weight decay cannot be stacked")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    known = {name: settings[0][name] for name in _SGD_SETTINGS if name in settings[0]}
    whole = SGD(trained, lr=0.0, **known)
    fill_state(whole)
    return whole


_SGD_SETTINGS = ("momentum", "dampening", "weight_decay", "nesterov", "maximize", "foreach", "fused")


def _holder(parts: Sequence[nn.Module | None]) -> nn.Module | None:
    """What holds the tensors of all; None where that of one is not known."""
    known = [part for part in parts if part is not None]
    return nn.ModuleList(known) if len(known) == len(parts) else None


def _besides(report: StepReport) -> dict[str, Tensor]:
    """Margins and meta loss, where there are some."""
    found = {MARGIN: report.margins, META: report.meta_loss}
    return {name: value for name, value in found.items() if value is not None}
