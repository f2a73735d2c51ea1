"""A network's pass as CUDA graphs: one of its forward pass and, where it is trained, one of its backward pass."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from narl.bilevel.calls import is_compiled, substituted
from narl.bilevel.passes import laid_out
from narl.errors import OptionError
from narl.train.engine.captured import fastest_convolutions
from narl.train.engine.iteration import drawn_on_host


@final
@dataclass(frozen=True, eq=False)
class Recording:
    """A pass that can be repeated, always in the same memory.

    Args:
        x: where it looks for its inputs, ``(N, …)``.
        output: where it leaves the logits, ``(N, c)``, without gradient.
        forward: repeats the forward pass.
        slope: where the backward pass looks for the gradient by the logits; None: there is no backward pass.
        gradients: where it leaves those by the parameters that are trained, in their order, each in memory as its
            parameter is; None for one that the logits do not depend on.
        backward: repeats the backward pass, on what the last forward pass has left.
        kept: what must live as long.
    """

    x: Tensor
    output: Tensor
    forward: Callable[[], object]
    slope: Tensor | None = None
    gradients: tuple[Tensor | None, ...] = ()
    backward: Callable[[], object] | None = None
    kept: tuple[object, ...] = ()


class Record(Protocol):
    """Makes recordings."""

    def __call__(self, network: nn.Module, x: Tensor, *, differentiated: bool) -> Recording:
        """A network's pass over such inputs, in the mode that the network is in; nothing of it is changed.

        Args:
            network: any, from a tensor to logits ``(N, c)``.
            x: inputs, of which the pass has some to try; without gradient.
            differentiated: whether there is a backward pass.

        Raises:
            Exception: it cannot be recorded, and why.
        """

    def forget(self) -> None:
        """All recordings so far are of no use any more."""


@final
class Recorder:
    """Records passes as CUDA graphs, each with a part of the device's memory to itself.

    What graphs that share memory are done with after a pass, the next one to be recorded would take, also for what its
    backward pass needs; repeated in another order than they were recorded in, they would overwrite it.
    """

    def forget(self) -> None:
        """Give back the memory of recordings that are gone."""
        torch.cuda.empty_cache()

    def __call__(self, network: nn.Module, x: Tensor, *, differentiated: bool) -> Recording:
        """A network's pass over such inputs, see :class:`Record`."""
        if is_compiled(network):
            raise OptionError("it went through torch.compile")
        if any(buffer.requires_grad for buffer in network.buffers()):
            raise OptionError("its buffers have gradients")
        room = torch.empty_like(x).copy_(x.detach())
        with (
            torch.cuda.device(x.device),
            fastest_convolutions(),
            _casting_anew(x.device.type),
            torch.set_grad_enabled(differentiated),
        ):
            _try(network, room, differentiated=differentiated)
            pool = torch.cuda.graph_pool_handle()
            with _mended(x.device, pool):
                return self._record(network, room, pool, differentiated=differentiated)

    def _record(self, network: nn.Module, room: Tensor, pool: Any, *, differentiated: bool) -> Recording:
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with _aliased(network, differentiated=differentiated, copied=False) as trained:
            # A graph reads where the tensors were: nothing else may ever be put there.
            kept = (*(weights.detach() for weights in network.parameters()), *network.buffers())
            with _capturing(forward, pool):
                output = _output(network, room)
            if not differentiated:
                return Recording(room, output, forward.replay, kept=kept)
            slope = torch.zeros_like(output)
            with _capturing(backward, pool):
                gradients = _gradients(output, trained, slope)
        # With the output's graph stays what the forward pass has saved.
        return Recording(room, output.detach(), forward.replay, slope, gradients, backward.replay, (*kept, output))


@contextlib.contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    collects = gc.isenabled()
    gc.disable()  # a graph of a training that is over, thrown away in the middle, would spoil this one
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            yield
    finally:
        if collects:
            gc.enable()


