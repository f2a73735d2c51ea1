"""Encoded samples to draw batches from: held in memory or on the device, or decoded from files ahead of their use."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias, final

import torch
from torch import Tensor

from narl.data.encoder import Encoder
from narl.data.samples import ImageFiles, Inputs, Rows
from narl.errors import OptionError

_GIB = 1 << 30
_MOST_WORKERS = 8
_AHEAD = 3
_FILES_A_TASK = 32

_Started: TypeAlias = tuple[Tensor, list["Future[None]"]]


class Pool(ABC):
    """Encoded samples, batch by batch, on a device.

    ``device`` is where the batches are.
    """

    device: torch.device

    @abstractmethod
    def __len__(self) -> int:
        """How many samples."""

    @abstractmethod
    def get(self, rows: Tensor) -> Tensor:
        """These samples, encoded, in this order.

        Args:
            rows: ``(B,)``, int64.

        Returns:
            ``(B, …)``, on the device.
        """

    def stream(self, batches: Iterable[Tensor]) -> Iterator[Tensor]:
        """The samples of one batch after the other.

        Args:
            batches: rows ``(B,)`` of every batch. A pool that works ahead asks for a few of them in advance.

        Yields:
            What :meth:`get` gives for each.
        """
        for rows in batches:
            yield self.get(rows)


@final
class HeldPool(Pool):
    """Samples that are all in memory, the device's or the host's.

    Args:
        encoded: the samples ``(N, …)``, where they are to stay.
        device: where the batches go; None: where the samples are.

    Example:
        >>> pool = HeldPool(torch.tensor([[1], [2], [3]]))
        >>> [batch.tolist() for batch in pool.stream([torch.tensor([2, 0]), torch.tensor([1])])]
        [[[3], [1]], [[2]]]
    """

    def __init__(self, encoded: Tensor, device: torch.device | str | None = None) -> None:
        self.encoded = encoded
        self.device = encoded.device if device is None else torch.device(device)

    def __len__(self) -> int:
        """How many samples."""
        return len(self.encoded)

    def get(self, rows: Tensor) -> Tensor:
        """These samples, on the device."""
        batch = self.encoded.index_select(0, rows.to(self.encoded.device))
        if self.device.type == "cuda" and batch.device.type == "cpu":
            batch = batch.pin_memory()
        return batch.to(self.device, non_blocking=True)


@final
class FilePool(Pool):
    """Samples that are decoded from their files when they are needed, by worker threads.

    :meth:`stream` keeps three batches in the making while one is in use; no more is ever in memory. Closing the
    iterator, or leaving the loop over it, stops the workers.

    Args:
        inputs: the images' files.
        encoder: what decodes them.
        device: where the batches go.
        workers: threads; None: one a core, at most 8.
    """

    def __init__(
        self, inputs: ImageFiles, encoder: Encoder, *, device: torch.device | str = "cpu", workers: int | None = None
    ) -> None:
        if workers is not None and workers < 1:
            raise OptionError(f"workers is {workers}, but files need at least one thread to decode them: try 4")
        self.inputs, self.encoder, self.device = inputs, encoder, torch.device(device)
        self.workers = min(_MOST_WORKERS, os.cpu_count() or 1) if workers is None else workers
        self._example = encoder.encode(inputs.take(_rows(torch.arange(min(1, len(inputs))))))

    def __len__(self) -> int:
        """How many samples."""
        return len(self.inputs)

    @property
    def nbytes(self) -> int:
        """What all samples would take in memory."""
        return self._example[:1].nbytes * len(self)

    def empty(self, count: int) -> Tensor:
        """Room for this many samples, ``(count, …)``, on the host; quick to copy to the device."""
        shape = (count, *self._example.shape[1:])
        return torch.empty(shape, dtype=self._example.dtype, pin_memory=self.device.type == "cuda")

    def get(self, rows: Tensor) -> Tensor:
        """These samples, on the device."""
        return next(iter(self.stream([rows])))

    def stream(self, batches: Iterable[Tensor]) -> Iterator[Tensor]:
        """The samples of one batch after the other, decoded ahead: ``batches`` is asked for three more than are used.

        Raises:
            DataError: an image cannot be read; it is named.
        """
        started: deque[_Started] = deque()
        executor = ThreadPoolExecutor(self.workers, thread_name_prefix="narl-decode")
        try:
            for rows in batches:
                started.append(self._start(executor, rows))
                if len(started) > _AHEAD:
                    yield self._finish(started.popleft())
            while started:
                yield self._finish(started.popleft())
        finally:
            executor.shutdown(wait=True, cancel_futures=True)

    def _start(self, executor: ThreadPoolExecutor, rows: Tensor) -> _Started:
        batch = self.empty(len(rows))
        rows = rows.cpu()
        # A batch is divided among the workers, so that a few batches in the making keep all of them busy.
        size = max(1, min(_FILES_A_TASK, -(-len(rows) // self.workers)))
        parts = zip(torch.split(rows, size), torch.split(batch, size), strict=True)
        return batch, [executor.submit(self._decode, part, room) for part, room in parts]

    def _decode(self, rows: Tensor, room: Tensor) -> None:
        room.copy_(self.encoder.encode(self.inputs.take(_rows(rows))))

    def _finish(self, started: _Started) -> Tensor:
        batch, tasks = started
        for task in tasks:
            task.result()
        return batch.to(self.device, non_blocking=True)


def make_pool(
    inputs: Inputs,
    encoder: Encoder,
    *,
    device: torch.device | str = "cpu",
    memory_limit: int = _GIB,
    workers: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Pool:
    """The pool for these inputs: held on the device if they are small enough, else in host memory or in their files.

    Args:
        inputs: N samples.
        encoder: fitted on training inputs of their kind.
        device: where the batches go.
        memory_limit: bytes that encoded samples may take on the device. Above it, images in files are decoded when
            they are needed; everything else is in host memory anyway and stays there.
        workers: threads that decode files; None: one a core, at most 8.
        on_progress: told how many files have been decoded so far, while they are all read into memory.

    Returns:
        The pool.

    Raises:
        DataError: inputs of another kind than the encoder's, or an unreadable image.

    Example:
        >>> import numpy as np
        >>> from narl.data.encoding import fit
        >>> from narl.data.samples import Images
        >>> images = Images(np.zeros((10, 8, 8, 3), dtype=np.uint8))
        >>> make_pool(images, fit(images)).get(torch.tensor([3, 4])).shape
        torch.Size([2, 3, 8, 8])
    """
    device = torch.device(device)
    if not isinstance(inputs, ImageFiles):
        encoded = encoder.encode(inputs)
        return HeldPool(encoded.to(device) if encoded.nbytes <= memory_limit else encoded, device)
    files = FilePool(inputs, encoder, device=device, workers=workers)
    if files.nbytes > memory_limit:
        return files
    room = files.empty(0)
    encoded = torch.empty((len(files), *room.shape[1:]), dtype=room.dtype, device=device)
    done = 0
    for batch in files.stream(torch.split(torch.arange(len(files)), _FILES_A_TASK * files.workers)):
        encoded[done : done + len(batch)] = batch
        done += len(batch)
        if on_progress is not None:
            on_progress(done)
    return HeldPool(encoded)


def _rows(rows: Tensor) -> Rows:
    return rows.cpu().numpy().astype("int64", copy=False)
