"""Clean samples in batches, for loops that only hand out the noisy ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor

from narl.bilevel import Processes
from narl.errors import CleanBatchError, LabelError

_LABELS = ("labels", "label", "label_ids")


@final
class CleanBatches:
    """Goes through a clean set again and again, each time in another order; where it stands is one number.

    Args:
        samples: the clean set, by position.
        size: samples of a batch, all processes together; all of them if there are fewer.
        collate: makes a batch of a list of samples.
        seed: of the orders.

    Example:
        >>> batches = CleanBatches("abcde", size=3, collate="".join, seed=0)
        >>> first, second = batches.next(), batches.next()
        >>> sorted(first + second[:2]), len(second)
        (['a', 'b', 'c', 'd', 'e'], 3)
    """

    def __init__(self, samples: Any, size: int, collate: Callable[[list[Any]], Any], seed: int) -> None:
        if not len(samples):
            raise CleanBatchError("the clean set is empty: give samples whose labels are right, ten a class to begin")
        if size < 1:
            raise CleanBatchError(f"a clean batch of {size} samples has none: use 1 or more")
        self._samples, self._collate, self._seed = samples, collate, seed
        self._size = min(size, len(samples))
        self.drawn = 0
        self._order: tuple[int, list[int]] = (-1, [])

    def next(self, processes: Processes | None = None) -> Any:
        """The next batch, or this process's share of it."""
        places = [self._place(number) for number in range(self.drawn, self.drawn + self._size)]
        self.drawn += self._size
        own = places if processes is None else places[processes.share(len(places))]
        return self._collate([self._samples[place] for place in own])

    def _place(self, number: int) -> int:
        turn, place = divmod(number, len(self._samples))
        if self._order[0] != turn:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + turn)
            self._order = turn, torch.randperm(len(self._samples), generator=generator).tolist()
        return self._order[1][place]


def labels_of(samples: Any, whose: str) -> Tensor:
    """The labels of a data set, ``(N,)``.

    Args:
        samples: a data set with columns, as Hugging Face's; one of tensors; or any with a length and samples by
            position: mappings, or sequences that end in the label.
        whose: how messages call it.

    Example:
        >>> labels_of([{"text": "a", "label": 1}, {"text": "b", "label": 0}], "the training set")
        tensor([1, 0])
    """
    if not hasattr(samples, "__len__") or not hasattr(samples, "__getitem__"):
        raise LabelError(
            f"{whose} is a {type(samples).__name__}, which has no length: its labels cannot be counted; give "
            "class_counts="
        )
    if not len(samples):
        return torch.empty(0, dtype=torch.int64)
    columns = getattr(samples, "column_names", None)
    if isinstance(columns, Sequence):
        values = samples[_label_among(columns, whose)]
    elif isinstance(getattr(samples, "tensors", None), tuple):
        values = samples.tensors[-1]
    else:
        values = [_label(samples[place], whose) for place in range(len(samples))]
    try:
        labels = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise LabelError(f"{whose} has labels that are no numbers ({error}): encode them as 0 … c - 1") from error
    if labels.dim() != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        raise LabelError(
            f"{whose} has labels of shape {tuple(labels.shape)} and type {labels.dtype}: narl needs one class index a "
            "sample, 0 … c - 1; several labels a sample, numbers to regress and labels of tokens are not covered"
        )
    return labels.long()


def counts_of(samples: Any, num_classes: int, whose: str) -> Tensor:
    """How many samples of each class a data set has by its labels, ``(c,)``.

    Example:
        >>> counts_of([("a", 1), ("b", 0), ("c", 1)], 3, "the training set")
        tensor([1, 2, 0])
    """
    labels = labels_of(samples, whose)
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < num_classes):
        raise LabelError(
            f"{whose} has labels from {int(labels.min())} to {int(labels.max())}, but the model has {num_classes} "
            f"classes, 0 … {num_classes - 1}: encode the labels so, or give the model that many outputs"
        )
    return torch.bincount(labels, minlength=num_classes)


def refuse_missing(counts: Tensor, trained: Tensor) -> None:
    """Refuse a clean set without a sample of some class that is trained on; both counts are ``(c,)``."""
    missing = torch.nonzero((counts == 0) & (trained > 0)).flatten().tolist()
    if missing:
        more = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise CleanBatchError(
            f"the clean set has no sample of class {missing[0]}{more}: the loss would learn to distrust its labels; "
            "give one or more of every class"
        )


def _label(sample: Any, whose: str) -> Any:
    if hasattr(sample, "keys"):
        return sample[_label_among(list(sample.keys()), whose)]
    return sample[-1]


def _label_among(names: Sequence[Any], whose: str) -> Any:
    for name in _LABELS:
        if name in names:
            return name
    raise LabelError(f"{whose} has no labels, only {', '.join(map(str, names))}: name the column 'labels'")
