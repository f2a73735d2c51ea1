"""What a method is: how one batch moves the classifier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from narl.adjuster import Adjuster, margin
from narl.bilevel import Processes, StepReport
from narl.bilevel.calls import Inputs
from narl.bilevel.clean_losses import CleanLoss
from narl.bilevel.optimizers import Rule
from narl.bilevel.refusals import Noted
from narl.bilevel.rivals import rivals
from narl.bilevel.turns import couples
from narl.checks import can_read, checked_ids
from narl.errors import CheckpointError, OptionError, SampleIdsError
from narl.train.methods.descent import descend
from narl.train.methods.trusted import check_trusted, with_trusted
from narl.train.methods.weights import check_weights, weighed

_ALONE = Processes.alone()

Look: TypeAlias = Callable[[nn.Module], Tensor]
"""A module's logits of all training samples, ``(N, c)``: as they are, in evaluation mode."""


@final
@dataclass(frozen=True, eq=False)
class Setting:
    """What a method has to work with.

    Args:
        model: the classifier, on its device, in training mode.
        optimizer: the model's.
        class_counts: number of training samples of every class by the given labels, ``(c,)``.
        clean: draws a batch ``(x, y)`` with labels that are right; None without a clean set.
        total_steps: how many steps the training will have.
        num_samples: how many training samples there are; their ids are ``0 … num_samples - 1``.
        generator: where initial weights come from; on the CPU.
        processes: who trains together; each is given its own share of every batch, the clean ones included.
        weights: how much each training sample counts, ``(num_samples,)``, one on average; None: all alike.
        labels: the given labels of all training samples, ``(num_samples,)``, on the device; None where nobody said.
        batch_size: samples a step; None where nobody said.
        epochs: passes over the training samples; None where nobody said.
        kind: of the data: ``"image"``, ``"table"`` or ``"text"``; None where nobody said.
        shape: of the encoded samples, as the encoder says it, such as how many ``numbers`` a row of a table begins
            with.
        noted: where steps note whether they were finite, for a method that looks there before its state is written;
            None: each step that is not is refused at once.
        trusted: whether each training sample's label is known to be right, ``(num_samples,)``, on the device; such
            samples are trained on by cross entropy, where the method ``trusts``. None: of none it is known.

    Example:
        >>> model = nn.Linear(4, 3)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> setting = Setting(model, optimizer, torch.tensor([5, 5, 5]), None, 100, 15, torch.Generator())
        >>> setting.device, setting.num_classes
        (device(type='cpu'), 3)
    """

    model: nn.Module
    optimizer: Optimizer
    class_counts: Tensor
    clean: Callable[[], tuple[Any, Tensor]] | None
    total_steps: int
    num_samples: int
    generator: torch.Generator
    processes: Processes = _ALONE
    weights: Tensor | None = None
    labels: Tensor | None = None
    batch_size: int | None = None
    epochs: int | None = None
    kind: str | None = None
    shape: Mapping[str, Any] = field(default_factory=dict)
    noted: Noted | None = None
    trusted: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that are none."""
        for name in ("total_steps", "num_samples"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} = {getattr(self, name)} leaves nothing to train: give 1 or more")
        if self.weights is not None:
            check_weights(self.weights, self.num_samples)
        if self.trusted is not None:
            check_trusted(self.trusted, self.num_samples)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def num_classes(self) -> int:
        """How many classes."""
        return len(self.class_counts)


class LookAhead(Protocol):
    """What moves a learned loss, as :class:`narl.MetaStep` does."""

    @property
    def rule(self) -> Rule:
        """The classifier's virtual step."""

    @property
    def adjuster(self) -> Any:
        """The module that is learned."""

    @property
    def adjuster_optimizer(self) -> Optimizer:
        """What moves it."""

    @property
    def clean_loss(self) -> CleanLoss:
        """What the step is judged by."""


