"""A callback that brings the loss of a ``LightningModule``, and learns it."""

from __future__ import annotations

import math
from typing import Any, NoReturn, final

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.utils.data import TensorDataset, default_collate

from narl.adjuster import AdjustedLoss, Adjuster
from narl.adjuster.families import Counts, checked_counts
from narl.bilevel import Processes, StepReport
from narl.bilevel.calls import Inputs, call
from narl.errors import CleanBatchError, NarlError, OptionError
from narl.integrations.clean_batches import CleanBatches, counts_of, refuse_missing
from narl.integrations.learning import Given, Learning, criterion_of, start
from narl.integrations.wrapped import bare_optimizer

_LONG = 50_000  # steps of a training whose end nobody knows


@final
class NoiseAwareCallback(Callback):
    """The loss of a ``LightningModule`` for wrongly labelled data: given to the ``Trainer``, called in the module.

    With a ``clean`` set it learns the loss's hyperparameters, sample by sample, while the module trains
    (:class:`narl.MetaStep`, exact gradients); without, it takes an ``adjuster`` that was learned before
    (:class:`narl.AdjustedLoss`). It logs means over the batch, ``margin`` and each hyperparameter, and ``meta_loss``,
    the clean loss after the virtual step, or, without a clean set, ``suspicion``. Its state is part of Lightning's
    checkpoints.

    Args:
        class_counts: number of training samples of every class by the given labels, ``(c,)``.
        clean: samples whose labels are right: tensors ``(x, y)``, or a data set of such pairs, by position. Ten a class
            are a good beginning.
        adjuster: that was learned before: an :class:`narl.Adjuster` or its snapshots, files, a run's folder, or what
            :meth:`narl.AdjustedLoss.pretrained` takes. With a clean set, where learning begins.
        loss: name of the robust loss whose hyperparameters are learned.
        clean_batch_size: clean samples of a meta step, all processes together.
        every: steps from one meta step to the next; None: 1 to 10 by the training's length.
        adjuster_lr: the adjuster's learning rate; None: 0.01 to 0.001 by the training's length.
        margin: ``"latest"``; or ``"running"``, averages over the epochs: then every call gives ``ids``. None: the
            latest where an adjuster is learned; averages where one was, guessed for calls without ``ids``.
        virtual: see :class:`narl.MetaStep`.
        tangent: see :class:`narl.MetaStep`.
        clip: the norm that gradients are clipped to; None: the trainer's ``gradient_clip_val``.
        seed: of the adjuster's first weights and of the clean batches.
        data: of adjusters for several kinds of data, as shipped ones are, which to use: ``"image"``, ``"table"`` or
            ``"text"``; None: what is for any data, as also suits trainings that are too short for those for texts
            (:func:`narl.pretrained` says from how many steps on they serve; here nobody looks).

    Example:
        >>> import lightning.pytorch as pl
        >>> class Classifier(pl.LightningModule):
        ...     def __init__(self, noise):
        ...         super().__init__()
        ...         self.layer, self.noise = nn.Linear(4, 3), noise
        ...     def forward(self, x):
        ...         return self.layer(x)
        ...     def training_step(self, batch, _):
        ...         x, y = batch
        ...         return self.noise.loss(self, x, y)  # in place of F.cross_entropy(self(x), y)
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), lr=0.1)
        >>> x, y = torch.randn(32, 4), torch.arange(32) % 3
        >>> noise = NoiseAwareCallback(torch.bincount(y), clean=(x[:6], y[:6]))
        >>> trainer = pl.Trainer(max_epochs=1, callbacks=[noise], accelerator="cpu", logger=False, barebones=False,
        ...                      enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
        >>> trainer.fit(Classifier(noise), torch.utils.data.DataLoader(TensorDataset(x, y), batch_size=8))
        >>> noise.report.hyperparameters["q"].shape
        torch.Size([8])
    """

    def __init__(
        self,
        class_counts: Counts,
        clean: Any = None,
        adjuster: Given = None,
        *,
        loss: str = "gce",
        clean_batch_size: int = 100,
        every: int | None = None,
        adjuster_lr: float | None = None,
        margin: str | None = None,
        virtual: str = "optimizer",
        tangent: str = "auto",
        clip: float | None = None,
        seed: int = 0,
        data: str | None = None,
    ) -> None:
        counts = torch.as_tensor(checked_counts(class_counts))
        self.clip = clip
        self.report: StepReport | None = None
        self.criterion: AdjustedLoss | None = None
        self._learning: Learning | None = None
        self._kept: dict[str, Any] | None = None
        self._trainer: Trainer | None = None
        self._done = -1
        if clean is None:
            self.criterion = criterion_of(adjuster, counts, margin or "auto", data)
            return
        samples = _as_data_set(clean)
        refuse_missing(counts_of(samples, len(counts), "clean"), counts)
        self._clean = CleanBatches(samples, clean_batch_size, default_collate, seed)
        self._learning = Learning(
            start(loss, counts, adjuster, margin or "latest", seed, data),
            every=every,
            adjuster_lr=adjuster_lr,
            virtual=virtual,
            tangent=tangent,
        )

    @property
    def adjuster(self) -> Adjuster:
        """What is learned, or has been."""
        if self._learning is not None:
            return self._learning.adjuster
        assert self.criterion is not None
        return self.criterion.at(self._progress)

    def loss(self, module: nn.Module, x: Inputs, y: Tensor, ids: Tensor | None = None) -> Tensor:
        """The loss of a step's batch: the mean over the samples, a scalar with its graph.

        Where the next step is a meta step the adjuster has moved before. Out of training it is cross entropy.

        Args:
            module: what gives the logits: the ``LightningModule``, or the model in it.
            x: inputs: a tensor, a tuple of positional arguments or a mapping of named ones.
            y: labels ``(N,)``.
            ids: sample ids ``(N,)``, for averages over the epochs.
        """
        if not torch.is_grad_enabled() or not module.training:
            return F.cross_entropy(call(module, x, len(y)), y)
        if self._trainer is None:
            raise OptionError("the loss is called, but no Trainer knows its callback: Trainer(callbacks=[noise])")
        if self._learning is None:
            return self._drop_in(call(module, x, len(y)), y, ids)
        step = self._trainer.global_step
        self._begin(module, self._learning)
        self._learning.at(step, self._total)
        if self._learning.is_due(step) and step != self._done:
            self._done = self._learning.meta.steps = step
            loss, self.report = self._learning.meta.loss(x, y, lambda: self._draw(y.device), ids)
        else:
            values, self.report = self._learning.values(call(module, x, len(y)), y, ids)
            loss = values.mean()
        self._log(self.report, len(y))
        return loss

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take part in a training, or go on with one."""
        self._trainer, self._done = trainer, -1
        if self.criterion is not None:
            self.criterion.to(pl_module.device)
            self.criterion.at_epoch(0)
            if self._kept is not None:
                self.criterion.load_state_dict(self._kept["criterion"])
                self._kept = None
            return
        _refuse(trainer)
        assert self._learning is not None
        self._learning.leave()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the training."""
        self._trainer = None

    def state_dict(self) -> dict[str, Any]:
        """What Lightning's checkpoint holds of it."""
        if self._learning is None:
            assert self.criterion is not None
            return {"criterion": dict(self.criterion.state_dict())}
        return {"learning": self._learning.state_dict(), "clean": self._clean.drawn}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where the checkpoint was taken, once the training begins."""
        wanted = "criterion" if self._learning is None else "learning"
        if wanted not in state_dict:
            raise OptionError(
                f"the checkpoint has no {wanted} of the loss: give the clean set or the adjuster it was begun with"
            )
        self._kept = state_dict

    def _begin(self, module: nn.Module, learning: Learning) -> None:
        trainer = self._trainer
        assert trainer is not None
        optimizer = bare_optimizer(trainer.optimizers[0])
        if learning.belongs_to(optimizer):
            return
        clip = self.clip if self.clip is not None else trainer.gradient_clip_val
        learning.begin(
            _Called(module),
            optimizer,
            self._total,
            processes=Processes.joined() if trainer.world_size > 1 else Processes.alone(),
            clip=None if clip is None or clip <= 0 else float(clip),
        )
        if self._kept is not None:
            learning.load_state_dict(self._kept["learning"])
            self._clean.drawn = self._kept["clean"]
            self._kept = None

    def _draw(self, device: torch.device) -> tuple[Any, Tensor]:
        assert self._learning is not None
        x, y = self._clean.next(self._learning.meta.processes)
        return _on(x, device), y.to(device)

    def _drop_in(self, logits: Tensor, y: Tensor, ids: Tensor | None) -> Tensor:
        assert self.criterion is not None
        values: Tensor = self.criterion(logits, y, progress=self._progress, ids=ids)
        last, loss = self.criterion.last, values.mean()
        self.report = StepReport(loss.detach(), None, last.hyperparameters, last.margins)
        self._log(self.report, len(y), suspicion=last.suspicion.mean())
        return loss

    @property
    def _total(self) -> int:
        assert self._trainer is not None
        steps = self._trainer.estimated_stepping_batches
        return int(steps) if math.isfinite(steps) else _LONG

    @property
    def _progress(self) -> float:
        return 0.0 if self._trainer is None else min(self._trainer.global_step / max(self._total, 1), 1.0)

    def _log(self, report: StepReport, count: int, **more: Tensor) -> None:
        assert self._trainer is not None
        values = {name: value.mean() for name, value in report.hyperparameters.items()} | more
        if report.margins is not None:
            values["margin"] = report.margins.mean()
        if report.meta_loss is not None:
            values["meta_loss"] = report.meta_loss
        self._trainer.lightning_module.log_dict(values, batch_size=count)


@final
class _Called(nn.Module):
    """A module that is only called: a copy of it would be one of its trainer and all data, too."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise TypeError("not to be copied")


