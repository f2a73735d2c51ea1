"""When the passes of networks are recorded and replayed; here they are computed where a GPU would replay graphs."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from engine_problem import apart, tiny
from graphed_problem import METHODS, STEPS, OnCpu, training
from methods_problem import assert_same
from narl.bilevel.calls import call, run, uncompiled
from narl.bilevel.tangents import load_forward_mode
from narl.errors import NarlWarning, OptionError
from narl.train.engine import Engine, make
from narl.train.engine.graphed import _MOST, GraphedEngine, Passes, networks_of
from narl.train.engine.prepared import PreparedEngine
from narl.train.methods.base import PreparingMethod
from narl.train.settings import ENGINES


class Calls:
    """A network whose calls are replayed once they have come up three times."""

    def __init__(self, network: nn.Module | None = None) -> None:
        self.network: Any = fresh() if network is None else network
        self.record, self.told = OnCpu(), list[str]()
        self.passes = Passes([self.network], self.record, self.told.append)

    def warm(self, x: Tensor, times: int = 3) -> None:
        for _ in range(times):
            self(x)

    def __call__(self, x: Tensor) -> Tensor:
        """A call in a step of its own."""
        with self.passes.in_use():
            return call(self.network, x, len(x))

    @property
    def replays(self) -> int:
        return self.passes.replays(self.network)


def fresh() -> Any:
    return tiny().train()


def images(rows: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(rows, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", METHODS)
def test_steps_are_those_of_the_method(kind: str) -> None:
    own, other = training(kind), training(kind)
    engine = GraphedEngine(other.method, other.model, record=OnCpu())
    own.go(Engine(own.method), range(STEPS))
    other.go(engine, range(STEPS))
    assert other.away_from(own) == 0
    assert all(engine.passes.replays(network) > STEPS // 3 for network in networks_of(other.model))


def test_meta_steps_run_as_written() -> None:
    one = training("A-GCE+", consistency=0.0, ema=0.0, judge="own")
    engine = GraphedEngine(one.method, one.model, record=OnCpu())
    replayed = []
    for number in range(12):
        before = engine.passes.replays(one.model)
        one.go(engine, range(number, number + 1))
        replayed.append(engine.passes.replays(one.model) - before)
    assert replayed == [0, 0, 0, 1, 0, 1, 1, 1, 0, 1, 1, 1]  # every fourth is a meta step


def test_a_resumed_run_goes_on_alike() -> None:
    whole, halted, resumed = (training("A-GCE+") for _ in range(3))
    whole.go(GraphedEngine(whole.method, whole.model, record=OnCpu()), range(STEPS))
    halted.go(GraphedEngine(halted.method, halted.model, record=OnCpu()), range(9))
    parts: tuple[Any, ...] = (resumed.model, resumed.optimizer, resumed.method)
    for part, state in zip(parts, copy.deepcopy(halted.state), strict=True):
        part.load_state_dict(state)
    engine = GraphedEngine(resumed.method, resumed.model, record=OnCpu())
    engine.reset()
    resumed.go(engine, range(9, STEPS))
    assert apart(resumed.model.state_dict().values(), whole.model.state_dict().values()) == 0
    assert apart(resumed.losses, whole.losses[9:]) == 0


def test_a_pass_is_recorded_when_it_has_come_up_three_times() -> None:
    calls = Calls()
    for expected in (0, 0, 1, 2, 3):
        calls(images())
        assert calls.replays == expected
    assert calls.record.shapes == [(6, 3, 16, 16)]


def test_the_last_batch_of_an_epoch_is_not_recorded() -> None:
    calls = Calls()
    for _ in range(5):
        calls.warm(images(), 16)
        calls(images(4))
    assert calls.record.shapes == [(6, 3, 16, 16)]


def test_sizes_that_change_all_the_time_are_recorded_a_few_times_only() -> None:
    calls = Calls()
    for rows in range(2, 20):
        calls.warm(images(rows), 5)
    assert len(calls.record.shapes) == _MOST


def test_what_a_pass_depends_on() -> None:
    calls = Calls()
    calls.warm(images())
    with torch.no_grad():
        calls.warm(images())
    calls.network.eval()
    calls.warm(images())
    calls.network.train()
    calls.network[1].eval()
    calls.warm(images())
    calls.network.train()
    calls.warm(images().contiguous(memory_format=torch.channels_last))
    with torch.autocast("cpu", torch.bfloat16):
        calls.warm(images())
        assert calls(images()).dtype == torch.bfloat16
    next(calls.network.parameters()).requires_grad_(False)
    calls.warm(images())
    assert len(calls.record.shapes) == 7
    assert calls.passes.recordings(calls.network) == 6  # one in place of another
    assert not calls.told


def test_numbers_gradients_and_statistics_are_the_networks_own() -> None:
    calls, own = Calls(), fresh()
    for number in range(6):
        x = images(seed=number)
        for network, logits in ((calls.network, calls(x)), (own, own(x))):
            network.zero_grad()
            torch.autograd.backward(F.cross_entropy(logits, torch.arange(6) % 4))
        gradients = ([p.grad for p in network.parameters()] for network in (calls.network, own))
        assert apart(*gradients) == 0
        assert apart(calls.network.state_dict().values(), own.state_dict().values()) == 0
        with torch.no_grad():
            for network in (calls.network, own):
                for weights in network.parameters():
                    weights.sub_(weights.grad, alpha=0.1)
    assert calls.replays == 4


def test_what_was_handed_out_stays() -> None:
    calls = Calls()
    calls.warm(images())
    logits = calls(images(seed=1))
    (first, *_) = torch.autograd.grad(logits.sum(), list(calls.network.parameters()))
    kept = logits.detach().clone(), first.clone()
    torch.autograd.grad(calls(images(seed=2)).square().sum(), list(calls.network.parameters()))
    assert torch.equal(logits, kept[0])
    assert torch.equal(first, kept[1])


def test_gradients_add_up() -> None:
    calls, own = Calls(), fresh()
    calls.warm(images())
    own.load_state_dict(calls.network.state_dict())
    for number in range(3):
        x = images(seed=number)
        torch.autograd.backward(calls(x).square().mean())
        torch.autograd.backward(own(x).square().mean())
    assert calls.replays == 4
    assert apart(*([p.grad for p in network.parameters()] for network in (calls.network, own))) < 1e-6


def test_a_second_call_before_the_backward_pass_runs_as_written() -> None:
    calls, own = Calls(), fresh()
    calls.warm(images())
    own.load_state_dict(calls.network.state_dict())
    with calls.passes.in_use():
        first, second = (run(calls.network, images(seed=seed)) for seed in (1, 2))
        assert calls.replays == 2
        torch.autograd.backward(first.square().mean() + second.mean())
        run(calls.network, images(seed=3))
        assert calls.replays == 3
    torch.autograd.backward(own(images(seed=1)).square().mean() + own(images(seed=2)).mean())
    assert apart(*([p.grad for p in network.parameters()] for network in (calls.network, own))) < 1e-6


def test_two_backward_passes_of_one_call() -> None:
    calls = Calls()
    calls.warm(images())
    weights, logits = list(calls.network.parameters()), calls(images())
    first = torch.autograd.grad(logits.square().sum(), weights, retain_graph=True)
    second = torch.autograd.grad(logits.square().sum(), weights)
    assert apart(first, second) == 0


def test_a_backward_pass_whose_values_are_gone_is_refused() -> None:
    calls = Calls()
    calls.warm(images())
    logits = calls(images(seed=1))
    calls(images(seed=2))
    with pytest.raises(OptionError, match="a later pass of the network has overwritten"):
        torch.autograd.backward(logits.sum())


def test_weights_that_change_before_the_backward_pass_are_refused() -> None:
    calls = Calls()
    calls.warm(images())
    logits = calls(images())
    with torch.no_grad():
        calls.network[0].weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(logits.sum())


def test_no_second_derivative() -> None:
    calls = Calls()
    calls.warm(images())
    weights = list(calls.network.parameters())
    gradients = torch.autograd.grad(calls(images()).square().sum(), weights, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        torch.autograd.backward(gradients[0].sum())


def _other_weights(calls: Calls, x: Tensor) -> None:
    other = {f"network.{name}": weights + 1 for name, weights in calls.network.named_parameters()}
    functional_call(Called(calls), other, (x,))


def _meta(calls: Calls, x: Tensor) -> None:
    with calls.passes.in_use(), uncompiled(calls.network):
        call(calls.network, x, len(x))


def _dual(calls: Calls, x: Tensor) -> None:
    load_forward_mode()
    with forward_ad.dual_level(), torch.no_grad():
        calls(x)


def _hook(calls: Calls, x: Tensor) -> None:
    handle = calls.network[1].register_forward_hook(lambda *_: None)
    calls(x)
    handle.remove()


def _gradient_by_inputs(calls: Calls, x: Tensor) -> None:
    torch.autograd.backward(calls(x.clone().requires_grad_()).sum())


def _inference(calls: Calls, x: Tensor) -> None:
    calls.network.eval()
    with torch.inference_mode():
        calls(x)
    calls.network.train()


def _packed(calls: Calls, x: Tensor) -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        calls(x)


def _outside(calls: Calls, x: Tensor) -> None:
    calls.network(x)


def _copied(calls: Calls, x: Tensor) -> None:
    with calls.passes.in_use():
        call(copy.deepcopy(calls.network), x, len(x))


class Called(nn.Module):
    """Calls the network inside, with whatever weights it has at that time."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self.network, self.calls = calls.network, calls

    def forward(self, x: Tensor) -> Tensor:
        return self.calls(x)