@final
@dataclass(frozen=True, eq=False)
class Move:
    """What a step of a method is, so that an engine can do it in the method's place.

    Args:
        phase: two moves of one method with equal phases are the same computation on other tensors.
        loss: ``(logits, y, ids) -> (N,)``.
        observe: ``(logits, y, ids)`` to values by name and margins, each ``(N,)``; once a step.
        learned: the module whose ``loss`` and ``observe`` these are, if it is one that is learned.
        meta: what moves the learned loss first, in meta steps.
        trainings: how many this is a step of, with logits side by side (:mod:`narl.train.engine.stack`); None: a step
            like any other.
        shared: whether these trainings learn one loss together, each with its share of the hypergradient.
        holder: where nothing is learned, the module whose parameters and buffers are all the tensors that ``loss`` and
            ``observe`` look at besides the batch: then they can be compiled.

    Example:
        >>> Move((), nn.functional.cross_entropy, lambda logits, y, ids: ({}, margin(logits, y))).meta is None
        True
    """

    phase: Hashable
    loss: Callable[..., Tensor]
    observe: Callable[..., tuple[dict[str, Tensor], Tensor]]
    learned: nn.Module | None = None
    meta: LookAhead | None = None
    trainings: int | None = None
    shared: bool = False
    holder: nn.Module | None = None


class Method(ABC):
    """A way to train a classifier on noisy labels, one batch at a time.

    The training loop brings the batches, the learning rate schedule and the evaluation; a method decides what a batch
    does to the classifier. A method that is no more than a loss is a :class:`LossMethod`.

    ``name`` is how the method is called, ``fields`` names the values that its reports hold for every sample, and
    ``adjuster`` is the adjuster that it learns, None if it learns none. ``distributed`` says that several processes can
    train with it: the classifier moves by all of their gradients, and what it remembers of samples it tells the others.
    ``unmoved`` says why an engine cannot do its steps, where :meth:`move` gives None. ``trusts`` says that samples that
    :attr:`Setting.trusted` names are trained on by cross entropy.

    A method may ask for more than batches, and is then trained by one process, without CUDA graphs, or with those of
    its networks' passes (:mod:`narl.train.engine.graphed`). ``views`` names augmentations, such as ``("usual", "usual",
    "strong")``: :meth:`step` is then given a tuple of as many inputs, each the batch changed by its own draws.
    ``"usual"`` is the run's own augmentation; what else is named comes after it.
    :meth:`begin_epoch` has a look at all training samples, :meth:`rows` chooses an epoch's batches, :meth:`redrawn`
    changes the usual ones. Several networks,
    or averages of their weights, are asked for in the method's :class:`narl.train.methods.MethodSpec`: the model is
    then a :class:`narl.models.committee.Committee`.

    Example:
        >>> class Nothing(Method):
        ...     def step(self, x, y, ids):
        ...         return StepReport(torch.tensor(0.0), None, {}, None)
        >>> Nothing().state_dict()
        {}
    """

    name: str = ""
    fields: tuple[str, ...] = ()
    adjuster: Adjuster | None = None
    distributed: bool = False
    trusts: bool = False
    unmoved: str = "the method does not say what its steps are"
    views: tuple[str, ...] = ()

    @abstractmethod
    def step(self, x: Inputs, y: Tensor, ids: Tensor) -> StepReport:
        """Train on one batch.

        Args:
            x: inputs, on the model's device; a tuple of them, one a view, where the method has ``views``.
            y: given labels, class indices ``(N,)`` or probabilities ``(N, c)``.
            ids: the samples' positions in the training set, ``(N,)``.

        Returns:
            What happened, with a value a sample for every one of ``fields`` and the latest margins.

        Raises:
            NonFiniteError: the loss or its gradient is not finite; model and optimiser are as they were.
        """

    def begin_epoch(self, epoch: int, look: Look) -> None:  # noqa: B027  most have nothing to decide
        """Called before an epoch's first step; what it decides belongs into :meth:`state_dict`.

        A run that is resumed in the middle of an epoch does not call it again.

        Args:
            epoch: from 0.
            look: gives the logits of all training samples by a module, the model or a part of it; ``(N, c)``, float32,
                on the model's device.
        """

    def rows(self, epoch: int, generator: torch.Generator) -> list[Tensor] | None:
        """The epoch's batches, as positions in the training set; None: all samples once, in a random order.

        Asked for after :meth:`begin_epoch`, and once more when a run is resumed in the middle of the epoch; then it
        must give the same. A sample may come several times, or not at all.

        Args:
            epoch: from 0.
            generator: where random numbers come from, on the CPU; it follows from the run's seed and the epoch.
        """
        return None

    def redrawn(self, batches: list[Tensor], epoch: int, generator: torch.Generator) -> list[Tensor]:
        """The epoch's batches, where :meth:`rows` gives None: the usual ones, unless a method changes them.

        Asked for when :meth:`rows` is. The usual batches hold each sample once, or checked samples as often as
        ``--clean-share`` says.

        Args:
            batches: the usual ones, positions in the training set, a tensor ``(n,)`` each, on the CPU; the list may be
                changed and given back.
            epoch: from 0.
            generator: where random numbers come from, on the CPU; it follows from the run's seed and the epoch.
        """
        return batches

    @property
    def asks_more(self) -> bool:
        """Whether it asks for more than batches of one view, in the usual order."""
        own = type(self)
        return bool(self.views) or own.begin_epoch is not Method.begin_epoch or self.chooses_rows

    @property
    def chooses_rows(self) -> bool:
        """Whether it says itself which samples are in a batch."""
        return type(self).rows is not Method.rows

    @property
    def sees_all(self) -> bool:
        """Whether an epoch is all samples once, unless the run draws checked ones more often."""
        return not self.chooses_rows and type(self).redrawn is Method.redrawn

    def move(self) -> Move | None:
        """What :meth:`step` would do now, for an engine that does it instead; None if that cannot be said."""
        return None

    def moved(self) -> None:
        """An engine has done what :meth:`move` said: count the step."""
        raise NotImplementedError(f"{type(self).__name__} says what its steps are, but not how they are counted")

    @property
    def kept(self) -> tuple[Adjuster, ...]:
        """The adjusters that a run keeps when it is done: as they began, then along the training."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training needs besides model and optimiser: dicts, lists, numbers, strings and tensors.

        The tensors are the live ones, as in torch: copy or write them before the next step.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken, in a method built in the same way."""
        if state:
            raise CheckpointError(
                f"{type(self).__name__} keeps no state but is given {', '.join(state)}: write its load_state_dict "
                "along with its state_dict"
            )


