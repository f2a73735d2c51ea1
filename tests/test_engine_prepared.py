"""Steps captured whole that are another method's on prepared rows; here they are run where a GPU would replay them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from engine_problem import Clean, apart, replay_on_cpu
from graphed_problem import PREPARED, ROWS, SAMPLES, STEPS, OnCpu, Training, training
from narl.errors import NarlWarning
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


def test_what_no_graph_can_do_has_the_passes_that_auto_has(monkeypatch: pytest.MonkeyPatch) -> None:
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
