"""Steps of several trainings as one: their models are one wide model, their losses one loss.

The network of a small image leaves most of a GPU idle. Of trainings that differ in data, method or seed, but not in
network, batch size and learning rate, every step can be one step: the models are joined (:mod:`narl.models.stacking`),
each keeps its weights, its optimiser's memory and its batch statistics as a part of the joint ones, and each training
goes on as if it were alone, evaluations and checkpoints included. No number of one reaches another.

Trainings in one stack can also learn one adjuster together (multi-task meta-training): then θ moves by the mean of
their hypergradients, all taken at the same θ, before each of them makes its step.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from narl.bilevel import StepReport
from narl.bilevel.hypergradient import Hypergradient
from narl.bilevel.optimizers import Rule, fill_state
from narl.bilevel.passes import autocast
from narl.errors import NarlWarning, OptionError
from narl.models.stacking import joined, piece
from narl.train import engine
from narl.train.engine.base import Engine
from narl.train.engine.captured import CapturedEngine, Clean
from narl.train.methods import Method, Move
from narl.train.methods.base import LookAhead
from narl.train.methods.meta import MetaMethod

_OF = ": "  # between a training's number and the name of a value of it
_LOSS, _META, _MARGIN = " loss", " meta loss", " margin"  # no hyperparameter's name begins with a space


@final
class Seat(Engine):
    """One training's place in a stack.

    Args:
        stack: that does its steps.
        method: what a step is.
        model: that it trains.
        optimizer: the model's.
        clean: draws clean batches; None without a clean set.
        rows: samples of a full batch.
        steps: of the whole run.
        precision: of autocast; None: the model's own.
        captured: whether steps are to be captured as graphs.
    """

    def __init__(
        self,
        stack: Stack,
        method: Method,
        model: nn.Module,
        optimizer: Optimizer,
        clean: Clean | None,
        *,
        rows: int,
        steps: int,
        precision: torch.dtype | None,
        captured: bool,
    ) -> None:
        super().__init__(method, precision)
        self.model, self.optimizer, self.clean = model, optimizer, clean
        self.rows, self.steps, self.captured = rows, steps, captured
        self.random = RandomState()
        self._stack = stack

    def check(self) -> None:
        """Refuse to go on once a step of any training in the stack was not finite."""
        self._stack.check()

    def reset(self) -> None:
        """Model, optimiser or method have been given another state."""
        self._stack.reset()


@final
class Stack:
    """Where the steps of several trainings become one.

    Args:
        shared: whether they learn one adjuster together; then all are adjusted losses of one kind.

    Example:
        >>> from narl.train import methods
        >>> stack, seats = Stack(), []
        >>> for _ in range(2):
        ...     model = nn.Linear(4, 2)
        ...     optimizer = SGD(model.parameters(), lr=0.1)
        ...     setting = methods.Setting(model, optimizer, torch.tensor([5, 5]), None, 9, 10, torch.Generator())
        ...     method = methods.build("GCE", setting)
        ...     seats.append(stack.seat("auto", method, model, optimizer, None, rows=3, steps=9))
        >>> batches = [(torch.randn(3, 4), torch.tensor([0, 1, 1]), torch.arange(3)) for _ in seats]
        >>> [report.margins.shape for report in stack.step(seats, batches)]
        [torch.Size([3]), torch.Size([3])]
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = Shared() if shared else None
        self._seats: list[Seat] = []
        self._methods: Alongside | None = None
        self._engine: Engine | None = None

    @property
    def count(self) -> int:
        """How many trainings made the last step."""
        return len(self._seats)

    def seat(
        self,
        name: str,
        method: Method,
        model: nn.Module,
        optimizer: Optimizer,
        clean: Clean | None,
        *,
        rows: int,
        steps: int,
        precision: str = "float32",
        processes: int = 1,
    ) -> Seat:
        """A place for a training; takes what :func:`narl.train.engine.make` takes."""
        if processes > 1:
            raise OptionError(f"{processes} processes cannot train as one stack: stack in one process")
        captured = name == "auto" and next(model.parameters()).device.type == "cuda"
        return Seat(
            self,
            method,
            model,
            optimizer,
            clean,
            rows=rows,
            steps=steps,
            precision=engine.type_of(precision),
            captured=captured,
        )

    def step(self, seats: Sequence[Seat], batches: Sequence[tuple[Tensor, Tensor, Tensor]]) -> list[StepReport]:
        """One step of each training.

        Args:
            seats: of all that go on; one that has ended is left out from then on.
            batches: inputs, labels and ids of each; where their sizes differ, the steps are done one by one.

        Returns:
            What each training's own step would report.
        """
        if self._methods is None or self._seats != list(seats):
            self._build(list(seats))
        assert self._methods is not None
        if self._engine is None or len({len(y) for _, y, _ in batches}) > 1:
            return self._methods.one_by_one(batches)
        x, y, ids = (list(part) for part in zip(*batches, strict=True))
        report = self._engine.step(_joint_inputs(x), torch.stack(y, dim=1), torch.stack(ids, dim=1))
        return self._methods.apart(report)

    def check(self) -> None:
        """Refuse to go on once a step was not finite."""
        if self._engine is not None:
            self._engine.check()

    def reset(self) -> None:
        """Some training has been given another state."""
        self._engine = self._methods = None

    def _build(self, seats: list[Seat]) -> None:
        self.check()
        self._seats, first = seats, seats[0]
        if len({(seat.rows, seat.precision, seat.captured) for seat in seats}) > 1:
            raise OptionError("trainings with other batch sizes, precisions or engines cannot be stacked")
        if self._shared is not None:
            self._shared.tie(seats)
        self._methods, self._engine = Alongside(seats, self._shared), None
        if not first.captured:
            return
        try:
            joint = Joint(seats, self._shared)
        except OptionError as error:
            if self._shared is None:
                raise  # each does better alone
            warnings.warn(f"the tasks train without CUDA graphs ({error})", NarlWarning, stacklevel=3)
            return
        self._methods = joint
        self._engine = CapturedEngine(
            joint,
            joint.model,
            joint.optimizer,
            _Cleans.of(seats),
            rows=first.rows,
            precision=first.precision,
            compiled=first.steps >= engine.STEPS_WORTH_COMPILING,
        )


