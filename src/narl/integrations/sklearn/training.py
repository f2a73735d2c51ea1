"""Training in memory: narl's loop on arrays, with nothing written anywhere."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from narl.adjuster import Adjuster
from narl.audit import evidence
from narl.audit.epochs import weights_of
from narl.bilevel import Processes, StepReport
from narl.bilevel.optimizers import load_state
from narl.data import augmentation
from narl.train import engine, methods
from narl.train.batches import CleanBatches, Finish, Part, steps_per_epoch
from narl.train.courses import driven
from narl.train.defaults import Recipe
from narl.train.environment import threads
from narl.train.loop import Loop
from narl.train.own_models import global_state_from
from narl.train.planning import optimizer_by
from narl.train.record import MOST_CLASSES, RIVAL
from narl.train.schedule import Schedule

Record = dict[str, Any]

_WHOLE = 300  # clean samples up to which a meta step looks at all of them
_LARGEST = float(np.finfo(np.float16).max)


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """What there is to train.

    Args:
        model: the classifier, on its device.
        finish: what makes encoded samples the model's input.
        train: what it is trained on.
        class_counts: training samples of every class, ``(c,)``.
        weights: of the training samples, ``(N,)``; None: they count alike.
        clean: what the loss is learned from.
        heldout: what chooses the epoch.
        kind: of the data: ``"image"``, ``"table"`` or, for sparse rows, ``"text"``.
        recipe: how it is trained.
        options: of the method.
        patience: epochs without a better one after which to stop; None: never.
        steps: of the whole training, where this is a part of it; None: this is the whole.
        seed: of everything random.
    """

    model: nn.Module
    finish: Finish
    train: Part
    class_counts: NDArray[np.int64]
    weights: Tensor | None
    clean: Part | None
    heldout: Part | None
    kind: str
    recipe: Recipe
    options: Mapping[str, Any]
    patience: int | None
    steps: int | None
    seed: int


@final
@dataclass(frozen=True, eq=False)
class Trained:
    """What a training leaves; the model of the problem is trained.

    Args:
        history: one record an epoch.
        epoch: whose model it is, from 1 on.
        evidence: for and against the training labels.
        adjuster: that was learned, on the CPU; None where none was.
        state: of optimiser and method, to go on.
    """

    history: list[Record]
    epoch: int
    evidence: evidence.Evidence
    adjuster: Adjuster | None
    state: dict[str, Any]


def train(
    problem: Problem, state: Mapping[str, Any] | None = None, report: Callable[[Record], None] | None = None
) -> Trained:
    """Train.

    Args:
        problem: what there is to train.
        state: of an earlier training, to go on from.
        report: is given every epoch's record.
    """
    with threads(problem.recipe.threads):
        loop = _loop(problem, state)
        memory = _Memory(loop, len(problem.class_counts), report)
        driven(loop.course(memory))
        if memory.best is not None:
            problem.model.load_state_dict(memory.best)
    labels = problem.train.labels.cpu().numpy()
    margins, rivals = np.stack(memory.margins), np.stack(memory.rivals)
    found = evidence.from_epochs(margins, rivals, labels, weights_of(margins), len(problem.class_counts))
    learned = loop.method.adjuster
    return Trained(
        history=loop.history,
        epoch=loop.epoch if loop.selected is None else int(loop.selected["epoch"]),
        evidence=found,
        adjuster=None if learned is None else _copy(learned),
        state={"optimizer": loop.optimizer.state_dict(), "method": loop.method.state_dict()},
    )


def _loop(problem: Problem, state: Mapping[str, Any] | None) -> Loop:
    recipe = problem.recipe
    draws, alone = torch.Generator().manual_seed(problem.seed), Processes.alone()
    augment = augmentation.get(recipe.augment)
    optimizer = optimizer_by(recipe, problem.model)
    clean = None
    if problem.clean is not None:
        size = len(problem.clean) if len(problem.clean) <= _WHOLE else recipe.batch_size
        clean = CleanBatches(problem.clean, size, augment, problem.finish, draws, alone)
    own_steps = steps_per_epoch(len(problem.train), recipe.batch_size) * recipe.epochs
    setting = methods.Setting(
        model=problem.model,
        optimizer=optimizer,
        class_counts=torch.as_tensor(problem.class_counts, device=recipe.device),
        clean=clean,
        total_steps=own_steps if problem.steps is None else problem.steps,
        num_samples=len(problem.train),
        generator=torch.Generator().manual_seed(problem.seed),
        weights=problem.weights,
        epochs=recipe.epochs if problem.steps is None else None,
        kind=problem.kind,
    )
    with global_state_from(torch.Generator().manual_seed(problem.seed)):
        method = methods.build(recipe.method, setting, **problem.options)
    if state is not None:
        load_state(optimizer, state["optimizer"])
        method.load_state_dict(state["method"])
    return Loop(
        model=problem.model,
        optimizer=optimizer,
        method=method,
        engine=engine.make(
            "auto",
            method,
            problem.model,
            optimizer,
            clean,
            rows=recipe.batch_size,
            steps=own_steps,
            precision=recipe.precision,
        ),
        schedule=Schedule(recipe.schedule, own_steps),
        learning_rate=recipe.learning_rate,
        train=problem.train,
        evaluated={} if problem.heldout is None else {"heldout": problem.heldout},
        select=None if problem.heldout is None else "heldout",
        patience=problem.patience,
        mislabelled=None,
        augment=augment,
        finish=problem.finish,
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        seed=problem.seed,
        generator=draws,
        processes=alone,
    )


def _copy(adjuster: Adjuster) -> Adjuster:
    """Without the samples' running margins, a number for each of them."""
    copied = copy.deepcopy(adjuster).cpu()
    copied.zero_grad(set_to_none=True)
    if copied.running is not None:
        copied.running.forget()
    return copied


@final
class _Memory:
    """Keeps what a run's folder would hold."""

    def __init__(self, loop: Loop, num_classes: int, report: Callable[[Record], None] | None) -> None:
        self._loop, self._report = loop, report
        self._kind: type[np.floating[Any]] = np.float16 if num_classes <= MOST_CLASSES else np.float32
        self.margins: list[NDArray[np.floating[Any]]] = []
        self.rivals: list[NDArray[np.floating[Any]]] = []
        self.best: dict[str, Tensor] | None = None

    def after_step(self, report: StepReport) -> None:
        """Nothing to keep."""

    def wants_checkpoint(self) -> bool:
        """Never."""
        return False

    def wants_stop(self) -> bool:
        """Never."""
        return False

    def better(self, epoch: int) -> None:
        """Keep the weights."""
        self.best = {name: value.clone() for name, value in self._loop.model.state_dict().items()}

    def after_epoch(self, record: Record, values: Mapping[str, NDArray[Any]]) -> None:
        """Keep the samples' margins and rivals."""
        self.margins.append(values["margin"].clip(-_LARGEST, _LARGEST).astype(np.float16))
        self.rivals.append(values[RIVAL].astype(self._kind))
        if self._report is not None:
            self._report(record)

    def checkpoint(self, state: dict[str, Any]) -> None:
        """Nothing to keep."""
