"""Passes replayed as CUDA graphs: the same training as steps as they are written."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_problem import Peeking, apart, tiny
from graphed_problem import METHODS, ROWS, STEPS, Training, training
from narl.bilevel.calls import call
from narl.errors import NarlWarning, OptionError
from narl.train.engine import Engine, make, type_of
from narl.train.engine.graphed import GraphedEngine, Passes, networks_of
from narl.train.engine.recording import Recorder
from narl.train.methods.base import PreparingMethod

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def exact_float32() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = False, True
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = before


def engine_of(one: Training, precision: str = "float32") -> GraphedEngine:
    if isinstance(one.method, PreparingMethod):  # passes only where its steps cannot be graphs
        return GraphedEngine(one.method, one.model, type_of(precision))
    made = make("auto", one.method, one.model, one.optimizer, None, rows=ROWS, steps=STEPS, precision=precision)
    assert isinstance(made, GraphedEngine)
    return made


def go(one: Training, engine: Engine, steps: range) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", NarlWarning)  # nothing falls back
        one.go(engine, steps)


@pytest.mark.parametrize("kind", METHODS)
def test_twenty_steps(kind: str) -> None:
    own, other = (training(kind, device="cuda") for _ in range(2))
    engine = engine_of(other)
    go(own, Engine(own.method), range(STEPS))
    go(other, engine, range(STEPS))
    assert all(engine.passes.replays(network) > STEPS // 3 for network in networks_of(other.model))
    assert apart(other.losses, own.losses) < 1e-4
    assert apart(other.model.state_dict().values(), own.model.state_dict().values()) < 1e-3
    margins = [[report.margins for report in one.reports] for one in (other, own)]
    assert apart(*margins) < 1e-3


def test_eager_is_as_written() -> None:
    one = training("ELR+", device="cuda")
    made = make("eager", one.method, one.model, one.optimizer, None, rows=ROWS, steps=STEPS)
    assert type(made) is Engine


def test_meta_steps_run_as_written() -> None:
    one = training("A-GCE+", device="cuda", consistency=0.0, ema=0.0, judge="own")
    engine = engine_of(one)
    replayed = []
    for number in range(12):
        before = engine.passes.replays(one.model)
        go(one, engine, range(number, number + 1))
        replayed.append(engine.passes.replays(one.model) - before)
    assert replayed == [0, 0, 0, 1, 0, 1, 1, 1, 0, 1, 1, 1]
    assert [report.meta_loss is not None for report in one.reports] == [number % 4 == 0 for number in range(12)]


def test_a_resumed_run_goes_on_alike() -> None:
    whole, halted, resumed = (training("ELR+", device="cuda") for _ in range(3))
    go(whole, engine_of(whole), range(STEPS))
    go(halted, engine_of(halted), range(9))
    parts: tuple[Any, ...] = (resumed.model, resumed.optimizer, resumed.method)
    for part, state in zip(parts, copy.deepcopy(halted.state), strict=True):
        part.load_state_dict(state)
    engine = engine_of(resumed)
    engine.reset()
    go(resumed, engine, range(9, STEPS))
    assert apart(resumed.losses, whole.losses[9:]) < 1e-4
    assert apart(resumed.model.state_dict().values(), whole.model.state_dict().values()) < 1e-3


def test_steps_do_not_wait_for_the_device() -> None:
    one = training("DivideMix", device="cuda")
    engine = engine_of(one)
    go(one, engine, range(12))
    before = [engine.passes.replays(network) for network in networks_of(one.model)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        go(one, engine, range(12, STEPS))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(engine.passes.replays(each) > ago for each, ago in zip(networks_of(one.model), before, strict=True))


def test_bfloat16_stays_near() -> None:
    own, other = (training("ELR+", device="cuda") for _ in range(2))
    engine = engine_of(other, "bfloat16")
    go(own, Engine(own.method), range(STEPS))
    go(other, engine, range(STEPS))
    assert all(engine.passes.replays(network) for network in networks_of(other.model))
    assert max(abs(float(a - b)) for a, b in zip(other.losses, own.losses, strict=True)) < 0.1


class Calls:
    """A network on the device whose calls are replayed, and a twin of it whose calls are not."""

    def __init__(self, network: nn.Module | None = None) -> None:
        made = tiny() if network is None else network
        self.network: Any = made.cuda().train()
        self.own: Any = copy.deepcopy(made)
        self.told: list[str] = []
        self.passes = Passes([self.network], Recorder(), self.told.append)

    def __call__(self, x: Tensor) -> Tensor:
        with self.passes.in_use():
            return call(self.network, x, len(x))

    def warm(self, x: Tensor) -> None:
        for _ in range(3):
            self(x)
            self.own(x)

    def apart(self) -> float:
        """How far gradients, weights and statistics are from the twin's."""
        lists = [
            [*(p.grad for p in network.parameters()), *network.state_dict().values()]
            for network in (self.network, self.own)
        ]
        return apart(*lists)

    @property
    def replays(self) -> int:
        return self.passes.replays(self.network)