@pytest.mark.parametrize(
    "special",
    [_other_weights, _meta, _dual, _hook, _gradient_by_inputs, _inference, _packed, _outside, _copied],
    ids=lambda function: function.__name__[1:],
)
def test_calls_that_are_not_plain_run_as_written(special: Callable[[Calls, Tensor], None]) -> None:
    calls, x = Calls(), images()
    calls.warm(x)
    with torch.no_grad():
        calls.warm(x)
    before = calls.replays, len(calls.record.shapes)
    for _ in range(4):
        special(calls, x)
    assert (calls.replays, len(calls.record.shapes)) == before
    calls(x)
    assert calls.replays == before[0] + 1


def test_inputs_that_are_no_single_tensor_run_as_written() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 3)

        def forward(self, x: Tensor, shift: Tensor) -> Tensor:
            logits: Tensor = self.linear(x) + shift
            return logits

    calls = Calls(Two())
    for _ in range(4):
        with calls.passes.in_use():
            call(calls.network, (torch.ones(2, 2), torch.ones(())), 2)
            call(calls.network, {"x": torch.ones(2, 2), "shift": torch.ones(())}, 2)
    assert calls.replays == 0


@pytest.mark.parametrize("replaced", ["weights", "buffer", "parameter"])
def test_tensors_that_are_replaced_are_noticed(replaced: str) -> None:
    calls = Calls()
    calls.warm(images(), 4)
    convolution, normalisation = calls.network[0], calls.network[1]
    with torch.no_grad():
        if replaced == "weights":
            convolution.weight.data = convolution.weight * 2
        elif replaced == "buffer":
            normalisation._buffers["running_mean"] = normalisation.running_mean + 1
        else:
            convolution.weight = nn.Parameter(convolution.weight * 2)
    own = copy.deepcopy(calls.network)
    for number in range(4):
        x = images(seed=number)
        assert torch.equal(calls(x), own(x))
        assert apart(calls.network.state_dict().values(), own.state_dict().values()) == 0
    assert calls.replays == 4  # two before, two now
    assert len(calls.record.shapes) == 2
    assert calls.passes.recordings(calls.network) == 1


