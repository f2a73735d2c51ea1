"""A learned adjuster as the loss of a plain ``Trainer``."""

from __future__ import annotations

from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from narl.adjuster.families import Counts
from narl.integrations.learning import Given, criterion_of, means
from narl.integrations.transformers.logits import logits_of


@final
class AdjustedLossCallback(TrainerCallback):
    """The loss of a plain ``Trainer``, by an adjuster that was learned before: given to it as loss and as callback.

    As callback it learns where the training stands, so that each snapshot of the adjuster serves its part, resumed
    trainings included, and adds what the loss made of the latest batch to the log: means of ``margin``, ``suspicion``
    (how strongly samples are held for mislabelled, 0 to 1) and of each hyperparameter. Evaluation reports cross
    entropy. Gradient accumulation, mixed precision, DeepSpeed and FSDP are the trainer's affair and work as without it.

    Args:
        adjuster: an adjuster or its snapshots; their files, a run's folder, or what
            :meth:`narl.AdjustedLoss.pretrained` takes.
        class_counts: number of training samples of every class by the given labels, ``(c,)``.
        margin: ``"auto"``, averages over the epochs, which are guessed where batches do not name their ``ids``;
            ``"running"``, for which they must; or ``"latest"``.
        data: of adjusters for several kinds of data, as shipped ones are, which to use: ``"image"``, ``"table"`` or
            ``"text"``; None: what is for any data, as also suits trainings that are too short for those for texts
            (:func:`narl.pretrained` says from how many steps on they serve; here nobody looks).

    Example:
        >>> import narl, torch
        >>> learned = narl.Adjuster("gce", class_counts=[50, 50])
        >>> loss = AdjustedLossCallback(learned, class_counts=[30, 20, 50])
        >>> # Trainer(model, args, train_dataset=noisy, compute_loss_func=loss, callbacks=[loss])
        >>> logits = torch.tensor([[2.0, 0.0, 0.0], [2.0, 0.0, 0.0]], requires_grad=True)
        >>> loss({"logits": logits}, torch.tensor([0, 2]))
        tensor(0.9310, grad_fn=<MeanBackward0>)
    """

    def __init__(self, adjuster: Given, class_counts: Counts, *, margin: str = "auto", data: str | None = None) -> None:
        counts = torch.as_tensor(class_counts)
        self.criterion = criterion_of(adjuster, counts, margin, data)
        self.progress = 0.0
        self.ids: Tensor | None = None
        self._used = False

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The loss of a batch, or its part in the mean over the whole batch of a step.

        Args:
            outputs: of the model, with ``logits``.
            labels: ``(N,)``.
            num_items_in_batch: samples of the whole batch of a step, where this is a part of it.
        """
        logits = logits_of(outputs)
        if not torch.is_grad_enabled():
            return F.cross_entropy(logits.float(), labels.long())
        if next(self.criterion.parameters()).device != logits.device:
            self.criterion.to(logits.device)
        self._used = True
        values: Tensor = self.criterion(logits, labels, progress=self.progress, ids=self.ids)
        return values.mean() if num_items_in_batch is None else values.sum() / num_items_in_batch

    @property
    def seen(self) -> dict[str, float]:
        """What it made of the latest batch: means, by name; nothing before the first."""
        if not self._used:
            return {}
        last = self.criterion.last
        return means(last.margins, last.hyperparameters) | {"suspicion": float(last.suspicion.mean())}

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Take down where the training stands."""
        self.criterion.at_epoch(state.epoch or 0.0)
        self.progress = min(state.global_step / max(state.max_steps, 1), 1.0)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Add to a training step's log what the loss made of the latest batch."""
        if logs is None or "loss" not in logs:
            return
        for name, value in self.seen.items():
            logs.setdefault(name, value)
            if state.log_history:
                state.log_history[-1].setdefault(name, value)