def images(seed: int, rows: int = 8) -> Tensor:
    return torch.randn(rows, 3, 16, 16, generator=torch.Generator().manual_seed(seed)).cuda()


def test_recording_changes_nothing() -> None:
    calls, x = Calls(), images(0)
    state = torch.cuda.get_rng_state()
    for _ in range(3):
        calls(x)
        assert calls.network[1].num_batches_tracked == calls.own[1].num_batches_tracked + 1
        calls.own(x)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert calls.replays == 1
    assert apart(calls.network.state_dict().values(), calls.own.state_dict().values()) < 1e-5
    assert all(p.grad is None for p in calls.network.parameters())
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_gradients_add_up() -> None:
    calls = Calls()
    calls.warm(images(0))
    for number in range(3):
        torch.autograd.backward(calls(images(number)).square().mean())
        torch.autograd.backward(calls.own(images(number)).square().mean())
    assert calls.replays == 4
    assert calls.apart() < 1e-4


def test_two_calls_before_the_backward_pass() -> None:
    calls = Calls()
    calls.warm(images(0))
    with calls.passes.in_use():
        first, second = (call(calls.network, images(seed), 8) for seed in (1, 2))
        torch.autograd.backward(first.square().mean() + second.mean())
    assert calls.replays == 2
    torch.autograd.backward(calls.own(images(1)).square().mean() + calls.own(images(2)).mean())
    assert calls.apart() < 1e-4


def test_passes_in_another_order_and_in_between() -> None:
    """Two networks and passes without a gradient: none overwrites what another one still needs."""
    first, second = Calls(), Calls(nn.Sequential(nn.Flatten(), nn.Linear(768, 64), nn.ReLU(), nn.Linear(64, 4)))
    passes = Passes([first.network, second.network], Recorder(), first.told.append)
    first.passes = second.passes = passes
    for one in (first, second):
        one.warm(images(0))
        with torch.no_grad():
            one.warm(images(0))
    for number in range(3):
        x = images(number)
        with passes.in_use():
            logits = [call(one.network, x, 8) for one in (first, second)]
            with torch.no_grad():
                looked = [call(one.network, images(9), 8) for one in (second, first)]
            torch.autograd.backward(logits[0].square().mean() + (logits[1] ** 3).mean())
        expected = [one.own(x) for one in (first, second)]
        with torch.no_grad():
            seen = [one.own(images(9)) for one in (second, first)]
        torch.autograd.backward(expected[0].square().mean() + (expected[1] ** 3).mean())
        assert apart([*logits, *looked], [*expected, *seen]) < 1e-4
        assert max(first.apart(), second.apart()) < 1e-4
    assert (first.replays, second.replays) == (8, 8)
    assert not first.told


def deep() -> nn.Module:
    layers = [layer for _ in range(4) for layer in (nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())]
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *layers, nn.Flatten(), nn.Linear(4096, 4))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=str)
def test_networks_alike_in_any_order(order: tuple[int, int]) -> None:
    """What the first is done with has the size of what the second needs until its backward pass."""
    both = Calls(deep()), Calls(deep())
    passes = Passes([one.network for one in both], Recorder(), both[0].told.append)
    for one in both:
        one.passes = passes
        one.warm(images(0))
    for number in range(3):
        x = images(number)
        with passes.in_use():
            logits = [call(both[place].network, x, 8) for place in order]
            for each in logits:
                torch.autograd.backward(each.square().mean())
        for one in both:
            torch.autograd.backward(one.own(x).square().mean())
        assert max(one.apart() for one in both) < 1e-4
    assert [one.replays for one in both] == [4, 4]


