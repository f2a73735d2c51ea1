"""What systems of two networks have in common: the networks, a step that can be refused, what a resumed run needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from narl.adjuster import margin
from narl.bilevel import StepReport
from narl.bilevel.calls import Inputs, call, restore, snapshot
from narl.bilevel.hypergradient import check_training_allowed
from narl.bilevel.memory_format import faster_layout
from narl.bilevel.refusals import Noted, refuse_no_labels, refuse_not_finite
from narl.bilevel.rivals import rivals
from narl.checks import at_least_float32, check_targets
from narl.errors import NarlError, OptionError
from narl.models.committee import Committee, Networks
from narl.train.methods.base import Look, Method, Setting

T = TypeVar("T")


def mean_prediction(predictions: list[Tensor]) -> Tensor:
    """Logits of the mean of several predictions' probabilities, as a committee gives them.

    Args:
        predictions: logits, ``(N, c)`` each.

    Returns:
        ``(N, c)``, at least float32.

    Example:
        >>> mean_prediction([torch.tensor([[0.0, 0.0]]), torch.tensor([[100.0, 0.0]])]).exp()
        tensor([[0.7500, 0.2500]])
    """
    found = torch.stack([at_least_float32(logits).log_softmax(dim=1) for logits in predictions])
    return found.logsumexp(dim=0) - math.log(len(predictions))


class PairMethod(Method):
    """A system of two networks that are trained together.

    Args:
        setting: what there is to work with; its model is a committee of two.

    ``averaged`` says whether it needs averages of the networks' weights. ``epoch`` counts from 0, as the loop says it;
    ``steps`` are all steps so far.
    """

    averaged = False
    unmoved = "its steps train two networks"

    def __init__(self, setting: Setting) -> None:
        model = setting.model
        if not isinstance(model, Committee) or len(model.members) != 2 or (self.averaged and model.averages is None):
            averages = " with averages" if self.averaged else ""
            raise OptionError(
                f"{type(self).__name__} trains two networks, but the model is a {type(model).__name__}: give a "
                f"narl.models.committee.Committee of two{averages}"
            )
        if setting.weights is not None:
            raise OptionError(
                f"{type(self).__name__} takes no weights of samples: choose another method, or no weights"
            )
        self.setting, self.committee = setting, model
        self.steps, self.epoch = 0, 0
        self._noted = Noted(setting.device)

    @property
    def members(self) -> tuple[nn.Module, nn.Module]:
        """The two networks."""
        first, second = self.committee.members
        return first, second

    def begin_epoch(self, epoch: int, look: Look) -> None:
        """Note which epoch begins."""
        self.epoch = epoch

    def logits(self, member: nn.Module, x: Inputs, y: Tensor) -> Tensor:
        """What a network makes of a batch, checked, ``(N, c)``, at least float32."""
        refuse_no_labels(y)
        logits = call(member, faster_layout(member, x), len(y))
        check_targets(y, num_classes=logits.shape[1], num_samples=len(logits))
        return at_least_float32(logits)

    def descend(self, objective: Callable[[], tuple[Tensor, T]]) -> tuple[Tensor, T]:
        """One step of the optimiser down a loss of one network or both; a network without a gradient keeps still.

        On a CPU, a step that is refused leaves networks and optimiser as they were. On a GPU nobody waits for the loss:
        one that is not finite is refused before the state is written.

        Args:
            objective: gives the loss and anything else.

        Returns:
            The loss, without gradient, and the rest.
        """
        check_training_allowed()
        optimizer, on_host = self.setting.optimizer, self.setting.device.type == "cpu"
        buffers = snapshot(self.committee) if on_host else {}
        try:
            with torch.enable_grad():
                loss, rest = objective()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
            loss = loss.detach()
            if on_host:
                refuse_not_finite(loss, optimizer)
            else:
                self._noted.note(loss, optimizer)
        except NarlError:
            restore(self.committee, buffers)
            raise
        optimizer.step()
        self.steps += 1
        return loss, rest

    def report(self, loss: Tensor, logits: Tensor, y: Tensor, **fields: Tensor) -> StepReport:
        """What happened, from the logits by which the samples are judged."""
        logits = logits.detach()
        return StepReport(loss, None, fields, margin(logits, y), rivals(logits, y))

    def state_dict(self) -> dict[str, Any]:
        """Steps, epoch and the source of random numbers."""
        self._noted.check()
        return {"steps": self.steps, "epoch": self.epoch, "generator": self.setting.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken."""
        self.steps, self.epoch = state["steps"], state["epoch"]
        self.setting.generator.set_state(state["generator"])


TWO = Networks(2)
TWO_AVERAGED = Networks(2, averaged=True)