def test_a_state_that_is_loaded_needs_no_new_recording() -> None:
    calls, own = Calls(), fresh()
    calls.warm(images())
    with torch.no_grad():
        own[0].weight.mul_(2)
    calls.network.load_state_dict(own.state_dict())
    assert torch.equal(calls(images()), own(images()))
    assert len(calls.record.shapes) == 1


def test_shared_weights_have_one_gradient() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = nn.Linear(4, 4)
            self.second.weight = self.first.weight
            self.unused = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.second(self.first(x).relu())
            return logits

    torch.manual_seed(0)
    calls, x = Calls(Tied()), torch.randn(3, 4)
    own = copy.deepcopy(calls.network)
    calls.warm(x)
    torch.autograd.backward(calls(x).square().sum())
    torch.autograd.backward(own(x).square().sum())
    for ours, theirs in zip(calls.network.parameters(), own.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        assert ours.grad is None or torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize("error", [RuntimeError("no such kernel"), torch.OutOfMemoryError("too little memory")])
def test_what_cannot_be_recorded_is_told_once_and_runs_as_written(error: Exception) -> None:
    own, other = training("DivideMix"), training("DivideMix")
    record = OnCpu()
    engine = GraphedEngine(other.method, other.model, record=record)
    own.go(Engine(own.method), range(STEPS))
    other.go(engine, range(5))
    assert record.shapes
    record.error = error
    with pytest.warns(NarlWarning) as told:
        other.go(engine, range(5, STEPS - 2))
    assert [str(each.message) for each in told] == [f"Committee with DivideMix trains without CUDA graphs ({error})"]
    engine.reset()
    other.go(engine, range(STEPS - 2, STEPS))
    assert not any(engine.passes.recordings(network) for network in networks_of(other.model))
    assert other.away_from(own) == 0


def test_a_step_that_fails_leaves_calls_as_they_are() -> None:
    calls = Calls()
    with pytest.raises(ZeroDivisionError), calls.passes.in_use():
        raise ZeroDivisionError
    for _ in range(4):
        call(calls.network, images(), 6)
    assert calls.replays == 0


@pytest.mark.parametrize("recorded", [True, False])
def test_where_memory_does_not_suffice_beside_recordings_the_step_is_done_without(recorded: bool) -> None:
    own, other = training("Mixup"), training("Mixup")
    engine = GraphedEngine(other.method, other.model, record=OnCpu())
    before = 5 if recorded else 1
    own.go(Engine(own.method), range(STEPS))
    other.go(engine, range(before))
    written, asked = other.method.step, []

    def step(*batch: Any) -> Any:
        asked.append(engine.passes.recorded)
        if len(asked) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return written(*batch)

    other.method.step = step  # type: ignore[assignment]
    if not recorded:
        with pytest.raises(torch.OutOfMemoryError):
            other.go(engine, range(before, STEPS))
        return
    with pytest.warns(NarlWarning, match="without CUDA graphs .there is not enough memory beside them"):
        other.go(engine, range(before, STEPS))
    assert asked == [True] + [False] * (STEPS - before)
    assert other.away_from(own) == 0


@pytest.mark.parametrize("kind", [*METHODS, "Mixup with dropout"])
def test_a_step_that_runs_out_of_memory_is_done_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last backward pass fails: statistics have moved by then, random numbers, and the adjuster in meta steps."""
    options: dict[str, Any] = {}
    if kind == "Mixup with dropout":
        kind = "Mixup"
        options["network"] = lambda: nn.Sequential(nn.Flatten(), nn.Linear(768, 8), nn.Dropout(0.5), nn.Linear(8, 4))
    own, other = training(kind, **options), training(kind, **options)
    engine = GraphedEngine(other.method, other.model, record=OnCpu())
    torch.manual_seed(4)
    own.go(Engine(own.method), range(STEPS))
    torch.manual_seed(4)
    other.go(engine, range(8))
    assert engine.passes.recorded
    backward, failed = torch.autograd.backward, list[bool]()

    def fail_once(*arguments: Any, **more: Any) -> None:
        if not failed:
            failed.append(True)
            raise torch.OutOfMemoryError("CUDA out of memory")
        backward(*arguments, **more)

    monkeypatch.setattr(torch.autograd, "backward", fail_once)
    with pytest.warns(NarlWarning, match="there is not enough memory beside them"):
        other.go(engine, range(8, STEPS))
    assert failed
    assert other.away_from(own) == 0
    assert_same(other.state, own.state)


def test_models_are_copied_pickled_and_saved_as_ever() -> None:
    one = training("ELR+")
    engine = GraphedEngine(one.method, one.model, record=OnCpu())
    one.go(engine, range(6))
    plain = training("ELR+")
    assert one.model.state_dict().keys() == plain.model.state_dict().keys()
    assert one.method.state_dict().keys() == plain.method.state_dict().keys()
    assert all("forward" not in vars(module) for module in one.model.modules())
    file = io.BytesIO()
    torch.save(one.model.state_dict(), file)
    for made in (copy.deepcopy(one.model), pickle.loads(pickle.dumps(one.model))):
        assert torch.equal(made.eval()(one.x), one.model.eval()(one.x))


def test_only_gpus_have_graphs() -> None:
    for kind, name in itertools.product(METHODS, ENGINES):
        one = training(kind)
        made = make(name, one.method, one.model, one.optimizer, None, rows=12, steps=STEPS)
        assert type(made) is Engine


@pytest.mark.parametrize("kind", METHODS)
def test_on_a_gpu_boosted_steps_are_graphs_and_of_others_the_passes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = training(kind)
    there = SimpleNamespace(device=torch.device("cuda"))
    monkeypatch.setattr(one.model, "parameters", lambda: iter([there]))
    found = {
        name: type(make(name, one.method, one.model, one.optimizer, None, rows=12, steps=STEPS)) for name in ENGINES
    }
    boosted = isinstance(one.method, PreparingMethod)
    assert found == {"auto": PreparedEngine if boosted else GraphedEngine, "eager": Engine}
    assert boosted == kind.startswith(("A-", "T-"))


def test_dropout_goes_on_as_if_nothing_had_been_recorded() -> None:
    def network() -> Any:
        return nn.Sequential(nn.Flatten(), nn.Linear(768, 8), nn.Dropout(0.5), nn.Linear(8, 4))

    own, other = (training("Mixup", network=network) for _ in range(2))
    torch.manual_seed(4)
    own.go(Engine(own.method), range(6))
    torch.manual_seed(4)
    other.go(GraphedEngine(other.method, other.model, record=OnCpu()), range(6))
    assert other.away_from(own) == 0