def places_of(network: nn.Module) -> list[tuple[dict[str, Any], str]]:
    """Where a network holds its parameters and buffers: dictionaries, and the names in them.

    Example:
        >>> [name for _, name in places_of(nn.BatchNorm1d(2))]
        ['weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked']
    """
    return [
        (holder, name)
        for module in network.modules()
        for holder in (module._parameters, module._buffers)
        for name, tensor in holder.items()
        if tensor is not None
    ]


def _try(network: nn.Module, room: Tensor, *, differentiated: bool) -> None:
    """Run the pass as it is written, so that its kernels are chosen; what no graph can hold is found here already.

    The network works on copies of its buffers, and afterwards random numbers go on as if nothing had been drawn.
    """
    apart = torch.cuda.Stream(room.device)  # type: ignore[no-untyped-call]
    apart.wait_stream(torch.cuda.current_stream())
    with torch.random.fork_rng(devices=[room.device]), torch.cuda.stream(apart), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about its own modes
        before = drawn_on_host(room.device)
        for watched in (contextlib.nullcontext(), _waiting_refused()):  # kernels are chosen in the first run
            with watched, _aliased(network, differentiated=differentiated, copied=True) as trained:
                output = _output(network, room)
                if differentiated:
                    _gradients(output, trained, torch.zeros_like(output))
        if drawn_on_host(room.device) != before:
            raise OptionError("it draws random numbers on the host, which a graph would fix")
    torch.cuda.current_stream().wait_stream(apart)
    torch.cuda.synchronize()


@contextlib.contextmanager
def _aliased(network: nn.Module, *, differentiated: bool, copied: bool) -> Iterator[list[Tensor]]:
    """Inside, the network holds its weights by other names, whose gradients nobody else asks for.

    Weights of its own would remember on which stream they have been used first.

    Args:
        network: any.
        differentiated: whether they have gradients.
        copied: whether it works on copies of its buffers.

    Yields:
        Those that are trained.
    """
    aliases = {
        name: weights.detach().requires_grad_(differentiated and weights.requires_grad)
        for name, weights in network.named_parameters()
    }
    with substituted(network, aliases, None if copied else {}):
        yield [alias for alias in aliases.values() if alias.requires_grad]


def _output(network: nn.Module, x: Tensor) -> Tensor:
    places = places_of(network)
    before = [holder[name] for holder, name in places]
    output = network(x)
    if any(holder.get(name) is not tensor for (holder, name), tensor in zip(places, before, strict=True)):
        raise OptionError("it replaces its buffers, and a graph goes on with those it has seen")
    if not isinstance(output, Tensor) or (torch.is_grad_enabled() and not output.requires_grad):
        raise OptionError("it gives no tensor, or one without a gradient")
    return output


def _gradients(output: Tensor, trained: list[Tensor], slope: Tensor) -> tuple[Tensor | None, ...]:
    found = torch.autograd.grad(output, trained, slope, retain_graph=True, allow_unused=True)
    return tuple(
        None if gradient is None else laid_out(gradient, weights.stride())
        for gradient, weights in zip(found, trained, strict=True)
    )


@contextlib.contextmanager
def _mended(device: torch.device, pool: Any) -> Iterator[None]:
    """Where a capture fails, torch leaves its stream, its memory and its random numbers in use: put that right."""
    stream = torch.cuda.current_stream()
    try:
        yield
    except BaseException:
        torch.cuda.set_stream(stream)
        with contextlib.suppress(RuntimeError):  # it did not get so far
            torch._C._cuda_endAllocateToPool(device.index, pool)
        generator = torch.cuda.default_generators[device.index]
        generator.graphsafe_set_state(generator.clone_state())  # a copy, that does not take itself for captured
        raise


@contextlib.contextmanager
def _waiting_refused() -> Iterator[None]:
    """Inside, what makes the host wait for the device is an error."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _casting_anew(device: str) -> torch.autocast:
    """Inside, autocast is as it is, but remembers nothing: weights that have moved are cast again."""
    return torch.autocast(
        device,
        dtype=torch.get_autocast_dtype(device),
        enabled=torch.is_autocast_enabled(device),
        cache_enabled=False,
    )
