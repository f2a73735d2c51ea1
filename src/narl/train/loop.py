"""The training loop: batches, steps, evaluations, and a state that can be saved between any two steps.

All randomness comes from the seed: the order of an epoch from the seed and the epoch, augmentation and clean batches
from one generator, dropout from torch's own generators, seeded here and left outside as they were. The state holds
them, so a run that was stopped goes on as if it had not been.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from narl.bilevel import StepReport
from narl.data.pools import Pool
from narl.errors import CheckpointError, NonFiniteError, OptionError
from narl.train.evaluate import Evaluation, logits_of, separation
from narl.train.methods import Method
from narl.train.schedule import Schedule

Augment = Callable[[Tensor, torch.Generator], Tensor]
Finish = Callable[[Tensor], Tensor]

_EVALUATION_BATCH = 500


@final
@dataclass(frozen=True, eq=False)
class Part:
    """Encoded samples and their labels ``(N,)``, on one device."""

    pool: Pool
    labels: Tensor

    def __len__(self) -> int:
        """How many samples."""
        return len(self.labels)


@final
class CleanBatches:
    """Draws clean batches: the whole set while it is small, else as many samples as asked for.

    Args:
        part: the clean samples.
        size: samples a batch.
        augment: what is done to inputs in training.
        finish: what makes encoded samples the model's input.
        generator: source of the draws.
    """

    def __init__(self, part: Part, size: int, augment: Augment, finish: Finish, generator: torch.Generator) -> None:
        self._part, self._size, self._augment, self._finish = part, size, augment, finish
        self._generator = generator

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Inputs and labels of one batch."""
        rows = torch.arange(len(self._part))
        if len(self._part) > self._size:
            rows = torch.randperm(len(self._part), generator=self._generator)[: self._size]
        rows = rows.to(self._part.labels.device)
        x = self._augment(self._part.pool.get(rows), self._generator)
        return self._finish(x), self._part.labels[rows]


class Watcher(Protocol):
    """What a loop tells the one who started it."""

    def after_step(self, report: StepReport) -> None:
        """A step is done."""

    def wants_checkpoint(self) -> bool:
        """Whether to save between two steps, within an epoch."""

    def wants_stop(self) -> bool:
        """Whether to save and leave."""

    def better(self, epoch: int) -> None:
        """This epoch's model is the best one so far on the held-out clean samples."""

    def after_epoch(self, record: dict[str, Any], values: Mapping[str, NDArray[Any]]) -> None:
        """An epoch is done: its record, and every training sample's margin and hyperparameters ``(N,)``."""

    def checkpoint(self, state: dict[str, Any]) -> None:
        """Save the state."""


