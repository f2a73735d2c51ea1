"""Steps captured whole that are another method's on prepared rows; here they are run where a GPU would replay them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Hashable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engine_problem import Clean, Replayed, apart, replay_on_cpu
from graphed_problem import PREPARED, ROWS, SAMPLES, STEPS, OnCpu, Training, training
from narl.errors import NarlWarning, NonFiniteError
from narl.train.engine import Engine
from narl.train.engine.captured import CapturedEngine
from narl.train.engine.graphed import networks_of
from narl.train.engine.prepared import PreparedEngine
from narl.train.methods.base import PreparingMethod


def engine_of(one: Training, **more: Any) -> PreparedEngine:
    assert isinstance(one.method, PreparingMethod)
    clean = Clean([(one.x[:9], one.y[:9])])
    return PreparedEngine(one.method, one.model, one.optimizer, clean, rows=ROWS, record=OnCpu(), **more)


@pytest.mark.parametrize("kind", PREPARED)
@pytest.mark.parametrize("trusted", [0, SAMPLES // 3])
def test_twenty_steps_are_those_as_written(kind: str, trusted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    replay_on_cpu(monkeypatch)
    name, options = PREPARED[kind]
    own, other = (training(name, trusted=trusted, **options) for _ in range(2))
    engine = engine_of(other)
    own.go(Engine(own.method), range(STEPS))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NarlWarning)  # nothing falls back
        other.go(engine, range(STEPS))
    begins = other.method.begins  # type: ignore[attr-defined]
    assert engine.steps == STEPS - begins
    assert other.away_from(own) < 1e-4
    for ours, theirs in zip(other.reports, own.reports, strict=True):
        assert ours.hyperparameters.keys() == theirs.hyperparameters.keys()
        assert apart(ours.hyperparameters.values(), theirs.hyperparameters.values()) < 1e-3
        assert ours.rivals is not None
        assert theirs.rivals is not None
        assert torch.equal(ours.rivals, theirs.rivals)
        assert (ours.meta_loss is None) == (theirs.meta_loss is None)
    assert_alike(other.method.state_dict(), own.method.state_dict())


def assert_alike(one: Any, other: Any) -> None:
    """States, whose memories hold NaN for samples that have not come up."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list):
        assert len(one) == len(other)
        for ours, theirs in zip(one, other, strict=True):
            assert_alike(ours, theirs)
    elif isinstance(one, Tensor):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4, equal_nan=True)
    else:
        assert one == other


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Where the memory is that operations read and that was there before."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found, self._made, self._kept = set[int](), set[int](), list[Tensor]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note((args, kwargs), self.found, unless=self._made)
        result = function(*args, **(kwargs or {}))
        self._note(result, self._made, unless=self.found)
        return result

    def _note(self, values: Any, into: set[int], unless: set[int]) -> None:
        for value in tree_leaves(values):
            if isinstance(value, Tensor):
                self._kept.append(value)  # so that its place is not given to another one
                place = value.untyped_storage().data_ptr()
                if place and place not in unless:
                    into.add(place)