@final
class RandomState:
    """A training's own state of torch's generator on the CPU, which trainings side by side would else share."""

    def __init__(self) -> None:
        self._own: Tensor | None = None

    def keep(self) -> None:
        """Take the state as it is now for this training's."""
        self._own = torch.get_rng_state()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, the generator is this training's; afterwards it is what it was."""
        if self._own is None:
            yield
            return
        before = torch.get_rng_state()
        torch.set_rng_state(self._own)
        try:
            yield
        finally:
            self._own = torch.get_rng_state()
            torch.set_rng_state(before)


@final
class Shared:
    """One adjuster that several trainings learn together."""

    def __init__(self) -> None:
        self.first: MetaMethod | None = None

    def tie(self, seats: Sequence[Seat]) -> None:
        """Give all trainings the parameters of the first one's adjuster, and its optimiser."""
        if len({seat.steps for seat in seats}) > 1:
            steps = ", ".join(sorted({f"{seat.steps:,}" for seat in seats}))
            raise OptionError(
                f"tasks of {steps} steps cannot learn one adjuster together: it is learned along the training, so give "
                "tasks with the same number of samples"
            )
        for seat in seats:
            method = _learner(seat)
            if self.first is None:
                self.first = method
            elif method is not self.first:
                method.learn_with(self.first)

    def steps(self, seats: Sequence[Seat], batches: Sequence[tuple[Tensor, Tensor, Tensor]]) -> list[StepReport]:
        """Move the adjuster by the mean of the hypergradients that are due, then the classifiers one by one."""
        learners = [_learner(seat) for seat in seats]
        found: list[Hypergradient | None] = []
        for seat, learner, batch in zip(seats, learners, batches, strict=True):
            with seat.random.in_use(), autocast(batch[1].device.type, seat.precision):
                found.append(learner.look_ahead(*batch))
        due = [meta.gradients for meta in found if meta is not None]
        if due:
            for parameter, gradients in zip(learners[0].parameters(), zip(*due, strict=True), strict=True):
                parameter.grad = torch.stack(gradients).sum(dim=0) / len(due)
            learners[0].adjuster_optimizer.step()
        reports = []
        for seat, learner, batch, meta in zip(seats, learners, batches, found, strict=True):
            with seat.random.in_use(), autocast(batch[1].device.type, seat.precision):
                report = learner.follow(*batch)
            reports.append(report if meta is None else replace(report, meta_loss=meta.meta_loss))
        return reports


