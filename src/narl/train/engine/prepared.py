"""Steps that are another method's on rows that were prepared for it, captured as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from narl.bilevel import StepReport
from narl.bilevel.passes import autocast
from narl.train.engine.base import Engine
from narl.train.engine.captured import CapturedEngine, Clean
from narl.train.engine.graphed import Done, GraphedEngine
from narl.train.engine.recording import Record
from narl.train.methods.base import PreparingMethod, Rows


@final
class PreparedEngine(Engine):
    """Has the inner method's steps captured as a whole, meta steps included, and prepares their rows before each.

    What is prepared runs as it is written, but for the passes of networks that only guess, which are recordings. So do
    steps whose rows cannot be fixed, smaller batches, and all steps if the capture fails, or if memory does not suffice
    beside what was captured.

    Args:
        method: whose steps are another one's.
        model: that it trains.
        optimizer: the model's.
        clean: draws clean batches; None without a clean set.
        rows: samples of a full batch.
        precision: of autocast; None: the model's own.
        compiled: whether kernels are compiled.
        record: makes recordings; None: CUDA graphs.
    """

    method: PreparingMethod

    def __init__(
        self,
        method: PreparingMethod,
        model: nn.Module,
        optimizer: Optimizer,
        clean: Clean | None,
        *,
        rows: int,
        precision: torch.dtype | None = None,
        compiled: bool = False,
        record: Record | None = None,
    ) -> None:
        super().__init__(method, precision)
        self._written = GraphedEngine(method, model, precision, record)
        self._optimizer, self._clean, self._rows, self._compiled = optimizer, clean, rows, compiled
        self._captured: CapturedEngine | None = None

    @property
    def steps(self) -> int:
        """That were replayed."""
        return 0 if self._captured is None else self._captured.steps

    def step(self, x: Any, y: Tensor, ids: Tensor) -> StepReport:
        """Train on one batch; what is reported of the samples holds until the next step."""
        ready = self._ready(x, y, ids)
        if ready is None:
            self.check()  # a step as written would go on with what graphs have left
            return self._beside(lambda: self._written.eagerly(x, y, ids))
        if self._captured is None:
            self._captured = CapturedEngine(
                self.method.inner,
                self.method.inner_model,
                self._optimizer,
                self._clean,
                rows=len(ready[0]),
                precision=self.precision,
                compiled=self._compiled,
            )
        return self.method.completed(self._captured.step(*ready), y, ids)

    def _ready(self, x: Any, y: Tensor, ids: Tensor) -> Rows | None:
        """Rows in tensors that stay where they are."""
        if len(y) != self._rows or (self._captured is not None and self._captured.gave_up):
            return None
        if self.method.inner.move() is None:
            return None
        return self._beside(lambda: self._prepared(x, y, ids))

    def _beside(self, act: Callable[[], Done]) -> Done:
        """Do something, in memory that the graphs leave."""
        return self._written.replaying(act, self._captured)

    def _prepared(self, x: Any, y: Tensor, ids: Tensor) -> Rows | None:
        with autocast(y.device.type, self.precision):
            return self.method.prepared(x, y, ids, fixed=True)

    def check(self) -> None:
        """Refuse to go on once a step was not finite."""
        if self._captured is not None:
            self._captured.check()

    def reset(self) -> None:
        """Forget graphs and recordings."""
        self._written.reset()
        if self._captured is not None:
            self._captured.reset()
