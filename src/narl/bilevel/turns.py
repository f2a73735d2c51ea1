"""A process's own work between two exchanges, and the exchange of what came out of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from narl.bilevel.processes import Processes
from narl.checks import at_least_float32
from narl.errors import NarlError, ProcessError

T = TypeVar("T")

_BUCKET = 1 << 24  # numbers sent at once: as much memory as that is needed beside the gradients


@final
class Turn:
    """One process's work up to the next exchange.

    With several processes an error of narl's inside the block is kept until the exchange, where all of them raise it:
    nobody waits for one that has gone. Alone, it is raised at once. After the block comes the exchange, nothing else.

    Args:
        processes: who takes part.

    Example:
        >>> with Turn(Processes.alone()) as turn:
        ...     turn.give([torch.ones(2), None], weight=3)
        >>> turn.mean([torch.zeros(2), torch.zeros(1)])
        [tensor([1., 1.]), None]
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._given: Sequence[Tensor | None] = ()
        self._weight = 1.0
        self._error: NarlError | None = None
        self.part = 1.0

    def __enter__(self) -> Turn:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Keep an error for the exchange."""
        if self.alone or not isinstance(error, NarlError) or isinstance(error, ProcessError):
            return False
        self._error = error
        return True

    @property
    def alone(self) -> bool:
        """Whether there is nobody to exchange anything with."""
        return self._processes.count == 1

    def give(self, tensors: Sequence[Tensor | None], weight: float = 1.0) -> None:
        """Say what came out.

        Args:
            tensors: without gradient; None for one that there is not.
            weight: in the mean: the number of samples that they are a mean of.
        """
        self._given, self._weight = tensors, weight

    def mean(self, like: Sequence[Tensor]) -> list[Tensor | None]:
        """The weighted mean over the processes.

        Args:
            like: one or more tensors with the shapes, types and devices of what is given.

        Returns:
            One each; None where no process has one. ``part`` is this process's share of all weights from now on.
        """
        return list(self._given) if self.alone else self._exchange(like, weighted=True)

    def sum(self, like: Sequence[Tensor]) -> list[Tensor | None]:
        """The sum over the processes, as :meth:`mean`."""
        return list(self._given) if self.alone else self._exchange(like, weighted=False)

    def agree(self) -> None:
        """Exchange no tensors, only whether all went well."""
        self._processes.agree(self._error)

    def _exchange(self, like: Sequence[Tensor], *, weighted: bool) -> list[Tensor | None]:
        if not like:
            self.agree()
            return []
        given = list(self._given) if self._error is None else [None] * len(like)
        head = [float(self._error is not None), self._weight, *(float(tensor is not None) for tensor in given)]
        kind = functools.reduce(torch.promote_types, (tensor.dtype for tensor in like), torch.float32)
        scale = self._weight if weighted else 1.0
        results: list[Tensor] = []
        present: list[float] = []
        for indices in _buckets(like):
            first = [torch.tensor(head, dtype=kind, device=like[0].device)] if not results else []
            pieces = [_flat(given[i], like[i], kind) for i in indices]
            bucket = torch.cat([*first, *(piece.to(like[0].device) for piece in pieces)])
            start = len(head) if first else 0
            bucket[start:].mul_(scale)
            bucket = self._processes.add(bucket)
            if first:
                failed, total, *present = bucket[:start].tolist()
                if failed:
                    self._processes.refuse(self._error)
                self.part = self._weight / total
            if weighted:
                bucket[start:].div_(total)
            sizes = [like[i].numel() for i in indices]
            parts = torch.split(bucket[start:], sizes)
            results += [part.view(like[i].shape).to(like[i]) for i, part in zip(indices, parts, strict=True)]
        return [result if count else None for result, count in zip(results, present, strict=True)]


def give_gradients(turn: Turn, loss: Tensor, optimizer: Optimizer, weight: int) -> None:
    """After a backward pass: give the mean loss of so many samples, and the gradients of the optimiser's parameters."""
    turn.give([loss] if turn.alone else [loss, *(parameter.grad for parameter in _moving(optimizer))], weight)


def take_gradients(turn: Turn, optimizer: Optimizer) -> Tensor:
    """After :func:`give_gradients`: the parameters hold the gradient over all processes; returns their mean loss."""
    if turn.alone:
        (loss,) = turn.mean([])
    else:
        parameters = _moving(optimizer)
        loss, *gradients = turn.mean([at_least_float32(parameters[0].new_zeros(())), *parameters])
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
    assert loss is not None
    return loss


def couples(objective: object) -> bool:
    """Whether a loss sends sums to other processes itself: it then has ``processes``, as its attribute."""
    processes = getattr(objective, "processes", None)
    return isinstance(processes, Processes) and processes.count > 1


def met(work: Callable[[], T], processes: Processes, *, wait: bool) -> T:
    """The work's result; if asked to wait, when all processes have got that far, or not at all."""
    if not wait:
        return work()
    done: list[Any] = []
    with Turn(processes) as turn:
        done.append(work())
    turn.agree()
    result: T = done[0]
    return result


def _moving(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def _flat(tensor: Tensor | None, like: Tensor, kind: torch.dtype) -> Tensor:
    if tensor is None:
        return torch.zeros(like.numel(), dtype=kind, device=like.device)
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    return dense.detach().reshape(-1).to(kind)


def _buckets(like: Sequence[Tensor]) -> list[list[int]]:
    """Which tensors are sent together."""
    found: list[list[int]] = [[]]
    size = 0
    for index, tensor in enumerate(like):
        if found[-1] and size + tensor.numel() > _BUCKET:
            found.append([])
            size = 0
        found[-1].append(index)
        size += tensor.numel()
    return found
