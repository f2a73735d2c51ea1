"""Processes that train together: what each takes of a batch, and what they add up, gather and agree on."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from narl.errors import NarlError, OptionError, ProcessError

T = TypeVar("T")


@final
@dataclass(frozen=True, eq=False)
class Processes:
    """Who trains together: k processes, each with its share of every batch, and the same weights.

    Every method that takes part in an exchange is called by all processes, in the same order. Alone, none of them
    copies or sends anything.

    Args:
        rank: number of this process, from 0.
        count: how many there are.
        group: their group in ``torch.distributed``; None is the default one.
        backend: what carries the tensors, as ``torch.distributed`` calls it.

    Example:
        >>> Processes.alone().count
        1
        >>> [Processes(rank, 3).share(8) for rank in range(3)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None)]
    """

    rank: int = 0
    count: int = 1
    group: Any = None
    backend: str = ""

    @classmethod
    def alone(cls) -> Processes:
        """This process by itself."""
        return cls()

    @classmethod
    def joined(cls, group: Any = None) -> Processes:
        """The processes of a group that ``torch.distributed`` knows.

        Args:
            group: as ``torch.distributed.new_group`` gave it; None for all processes.

        Raises:
            OptionError: there is no group yet.
        """
        if not (dist.is_available() and dist.is_initialized()):
            raise OptionError(
                "torch.distributed has no process group yet: call torch.distributed.init_process_group() first, in a "
                "program that torchrun has started"
            )
        return cls(dist.get_rank(group), dist.get_world_size(group), group, str(dist.get_backend(group)))

    @classmethod
    def of(cls, model: nn.Module) -> Processes:
        """Those that a model is shared by, if it is wrapped in ``DistributedDataParallel``, else this one alone."""
        return cls.joined(model.process_group) if isinstance(model, DistributedDataParallel) else cls.alone()

    def __copy__(self) -> Processes:
        """Itself: a group of processes cannot be copied."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Processes:
        """Itself, so that modules that hold it can be copied."""
        return self

    def share(self, rows: int, least: int = 2) -> slice:
        """The rows of a batch that are this process's.

        Shares follow each other and differ by one row at most. A batch with too few rows is taken whole by all
        processes: the mean over them stays the mean over the batch, nobody is without a row, and BatchNorm never sees a
        single one.

        Args:
            rows: of the batch.
            least: rows that each process must have.
        """
        if rows < least * self.count:
            return slice(0, rows)
        size, more = divmod(rows, self.count)
        start = self.rank * size + min(self.rank, more)
        return slice(start, start + size + (self.rank < more))

    def sum(self, value: Tensor) -> Tensor:
        """The sum over the processes, for losses whose samples depend on each other.

        It can be differentiated as often as wanted: the gradient is the one of the sum of all processes' results.

        Args:
            value: of any shape, the same everywhere.

        Returns:
            Of that shape.
        """
        if self.count == 1:
            return value
        total: Tensor = _Sum.apply(value, self)  # type: ignore[no-untyped-call]
        return total

    def add(self, values: Tensor) -> Tensor:
        """The sum over the processes of a tensor that needs no gradient, which may be overwritten."""
        if self.count == 1:
            return values
        sent = values.to(self._where(values))
        with connected():
            dist.all_reduce(sent, group=self.group)
        return sent.to(values.device)

    def merged(self, values: Tensor) -> Tensor:
        """Numbers that each process knows some of, NaN where it does not, put together, ``(N,)``."""
        if self.count == 1:
            return values
        sent = values.nan_to_num(nan=-torch.inf).to(self._where(values))
        with connected():
            dist.all_reduce(sent, dist.ReduceOp.MAX, group=self.group)
        return torch.where(sent == -torch.inf, torch.nan, sent).to(values)

    def any_of(self, *wishes: bool) -> tuple[bool, ...]:
        """For each wish whether any process has it."""
        if self.count == 1:
            return wishes
        sent = torch.tensor(wishes, dtype=torch.int32, device=self._where(None))
        with connected():
            dist.all_reduce(sent, dist.ReduceOp.MAX, group=self.group)
        return tuple(bool(wish) for wish in sent.tolist())

    def gathered(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """All processes' rows, in the order of the processes.

        Args:
            tensors: ``(n, …)`` each, with one or more rows; n may differ from process to process.

        Returns:
            ``(N, …)`` each, on the devices that they came from.
        """
        if self.count == 1:
            return tensors
        flat = [tensor.detach().reshape(len(tensor), -1).contiguous() for tensor in tensors]
        rows = self._all(torch.cat([part.view(torch.uint8) for part in flat], dim=1))
        widths = [part.shape[1] * part.element_size() for part in flat]
        columns = torch.split(torch.cat(rows), widths, dim=1)
        return tuple(
            column.contiguous().view(tensor.dtype).reshape(-1, *tensor.shape[1:]).to(tensor.device)
            for column, tensor in zip(columns, tensors, strict=True)
        )

    def same(self, tensors: Sequence[Tensor]) -> None:
        """Give all processes the first one's values, in place."""
        if self.count == 1:
            return
        with torch.no_grad(), connected():
            for tensor in tensors:
                sent = tensor.detach().to(self._where(tensor)).contiguous()
                dist.broadcast(sent, self._first, group=self.group)
                tensor.copy_(sent)

    def sent(self, data: bytes) -> bytes:
        """What the first process has, in all of them; the others' own don't count."""
        if self.count == 1:
            return data
        length = torch.tensor([len(data)])
        self.same([length])
        letters = torch.zeros(int(length), dtype=torch.uint8)
        if self.rank == 0:
            letters.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        self.same([letters])
        return letters.numpy().tobytes()

    def told(self, text: str) -> str:
        """What the first process says, to all of them."""
        return self.sent(text.encode()).decode()

    def texts(self, text: str) -> list[str]:
        """What every process says."""
        if self.count == 1:
            return [text]
        letters = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8).unsqueeze(1)
        return [bytes(said.cpu().flatten().tolist()).decode().strip(" ") for said in self._all(letters)]

    def agree(self, error: NarlError | None = None) -> None:
        """Go on if no process has an error; else all raise the same.

        Args:
            error: what went wrong here.
        """
        if self.any_of(error is not None)[0]:
            self.refuse(error)

    def refuse(self, error: NarlError | None) -> NoReturn:
        """Raise the error of the first process that has one, in all of them; its number stands behind it."""
        if self.count == 1 and error is not None:
            raise error
        said = self.texts("" if error is None else json.dumps([type(error).__name__, str(error)]))
        if error is not None:
            raise error
        rank, text = next((rank, text) for rank, text in enumerate(said) if text)
        name, message = json.loads(text)
        raise _kinds(NarlError).get(name, NarlError)(f"{message} (process {rank})")

    def together(self, work: Callable[[], T]) -> T:
        """What the work of each gives; if it fails in one process, it fails in all."""
        if self.count == 1:
            return work()
        result, error = _tried(work)
        self.agree(error)
        assert result is not None
        return result[0]

    def first(self, work: Callable[[], T]) -> T | None:
        """What the first process's work gives, None in the others; if it fails, it fails in all."""
        if self.count == 1:
            return work()
        result, error = _tried(work) if self.rank == 0 else (None, None)
        self.agree(error)
        return None if result is None else result[0]

    @property
    def _first(self) -> int:
        return 0 if self.group is None else dist.get_global_rank(self.group, 0)

    def _where(self, like: Tensor | None) -> torch.device:
        """A device from which the backend takes tensors: the tensor's own where it can."""
        on_gpu = like is not None and like.device.type == "cuda"
        if like is not None and on_gpu and "nccl" in self.backend:
            return like.device
        return torch.device("cuda", torch.cuda.current_device()) if self.backend == "nccl" else torch.device("cpu")

    def _all(self, rows: Tensor) -> list[Tensor]:
        """Every process's bytes ``(n, B)``; n may differ."""
        where = self._where(rows)
        lengths = torch.zeros(self.count, dtype=torch.int64, device=where)
        lengths[self.rank] = len(rows)
        sizes = self.add(lengths).tolist()
        padded = torch.zeros(max(sizes), rows.shape[1], dtype=torch.uint8, device=where)
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in range(self.count)]
        with connected():
            dist.all_gather(parts, padded, group=self.group)
        return [part[:size] for part, size in zip(parts, sizes, strict=True)]


def bare(model: nn.Module) -> nn.Module:
    """The model without ``DistributedDataParallel`` around it, whose own exchanges are not needed."""
    inside: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
    return inside


@contextlib.contextmanager
def connected() -> Iterator[None]:
    """Inside, tensors are exchanged: if that fails, another process has ended."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # the backends have no narrower kind in common
        raise ProcessError(
            "the connection to another process is lost: it has ended, or has not answered for too long; start all of "
            "them again, a run from its last checkpoint with --resume"
        ) from error


def _kinds(kind: type[NarlError]) -> dict[str, type[NarlError]]:
    """A kind of error and all kinds of it, by name."""
    found = {kind.__name__: kind}
    for narrower in kind.__subclasses__():
        found |= _kinds(narrower)
    return found


def _tried(work: Callable[[], T]) -> tuple[tuple[T] | None, NarlError | None]:
    try:
        return (work(),), None
    except ProcessError:
        raise
    except NarlError as error:
        return None, error


class _Sum(torch.autograd.Function):
    """A sum over processes; its derivative is one as well."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, processes: Processes) -> Tensor:
        ctx.processes = processes
        return processes.add(value.detach().clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.processes.sum(gradients[0]), None