@pytest.mark.parametrize("kind", PREPARED)
def test_steps_read_where_the_first_of_their_phase_has(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph goes on with the memory it has seen: what is brought in tensors of its own it would never see."""
    replay_on_cpu(monkeypatch)
    replay, seen = Replayed.replay, dict[Hashable, list[set[int]]]()

    def watched(self: Replayed) -> None:
        with Reads() as reads:
            replay(self)
        seen.setdefault(self.move.phase, []).append(reads.found)

    monkeypatch.setattr(Replayed, "replay", watched)
    name, options = PREPARED[kind]
    one = training(name, trusted=SAMPLES // 3, **options)
    one.go(engine_of(one), range(STEPS))
    for first, *later in seen.values():
        assert later
        assert all(found <= first for found in later)


@pytest.mark.parametrize("where", ["at a check", "before a step as written"])
def test_a_replayed_step_that_was_not_finite_is_refused(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The average that guesses is finite still, so that nothing is noticed while rows are prepared."""
    replay_on_cpu(monkeypatch)
    one = training("A-GCE+")
    engine = engine_of(one)
    one.go(engine, range(3))
    with torch.no_grad():
        next(networks_of(one.model)[0].parameters()).fill_(torch.nan)
    monkeypatch.setattr(one.model, "follow", lambda *_: None)
    one.go(engine, range(3, 4))
    x, y, ids = one.batch(4)
    refused = engine.check if where == "at a check" else lambda: engine.step(tuple(v[:5] for v in x), y[:5], ids[:5])
    with pytest.raises(NonFiniteError, match="the training loss, the clean loss or a gradient is not finite"):
        refused()


def test_after_a_reset_steps_are_captured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the state may have been replaced, and graphs would go on with the old ones."""
    replay_on_cpu(monkeypatch)
    whole, halted, resumed = (training("A-GCE+") for _ in range(3))
    whole.go(Engine(whole.method), range(STEPS))
    halted.go(Engine(halted.method), range(9))
    engine = engine_of(resumed)
    resumed.go(engine, range(3))
    assert engine._written.passes.recorded
    with torch.no_grad():
        for weights in resumed.model.parameters():
            weights.data = weights.clone()
    parts: tuple[Any, ...] = (resumed.model, resumed.optimizer, resumed.method)
    for part, state in zip(parts, copy.deepcopy(halted.state), strict=True):
        part.load_state_dict(state)
    engine.reset()
    assert not engine._written.passes.recorded
    resumed.go(engine, range(9, STEPS))
    assert apart(resumed.model.state_dict().values(), whole.model.state_dict().values()) < 1e-4
    assert apart(resumed.losses[3:], whole.losses[9:]) < 1e-4


def test_smaller_batches_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    replay_on_cpu(monkeypatch)
    own, other = (training("A-GCE+") for _ in range(2))
    engine = engine_of(other)
    for one, by in ((own, Engine(own.method)), (other, engine)):
        for number in range(12):
            x, y, ids = one.batch(number)
            rows = slice(0, 7 if number % 3 == 2 else ROWS)
            one.done(by.step(tuple(view[rows] for view in x), y[rows], ids[rows]))
    assert engine.steps == 8
    assert other.away_from(own) < 1e-4


def test_only_guesses_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    replay_on_cpu(monkeypatch)
    one = training("A-GCE+")
    engine = engine_of(one)
    one.go(engine, range(10))
    member, average = networks_of(one.model)
    assert engine._written.passes.replays(average) > 5
    assert engine._written.passes.replays(member) == 0


@pytest.mark.parametrize(
    "options", [{"networks": 2}, {"judge": "own"}, {"doubt": "loss"}, {"consistency": 0.0, "judge": "own"}]
)
def test_what_cannot_be_fixed_runs_as_written(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    replay_on_cpu(monkeypatch)
    own, other = (training("A-GCE+", **options) for _ in range(2))
    engine = engine_of(other)
    own.go(Engine(own.method), range(8))
    other.go(engine, range(8))
    assert engine.steps == 0
    assert other.away_from(own) == 0


def test_what_no_graph_can_do_has_its_passes_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    replay_on_cpu(monkeypatch)
    one = training("A-GCE+", tangent="reverse")
    engine = engine_of(one)
    one.go(engine, range(STEPS))
    assert engine.steps == 0
    assert all(engine._written.passes.replays(network) > STEPS // 3 for network in networks_of(one.model))


def test_where_the_capture_fails_steps_run_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(CapturedEngine, "_capture", refuse)
    own, other = (training("A-GCE+") for _ in range(2))
    engine = engine_of(other)
    own.go(Engine(own.method), range(10))
    with pytest.warns(NarlWarning, match=r"with A-GCE\+ trains without CUDA graphs .no such kernel"):
        other.go(engine, range(10))
    assert engine.steps == 0
    assert other.away_from(own) < 1e-6


@pytest.mark.parametrize("part", ["preparing", "a smaller batch"])
def test_where_memory_does_not_suffice_beside_the_graph_it_is_given_up(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one step nothing else holds memory: guesses are recorded when they have come up three times."""
    replay_on_cpu(monkeypatch)
    own, other = (training("A-GCE+") for _ in range(2))
    engine, failed = engine_of(other), list[bool]()

    def fail_once(*arguments: Any, **more: Any) -> Any:
        found = prepared(*arguments, **more)
        if not failed:
            failed.append(True)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return found

    assert isinstance(other.method, PreparingMethod)
    prepared = other.method.prepared
    small = slice(0, 7 if part == "a smaller batch" else ROWS)
    for one, by in ((own, Engine(own.method)), (other, engine)):
        one.go(by, range(1))
        x, y, ids = one.batch(1)
        if by is engine:
            monkeypatch.setattr(other.method, "prepared", fail_once)
            assert not engine._written.passes.recorded
            with pytest.warns(
                NarlWarning, match=r"with A-GCE\+ trains without CUDA graphs .there is not enough memory"
            ):
                one.done(by.step(tuple(view[small] for view in x), y[small], ids[small]))
        else:
            one.done(by.step(tuple(view[small] for view in x), y[small], ids[small]))
        one.go(by, range(2, STEPS))
    assert failed
    assert engine.steps == 1
    assert other.away_from(own) < 1e-5
    assert_alike(other.method.state_dict(), own.method.state_dict())


def test_without_graphs_a_lack_of_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def lack(*arguments: object, **more: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    replay_on_cpu(monkeypatch)
    one = training("A-GCE+")
    monkeypatch.setattr(one.method, "prepared", lack)
    with pytest.raises(torch.OutOfMemoryError):
        engine_of(one).step(*one.batch(0))
