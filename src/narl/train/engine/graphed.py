"""Steps as they are written, in which the passes of the networks are replayed as CUDA graphs.

A method whose step is more than a loss of a batch (mixtures, guesses, several networks) is done by its own code. Most
of what the host does there is to start the kernels of the networks' passes one by one; a pass that comes again and
again is recorded, and then started by one call. Losses, mixtures, averages and the optimiser's update stay as they are.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, TypeVar, final

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules import module as hooks

from narl.bilevel import StepReport
from narl.bilevel.calls import copy_all, run_by
from narl.errors import NarlWarning, OptionError
from narl.models.committee import Committee
from narl.train.engine.base import Engine
from narl.train.engine.captured import CapturedEngine
from narl.train.engine.recording import Record, Recorder, Recording, places_of
from narl.train.engine.undo import Undo
from narl.train.methods import Method

Done = TypeVar("Done")

_OFTEN, _AMONG = 3, 16  # a pass is recorded when it comes up so often among a network's last ones
_TOO_LITTLE = "there is not enough memory beside them"
_MOST = 8  # recordings of a network: each has memory of its own


@final
class GraphedEngine(Engine):
    """Does a method's steps as they are written; passes of its networks are replayed as CUDA graphs.

    What cannot be recorded is said in one line; from then on all passes run as they are written. So it is where memory
    does not suffice beside the recordings: then what the step has changed is put back, and it is done without them.

    Args:
        method: what a step is.
        model: that it trains; of a committee, each member and each average is a network of its own.
        precision: of autocast; None: the model's own.
        record: makes recordings; None: CUDA graphs.
    """

    def __init__(
        self, method: Method, model: nn.Module, precision: torch.dtype | None = None, record: Record | None = None
    ) -> None:
        super().__init__(method, precision)
        told = functools.partial(_tell, f"{type(model).__name__} with {method.name}")
        self.passes = Passes(networks_of(model), Recorder() if record is None else record, told)
        self._undo = Undo(networks_of(model), method)

    def step(self, x: Any, y: Tensor, ids: Tensor) -> StepReport:
        """Train on one batch."""
        return self.replaying(lambda: self.eagerly(x, y, ids))

    def replaying(self, act: Callable[[], Done], beside: CapturedEngine | None = None) -> Done:
        """Do something in which passes are replayed; where memory does not suffice, once more with fewer graphs.

        Args:
            act: what to do.
            beside: whose graphs have memory, too, and are given up first.
        """
        while True:
            try:
                self._undo.begin()
                with self.passes.in_use():
                    return act()
            except torch.OutOfMemoryError:
                self._undo.back()
                if not (self.passes.recorded or (beside is not None and beside.holds_graphs)):
                    raise
            # Here, where the error is gone, and with it the memory of what it broke off.
            if beside is not None and beside.holds_graphs:
                beside.give_up(_TOO_LITTLE)
            else:
                self.passes.refuse(_TOO_LITTLE)

    def reset(self) -> None:
        """Forget the recordings."""
        self.passes.forget()


def _tell(training: str, reason: str) -> None:
    warnings.warn(f"{training} trains without CUDA graphs ({reason})", NarlWarning, stacklevel=2)


def networks_of(model: nn.Module) -> list[nn.Module]:
    """The networks whose passes a step is made of: a committee's members and averages, or the model itself.

    Example:
        >>> len(networks_of(Committee([nn.Linear(2, 2), nn.Linear(2, 2)], averaged=True)))
        4
    """
    if not isinstance(model, Committee):
        return [model]
    return [*model.members, *(model.averages or ())]


@final
class Passes:
    """Passes of networks, as they are written or repeated by a recording.

    Only plain calls are repeated: one tensor in, no gradient by it, the network's own weights, no hooks, nobody who
    traces or differentiates in another way; inside :func:`narl.bilevel.calls.uncompiled`, as in meta steps, none at
    all. A pass is recorded when it has come up three times among a network's last 16, so that an epoch's last batch or
    a batch of a size of its own never is. What was recorded is replayed as long as the network holds its weights and
    buffers where they were.

    Args:
        networks: whose passes they are.
        record: makes recordings.
        tell: is told, once, why there are none.
    """

    def __init__(self, networks: Iterable[nn.Module], record: Record, tell: Callable[[str], None]) -> None:
        self._networks = {network: _Network(network) for network in networks}
        self._record, self._tell = record, tell
        self._refused = False

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, calls of the networks (:func:`narl.bilevel.calls.call`) go through here: for one step."""
        for network in self._networks.values():
            network.begin()
        with run_by(self):
            yield

    def forget(self) -> None:
        """Drop all recordings; passes are recorded anew as they come."""
        self._networks = {network: _Network(network) for network in self._networks}
        self._record.forget()

    def refuse(self, reason: str) -> None:
        """Record and repeat nothing from now on, and say why."""
        self._refused = True
        self.forget()
        self._tell(reason)

    @property
    def recorded(self) -> bool:
        """Whether there are recordings."""
        return any(network.passes for network in self._networks.values())

    def replays(self, network: nn.Module) -> int:
        """How many passes of a network have been repeated by recordings."""
        return self._networks[network].replays

    def recordings(self, network: nn.Module) -> int:
        """How many there are of a network."""
        return len(self._networks[network].passes)

    def __call__(self, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """What the model gives."""
        found = None
        network = self._networks.get(model)
        if network is not None and not self._refused and len(args) == 1 and not kwargs and network.is_plain(args[0]):
            found = self._found(network, args[0])
        if network is None or found is None:
            return model(*args, **kwargs)
        network.replays += 1
        return found(args[0], network.trained() if found.differentiated else ())

    def _found(self, network: _Network, x: Tensor) -> _Pass | None:
        """The recorded pass for such a call, one that is recorded now, or None."""
        differentiated = torch.is_grad_enabled() and bool(network.trained())
        kind = network.kind(x, differentiated=differentiated)
        held = network.held()
        if network.comes(kind, held):
            reason = None
            try:
                network.add(kind, held, self._record(network.network, x, differentiated=differentiated))
            except Exception as error:
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
            if reason is not None:  # here, where the error is gone, and with it the memory of what it broke off
                self.refuse(reason)
                return None
        found = network.passes.get((kind, held))
        # What an earlier call in this step has left is still needed for its backward pass.
        return None if found is None or found.is_needed else found


@final
class _Network:
    """What is known of a network's passes."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.passes: dict[tuple[Hashable, Hashable], _Pass] = {}
        self.replays, self._recorded = 0, 0
        self._recent: deque[Hashable] = deque(maxlen=_AMONG)
        self._modules = list(network.modules())
        self._places = places_of(network)
        self._of_parameters = [place for place in self._places if isinstance(place[0][place[1]], nn.Parameter)]

    def begin(self) -> None:
        """A step begins: nobody needs what earlier ones have left."""
        for one in self.passes.values():
            one.is_needed = False

    def is_plain(self, x: object) -> bool:
        """Whether a call is one like any other, so that repeating a recorded one is the same."""
        return (
            type(x) is Tensor
            and not (x.requires_grad and torch.is_grad_enabled())
            and not torch.is_inference_mode_enabled()
            and forward_ad._current_level < 0
            and not torch._C._len_torch_function_stack()
            and not torch._C._len_torch_dispatch_stack()
            and torch._C._functorch.peek_interpreter_stack() is None
            and torch._C._autograd._top_saved_tensors_default_hooks(True) is None
            and not torch.compiler.is_compiling()
            and all(type(holder.get(name)) is nn.Parameter for holder, name in self._of_parameters)
            and not self._has_hooks()
        )

    def _has_hooks(self) -> bool:
        return bool(hooks._has_any_global_hook()) or any(  # type: ignore[no-untyped-call]
            module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
            for module in self._modules
        )

    def trained(self) -> tuple[Tensor, ...]:
        """The parameters that have gradients, each once, in the order of ``network.parameters()``."""
        current = [holder[name] for holder, name in self._of_parameters]
        return tuple({id(weights): weights for weights in current if weights.requires_grad}.values())

    def kind(self, x: Tensor, *, differentiated: bool) -> Hashable:
        """What a pass depends on, beside the values of tensors."""
        device = x.device.type
        cast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        modes = tuple(module.training for module in self._modules)
        return x.shape, x.stride(), x.dtype, x.device, cast, differentiated, modes

    def held(self) -> Hashable:
        """Where the weights and buffers are, and which have gradients."""
        current = [holder.get(name) for holder, name in self._places]
        return tuple(None if held is None else (held.data_ptr(), held.requires_grad) for held in current)

    def comes(self, kind: Hashable, held: Hashable) -> bool:
        """Take note of a call, and say whether it has now come up often enough to be recorded."""
        self._recent.append((kind, held))
        if (kind, held) in self.passes or self._recorded >= _MOST:
            return False
        return self._recent.count((kind, held)) >= _OFTEN

    def add(self, kind: Hashable, held: Hashable, recording: Recording) -> None:
        """Take over a recording, in place of one whose weights or buffers have been replaced."""
        self.passes = {key: one for key, one in self.passes.items() if key[0] != kind}
        self.passes[kind, held] = _Pass(recording)
        self._recorded += 1


@final
class _Pass:
    """A recorded pass at work.

    ``is_needed`` says that what the last repetition has left is still to be differentiated.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._number = 0
        self.is_needed = False

    @property
    def differentiated(self) -> bool:
        """Whether it has a backward pass."""
        return self._recording.backward is not None

    def __call__(self, x: Tensor, trained: tuple[Tensor, ...]) -> Tensor:
        """The logits, in memory of their own."""
        if not self.differentiated:
            with torch.no_grad():
                return self.forward(x)[0]
        logits: Tensor = _Repeated.apply(self, x, *trained)  # type: ignore[no-untyped-call]
        return logits

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        """The logits, and which repetition it was."""
        self._recording.x.copy_(x)
        self._recording.forward()
        self._number += 1
        self.is_needed = self.differentiated
        return self._recording.output.clone(), self._number

    def gradients(self, slope: Tensor, number: int) -> list[Tensor | None]:
        """Of the parameters that are trained, in memory of their own, on what that repetition has left."""
        recording = self._recording
        if number != self._number:
            raise OptionError(
                "a backward pass is asked for whose values a later pass of the network has overwritten: go backwards "
                "before the next step, or train with --engine eager"
            )
        assert recording.slope is not None
        assert recording.backward is not None
        recording.slope.copy_(slope)
        recording.backward()
        self.is_needed = False
        # Somebody may keep them, add to them or look at them after the next pass.
        copies = [None if gradient is None else torch.empty_like(gradient) for gradient in recording.gradients]
        copy_all([c for c in copies if c is not None], [g for g in recording.gradients if g is not None])
        return copies


class _Repeated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, one: _Pass, x: Tensor, *trained: Tensor) -> Tensor:
        ctx.save_for_backward(*trained)  # torch notices weights that are changed before the backward pass
        logits, ctx.number = one.forward(x)
        ctx.one = one
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # where it does
        return (None, None, *ctx.one.gradients(slope, ctx.number))