def _learner(seat: Seat) -> MetaMethod:
    if not isinstance(seat.method, MetaMethod):
        raise OptionError(f"{seat.method.name} learns no adjuster: share one among A-* methods of one loss")
    return seat.method


class Alongside(Method):
    """Several methods as one, whose step is a step of each.

    Args:
        seats: of the trainings.
        shared: the adjuster that they learn together; None: each has its own.
    """

    def __init__(self, seats: Sequence[Seat], shared: Shared | None = None) -> None:
        self.shared = shared
        self.seats = list(seats)
        self.unmoved = "their steps do not go together"
        self.name = ", ".join(seat.method.name for seat in seats)

    def step(self, x: Any, y: Tensor, ids: Tensor) -> StepReport:
        """Train each on its part of a batch.

        Args:
            x: the inputs side by side, ``(N, R·C, …)``.
            y: the labels side by side, ``(N, R)`` or ``(N, R, c)``.
            ids: side by side, ``(N, R)``.
        """
        parts = zip(x.chunk(len(self.seats), dim=1), y.unbind(1), ids.unbind(1), strict=True)
        reports = self.one_by_one(list(parts))
        losses = [report.meta_loss for report in reports]
        values = {
            f"{number}{_OF}{name}": value
            for number, report in enumerate(reports)
            for name, value in {_LOSS: report.loss, **report.hyperparameters, **_margins(report)}.items()
        }
        meta = {f"{number}{_OF}{_META}": loss for number, loss in enumerate(losses) if loss is not None}
        return StepReport(torch.stack([report.loss for report in reports]).sum(), None, values | meta, None)

    def one_by_one(self, batches: Sequence[tuple[Tensor, Tensor, Tensor]]) -> list[StepReport]:
        """Train each on a batch of its own: inputs, labels and ids."""
        if self.shared is not None:
            return self.shared.steps(self.seats, batches)
        reports = []
        for seat, batch in zip(self.seats, batches, strict=True):
            with seat.random.in_use():
                reports.append(seat.eagerly(*batch))
        return reports

    def apart(self, report: StepReport) -> list[StepReport]:
        """What is to be said of each training."""
        found: list[dict[str, Tensor]] = [{} for _ in self.seats]
        for name, value in report.hyperparameters.items():
            number, _, own = name.partition(_OF)
            found[int(number)][own] = value
        if report.meta_loss is not None:
            for values, loss in zip(found, report.meta_loss.unbind(), strict=True):
                values[_META] = loss
        return [  # the losses are copied: a graph's next run writes to the same memory
            StepReport(values.pop(_LOSS).clone(), values.pop(_META, None), values, values.pop(_MARGIN, None))
            for values in found
        ]

    def moved(self) -> None:
        """Count the step, for each."""
        for seat in self.seats:
            seat.method.moved()


@final
class Joint(Alongside):
    """Several methods as one, whose step moves one joint model.

    ``model`` is that model, ``optimizer`` its optimiser. The trainings' own models and optimisers hold parts of them
    from now on: what changes in one is changed in the other.

    Args:
        seats: of the trainings.
        shared: the adjuster that they learn together; None: each has its own.
    """

    def __init__(self, seats: Sequence[Seat], shared: Shared | None = None) -> None:
        super().__init__(seats, shared)
        self.model = joined([seat.model for seat in self.seats]).train()
        self.optimizer = _joint_optimizer(self.model, [seat.optimizer for seat in self.seats])
        self._objectives: _Objectives | None = None
        self._metas: _Metas | None = None
        self._loose = True
        self._tie_weights()

    def one_by_one(self, batches: Sequence[tuple[Tensor, Tensor, Tensor]]) -> list[StepReport]:
        """A step of each, by its own model."""
        self._loose = True
        return super().one_by_one(batches)

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
            self._objectives = _Objectives(learned)
        objectives = self._objectives if learned else _Losses(moves)
        assert objectives is not None
        return Move(
            tuple(move.phase for move in moves),
            objectives.loss,
            objectives.observe,
            self._objectives if learned else None,
            self._look_ahead(metas) if metas else None,
            trainings=len(moves),
            shared=self.shared is not None,
        )

    def _look_ahead(self, metas: list[LookAhead]) -> _Metas:
        assert self._objectives is not None
        if self._metas is None:
            self._metas = _Metas(metas, self._objectives)
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