@final
class Loop:
    """Trains a model with a method.

    Args:
        model: the classifier.
        optimizer: its optimiser.
        method: what a step is.
        schedule: of the learning rate.
        learning_rate: that the schedule starts from.
        train: what is trained on.
        evaluated: what is looked at after each epoch, by name.
        select: the name among them by whose cross entropy and accuracy the best epoch is chosen; None for the last.
        patience: epochs without a better one after which to stop; None for all epochs.
        mislabelled: which training samples have wrong labels, ``(N,)``, where that is known.
        augment: what is done to inputs in training.
        finish: what makes encoded samples the model's input.
        epochs: passes over the training samples.
        batch_size: samples a step.
        seed: of everything random.
        generator: of augmentation and clean batches, shared with :class:`CleanBatches`.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        method: Method,
        schedule: Schedule,
        learning_rate: float,
        train: Part,
        evaluated: Mapping[str, Part],
        select: str | None,
        patience: int | None,
        mislabelled: NDArray[np.bool_] | None,
        augment: Augment,
        finish: Finish,
        epochs: int,
        batch_size: int,
        seed: int,
        generator: torch.Generator,
    ) -> None:
        self.model, self.optimizer, self.method, self.schedule = model, optimizer, method, schedule
        self.train, self.evaluated, self.select, self.patience = train, dict(evaluated), select, patience
        self.epochs, self.batch_size, self.seed, self.learning_rate = epochs, batch_size, seed, learning_rate
        self._mislabelled, self._augment, self._finish, self._generator = mislabelled, augment, finish, generator
        self.history: list[dict[str, Any]] = []
        self.by_class: dict[str, list[float | None]] = {}
        self.selected: dict[str, Any] | None = None
        self.epoch, self.step_of_epoch = 0, 0
        self._random: dict[str, Tensor] = {}
        self._begin_epoch()

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or patience has run out."""
        return self.epoch >= self.epochs or self._out_of_patience()

    def run(self, watcher: Watcher) -> bool:
        """Train until the end, or until the watcher wants to stop.

        Returns:
            Whether the run is finished.
        """
        with self._own_random_state():
            while not self.finished:
                if not self._run_epoch(watcher):
                    watcher.checkpoint(self.state())
                    return False
            return True

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs, as a tree of plain values and tensors."""
        return {
            "epoch": self.epoch,
            "step_of_epoch": self.step_of_epoch,
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "method": self.method.state_dict(),
            "random": {"draws": self._generator.get_state(), **_random_state(self.train.labels.device)},
            "sums": self._sums,
            "values": self._values,
            "history": self.history,
            "by_class": self.by_class,
            "selected": self.selected,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state` was taken."""
        device = self.train.labels.device
        self.epoch, self.step_of_epoch = state["epoch"], state["step_of_epoch"]
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.method.load_state_dict(state["method"])
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            reason = str(error).splitlines()[-1].strip()
            raise CheckpointError(
                f"the checkpoint does not fit the model or the method ({reason}): their code has changed since the run "
                "began; put it back, or start a new run with --out"
            ) from error
        self._random = {name: value for name, value in state["random"].items() if name != "draws"}
        self._generator.set_state(state["random"]["draws"])
        self._sums = {name: value.to(device) for name, value in state["sums"].items()}
        self._values = {name: value.to(device) for name, value in state["values"].items()}
        self.history, self.by_class, self.selected = state["history"], state["by_class"], state["selected"]

    def _run_epoch(self, watcher: Watcher) -> bool:
        batches = self._batches()
        for x in self.train.pool.stream(batches[self.step_of_epoch :]):
            self._step(x, batches[self.step_of_epoch], watcher)
            if self.step_of_epoch < len(batches):
                if watcher.wants_stop():
                    return False
                if watcher.wants_checkpoint():
                    watcher.checkpoint(self.state())
        self._end_epoch(watcher)
        return self.finished or not watcher.wants_stop()

    def _step(self, x: Tensor, rows: Tensor, watcher: Watcher) -> None:
        self.model.train()
        self.schedule.apply(self.optimizer, self.learning_rate, self.epoch * self._steps + self.step_of_epoch)
        inputs = self._finish(self._augment(x, self._generator))
        report = self.method.step(inputs, self.train.labels[rows], rows)
        self._sums["loss"] += report.loss * len(rows)
        if report.meta_loss is not None:
            self._sums["meta_loss"] += report.meta_loss
            self._sums["meta_steps"] += 1
        if report.margins is not None:
            self._sums["agreeing"] += (report.margins > 0).sum()
            self._values["margin"][rows] = report.margins.to(self._values["margin"].dtype)
        unknown = set(report.hyperparameters) - set(self.method.fields)
        if unknown:
            raise OptionError(
                f"method {self.method.name} reports {', '.join(sorted(unknown))} for every sample, which its fields do "
                "not name: add it to fields"
            )
        for name, values in report.hyperparameters.items():
            self._values[name][rows] = values.to(self._values[name].dtype)
        self.step_of_epoch += 1
        watcher.after_step(report)

    def _end_epoch(self, watcher: Watcher) -> None:
        values = {name: tensor.cpu().numpy() for name, tensor in self._values.items()}
        record = self._record(values)
        self.history.append(record)
        self.epoch, self.step_of_epoch = self.epoch + 1, 0
        if self._is_better(record):
            self.selected = {**record, "by_class": dict(self.by_class)}
            watcher.better(record["epoch"])
        watcher.after_epoch(record, values)
        self._begin_epoch()
        watcher.checkpoint(self.state())  # last: it speaks of what was written before

    def _record(self, values: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        sums = {name: float(value) for name, value in self._sums.items()}
        if not math.isfinite(sums["loss"]):
            raise NonFiniteError(
                f"the training loss is {sums['loss']}: training diverged; lower the learning rate or check the inputs"
            )
        record: dict[str, Any] = {
            "epoch": self.epoch + 1,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "loss": sums["loss"] / len(self.train),
            "meta_loss": sums["meta_loss"] / sums["meta_steps"] if sums["meta_steps"] else None,
            "train_agreement": sums["agreeing"] / len(self.train),
        }
        for name, part in self.evaluated.items():
            found = Evaluation.of(self.logits(part), part.labels.cpu())
            record[f"{name}_accuracy"], record[f"{name}_loss"] = found.accuracy, found.loss
            self.by_class[name] = list(found.by_class)
        if self.method.fields:
            record["hyperparameters"] = {name: _mean(values[name]) for name in self.method.fields}
        if self._mislabelled is not None:
            record["margin_auroc"] = separation(values["margin"], self._mislabelled)
            if self.method.fields:
                record["hyperparameters_clean"] = {n: _mean(values[n][~self._mislabelled]) for n in self.method.fields}
                record["hyperparameters_mislabelled"] = {
                    n: _mean(values[n][self._mislabelled]) for n in self.method.fields
                }
        return record

    def logits(self, part: Part) -> Tensor:
        """The model's logits for a part, ``(N, c)``, on the host."""
        rows = torch.split(torch.arange(len(part), device=part.labels.device), _EVALUATION_BATCH)
        return logits_of(self.model, part.pool.stream(rows), self._finish, 0)

    def _is_better(self, record: dict[str, Any]) -> bool:
        if self.select is None:
            return False
        if self.selected is None:
            return True
        keys = f"{self.select}_accuracy", f"{self.select}_loss"
        new, best = ((found[keys[0]], -found[keys[1]]) for found in (record, self.selected))
        return bool(new > best)

    def _out_of_patience(self) -> bool:
        if self.patience is None or self.selected is None:
            return False
        return self.epoch - int(self.selected["epoch"]) >= self.patience

    def _begin_epoch(self) -> None:
        device, count = self.train.labels.device, len(self.train)
        names = ("loss", "meta_loss", "meta_steps", "agreeing")
        self._sums = {name: torch.zeros((), dtype=torch.float64, device=device) for name in names}
        self._values = {
            name: torch.full((count,), torch.nan, device=device) for name in ("margin", *self.method.fields)
        }
        self._steps = len(_sizes(count, self.batch_size))

    def _batches(self) -> list[Tensor]:
        """The epoch's rows, batch by batch."""
        generator = torch.Generator().manual_seed(_mixed(self.seed, self.epoch))
        order = torch.randperm(len(self.train), generator=generator).to(self.train.labels.device)
        return list(torch.split(order, _sizes(len(self.train), self.batch_size)))

    @contextlib.contextmanager
    def _own_random_state(self) -> Iterator[None]:
        device = self.train.labels.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            if self._random:
                torch.set_rng_state(self._random["cpu"])
                if device.type == "cuda" and "cuda" in self._random:
                    torch.cuda.set_rng_state(self._random["cuda"], device)
            yield


def steps_per_epoch(samples: int, batch_size: int) -> int:
    """How many steps an epoch takes.

    Example:
        >>> steps_per_epoch(1000, 100), steps_per_epoch(1001, 100), steps_per_epoch(1002, 100)
        (10, 10, 11)
    """
    return len(_sizes(samples, batch_size))


def _sizes(samples: int, batch_size: int) -> list[int]:
    """Sizes of an epoch's batches. A sample left over goes with the last batch: BatchNorm cannot train on one."""
    full, rest = divmod(samples, batch_size)
    if full and rest == 1:
        return [batch_size] * (full - 1) + [batch_size + 1]
    return [batch_size] * full + ([rest] if rest else [])


def _mixed(seed: int, epoch: int) -> int:
    """One seed for each epoch of each run."""
    return int(np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)[0] >> 1)


def _mean(values: NDArray[Any]) -> float | None:
    return float(values.mean(dtype=np.float64)) if len(values) else None


def _random_state(device: torch.device) -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state