def views_of(method: Method, x: Inputs) -> tuple[Tensor, ...]:
    """The views that a method is given of a batch, or one clear error.

    Args:
        method: that wants :attr:`Method.views`.
        x: what it is given.
    """
    wanted = method.views
    if not isinstance(x, (tuple, list)) or len(x) != len(wanted):
        got = f"{len(x)} inputs" if isinstance(x, (tuple, list)) else f"one {type(x).__name__}"
        raise OptionError(
            f"{method.name or type(method).__name__} wants {len(wanted)} views of every batch, a tuple "
            f"({', '.join(wanted)}), and got {got}: change the batch once for each, see narl.data.augmentation.view"
        )
    return tuple(x)


def checked_positions(ids: Tensor, y: Tensor, num_samples: int) -> Tensor:
    """A batch's ids as int64, or one clear error, before anything is moved; on an accelerator nobody looks at values.

    Args:
        ids: one position in the training set for every label.
        y: the labels.
        num_samples: of the training set.
    """
    ids = checked_ids(ids, len(y))
    if can_read(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < num_samples):
        raise SampleIdsError(
            f"sample ids run from {int(ids.min())} to {int(ids.max())} but the training set has {num_samples} samples: "
            "use each sample's position in the data set"
        )
    return ids


Rows: TypeAlias = tuple[Any, Tensor, Tensor]
"""Inputs, labels and positions, as a method's step takes them."""


class PreparingMethod(Method):
    """A method whose step is another one's, on rows that it prepares from the batch.

    So an engine can have the other method's steps done in a way that it does not know of.
    """

    @property
    @abstractmethod
    def inner(self) -> Method:
        """The other method."""

    @property
    @abstractmethod
    def inner_model(self) -> nn.Module:
        """What that one trains."""

    @abstractmethod
    def prepared(self, x: Inputs, y: Tensor, ids: Tensor, *, fixed: bool = False) -> Rows | None:
        """What the other method's step is given, and all that it looks at besides.

        Args:
            x: inputs, as of :meth:`Method.step`.
            y: labels.
            ids: positions.
            fixed: whether all of it is to be in tensors that stay where they are from step to step, for graphs.

        Returns:
            Rows; None: they cannot be fixed, for now.
        """

    @abstractmethod
    def completed(self, report: StepReport, y: Tensor, ids: Tensor) -> StepReport:
        """What is left to do after the other method's step, and what the report is to the batch."""


