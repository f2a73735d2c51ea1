"""A ``Trainer`` that learns its loss while it trains."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Trainer
from transformers.trainer_utils import get_last_checkpoint

from narl.adjuster import Adjuster
from narl.adjuster.families import Counts, checked_counts
from narl.atomic import replacing
from narl.bilevel import Processes, StepReport
from narl.errors import CheckpointError, CleanBatchError, LabelError, OptionError
from narl.integrations.clean_batches import CleanBatches, counts_of, refuse_missing
from narl.integrations.learning import Given, Learning, means, start
from narl.integrations.transformers.callback import AdjustedLossCallback
from narl.integrations.transformers.logits import Logits, logits_of, plain_attention
from narl.integrations.transformers.refusals import refuse_arguments, refuse_learning, refuse_model
from narl.integrations.wrapped import bare_optimizer

STATE = "narl.pt"
ADJUSTER = "adjuster.safetensors"
_IDS = "ids"


class NoiseAwareTrainer(Trainer):
    """``transformers.Trainer`` for wrongly labelled data.

    With ``clean_dataset``, some samples whose labels are right, it learns the loss's hyperparameters, sample by sample,
    while it trains (:class:`narl.MetaStep`, exact gradients). Without, it trains with an ``adjuster`` that was learned
    before (:class:`narl.AdjustedLoss`). All else is the trainer's: schedules, evaluation, callbacks, checkpoints. Its
    log has in addition means over the latest batch, ``margin`` and each hyperparameter, and ``meta_loss``, the clean
    loss after the latest virtual step, or, without a clean set, ``suspicion``. Evaluation reports cross entropy.

    A meta step looks at the whole batch of an optimiser's step: with accumulated gradients all its parts, with several
    processes everyone's, with ``max_grad_norm`` the clipped gradient. Checkpoints hold the adjuster, as a file for
    later trainings (``adjuster.safetensors``) and with all that it takes to resume (``narl.pt``).

    Args:
        model: as ``Trainer`` takes it; a classifier with one row of ``logits`` a sample.
        args: ``TrainingArguments``.
        train_dataset: with noisy labels.
        clean_dataset: with labels that are right, none of it in ``train_dataset``; of the same form. Ten samples a
            class are a good beginning.
        adjuster: that was learned before: an :class:`narl.Adjuster` or its snapshots, files, a run's folder, or what
            :meth:`narl.AdjustedLoss.pretrained` takes. With a clean set, where learning begins.
        loss: name of the robust loss whose hyperparameters are learned.
        class_counts: number of training samples of every class; None: counted.
        clean_batch_size: clean samples of a meta step; None: as many as noisy ones.
        every: steps from one meta step to the next; None: 1 to 10 by the training's length.
        adjuster_lr: the adjuster's learning rate; None: 0.01 to 0.001 by the training's length.
        margin: ``"latest"``; or ``"running"``, averages over the epochs, for which the data set has to have a column
            ``ids`` with each sample's position. None: the latest where an adjuster is learned; averages where one was,
            guessed without that column.
        virtual: see :class:`narl.MetaStep`.
        tangent: see :class:`narl.MetaStep`.
        data: of adjusters for several kinds of data, as shipped ones are, which to use: ``"image"``, ``"table"`` or
            ``"text"``; None: what is for any data, as also suits trainings that are too short for those for texts
            (:func:`narl.pretrained` says from how many steps on they serve; here nobody looks).
        others: all other arguments of ``Trainer``, by name.

    Example:
        >>> import tempfile
        >>> from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
        >>> config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        ...                     intermediate_size=8, num_labels=2)
        >>> noisy = [{"input_ids": [1, 2 + i % 5], "labels": i % 2} for i in range(16)]
        >>> clean = [{"input_ids": [1, 2], "labels": 0}, {"input_ids": [1, 3], "labels": 1}]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     args = TrainingArguments(folder, max_steps=2, report_to="none", disable_tqdm=True, use_cpu=True,
        ...                              save_strategy="no", logging_strategy="no", dataloader_pin_memory=False)
        ...     trainer = NoiseAwareTrainer(
        ...         BertForSequenceClassification(config), args, train_dataset=noisy, clean_dataset=clean)
        ...     outcome = trainer.train()  # doctest: +ELLIPSIS
        {'train_runtime': ...}
        >>> trainer.adjuster.robust_loss.name, trainer.report.meta_loss is not None
        ('gce', True)

    Reference: ``docs/transformers.md`` says what is refused, and why.
    """

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *,
        train_dataset: Any = None,
        clean_dataset: Any = None,
        adjuster: Given = None,
        loss: str = "gce",
        class_counts: Counts | None = None,
        clean_batch_size: int | None = None,
        every: int | None = None,
        adjuster_lr: float | None = None,
        margin: str | None = None,
        virtual: str = "optimizer",
        tangent: str = "auto",
        data: str | None = None,
        **others: Any,
    ) -> None:
        refuse_arguments(args, others)
        super().__init__(model, args, train_dataset=train_dataset, **others)
        refuse_model(self.model)
        if clean_dataset is not None and clean_dataset is train_dataset:
            raise CleanBatchError(
                "clean_dataset is train_dataset: give samples whose labels are right, and train on the others"
            )
        self._class_counts = self._counted(class_counts)
        self._adjuster_options = (loss, adjuster, margin or "latest", data)
        self._learning_options = {"every": every, "adjuster_lr": adjuster_lr, "virtual": virtual, "tangent": tangent}
        self._learning: Learning | None = None
        self._clean: CleanBatches | None = None
        self._clean_dataset = clean_dataset
        self._clean_batch_size = clean_batch_size
        self._resumed_from: str | None = None
        self._parts: list[Any] = []
        self._parts_done = 0
        self._ids: Tensor | None = None
        self._meta_loss: Tensor | None = None
        self.report: StepReport | None = None
        if clean_dataset is None:
            self._drop_in: AdjustedLossCallback | None = AdjustedLossCallback(
                adjuster, self._class_counts, margin=margin or "auto", data=data
            )
            self.compute_loss_func: Any = self._drop_in
            self.add_callback(self._drop_in)
        else:
            refuse_learning(self)
            if self.args.gradient_checkpointing:  # the reentrant kind was the default once
                kwargs = self.args.gradient_checkpointing_kwargs or {}
                self.args.gradient_checkpointing_kwargs = {**kwargs, "use_reentrant": False}
            refuse_missing(counts_of(clean_dataset, len(self._class_counts), "clean_dataset"), self._class_counts)
            self._drop_in = None
            self._learning = self._new_learning()
            self.compute_loss_func = self._learned_loss

    @property
    def adjuster(self) -> Adjuster:
        """What is learned, or has been."""
        if self._learning is not None:
            return self._learning.adjuster
        assert self._drop_in is not None
        return self._drop_in.criterion.at(self._drop_in.progress)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As ``Trainer.train``; resumed, it goes on exactly where the checkpoint was taken."""
        self._resumed_from = (
            get_last_checkpoint(self.args.output_dir) if resume_from_checkpoint is True else resume_from_checkpoint
        ) or None
        if self._learning is not None and self.model_init is not None:
            self._learning = self._new_learning()  # another trial begins anew
        if self._drop_in is not None and self._resumed_from is not None:
            self._drop_in.criterion.load_state_dict(self._kept_state()["criterion"])
        self._clean, self._parts, self._parts_done = None, [], 0
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """The parts of the next step's batch, which a meta step looks at together."""
        found = super().get_batch_samples(*args, **kwargs)
        self._parts, self._parts_done = list(found[0]), 0
        return found

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """Forward and backward pass of one part of a batch; in a meta step, of all its parts at the first one."""
        if self._learning is None:
            loss: Tensor = super().training_step(model, inputs, *args, **kwargs)
            return loss
        if self._parts_done:
            self._parts_done -= 1
            return torch.zeros((), device=self.args.device)
        learning = self._begun(model)
        learning.at(self.state.global_step, self.state.max_steps)
        is_first = not self._parts or inputs is self._parts[0]
        if is_first and learning.is_due(self.state.global_step):
            return self._meta_step(model, learning)
        loss = super().training_step(model, inputs, *args, **kwargs)
        return loss

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As ``Trainer.compute_loss``, by the adjusted loss."""
        inputs = dict(inputs)
        self._ids = inputs.pop(_IDS, None)
        if self._drop_in is not None:
            self._drop_in.ids = self._ids
        return super().compute_loss(model, inputs, *args, **kwargs)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As ``Trainer.log``, with what the loss made of the latest batch."""
        if "loss" in logs:
            if self._drop_in is not None:
                logs |= self._drop_in.seen
            if self.report is not None:
                logs |= means(self.report.margins, self.report.hyperparameters)
            if self._meta_loss is not None:
                logs["meta_loss"] = float(self._meta_loss)
        super().log(logs, *args, **kwargs)

    def save_model(self, output_dir: str | PathLike[str] | None = None, *args: Any, **kwargs: Any) -> None:
        """As ``Trainer.save_model``, with the adjuster."""
        super().save_model(output_dir, *args, **kwargs)
        folder = Path(self.args.output_dir if output_dir is None else output_dir)
        if not self.args.should_save:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self.adjuster.save(folder / ADJUSTER)
        state: dict[str, Any] = {}
        if self._learning is not None:
            state |= {"learning": self._learning.state_dict(), "clean": 0 if self._clean is None else self._clean.drawn}
        if self._drop_in is not None:
            state["criterion"] = dict(self._drop_in.criterion.state_dict())
        with replacing(folder / STATE) as file:
            torch.save(state, file)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        columns: list[str] = self._signature_columns
        if _IDS not in columns:
            columns.append(_IDS)

    def _counted(self, given: Counts | None) -> Tensor:
        if given is not None:
            return torch.as_tensor(checked_counts(given))
        if self.train_dataset is None:
            raise OptionError("there is no train_dataset to count classes in: give it, or class_counts=")
        return counts_of(self.train_dataset, int(self.model.config.num_labels), "train_dataset")

    def _new_learning(self) -> Learning:
        loss, given, margin, data = self._adjuster_options
        adjuster = start(loss, self._class_counts, given, margin, self.args.seed, data)
        return Learning(adjuster, **self._learning_options)  # type: ignore[arg-type]

    def _begun(self, model: nn.Module) -> Learning:
        """What learns, part of this training."""
        assert self._learning is not None
        optimizer = bare_optimizer(self.optimizer)
        if self._clean is not None and self._learning.belongs_to(optimizer):
            return self._learning
        largest = self.args.max_grad_norm
        self._learning.begin(
            Logits(self.model),
            optimizer,
            self.state.max_steps,
            processes=Processes.of(model),
            clip=largest if largest and largest > 0 else None,
        )
        size = self._clean_batch_size or (
            self._train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        )
        collate = self._get_collator_with_removed_columns(self.data_collator, "clean")
        self._clean = CleanBatches(self._clean_dataset, size, collate, self.args.seed)
        if self._resumed_from is not None:
            state = self._kept_state()
            self._learning.load_state_dict(state["learning"])
            self._clean.drawn = state["clean"]
        return self._learning

    def _kept_state(self) -> dict[str, Any]:
        assert self._resumed_from is not None
        path = Path(self._resumed_from, STATE)
        wanted = "criterion" if self._learning is None else "learning"
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except FileNotFoundError:
            state = {}
        if wanted not in state:
            raise CheckpointError(
                f"{self._resumed_from} is no checkpoint of a NoiseAwareTrainer that trained as this one does (no "
                f"{wanted} in {STATE}): resume from one, with the clean set or the adjuster that it was begun with"
            )
        return state

    def _meta_step(self, model: nn.Module, learning: Learning) -> Tensor:
        """Move the adjuster, and the backward pass of the whole batch."""
        parts, labels, ids = zip(*(self._divided(part) for part in self._parts), strict=True)
        known = [one for one in ids if one is not None]
        clean = self._clean
        assert clean is not None

        def draw() -> tuple[Any, Tensor]:
            inputs, right, _ = self._divided(clean.next(learning.meta.processes))
            return (inputs,), right

        learning.meta.steps = self.state.global_step  # the trainer counts
        model.train()
        with self.accelerator.autocast(), plain_attention(self.model):
            self.report = learning.meta.backward(
                parts, torch.cat(labels), draw, torch.cat(known) if len(known) == len(ids) else None
            )
        self._meta_loss = self.report.meta_loss
        self._parts_done = len(self._parts) - 1
        return self.report.loss.detach().to(self.args.device)

    def _divided(self, batch: Mapping[str, Any]) -> tuple[dict[str, Any], Tensor, Tensor | None]:
        inputs = dict(self._prepare_inputs(dict(batch)))
        ids = inputs.pop(_IDS, None)
        if "labels" not in inputs:
            raise LabelError(f"a batch has no labels, only {', '.join(inputs)}: name the data set's column 'labels'")
        return inputs, inputs.pop("labels"), ids

    def _learned_loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The loss of a batch, or of a part of it, by the adjuster as it is."""
        logits = logits_of(outputs)
        if not torch.is_grad_enabled():
            return F.cross_entropy(logits.float(), labels.long())
        assert self._learning is not None
        values, self.report = self._learning.values(logits, labels, self._ids)
        if num_items_in_batch is None:
            return values.mean() / int(self.current_gradient_accumulation_steps)
        return values.sum() / num_items_in_batch