def _refuse(trainer: Trainer) -> None:
    """Refuse the ways to train in which a look-ahead would not be exact, or not possible."""
    if len(trainer.optimizers) != 1:
        raise OptionError(
            f"there are {len(trainer.optimizers)} optimisers: the look-ahead needs one; put all parameters into groups "
            "of one optimiser, or use an adjuster that was learned before, without a clean set"
        )
    if trainer.accumulate_grad_batches != 1:
        raise OptionError(
            f"accumulate_grad_batches = {trainer.accumulate_grad_batches}: Lightning hands out a step's batch in "
            "parts, and the look-ahead needs all of it; use larger batches, more processes, or an adjuster that was "
            "learned before, without a clean set"
        )
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        raise OptionError(
            f"precision = {trainer.precision!r} scales the loss and skips steps, which a look-ahead cannot know: use "
            "'bf16-mixed', or '32-true'"
        )
    if trainer.gradient_clip_val and trainer.gradient_clip_algorithm == "value":
        raise OptionError("gradient_clip_algorithm = 'value' is not known to the look-ahead: use 'norm'")
    strategy = type(trainer.strategy).__name__
    if strategy not in ("SingleDeviceStrategy", "DDPStrategy"):
        raise OptionError(
            f"{strategy} divides the weights among processes or devices, and the look-ahead needs them whole: use "
            "strategy='ddp', or an adjuster that was learned before, without a clean set"
        )


def _as_data_set(clean: Any) -> Any:
    if isinstance(clean, (tuple, list)) and len(clean) == 2 and all(isinstance(part, Tensor) for part in clean):
        return TensorDataset(*clean)
    if not hasattr(clean, "__len__") or not hasattr(clean, "__getitem__"):
        raise CleanBatchError(
            f"clean is a {type(clean).__name__}: give tensors (x, y), or a data set of such pairs; of a DataLoader, "
            "its .dataset"
        )
    return clean


def _on(x: Any, device: torch.device) -> Any:
    if isinstance(x, Tensor):
        return x.to(device)
    if isinstance(x, dict):
        return {name: _on(value, device) for name, value in x.items()}
    if isinstance(x, (tuple, list)):
        return type(x)(_on(value, device) for value in x)
    raise NarlError(f"clean inputs are a {type(x).__name__}: give tensors, or tuples, lists and dictionaries of them")
