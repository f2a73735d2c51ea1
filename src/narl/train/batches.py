"""Batches: which samples, in which order, of what size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from narl.bilevel import Processes
from narl.data.augmentation import Augmentation
from narl.data.pools import Pool
from narl.errors import OptionError

Finish = Callable[[Tensor], Tensor]

_EVALUATION_BATCH = 500
_EVALUATION_NUMBERS = 3 * 32 * 32 * 2500


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
        processes: who trains together; each gets its share of the batch.
    """

    def __init__(
        self,
        part: Part,
        size: int,
        augment: Augmentation,
        finish: Finish,
        generator: torch.Generator,
        processes: Processes,
    ) -> None:
        self._part, self._size, self._augment, self._finish = part, size, augment, finish
        self._generator, self._processes = generator, processes

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Inputs and labels of one batch."""
        rows = torch.arange(len(self._part))
        if len(self._part) > self._size:
            rows = torch.randperm(len(self._part), generator=self._generator)[: self._size]
        share, total = self._processes.share(len(rows)), len(rows)
        rows = rows[share].to(self._part.labels.device)
        x = self._augment(self._part.pool.get(rows), self._generator, share, total)
        return self._finish(x), self._part.labels[rows]

    def example(self) -> tuple[Tensor, Tensor]:
        """Some batch, as it is: nothing is drawn for it."""
        count = min(self._size, len(self._part))
        rows = torch.arange(count)[self._processes.share(count)].to(self._part.labels.device)
        return self._finish(self._part.pool.get(rows)), self._part.labels[rows]


def steps_per_epoch(samples: int, batch_size: int) -> int:
    """How many steps an epoch takes.

    Example:
        >>> steps_per_epoch(1000, 100), steps_per_epoch(1001, 100), steps_per_epoch(1002, 100)
        (10, 10, 11)
    """
    return len(sizes(samples, batch_size))


def sizes(samples: int, batch_size: int) -> list[int]:
    """Sizes of an epoch's batches. A sample left over goes with the last batch: BatchNorm cannot train on one."""
    full, rest = divmod(samples, batch_size)
    if full and rest == 1:
        return [batch_size] * (full - 1) + [batch_size + 1]
    return [batch_size] * full + ([rest] if rest else [])


def mixed(*numbers: int) -> int:
    """One seed for each epoch of each run, or whatever else the numbers count.

    Example:
        >>> mixed(0, 1) == mixed(0, 1), mixed(0, 1) == mixed(0, 2)
        (True, False)
    """
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def shuffled(samples: int, *, seed: int, epoch: int) -> Tensor:
    """An epoch's rows, ``(N,)``, in an order that the seed and the epoch decide."""
    return torch.randperm(samples, generator=generator_of(seed=seed, epoch=epoch))


def generator_of(*, seed: int, epoch: int) -> torch.Generator:
    """Where an epoch's order comes from; the same each time, so that a resumed run finds it again."""
    return torch.Generator().manual_seed(mixed(seed, epoch))


def checked_rows(chosen: Sequence[Tensor], samples: int, method: str) -> list[Tensor]:
    """The batches that a method has chosen, or one clear error.

    Args:
        chosen: positions of samples, a tensor ``(n,)`` a batch.
        samples: how many there are.
        method: whose choice it is.

    Example:
        >>> checked_rows([torch.tensor([0, 7])], samples=5, method="Mine")
        Traceback (most recent call last):
        narl.errors.OptionError: Mine chooses sample 7 of 5: positions run from 0 to 4
    """
    if not len(chosen):
        raise OptionError(f"{method} chooses no batch for an epoch: give at least one, or None for all samples")
    for rows in chosen:
        if not isinstance(rows, Tensor) or rows.dim() != 1 or rows.dtype != torch.int64 or not len(rows):
            got = f"{tuple(rows.shape)} of {rows.dtype}" if isinstance(rows, Tensor) else type(rows).__name__
            raise OptionError(f"{method} chooses a batch {got}: give int64 positions (n,), at least one")
    low, high = torch.aminmax(torch.cat(list(chosen)))
    wrong = int(low) if int(low) < 0 else int(high)
    if not 0 <= wrong < samples:
        raise OptionError(f"{method} chooses sample {wrong} of {samples}: positions run from 0 to {samples - 1}")
    return list(chosen)


def evaluation_batch(part: Part) -> int:
    """Samples that are evaluated at once: on a GPU more of small images, to keep it busy."""
    if part.labels.device.type == "cpu" or not len(part):
        return _EVALUATION_BATCH
    one = part.pool.get(torch.zeros(1, dtype=torch.int64, device=part.labels.device))
    # A text's numbers, or a row's, are few, but what a network makes of each is not.
    return max(_EVALUATION_BATCH, _EVALUATION_NUMBERS // one.numel()) if one.dim() == 4 else _EVALUATION_BATCH
