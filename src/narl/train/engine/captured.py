"""Steps captured as CUDA graphs: the host starts one graph a step instead of hundreds of kernels."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, final

import torch
from torch import Tensor, fx, nn
from torch.optim import Optimizer

from narl.bilevel import StepReport
from narl.errors import NarlWarning
from narl.train.engine.base import Engine
from narl.train.engine.culprits import Culprits
from narl.train.engine.iteration import Iteration
from narl.train.methods import Method, Move


class Clean(Protocol):
    """Draws clean batches, all of one shape."""

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the next batch."""

    def example(self) -> tuple[Tensor, Tensor]:
        """Some batch of that shape; nothing is drawn for it."""


_LOOK_EVERY = 200  # steps between two looks at whether all was finite


@final
@dataclass(frozen=True, eq=False)
class _Captured:
    graph: torch.cuda.CUDAGraph
    report: StepReport


@final
class CapturedEngine(Engine):
    """Replays a graph for each phase of the method; batches of another shape, and what cannot be captured, run eagerly.

    The first step of a phase is prepared and captured; what fails there is said in one line, and tried with less:
    first without compiled kernels, then without graphs. ``steps`` counts those that were replayed.

    Args:
        method: what a step is.
        model: that it trains.
        optimizer: the model's.
        clean: draws clean batches; None without a clean set.
        rows: samples of a full batch.
        precision: of autocast; None: the model's own.
        compiled: whether kernels are compiled.
    """

    def __init__(
        self,
        method: Method,
        model: nn.Module,
        optimizer: Optimizer,
        clean: Clean | None,
        *,
        rows: int,
        precision: torch.dtype | None,
        compiled: bool,
    ) -> None:
        super().__init__(method, precision)
        self._model, self._optimizer, self._clean, self._rows = model, optimizer, clean, rows
        self._levels = [*([_compile] if compiled else []), None]
        self.steps, self._told = 0, False
        self.reset()

    @property
    def gave_up(self) -> bool:
        """Whether nothing is captured any more, since it could not be."""
        return not self._levels

    @property
    def holds_graphs(self) -> bool:
        """Whether there are graphs, which have memory of their own."""
        return bool(self._graphs)

    def give_up(self, reason: str) -> None:
        """Capture and replay nothing from now on, and say why."""
        self._forget()
        self._levels.clear()
        torch.cuda.empty_cache()
        self._tell("CUDA graphs", reason)

    def _forget(self) -> None:
        self.check()  # the next line forgets whether all was finite so far
        self.reset()

    def reset(self) -> None:
        """Forget the graphs: the tensors that they work on have been replaced."""
        self._iteration: Iteration | None = None
        self._graphs: dict[Hashable, _Captured] = {}
        self._pool: Any = None
        self._batch: tuple[Tensor, Tensor, Tensor] | None = None
        self._clean_batch: tuple[Tensor, Tensor] | None = None

    def step(self, x: Tensor, y: Tensor, ids: Tensor) -> StepReport:
        """Train on one batch; what is reported of the samples holds until the next step."""
        full = isinstance(x, Tensor) and len(x) == self._rows
        move = self.method.move() if self._levels and full else None
        if move is None:
            if self._levels and full and not self.steps and not self._told:
                self._tell("CUDA graphs", self.method.unmoved)
            self.check()  # a step as written would go on with what graphs have left
            return self.eagerly(x, y, ids)
        found = self._graphs.get(move.phase) or self._build(move, x, y, ids)
        if found is None:
            return self.eagerly(x, y, ids)
        assert self._iteration is not None
        clean = None if move.meta is None or self._clean is None else self._clean()
        self._bring(x, y, ids, clean)
        self._iteration.refresh()
        found.graph.replay()
        self.method.moved()
        self.steps += 1
        if self.steps % _LOOK_EVERY == 0:
            self.check()
        return replace(found.report, loss=found.report.loss.clone(), meta_loss=_kept(found.report.meta_loss))

    def _bring(self, x: Tensor, y: Tensor, ids: Tensor, clean: tuple[Tensor, Tensor] | None) -> None:
        """Copy a batch to where the graphs look for it."""
        for fixed, given in zip(self._batch or (), (x, y, ids), strict=True):
            fixed.copy_(given)
        for fixed, given in zip(self._clean_batch or (), clean or (), strict=False):
            fixed.copy_(given)

    def check(self) -> None:
        """Refuse to go on once a step was not finite."""
        if self._iteration is not None:
            self._iteration.check()

    @property
    def culprits(self) -> Culprits | None:
        """Which of the trainings side by side was not finite; None: it is one training, or nothing was captured."""
        return None if self._iteration is None else self._iteration.culprits

    def _build(self, move: Move, x: Tensor, y: Tensor, ids: Tensor) -> _Captured | None:
        while self._levels:
            try:
                found = self._capture(move, x, y, ids)
            except Exception as error:
                self._forget()
                self._levels.pop(0)
                if isinstance(error, torch.OutOfMemoryError):  # graphs have memory of their own; steps as written less
                    self._levels.clear()
                    torch.cuda.empty_cache()
                without = "compiled kernels" if self._levels else "CUDA graphs"
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
                self._tell(without, reason)
            else:
                self._graphs[move.phase] = found
                return found
        return None

    def _tell(self, without: str, reason: str) -> None:
        self._told = True
        name = f"{type(self._model).__name__} with {self.method.name}"
        warnings.warn(f"{name} trains without {without} ({reason})", NarlWarning, stacklevel=3)

    def _capture(self, move: Move, x: Tensor, y: Tensor, ids: Tensor) -> _Captured:
        if self._iteration is None:
            self._iteration = Iteration(self._model, self._optimizer, precision=self.precision, compile=self._levels[0])
            self._batch = (_room(x), torch.empty_like(y), torch.empty_like(ids))
            self._pool = torch.cuda.graph_pool_handle()
        clean = None if move.meta is None or self._clean is None else self._clean.example()
        if clean is not None and self._clean_batch is None:
            self._clean_batch = (_room(clean[0]), torch.empty_like(clean[1]))
        assert self._batch is not None
        self._bring(x, y, ids, clean)
        self._iteration.refresh()
        apart = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        apart.wait_stream(torch.cuda.current_stream())
        with (
            torch.random.fork_rng(devices=[x.device]),  # a resumed run prepares as well, and draws the same afterwards
            torch.cuda.stream(apart),
            torch.no_grad(),
            fastest_convolutions(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # of torch's own parts about each other
            for _ in range(2):  # kernels are chosen in the first run
                self._iteration.prepare(move, *self._batch, self._clean_batch)
        torch.cuda.current_stream().wait_stream(apart)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # graphs have memory of their own
        graph = torch.cuda.CUDAGraph()
        with fastest_convolutions(), torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            report = self._iteration.run(move, *self._batch, self._clean_batch)
        return _Captured(graph, report)


def _kept(value: Tensor | None) -> Tensor | None:
    """Other graphs work in the same memory: what someone may look at later is copied."""
    return None if value is None else value.clone()


def _room(x: Tensor) -> Tensor:
    """A place for such a batch; images channels last, as convolutions like it."""
    return torch.empty_like(x, memory_format=torch.channels_last if x.dim() == 4 else torch.contiguous_format)


@contextlib.contextmanager
def fastest_convolutions() -> Iterator[None]:
    """Inside, cuDNN tries what it has and takes the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


_compiled: dict[Hashable, Callable[..., Any]] = {}


def _compile(graph: fx.GraphModule) -> Callable[..., Any]:
    """A fast function of the graph: trainings of one process that do the same steps share what was compiled."""
    if any(True for _ in graph.buffers()) or any(True for _ in graph.parameters()):
        return torch.compile(graph, dynamic=False, fullgraph=True)  # holds tensors of one training
    key = (graph.code, tuple(_kind(node.meta.get("val")) for node in graph.graph.find_nodes(op="placeholder")))
    if key not in _compiled:
        _compiled[key] = torch.compile(graph, dynamic=False, fullgraph=True)
    return _compiled[key]


def _kind(value: Any) -> tuple[object, ...]:
    """What a function is compiled for: the same of two tensors that it takes without being compiled anew."""
    return (value.dtype, value.device, value.shape, value.stride()) if isinstance(value, Tensor) else (type(value),)