class _Losses:
    """The losses of several trainings, each for its part of the logits."""

    def __init__(self, moves: Sequence[Move]) -> None:
        self._losses, self._observers = [move.loss for move in moves], [move.observe for move in moves]

    def loss(self, logits: Tensor, targets: Tensor, ids: Tensor) -> Tensor:
        """The sum of theirs, ``(N,)``: its slope is that of each."""
        parts = _apart(logits, targets, ids, len(self._losses))
        values = [loss(*part) for loss, part in zip(self._losses, parts, strict=True)]
        return torch.stack(values).sum(dim=0)

    @torch.no_grad()
    def observe(self, logits: Tensor, targets: Tensor, ids: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Mean loss, values and margins of each by name; and all margins, ``(N, R)``."""
        found: dict[str, Tensor] = {}
        margins = []
        for number, part in enumerate(_apart(logits, targets, ids, len(self._losses))):
            found[f"{number}{_OF}{_LOSS}"] = self._losses[number](*part).mean()  # before it remembers this batch
            values, margin = self._observers[number](*part)
            margins.append(margin)
            found |= {f"{number}{_OF}{name}": value for name, value in {**values, _MARGIN: margin}.items()}
        return found, torch.stack(margins, dim=1)


@final
class _Objectives(nn.Module):
    """Learned losses, as :class:`_Losses`, that are learned together."""

    def __init__(self, learned: Sequence[nn.Module]) -> None:
        super().__init__()
        self.learned = nn.ModuleList(learned)
        self._all = _Losses([Move((), one.loss, one.observe) for one in learned])  # type: ignore[arg-type]

    def loss(self, logits: Tensor, targets: Tensor, ids: Tensor) -> Tensor:
        """The sum of theirs, ``(N,)``."""
        return self._all.loss(logits, targets, ids)

    def observe(self, logits: Tensor, targets: Tensor, ids: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Mean loss, values and margins of each by name."""
        return self._all.observe(logits, targets, ids)


@final
class _Metas:
    """What moves several learned losses: one optimiser, that works on what theirs remember."""

    def __init__(self, metas: Sequence[LookAhead], adjuster: nn.Module) -> None:
        if len({meta.rule for meta in metas}) > 1:
            raise OptionError("trainings that look ahead by different steps cannot be stacked")
        self.rule: Rule = metas[0].rule
        self.adjuster = adjuster
        self._own = list(dict.fromkeys(meta.adjuster_optimizer for meta in metas))  # one, if they share an adjuster
        for own in self._own:
            if type(own) is not Adam:
                raise OptionError(f"an adjuster that {type(own).__name__} moves cannot be stacked: use Adam")
            fill_state(own)
        self._groups = [group for own in self._own for group in own.param_groups]
        self.adjuster_optimizer: Optimizer = Adam([dict(group) for group in self._groups])
        for own in self._own:
            for parameter, state in own.state.items():
                self.adjuster_optimizer.state[parameter] = state

    def refresh(self) -> None:
        """Take over the rates that the trainings have set."""
        for group, own in zip(self.adjuster_optimizer.param_groups, self._groups, strict=True):
            group["lr"], group["weight_decay"] = own["lr"], own["weight_decay"]


@final
class _Cleans:
    """Clean batches of several trainings, side by side."""

    def __init__(self, cleans: Sequence[Clean]) -> None:
        self._cleans = cleans

    @classmethod
    def of(cls, seats: Sequence[Seat]) -> _Cleans | None:
        cleans = [seat.clean for seat in seats if seat.clean is not None]
        return cls(cleans) if len(cleans) == len(seats) else None

    def __call__(self) -> tuple[Tensor, Tensor]:
        return _joint([clean() for clean in self._cleans])

    def example(self) -> tuple[Tensor, Tensor]:
        return _joint([clean.example() for clean in self._cleans])


def _joint(batches: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return _joint_inputs([x for x, _ in batches]), torch.stack([y for _, y in batches], dim=1)


def _joint_inputs(inputs: Sequence[Tensor]) -> Tensor:
    if len({tuple(x.shape) for x in inputs}) > 1:
        raise OptionError("trainings with inputs of several sizes cannot be stacked")
    return torch.cat(list(inputs), dim=1)


def _apart(logits: Tensor, targets: Tensor, ids: Tensor, count: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Logits, labels and ids of each training."""
    parts = logits.reshape(len(logits), count, -1).unbind(1)
    return list(zip(parts, targets.unbind(1), ids.unbind(1), strict=True))


def _margins(report: StepReport) -> dict[str, Tensor]:
    return {} if report.margins is None else {_MARGIN: report.margins}
