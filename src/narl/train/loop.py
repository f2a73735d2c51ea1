"""The training loop: batches, steps, evaluations, and a state that can be saved between any two steps.

All randomness comes from the seed: the order of an epoch from the seed and the epoch, augmentation and clean batches
from one generator, dropout from torch's own generators, seeded here and left outside as they were. The state holds
them, so a run that was stopped goes on as if it had not been.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from narl.bilevel import Processes
from narl.bilevel.optimizers import load_state
from narl.bilevel.passes import autocast
from narl.data.augmentation import Augmentation
from narl.data.pools import FilePool
from narl.errors import CheckpointError, NonFiniteError, OptionError
from narl.train.batches import (
    Finish,
    Part,
    checked_rows,
    evaluation_batch,
    generator_of,
    mixed,
    shuffled,
    sizes,
)
from narl.train.checked import Mixture
from narl.train.courses import Batch, Course
from narl.train.distributed import even_out
from narl.train.engine import Engine
from narl.train.evaluate import Evaluation, logits_of, separation
from narl.train.following import Watcher
from narl.train.methods import Method
from narl.train.record import RIVAL
from narl.train.schedule import Schedule


@final
class Loop:
    """Trains a model with a method.

    Args:
        model: the classifier.
        optimizer: its optimiser.
        method: what a step is.
        engine: who does the method's steps.
        schedule: of the learning rate.
        learning_rate: that the schedule starts from.
        train: what is trained on.
        evaluated: what is looked at after each epoch, by name.
        select: the name among them by whose cross entropy and accuracy the best epoch is chosen; None for the last.
        patience: epochs without a better one after which to stop; None for all epochs.
        mislabelled: which training samples have wrong labels, ``(N,)``, where that is known.
        augment: what is done to inputs in training.
        mixture: draws batches with a share of checked samples; None: an epoch is all samples once.
        views: what is done for each of the views that the method wants of a batch; empty: it wants none.
        finish: what makes encoded samples the model's input.
        epochs: passes over the training samples.
        batch_size: samples a step, those of all processes together.
        seed: of everything random.
        generator: of augmentation and clean batches, shared with :class:`narl.train.batches.CleanBatches`.
        processes: who trains together. All have the same seed and draw the same numbers, so that the whole is what one
            process would do; but for dropout, where each draws its own.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        method: Method,
        engine: Engine,
        schedule: Schedule,
        learning_rate: float,
        train: Part,
        evaluated: Mapping[str, Part],
        select: str | None,
        patience: int | None,
        mislabelled: NDArray[np.bool_] | None,
        augment: Augmentation,
        finish: Finish,
        epochs: int,
        batch_size: int,
        seed: int,
        generator: torch.Generator,
        processes: Processes,
        views: Sequence[Augmentation] = (),
        mixture: Mixture | None = None,
    ) -> None:
        self.processes, self.engine = processes, engine
        self.model, self.optimizer, self.method, self.schedule = model, optimizer, method, schedule
        self.train, self.evaluated, self.select, self.patience = train, dict(evaluated), select, patience
        self.epochs, self.batch_size, self.seed, self.learning_rate = epochs, batch_size, seed, learning_rate
        self._mislabelled, self._augment, self._finish, self._generator = mislabelled, augment, finish, generator
        self._views, self._mixture = tuple(views), mixture
        self.history: list[dict[str, Any]] = []
        self.by_class: dict[str, list[float | None]] = {}
        self.selected: dict[str, Any] | None = None
        self.epoch, self.step_of_epoch = 0, 0
        self._random: dict[str, Tensor] = {}
        self._values: dict[str, Tensor] = {}
        self._begin_epoch()

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or patience has run out."""
        return self.epoch >= self.epochs or self._out_of_patience()

    @property
    def position(self) -> int:
        """How far the run is, in steps of an epoch over all samples: a method may choose fewer or more."""
        return self.epoch * self._steps + self.step_of_epoch * self._steps // self._of_epoch

    def course(self, watcher: Watcher) -> Course[bool]:
        """Train until the end, or until the watcher wants to stop.

        Returns:
            Whether the run is finished.
        """
        with self._own_random_state():
            while not self.finished:
                if not (yield from self._epoch(watcher)):
                    watcher.checkpoint(self.state())
                    return False
            return True

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs, as a tree of plain values and tensors; all processes ask for it."""
        self.engine.check()  # nothing that went wrong is ever saved
        self._put_together()
        return {
            "epoch": self.epoch,
            "step_of_epoch": self.step_of_epoch,
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "method": self.method.state_dict(),
            "random": {"draws": self._generator.get_state(), **self._random_states()},
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
            load_state(self.optimizer, state["optimizer"])
            self.method.load_state_dict(state["method"])
            self.engine.reset()
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            reason = str(error).splitlines()[-1].strip()
            raise CheckpointError(
                f"the checkpoint does not fit the model or the method ({reason}): their code has changed since the run "
                "began; put it back, or start a new run with --out"
            ) from error
        self._random = {name: value for name, value in state["random"].items() if name != "draws"}
        self._generator.set_state(state["random"]["draws"])
        self._sums = {name: value.to(device) for name, value in state["sums"].items()}
        self._values |= {name: value.to(device) for name, value in state["values"].items()}
        self.history, self.by_class, self.selected = state["history"], state["by_class"], state["selected"]

    def _epoch(self, watcher: Watcher) -> Course[bool]:
        if self.step_of_epoch == 0:
            self.method.begin_epoch(self.epoch, self._look)
        batches = self._batches()
        self._seen, self._of_epoch = sum(map(len, batches)), len(batches)
        own = [rows[self.processes.share(len(rows))] for rows in batches[self.step_of_epoch :]]
        for x in self._read(own):
            yield from self._step(x, batches[self.step_of_epoch], watcher)
            if self.step_of_epoch < len(batches):
                if watcher.wants_stop():
                    return False
                if watcher.wants_checkpoint():
                    watcher.checkpoint(self.state())
        self._end_epoch(watcher)
        return self.finished or not watcher.wants_stop()

    def _read(self, batches: Sequence[Tensor]) -> Iterator[Tensor]:
        """Encoded samples; a file that one process cannot read ends all of them."""
        stream = self.train.pool.stream(batches)
        if self.processes.count == 1 or not isinstance(self.train.pool, FilePool):
            yield from stream
            return
        for _ in batches:
            yield self.processes.together(lambda: next(stream))

    def _step(self, x: Tensor, rows: Tensor, watcher: Watcher) -> Course[None]:
        if not self.model.training:  # every layer is told, which takes a deep network's host a while
            self.model.train()
        self.schedule.apply(self.optimizer, self.learning_rate, self.position)
        share, total = self.processes.share(len(rows)), len(rows)
        rows = rows[share]
        inputs = self._inputs(x, share, total)
        report = yield Batch(self.engine, inputs, self.train.labels[rows], rows)
        self._sums["loss"].add_(report.loss, alpha=total)
        if report.meta_loss is not None:
            self._sums["meta_loss"] += report.meta_loss
            self._sums["meta_steps"] += 1
        unknown = set(report.hyperparameters) - set(self.method.fields)
        if unknown:
            raise OptionError(
                f"method {self.method.name} reports {', '.join(sorted(unknown))} for every sample, which its fields do "
                "not name: add it to fields"
            )
        found = {"margin": report.margins, RIVAL: report.rivals, **report.hyperparameters}
        for name, values in found.items():
            if values is not None:
                self._values[name].index_copy_(0, rows, values.to(self._values[name].dtype))
        self.step_of_epoch += 1
        watcher.after_step(report)

    def _inputs(self, x: Tensor, share: slice, total: int) -> Tensor | tuple[Tensor, ...]:
        """What the method is given: the batch changed at random, or several views of it."""
        views = [self._finish(view(x, self._generator, share, total)) for view in self._views or (self._augment,)]
        return tuple(views) if self._views else views[0]

    def _look(self, module: nn.Module) -> Tensor:
        """A module's logits of the training samples, on their device."""
        return self.logits(self.train, module).to(self.train.labels.device)

    def _end_epoch(self, watcher: Watcher) -> None:
        self.engine.check()
        self._put_together()
        values = {name: tensor.cpu().numpy() for name, tensor in self._values.items()}
        record = self._record(values)
        if self.processes.count > 1:  # the first process's word: other hardware may round otherwise
            record, self.by_class = json.loads(self.processes.told(json.dumps([record, self.by_class])))
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
            "loss": sums["loss"] / self._seen,
            "meta_loss": sums["meta_loss"] / sums["meta_steps"] if sums["meta_steps"] else None,
            "train_agreement": _agreement(values["margin"]),
        }
        for name, part in self.evaluated.items():
            found = Evaluation.of(self.logits(part), part.labels.cpu())
            record[f"{name}_accuracy"], record[f"{name}_loss"] = found.accuracy, found.loss
            if found.top5_accuracy is not None:
                record[f"{name}_top5_accuracy"] = found.top5_accuracy
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

    def logits(self, part: Part, module: nn.Module | None = None) -> Tensor:
        """The logits for a part, ``(N, c)``, on the host: the model's, or those of a part of it."""
        model = self.model if module is None else module
        device = part.labels.device
        rows = torch.split(torch.arange(len(part), device=device), evaluation_batch(part))
        own = rows[self.processes.share(len(rows), least=1)]  # whole batches: they are computed as by one process
        with autocast(device.type, self.engine.precision):
            found = self.processes.together(lambda: logits_of(model, part.pool.stream(own), self._finish, 0))
        return found if len(own) == len(rows) else self.processes.gathered(found)[0]

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
        names = ("loss", "meta_loss", "meta_steps")
        self._sums = {name: torch.zeros((), dtype=torch.float64, device=device) for name in names}
        if (self.method.sees_all and self._mixture is None) or not self._values:  # else not all are seen in every epoch
            self._values = {
                name: torch.full((count,), torch.nan, device=device) for name in ("margin", *self.method.fields, RIVAL)
            }
        self._steps = self._of_epoch = len(sizes(count, self.batch_size))

    def _batches(self) -> list[Tensor]:
        """The epoch's rows, batch by batch: the method's choice, or all of them in a random order."""
        device, count = self.train.labels.device, len(self.train)
        chosen = self.method.rows(self.epoch, generator_of(seed=self.seed, epoch=self.epoch))
        if chosen is not None:
            return [rows.to(device) for rows in checked_rows(chosen, count, self.method.name)]
        if self._mixture is not None:
            usual = self._mixture.batches(sizes(count, self.batch_size), seed=self.seed, epoch=self.epoch)
        else:
            usual = list(torch.split(shuffled(count, seed=self.seed, epoch=self.epoch), sizes(count, self.batch_size)))
        drawn = self.method.redrawn(usual, self.epoch, torch.Generator().manual_seed(mixed(self.seed, self.epoch, 4)))
        drawn = checked_rows(drawn, count, self.method.name)
        return list(torch.split(torch.cat(drawn).to(device), [len(rows) for rows in drawn]))

    @contextlib.contextmanager
    def _own_random_state(self) -> Iterator[None]:
        device = self.train.labels.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            rank = self.processes.rank
            torch.manual_seed(mixed(self.seed, self.epoch, self.step_of_epoch, rank) if rank else self.seed)
            if _named("cpu", rank) in self._random:
                torch.set_rng_state(self._random[_named("cpu", rank)])
            if device.type == "cuda" and _named("cuda", rank) in self._random:
                torch.cuda.set_rng_state(self._random[_named("cuda", rank)], device)
            yield

    def _put_together(self) -> None:
        """Give all processes the samples' values, and the model's statistics, that each has some of."""
        self._values = {name: self.processes.merged(values) for name, values in self._values.items()}
        even_out(self.model, self.processes)

    def _random_states(self) -> dict[str, Tensor]:
        """Of torch's own generators, in every process."""
        device = self.train.labels.device
        own = {"cpu": torch.get_rng_state()}
        if device.type == "cuda":
            own["cuda"] = torch.cuda.get_rng_state(device)
        states: dict[str, Tensor] = {}
        for name, state in own.items():
            (of_all,) = self.processes.gathered(state.unsqueeze(0))
            states |= {_named(name, rank): each for rank, each in enumerate(of_all)}
        return states


def _named(generator: str, rank: int) -> str:
    """What a checkpoint calls a process's generator."""
    return f"{generator} {rank}" if rank else generator


def _agreement(margins: NDArray[Any]) -> float:
    """The share of labels with a margin above 0, of those that have come up."""
    known = margins[~np.isnan(margins)]
    return float((known > 0).mean(dtype=np.float64)) if len(known) else 0.0


def _mean(values: NDArray[Any]) -> float | None:
    known = values[~np.isnan(values)]  # a method that chooses its samples may have left some out so far
    return float(known.mean(dtype=np.float64)) if len(known) else None