def test_two_backward_passes_of_one_call_and_one_too_late() -> None:
    calls = Calls()
    calls.warm(images(0))
    weights, logits = list(calls.network.parameters()), calls(images(1))
    first = torch.autograd.grad(logits.square().sum(), weights, retain_graph=True)
    second = torch.autograd.grad(logits.square().sum(), weights, retain_graph=True)
    assert apart(first, second) < 1e-5
    kept = [gradient.clone() for gradient in first]
    torch.autograd.grad(calls(images(2)).sum(), weights)
    assert apart(first, kept) == 0
    with pytest.raises(OptionError, match="overwritten"):
        torch.autograd.backward(logits.sum())


def test_weights_that_are_replaced_or_moved_in_place() -> None:
    calls = Calls()
    calls.warm(images(0))
    with torch.no_grad():
        for network in (calls.network, calls.own):
            network[0].weight.mul_(1.5)
    assert apart([calls(images(1))], [calls.own(images(1))]) < 1e-4
    assert calls.replays == 2
    with torch.no_grad():
        for network in (calls.network, calls.own):
            network[0].weight.data = network[0].weight * 1.5
            network[1]._buffers["running_var"] = network[1].running_var + 1
    for number in range(4):
        assert apart([calls(images(number))], [calls.own(images(number))]) < 1e-4
    assert calls.replays == 4
    assert apart(calls.network.state_dict().values(), calls.own.state_dict().values()) < 1e-4


def test_dropout_draws_anew_in_every_replay() -> None:
    calls = Calls(nn.Sequential(nn.Flatten(), nn.Linear(768, 64), nn.Dropout(0.5), nn.Linear(64, 4)))
    x = images(0)
    for _ in range(3):
        calls(x)
    state = torch.cuda.get_rng_state()
    drawn = [calls(x).detach() for _ in range(3)]
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])
    torch.cuda.set_rng_state(state)
    again = [calls(x).detach() for _ in range(3)]
    assert apart(drawn, again) < 1e-5
    assert calls.replays == 7


class Replacing(nn.Module):
    """Puts another tensor in place of a buffer in its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(768, 4)
        self.count: Tensor
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + 1
        scores: Tensor = self.linear(x.flatten(1)) + self.count
        return scores


@pytest.mark.parametrize("network", [Peeking, Replacing])
def test_a_network_that_cannot_be_recorded_runs_as_written_and_says_so(network: Any) -> None:
    own, other = (training("Mixup", device="cuda", network=network) for _ in range(2))
    own.go(Engine(own.method), range(STEPS))
    engine = engine_of(other)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        other.go(engine, range(STEPS))
    lines = [str(each.message) for each in told if issubclass(each.category, NarlWarning)]
    assert len(lines) <= 1
    assert all(line.startswith(f"{network.__name__} with Mixup trains without CUDA graphs") for line in lines)
    assert lines or network is Replacing  # whose buffer may never be in the same place three times
    assert engine.passes.replays(other.model) == 0
    assert other.away_from(own) < 1e-4
    torch.rand(3, device="cuda")  # the generator is as it was
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_channels_last_in_bfloat16() -> None:
    calls = Calls(tiny().to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    x = images(0).contiguous(memory_format=torch.channels_last)
    for _ in range(4):
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            logits, expected = calls(x), calls.own(x)
        for network, own in ((calls.network, logits), (calls.own, expected)):
            network.zero_grad()
            torch.autograd.backward(F.cross_entropy(own.float(), torch.arange(8, device="cuda") % 4))
        assert logits.dtype == torch.bfloat16
        assert calls.network[0].weight.grad.stride() == calls.network[0].weight.stride()
        assert calls.apart() < 0.05
    assert calls.replays == 2
    assert not calls.told


def test_what_fails_in_the_middle_of_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    import narl.train.engine.recording as recording

    monkeypatch.setattr(recording, "_try", lambda *_, **__: None)
    calls = Calls(Peeking())
    for number in range(4):
        logits = calls(images(number))
        assert apart([logits], [calls.own(images(number))]) < 1e-4
    assert len(calls.told) == 1
    torch.rand(3, device="cuda")
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