class LossMethod(Method):
    """A method that is a loss: :meth:`values` says which, the rest is here.

    Args:
        setting: what there is to work with.

    Example:
        >>> class Squared(LossMethod):
        ...     def values(self, logits, y, ids):
        ...         return (logits.softmax(1) - nn.functional.one_hot(y, 3)).square().sum(1)
        >>> model = nn.Linear(4, 3)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> method = Squared(Setting(model, optimizer, torch.tensor([5, 5, 5]), None, 100, 15, torch.Generator()))
        >>> report = method.step(torch.randn(2, 4), torch.tensor([0, 2]), torch.tensor([7, 3]))
        >>> report.margins.shape, method.steps
        (torch.Size([2]), 1)
    """

    trusts = True

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.steps = 0
        if type(self).observe is LossMethod.observe and type(self).state_dict is LossMethod.state_dict:
            self.distributed = True  # it remembers nothing of samples

    @property
    def phase(self) -> Hashable | None:
        """What in Python the loss depends on, beside the tensors: equal phases, equal computations.

        None, unless a method says better: every step runs as it is written. A method whose loss is always the same
        function of ``logits``, ``y`` and ``ids``, without a look at their values, can say ``()``, and is captured as a
        graph on GPUs. What such a method remembers it changes in place: a graph goes on with the tensors it has seen.
        """
        return None

    @property
    def compiles_with(self) -> nn.Module | None:
        """The module whose parameters and buffers are all the tensors that the loss looks at besides the batch.

        With it :meth:`values` and :meth:`observe` are compiled where kernels are, on GPUs in long runs. None, unless a
        method has one: they run as they are written.
        """
        return None

    def before_step(self) -> None:
        """Called before each step, also one that an engine does: a place to set what graphs read from tensors."""

    @final
    def move(self) -> Move | None:
        """What the step is; None without a :attr:`phase`, or with weights."""
        self.before_step()
        phase = self.phase
        if phase is None or self.setting.weights is not None:
            return None
        if self.setting.trusted is not None:
            return Move(phase, self._values_of_all, self.observe)
        holder = self.compiles_with if self.setting.processes.count == 1 else None
        return Move(phase, self.values, self.observe, holder=holder)

    def _values_of_all(self, logits: Tensor, y: Tensor, ids: Tensor) -> Tensor:
        """:meth:`values`, and cross entropy for trusted samples."""
        return with_trusted(self.values(logits, y, ids), logits, y, ids, self.setting.trusted)

    @final
    def moved(self) -> None:
        """Count the step."""
        self.steps += 1

    @abstractmethod
    def values(self, logits: Tensor, y: Tensor, ids: Tensor) -> Tensor:
        """The loss of every sample.

        Args:
            logits: ``(N, c)``, with gradient.
            y: given labels, class indices ``(N,)`` or probabilities ``(N, c)``.
            ids: the samples' positions in the training set, ``(N,)``.

        Returns:
            ``(N,)``; its mean is what the classifier is moved by.
        """

    def observe(self, logits: Tensor, y: Tensor, ids: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """What to report about a batch, and what to remember of it: once after each step, without gradient.

        Args:
            logits: those that the step was made of, ``(N, c)``.
            y: given labels.
            ids: the samples' positions in the training set, ``(N,)``.

        Returns:
            One ``(N,)`` tensor for every one of ``fields``, by name, and the margins ``(N,)``.
        """
        return {}, margin(logits, y)

    @final
    def step(self, x: Inputs, y: Tensor, ids: Tensor) -> StepReport:
        """Train on one batch, by the mean of :meth:`values`."""
        self.before_step()
        loss, logits = descend(
            self.setting.model,
            self.setting.optimizer,
            x,
            y,
            lambda logits: weighed(self._values_of_all(logits, y, ids), self.setting.weights, ids),
            processes=self.setting.processes,
            wait=couples(self),
            noted=self.setting.noted,
        )
        with torch.no_grad():
            fields, margins = self.observe(logits, y, ids)
        self.steps += 1
        return StepReport(loss, None, fields, margins, rivals(logits, y))

    def state_dict(self) -> dict[str, Any]:
        """How many steps have been done."""
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken."""
        self.steps = state["steps"]
